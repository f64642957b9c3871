"""Constraints on means of a per-sample quantity over subsets of the data."""

import math
import re
from abc import ABC
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.checks import finite, non_negative
from fcco_lightning.constraints.averages import OfQuantity
from fcco_lightning.constraints.base import Constraint, DifferenceAtMost, ValueAtMost
from fcco_lightning.constraints.subsets import Subset, Subsets
from fcco_lightning.data.conditions import Where, described
from fcco_lightning.errors import ConfigError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives import Quantity
from fcco_lightning.outer import AbsoluteDistance, OuterFunction, Shifted


def _named(quantity: Quantity, where: Where | None) -> str:
    """Name of a mean by what it is of: ``soft rate, race=Black``."""
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(quantity).__name__).lower()
    return f"{kind}, {described(where)}" if where else kind


class _OfSubsets(OfQuantity, ABC):
    """What constraints on means of a quantity over subsets share: row i is of the subsets i k, i k + 1, ... of k m.

    Args:
        quantity: q.
        wheres: the subsets.
        part: which loader's samples; None for the objective's.
    """

    def __init__(self, quantity: Quantity, wheres: Sequence[Subset], part: Any) -> None:
        self.quantity, self.part, self.range = quantity, part, quantity.range
        self._wheres, self._marked = list(wheres), Subsets(wheres)
        self.compare([range(i, i + self.width) for i in range(0, len(wheres), self.width)])

    def adapt(self, datamodule: Any) -> None:
        for where in self._wheres:
            where.adapt(datamodule)
        self._marked = Subsets(self._wheres)

    def check(self, outputs: Tensor, batch: Columns) -> None:
        for where in self._wheres:
            where.check(batch)
        super().check(outputs, batch)

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch measures a row if it holds a sample of each of its subsets, of which there must be some."""
        for where in self._wheres:
            where.of_split(columns)
        return super().subsets(columns)

    def members(self, batch: Columns) -> Tensor:
        return self._marked.masks(batch).unsqueeze(0)

    def alike(self) -> Hashable:
        """The quantity, and the part on which it is measured; None of subclasses, which may measure something else."""
        if type(self) not in (MeanAtMost, MeanNear, MeanDifferenceAtMost):
            return None
        return type(self), self.quantity if isinstance(self.quantity, Hashable) else id(self.quantity), self.part

    @classmethod
    def join(cls, members: Sequence[Any]) -> Constraint:
        return _Joint(members)


class MeanAtMost(_OfSubsets, ValueAtMost):
    r"""``h(w) = mean of q over the subset - kappa <= 0``.

    Caps a rate (``quantity: SoftRate, where: {y: 0}`` is the false positive rate) or a loss
    (``quantity: LogisticLoss, where: {group: 0}``).  A batch without a sample of the subset leaves the row untouched.

    Args:
        quantity: q.
        kappa: the cap.
        where: the subset, as column -> value, list of values or comparison, of any column of the table
            (``{race: Black, age: "<25"}``, see :class:`Subset`); all samples if empty.
        name: in logs and pictures; None for the quantity and the subset, such as "soft rate, race=Black".
        part: which loader's samples, where several contribute to a batch; None for the objective's.

    Raises:
        ConfigError: if no mean can be so small, such as a rate below 0.
    """

    def __init__(
        self,
        quantity: Quantity,
        kappa: float,
        where: Where | None = None,
        name: str | None = None,
        part: str | None = None,
    ) -> None:
        self.where, self.kappa, self.names = Subset(where), finite("kappa", kappa), [name or _named(quantity, where)]
        super().__init__(quantity, [self.where], part)
        self._require_reachable()

    @property
    def allowed(self) -> tuple[float, float]:
        """The interval in which the mean may lie."""
        return -math.inf, self.tolerance

    def asked(self, batch: Columns) -> tuple[float, float]:
        low, high = super().asked(batch)
        return (low, high) if self.where.where else (max(low, self.allowed[0]), min(high, self.allowed[1]))

    def _require_reachable(self) -> None:
        (low, high), least, most = self.allowed, self.range.least, self.range.most
        below, above = least is not None and high < least, most is not None and low > most
        if below or above:
            asked, bound = (f"at most {high:g}", f">= {least:g}") if below else (f"at least {low:g}", f"<= {most:g}")
            raise ConfigError(
                f"no model can reach the constraint {self.names[0]!r}: the mean of {self.quantity!r} is to be {asked}, "
                f"and it is always {bound}. Change kappa{'' if self.sides == 1 else ' or target'}."
            )


class MeanDifferenceAtMost(_OfSubsets, DifferenceAtMost):
    r"""``h(w) = |mean of q over subset a - mean of q over subset b| - kappa <= 0``.

    Equal opportunity is ``quantity: SoftRate, where_a: {y: 1, group: 1}, where_b: {y: 1, group: 0}``.  A batch without
    a sample of either subset leaves the row untouched.  Where one subset lies in the other and has few samples in a
    batch, the estimate is biased as that of ``against: whole`` is, see :class:`GroupComparisons`: compare it with the
    rest.

    Args:
        kappa: tolerance, >= 0.
        where_a: first subset, as column -> value, list of values or comparison (see :class:`Subset`).
        where_b: second subset.
        name: in logs and pictures; None for the quantity and the subsets, "soft rate, group=1 against group=0".
        quantity, part: as of :class:`MeanAtMost`.
    """

    def __init__(
        self,
        quantity: Quantity,
        kappa: float,
        where_a: Where,
        where_b: Where,
        name: str | None = None,
        part: str | None = None,
    ) -> None:
        if where_a == where_b:
            raise ConfigError(f"where_a and where_b are the same subset {where_a!r}: the difference is always 0.")
        self.where_a, self.where_b = Subset(where_a, "where_a"), Subset(where_b, "where_b")
        self.kappa = non_negative("kappa", kappa)
        self.names = [name or f"{_named(quantity, where_a)} against {described(where_b)}"]
        super().__init__(quantity, [self.where_a, self.where_b], part)


class MeanNear(MeanAtMost):
    r"""``h(w) = |mean of q over the subset - target| - kappa <= 0``: an equality, up to a tolerance.

    A batch without a sample of the subset leaves the row untouched.

    Args:
        target: what the mean is to be.
        kappa: tolerance, >= 0.
        quantity, where, name, part: as of :class:`MeanAtMost`.

    Raises:
        ConfigError: if no mean can be so near to the target, such as a rate to 2.
    """

    sides = 2

    def __init__(
        self,
        quantity: Quantity,
        target: float,
        kappa: float = 0.01,
        where: Where | None = None,
        name: str | None = None,
        part: str | None = None,
    ) -> None:
        self.target = finite("target", target)
        super().__init__(quantity, non_negative("kappa", kappa), where, name, part)

    @property
    def allowed(self) -> tuple[float, float]:
        return self.target - self.tolerance, self.target + self.tolerance

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return AbsoluteDistance(phi, self.target)

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return Shifted(phi, torch.tensor(self.target, dtype=torch.float64))


class _Joint(_OfSubsets):
    r"""Several constraints of one kind on means of one quantity over subsets, each with a kappa of its own.

    The penalty is given for kappa 0, and moved by the rows' own kappas, which margins may change.

    Args:
        members: of one class, with one quantity and part.
    """

    kappa = 0.0
    together = 1

    def __init__(self, members: Sequence[MeanAtMost] | Sequence[MeanDifferenceAtMost]) -> None:
        first = members[0]
        self._joined, self.width, self.sides = list(members), first.width, first.sides
        self.names = [name for member in members for name in member.names]
        super().__init__(first.quantity, [where for member in members for where in member._wheres], first.part)
        targets = [member.target for member in members if isinstance(member, MeanNear)]
        self._targets = _of_rows(targets) if targets else None
        self._followed, self._kappas = list[float](), torch.empty(0)

    @property
    def limit(self) -> Tensor:
        kappas = [member.kappa for member in self._joined]
        if kappas != self._followed:
            self._followed, self._kappas = kappas, _of_rows(kappas)
        return self._kappas

    def outer(self, phi: OuterFunction) -> OuterFunction:
        phi = Shifted(phi, self.limit)
        return self.signed(phi if self.sides == 1 else AbsoluteDistance(phi))

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return self._joined[0].signed(phi) if self._targets is None else Shifted(phi, self._targets)

    def violation(self, values: Tensor) -> Tensor:
        return super().violation(values) - values.new_tensor([member.tolerance for member in self._joined])


def _of_rows(numbers: Sequence[float]) -> Tensor:
    """Known numbers of the rows, shape (m, 1); without dimensions where all are equal, so that nothing is looked up."""
    alike = len(set(numbers)) == 1
    return torch.tensor(numbers[0] if alike else [[number] for number in numbers], dtype=torch.float64)

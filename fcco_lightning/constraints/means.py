"""Constraints on means of a per-sample quantity over subsets of the data."""

import math
import re
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.checks import finite, non_negative
from fcco_lightning.constraints.base import Constraint
from fcco_lightning.constraints.compared import AtMost, Comparison, Difference, Near
from fcco_lightning.constraints.measured import MeanOf
from fcco_lightning.constraints.over_sides import OverSides
from fcco_lightning.constraints.sides import SidesOfSubsets
from fcco_lightning.constraints.subsets import Subset
from fcco_lightning.data.conditions import Where, described
from fcco_lightning.errors import ConfigError
from fcco_lightning.objectives import Quantity
from fcco_lightning.outer import OuterFunction, Shifted


def _named(quantity: Quantity, where: Where | None) -> str:
    """Name of a mean by quantity and subset: ``soft rate, race=Black``."""
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(quantity).__name__).lower()
    return f"{kind}, {described(where)}" if where else kind


class _OfSubsets(OverSides):
    """Base class of constraints on means of a quantity over subsets.

    Args:
        quantity: q.
        wheres: the subsets.
        comparison: how means are compared.
        kappa: tolerance.
        names: names of the rows.
        part: part of the batch; None for the objective's.
    """

    over: SidesOfSubsets

    def __init__(
        self,
        quantity: Quantity,
        wheres: Sequence[Subset],
        comparison: Comparison,
        kappa: float,
        names: Sequence[str],
        part: str | tuple[str, ...] | None,
    ) -> None:
        self.mean = MeanOf(quantity)
        super().__init__(self.mean, SidesOfSubsets(wheres, names), comparison, kappa, part)
        if len(wheres) == 1:
            self._require_reachable()

    @property
    def allowed(self) -> tuple[float, float]:
        """The interval that the constraint allows for a single mean."""
        if isinstance(self.comparison, Near):
            return self.comparison.target - self.tolerance, self.comparison.target + self.tolerance
        return -math.inf, self.tolerance

    def positive_share(self) -> tuple[float, float]:
        (where, *others), (low, high) = self.over.wheres, self.allowed
        return (0.0, 1.0) if others or where.where else (max(0.0, low), min(1.0, high))

    def _require_reachable(self) -> None:
        (low, high), least, most = self.allowed, self.range.least, self.range.most
        below, above = least is not None and high < least, most is not None and low > most
        if below or above:
            required, bound = (f"at most {high:g}", f">= {least:g}") if below else (f"at least {low:g}", f"<= {most:g}")
            raise ConfigError(
                f"no model can reach the constraint {self.names[0]!r}: the mean of {self.mean.quantity!r} is to be "
                f"{required}, and it is always {bound}. Change kappa{'' if self.sides == 1 else ' or target'}."
            )

    def alike(self) -> Hashable:
        """The class, the quantity and the part; None for subclasses, which may measure something else."""
        if type(self) not in (MeanAtMost, MeanNear, MeanDifferenceAtMost):
            return None
        quantity = self.mean.quantity
        return type(self), quantity if isinstance(quantity, Hashable) else id(quantity), self.part

    @classmethod
    def join(cls, members: Sequence[Any]) -> Constraint:
        return _Joint(members)


class MeanAtMost(_OfSubsets):
    r"""``h(w) = mean of q over the subset - kappa <= 0``.

    Caps a rate (``quantity: SoftRate, where: {y: 0}`` is the false positive rate) or a loss
    (``quantity: LogisticLoss, where: {group: 0}``).  A batch without a sample of the subset leaves the row unchanged.

    Args:
        quantity: q.
        kappa: the cap.
        where: the subset, as column -> value, list of values or comparison, of any column of the table
            (``{race: Black, age: "<25"}``, see :class:`Subset`); all samples if empty.
        name: name in logs and pictures; None for the quantity and the subset, such as "soft rate, race=Black".
        part: part of the batch, if there are several loaders; None for the objective's.

    Raises:
        ConfigError: if no mean can be as small as kappa, such as a rate below 0.
    """

    def __init__(
        self,
        quantity: Quantity,
        kappa: float,
        where: Where | None = None,
        name: str | None = None,
        part: str | None = None,
    ) -> None:
        self.where = Subset(where)
        names = [name or _named(quantity, where)]
        super().__init__(quantity, [self.where], AtMost(), finite("kappa", kappa), names, part)


class MeanDifferenceAtMost(_OfSubsets):
    r"""``h(w) = |mean of q over subset a - mean of q over subset b| - kappa <= 0``.

    Equal opportunity is ``quantity: SoftRate, where_a: {y: 1, group: 1}, where_b: {y: 1, group: 0}``.  A batch that
    lacks samples of one of the subsets leaves the row unchanged.  If one subset contains the other, and batches hold
    few samples of the smaller one, the estimate is biased as with ``against: whole``, see :class:`SidesOfGroups`:
    compare the smaller subset with the rest instead.

    Args:
        kappa: tolerance, >= 0.
        where_a: first subset, as column -> value, list of values or comparison (see :class:`Subset`).
        where_b: second subset.
        name: name in logs and pictures; None for the quantity and the subsets, "soft rate, group=1 against group=0".
        quantity, part: as in :class:`MeanAtMost`.
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
        names = [name or f"{_named(quantity, where_a)} against {described(where_b)}"]
        kappa, both = non_negative("kappa", kappa), [self.where_a, self.where_b]
        super().__init__(quantity, both, Difference(), kappa, names, part)


class MeanNear(_OfSubsets):
    r"""``h(w) = |mean of q over the subset - target| - kappa <= 0``: an equality up to a tolerance.

    A batch without a sample of the subset leaves the row unchanged.

    Args:
        target: required value of the mean.
        kappa: tolerance, >= 0.
        where: the subset, as in :class:`MeanAtMost`; all samples if empty.
        name: name in logs and pictures; None for the quantity and the subset.
        quantity, part: as in :class:`MeanAtMost`.

    Raises:
        ConfigError: if no mean can be that close to the target, such as a rate to 2.
    """

    def __init__(
        self,
        quantity: Quantity,
        target: float,
        kappa: float = 0.01,
        where: Where | None = None,
        name: str | None = None,
        part: str | None = None,
    ) -> None:
        self.where = Subset(where)
        names, kappa = [name or _named(quantity, where)], non_negative("kappa", kappa)
        super().__init__(quantity, [self.where], Near(finite("target", target)), kappa, names, part)


class _Joint(_OfSubsets):
    r"""Several constraints of the same class on means of the same quantity over subsets, each with its own kappa.

    The outer function is made for kappa = 0 and shifted by the kappas of the rows, which margins may change.

    Args:
        members: the constraints, of the same class, quantity and part.
    """

    together = 1

    def __init__(self, members: Sequence[MeanAtMost] | Sequence[MeanNear] | Sequence[MeanDifferenceAtMost]) -> None:
        first, self._joined = members[0], list(members)
        wheres = [where for member in members for where in member.over.wheres]
        names = [name for member in members for name in member.names]
        super().__init__(first.mean.quantity, wheres, first.comparison, 0.0, names, first.part)
        targets = [member.comparison.target for member in members if isinstance(member.comparison, Near)]
        self._targets = _of_rows(targets) if targets else None
        self._followed, self._kappas = list[float](), torch.empty(0)

    @property
    def limit(self) -> Tensor:
        kappas = [member.kappa for member in self._joined]
        if kappas != self._followed:
            self._followed, self._kappas = kappas, _of_rows(kappas)
        return self._kappas

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return super().outer(Shifted(phi, self.limit))

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return super().signed(phi) if self._targets is None else Shifted(phi, self._targets)

    def violation(self, values: Tensor) -> Tensor:
        return super().violation(values) - values.new_tensor([member.tolerance for member in self._joined])


def _of_rows(numbers: Sequence[float]) -> Tensor:
    """Numbers of the rows as a tensor of shape (m, 1), or as a scalar tensor if all are equal."""
    alike = len(set(numbers)) == 1
    return torch.tensor(numbers[0] if alike else [[number] for number in numbers], dtype=torch.float64)

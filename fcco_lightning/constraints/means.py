"""Constraints on means of a per-sample quantity over subsets of the data."""

import math
import re
from abc import abstractmethod
from collections.abc import Hashable, Sequence
from copy import copy
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from fcco_lightning.checks import finite, non_negative
from fcco_lightning.conditions import Where, described
from fcco_lightning.constraints.base import Constraint, DifferenceAtMost
from fcco_lightning.constraints.subsets import Subset, Subsets
from fcco_lightning.constraints.vacuity import constant_decision
from fcco_lightning.errors import ConfigError
from fcco_lightning.hosted import on_host
from fcco_lightning.numerics import send
from fcco_lightning.objectives import Quantity
from fcco_lightning.outer import AbsoluteDifference, AbsoluteDistance, OuterFunction, Shifted
from fcco_lightning.outer.base import known_rows
from fcco_lightning.records import Arrangement, Columns, Usual


class _Mean(NamedTuple):
    """A mean over some samples of a batch.

    Attributes:
        positions: of the samples, shape (a,); None for all, with a share of 0 for those that do not count.
        shares: what each counts, shape (a,), of sum 1; None where all count alike.
    """

    positions: Tensor | None
    shares: Tensor | None

    def of(self, q: Tensor) -> Tensor:
        """The mean of q, (B,), a scalar."""
        values = q if self.positions is None else q.index_select(0, self.positions)
        return values.mean() if self.shares is None else self.shares @ values


def _mean(chosen: Tensor, batch: Columns, like: Tensor) -> _Mean | None:
    """The mean over the chosen samples of a batch, weighted where they are not drawn uniformly; None without any.

    Mask and batch are on the host.
    """
    positions, weight = chosen.nonzero().squeeze(1), batch.get("weight")
    if not len(positions):
        return None
    shares = None
    if weight is not None:
        weight = weight.index_select(0, positions).to(like.dtype)
        shares = send(weight / weight.sum(), like)
    return _Mean(send(positions, like), shares)


def _one_row(means: Sequence[_Mean | None], columns: Columns) -> Arrangement:
    """The only row of a constraint on some means, if the batch speaks of all of them."""
    index = torch.zeros(int(None not in means), dtype=torch.int64)
    return Arrangement(index, (columns, means if len(index) else None))


def _usual_row(chosen: Sequence[Tensor], columns: Columns, like: Tensor) -> Usual:
    """The only row of a constraint on means over the chosen samples (B,), if each of these sets has some."""
    members = torch.stack(list(chosen)).to(like.dtype)
    members = members * columns["weight"].to(like.dtype) if "weight" in columns else members
    totals = members.sum(1, keepdim=True)
    return Usual((columns, [_Mean(None, shares) for shares in members / totals]), (totals > 0).all())


def _of_one_row(quantity: Quantity, outputs: Tensor, given: Any, width: int) -> Tensor:
    """The means of a quantity, shape (1, k), or (0, k) where the batch does not speak of them."""
    columns, means = given
    q = quantity(outputs, columns)
    return q.new_empty(0, width) if means is None else torch.stack([mean.of(q) for mean in means]).unsqueeze(0)


def _named(quantity: Quantity, where: Where | None) -> str:
    """Name of a mean by what it is of: ``soft rate, race=Black``."""
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(quantity).__name__).lower()
    return f"{kind}, {described(where)}" if where else kind


def _same_quantity(constraint: Constraint, quantity: Quantity) -> tuple[Hashable, ...]:
    """What constraints on a quantity must have equal so that it is computed once for all of them."""
    return type(constraint), quantity if isinstance(quantity, Hashable) else id(quantity), constraint.part


def _constant(quantity: Quantity, outputs: Tensor, batch: Columns) -> str | None:
    return constant_decision(quantity(outputs, batch)) if quantity.range == (0.0, 1.0) else None


class MeanAtMost(Constraint):
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

    width = 1

    def __init__(
        self,
        quantity: Quantity,
        kappa: float,
        where: Where | None = None,
        name: str | None = None,
        part: str | None = None,
    ) -> None:
        self.quantity, self.where, self.kappa = quantity, Subset(where), finite("kappa", kappa)
        self.names, self.part, self.range = [name or _named(quantity, where)], part, quantity.range
        self._require_reachable()

    @property
    def allowed(self) -> tuple[float, float]:
        """The interval in which the mean may lie."""
        return -math.inf, self.tolerance

    def _require_reachable(self) -> None:
        (low, high), least, most = self.allowed, self.range.least, self.range.most
        below, above = least is not None and high < least, most is not None and low > most
        if below or above:
            asked, bound = (f"at most {high:g}", f">= {least:g}") if below else (f"at least {low:g}", f"<= {most:g}")
            raise ConfigError(
                f"no model can reach the constraint {self.names[0]!r}: the mean of {self.quantity!r} is to be {asked}, "
                f"and it is always {bound}. Change kappa{'' if self.sides == 1 else ' or target'}."
            )

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch speaks of the mean if it holds a sample of the subset."""
        return [[self.where.of_split(columns)]]

    def alike(self) -> Hashable:
        """The quantity, and the part on which it is measured; None of subclasses, which may measure something else."""
        return _same_quantity(self, self.quantity) if type(self) in (MeanAtMost, MeanNear) else None

    @classmethod
    def join(cls, members: Sequence["MeanAtMost"]) -> Constraint:
        return _JointMeansAtMost(members)

    def adapt(self, datamodule: Any) -> None:
        self.where.adapt(datamodule)

    def check(self, outputs: Tensor, batch: Columns) -> None:
        self.where.check(batch)
        self.quantity.check(outputs, batch)

    def vacuous(self, outputs: Tensor, batch: Columns) -> str | None:
        """All decisions are equal, or too soft to tell, where q is a smoothed decision."""
        return _constant(self.quantity, outputs, batch)

    def arrange(self, batch: Columns, like: Tensor) -> Arrangement:
        host = on_host(batch)
        return _one_row([_mean(self.where.mask(host), host, like)], batch)

    def arrange_usual(self, batch: Columns, like: Tensor) -> Usual:
        return _usual_row([self.where.mask(batch)], batch, like)

    def values(self, outputs: Tensor, given: Any) -> Tensor:
        return _of_one_row(self.quantity, outputs, given, self.width)

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return phi

    def violation(self, values: Tensor) -> Tensor:
        return values[:, 0] - self.tolerance


class MeanDifferenceAtMost(DifferenceAtMost):
    r"""``h(w) = |mean of q over subset a - mean of q over subset b| - kappa <= 0``.

    Equal opportunity is ``quantity: SoftRate, where_a: {y: 1, group: 1}, where_b: {y: 1, group: 0}``.  A batch without
    a sample of either subset leaves the row untouched.

    Args:
        quantity: q.
        kappa: tolerance, >= 0.
        where_a: first subset, as column -> value, list of values or comparison (see :class:`Subset`).
        where_b: second subset.
        name: in logs and pictures; None for the quantity and the subsets, "soft rate, group=1 against group=0".
        part: which loader's samples, where several contribute to a batch; None for the objective's.
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
        self.quantity = quantity
        self.where_a, self.where_b = Subset(where_a, "where_a"), Subset(where_b, "where_b")
        self.kappa = non_negative("kappa", kappa)
        self.names = [name or f"{_named(quantity, where_a)} against {described(where_b)}"]
        self.part, self.range = part, quantity.range

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch speaks of the difference if it holds a sample of both subsets."""
        return [[self.where_a.of_split(columns), self.where_b.of_split(columns)]]

    def alike(self) -> Hashable:
        """The quantity, and the part on which it is measured; None of subclasses, which may measure something else."""
        return _same_quantity(self, self.quantity) if type(self) is MeanDifferenceAtMost else None

    @classmethod
    def join(cls, members: Sequence["MeanDifferenceAtMost"]) -> Constraint:
        return _JointMeanDifferences(members)

    def adapt(self, datamodule: Any) -> None:
        for where in (self.where_a, self.where_b):
            where.adapt(datamodule)

    def check(self, outputs: Tensor, batch: Columns) -> None:
        for where in (self.where_a, self.where_b):
            where.check(batch)
        self.quantity.check(outputs, batch)

    def vacuous(self, outputs: Tensor, batch: Columns) -> str | None:
        """All decisions are equal, or too soft to tell, where q is a smoothed decision."""
        return _constant(self.quantity, outputs, batch)

    def arrange(self, batch: Columns, like: Tensor) -> Arrangement:
        host = on_host(batch)
        return _one_row([_mean(where.mask(host), host, like) for where in (self.where_a, self.where_b)], batch)

    def arrange_usual(self, batch: Columns, like: Tensor) -> Usual:
        return _usual_row([where.mask(batch) for where in (self.where_a, self.where_b)], batch, like)

    def values(self, outputs: Tensor, given: Any) -> Tensor:
        return _of_one_row(self.quantity, outputs, given, self.width)


class MeanNear(MeanAtMost):
    r"""``h(w) = |mean of q over the subset - target| - kappa <= 0``: an equality, up to a tolerance.

    A batch without a sample of the subset leaves the row untouched.

    Args:
        quantity: q.
        target: what the mean is to be.
        kappa: tolerance, >= 0.
        where: the subset, as column -> value, list of values or comparison (see :class:`Subset`); all samples if empty.
        name: in logs and pictures; None for the quantity and the subset.
        part: which loader's samples, where several contribute to a batch; None for the objective's.

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

    @classmethod
    def join(cls, members: Sequence["MeanNear"]) -> Constraint:  # type: ignore[override]
        return _JointMeansNear(members)

    @property
    def allowed(self) -> tuple[float, float]:
        return self.target - self.tolerance, self.target + self.tolerance

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return AbsoluteDistance(phi, self.target)

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return Shifted(phi, torch.tensor(self.target, dtype=torch.float64))

    def violation(self, values: Tensor) -> Tensor:
        return (values[:, 0] - self.target).abs() - self.tolerance


class _Joint(Constraint):
    r"""Several constraints of one kind on means of one quantity over subsets, each with a kappa of its own.

    All means of a batch are one product of matrices.  The penalty is given for kappa 0, and moved by the rows' own
    kappas, which margins may change.

    Args:
        members: with one quantity and part.
        wheres: the subsets whose means are measured.
    """

    kappa = 0.0
    together = 1

    def __init__(self, members: Sequence[MeanAtMost | MeanDifferenceAtMost], wheres: Sequence[Subset]) -> None:
        first = members[0]
        self.members, self.quantity = list(members), first.quantity
        self.part, self.range = first.part, first.range
        self.names = [name for member in members for name in member.names]
        self._subsets = Subsets(wheres)
        self._followed, self._kappas = list[float](), torch.empty(0)
        self._follow()

    @property
    def limit(self) -> Tensor:
        self._follow()
        return self._kappas

    def take(self, rows: Tensor) -> Self:
        self._follow()
        taken = copy(self)
        taken._kappas = known_rows(self._kappas, rows)
        return taken

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        return [subsets for member in self.members for subsets in member.subsets(columns)]

    def check(self, outputs: Tensor, batch: Columns) -> None:
        for member in self.members:
            member.check(outputs, batch)

    def arrange(self, batch: Columns, like: Tensor) -> Arrangement:
        member, total = self._members(on_host(batch), like)
        known = total > 0 if self.width == 1 else (total > 0).view(self.width, -1).all(0)
        index = known.nonzero().squeeze(1)
        chosen = None if len(index) == len(known) else send(index, like)
        return Arrangement(index, (batch, send(member, like), send(torch.where(total > 0, total, 1.0), like), chosen))

    def arrange_usual(self, batch: Columns, like: Tensor) -> Usual:
        """The same for a batch with samples of all subsets."""
        member, total = self._members(batch, like)
        return Usual((batch, member, total, None), (total > 0).all())

    def _members(self, batch: Columns, like: Tensor) -> tuple[Tensor, Tensor]:
        """What every sample counts in each subset, (m, B), and the sums of that, (m,); where the batch is."""
        member = self._subsets.masks(batch).to(like.dtype)
        member = member * batch["weight"].to(like.dtype) if "weight" in batch else member
        return member, member.sum(1)

    def values(self, outputs: Tensor, given: Any) -> Tensor:
        """The means of q over the subsets, as one product of matrices, shape (b, k)."""
        columns, member, total, chosen = given
        means: Tensor = (member @ self.quantity(outputs, columns)) / total
        means = means.unsqueeze(1) if self.width == 1 else means.view(self.width, -1).T
        return means if chosen is None else means.index_select(0, chosen)

    def outer(self, phi: OuterFunction) -> OuterFunction:
        self._follow()
        return self._of_distance(Shifted(phi, self._kappas))

    def violation(self, values: Tensor) -> Tensor:
        s = self.number(values).value(values)
        return (s if self.sides == 1 else s.abs()) - values.new_tensor([member.tolerance for member in self.members])

    @abstractmethod
    def _of_distance(self, phi: OuterFunction) -> OuterFunction:
        """The function ``phi(h + kappa)`` of the inner values."""

    def _follow(self) -> None:
        kappas = [member.kappa for member in self.members]
        if kappas != self._followed:
            self._followed, self._kappas = kappas, _of_rows(kappas)


class _JointMeansAtMost(_Joint):
    """Several constraints ``mean of q over a subset <= kappa_i``."""

    width = 1

    def __init__(self, members: Sequence[MeanAtMost]) -> None:
        super().__init__(members, [member.where for member in members])

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return phi

    def _of_distance(self, phi: OuterFunction) -> OuterFunction:
        return phi


class _JointMeansNear(_Joint):
    """Several constraints ``|mean of q over a subset - target_i| <= kappa_i``."""

    width = 1
    sides = 2

    def __init__(self, members: Sequence["MeanNear"]) -> None:
        super().__init__(members, [member.where for member in members])
        self._targets = _of_rows([member.target for member in members])

    def take(self, rows: Tensor) -> Self:
        taken = super().take(rows)
        taken._targets = known_rows(self._targets, rows)
        return taken

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return Shifted(phi, self._targets)

    def _of_distance(self, phi: OuterFunction) -> OuterFunction:
        return Shifted(AbsoluteDistance(phi), self._targets)


class _JointMeanDifferences(_Joint, DifferenceAtMost):
    """Several constraints ``|mean of q over subset a - mean of q over subset b| <= kappa_i``."""

    def __init__(self, members: Sequence[MeanDifferenceAtMost]) -> None:
        super().__init__(members, [m.where_a for m in members] + [m.where_b for m in members])

    def _of_distance(self, phi: OuterFunction) -> OuterFunction:
        return AbsoluteDifference(phi)


def _of_rows(numbers: Sequence[float]) -> Tensor:
    """Known numbers of the rows, shape (m, 1); without dimensions where all are equal, so that nothing is looked up."""
    alike = len(set(numbers)) == 1
    return torch.tensor(numbers[0] if alike else [[number] for number in numbers], dtype=torch.float64)

"""Constraints on means of a per-sample quantity over subsets of the data."""

from collections.abc import Hashable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.checks import finite, non_negative
from fcco_lightning.conditions import Where
from fcco_lightning.constraints.base import Constraint, DifferenceAtMost
from fcco_lightning.constraints.subsets import Subset, Subsets
from fcco_lightning.errors import ConfigError
from fcco_lightning.objectives import Quantity
from fcco_lightning.outer import AbsoluteDistance, OuterFunction, Shifted
from fcco_lightning.records import Columns, Inner


def _empty(like: Tensor, width: int) -> Inner:
    return Inner(torch.empty(0, dtype=torch.int64, device=like.device), like.new_empty(0, width))


def _mean(q: Tensor, chosen: Tensor, batch: Columns) -> Tensor | None:
    """Mean of q over the chosen samples of a batch, weighted where they are not drawn uniformly; None without any."""
    values = q[chosen]
    if values.numel() == 0:
        return None
    weight = batch.get("weight")
    if weight is None:
        return values.mean()
    weight = weight[chosen].to(q.dtype)
    return (weight * values).sum() / weight.sum()


class MeanAtMost(Constraint):
    r"""``h(w) = mean of q over the subset - kappa <= 0``.

    Caps a rate (``quantity: SoftRate, where: {y: 0}`` is the false positive rate) or a loss
    (``quantity: LogisticLoss, where: {group: 0}``).  A batch without a sample of the subset leaves the row untouched.

    Args:
        quantity: q.
        kappa: the cap.
        where: the subset, as column -> value, list of values or comparison, of any column of the table
            (``{race: Black, age: "<25"}``, see :class:`Subset`); all samples if empty.
        name: in logs and pictures.
        part: which loader's samples, where several contribute to a batch; None for the objective's.
    """

    width = 1

    def __init__(
        self,
        quantity: Quantity,
        kappa: float,
        where: Where | None = None,
        name: str = "mean",
        part: str | None = None,
    ) -> None:
        self.quantity, self.where, self.kappa = quantity, Subset(where), finite("kappa", kappa)
        self.names, self.part, self.range = [name], part, quantity.range

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch speaks of the mean if it holds a sample of the subset."""
        return [[self.where.of_split(columns)]]

    def alike(self) -> Hashable:
        """The quantity, and the part on which it is measured."""
        return _kind(self)

    @classmethod
    def join(cls, members: Sequence["MeanAtMost"]) -> Constraint:
        return _JointMeans(members, [[m.where for m in members]], "kappa")

    def adapt(self, datamodule: Any) -> None:
        self.where.adapt(datamodule)

    def check(self, outputs: Tensor, batch: Columns) -> None:
        self.where.check(batch)
        self.quantity.check(outputs, batch)

    def inner(self, outputs: Tensor, batch: Columns) -> Inner:
        q, chosen = self.quantity(outputs, batch), self.where.mask(batch)
        mean = _mean(q, chosen, batch)
        if mean is None:
            return _empty(q, 1)
        return Inner(torch.zeros(1, dtype=torch.int64, device=q.device), mean.reshape(1, 1))

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return phi

    def violation(self, values: Tensor) -> Tensor:
        return values[:, 0] - self.kappa


class MeanDifferenceAtMost(DifferenceAtMost):
    r"""``h(w) = |mean of q over subset a - mean of q over subset b| - kappa <= 0``.

    Equal opportunity is ``quantity: SoftRate, where_a: {y: 1, group: 1}, where_b: {y: 1, group: 0}``.  A batch without
    a sample of either subset leaves the row untouched.

    Args:
        quantity: q.
        kappa: tolerance, >= 0.
        where_a: first subset, as column -> value, list of values or comparison (see :class:`Subset`).
        where_b: second subset.
        name: in logs and pictures.
        part: which loader's samples, where several contribute to a batch; None for the objective's.
    """

    def __init__(
        self,
        quantity: Quantity,
        kappa: float,
        where_a: Where,
        where_b: Where,
        name: str = "difference",
        part: str | None = None,
    ) -> None:
        if where_a == where_b:
            raise ConfigError(f"where_a and where_b are the same subset {where_a!r}: the difference is always 0.")
        self.quantity = quantity
        self.where_a, self.where_b = Subset(where_a, "where_a"), Subset(where_b, "where_b")
        self.kappa = non_negative("kappa", kappa)
        self.names, self.part, self.range = [name], part, quantity.range

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch speaks of the difference if it holds a sample of both subsets."""
        return [[self.where_a.of_split(columns), self.where_b.of_split(columns)]]

    def alike(self) -> Hashable:
        """The quantity, the tolerance, and the part on which it is measured."""
        return _kind(self, self.kappa)

    @classmethod
    def join(cls, members: Sequence["MeanDifferenceAtMost"]) -> Constraint:
        return _JointMeans(members, [[m.where_a for m in members], [m.where_b for m in members]])

    def adapt(self, datamodule: Any) -> None:
        for where in (self.where_a, self.where_b):
            where.adapt(datamodule)

    def check(self, outputs: Tensor, batch: Columns) -> None:
        for where in (self.where_a, self.where_b):
            where.check(batch)
        self.quantity.check(outputs, batch)

    def inner(self, outputs: Tensor, batch: Columns) -> Inner:
        q = self.quantity(outputs, batch)
        a, b = (_mean(q, where.mask(batch), batch) for where in (self.where_a, self.where_b))
        if a is None or b is None:
            return _empty(q, 2)
        return Inner(torch.zeros(1, dtype=torch.int64, device=q.device), torch.stack([a, b]).unsqueeze(0))


class MeanNear(MeanAtMost):
    r"""``h(w) = |mean of q over the subset - target| - kappa <= 0``: an equality, up to a tolerance.

    A batch without a sample of the subset leaves the row untouched.

    Args:
        quantity: q.
        target: what the mean is to be.
        kappa: tolerance, >= 0.
        where: the subset, as column -> value, list of values or comparison (see :class:`Subset`); all samples if empty.
        name: in logs and pictures.
        part: which loader's samples, where several contribute to a batch; None for the objective's.
    """

    sides = 2

    def __init__(
        self,
        quantity: Quantity,
        target: float,
        kappa: float = 0.01,
        where: Where | None = None,
        name: str = "mean",
        part: str | None = None,
    ) -> None:
        super().__init__(quantity, non_negative("kappa", kappa), where, name, part)
        self.target = finite("target", target)

    def alike(self) -> Hashable:
        """The quantity, the tolerance, and the part on which it is measured."""
        return _kind(self, self.kappa)

    @classmethod
    def join(cls, members: Sequence["MeanNear"]) -> Constraint:  # type: ignore[override]
        return _JointMeans(members, [[m.where for m in members]], "target")

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return AbsoluteDistance(phi, self.target)

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return Shifted(phi, torch.tensor(self.target, dtype=torch.float64))

    def violation(self, values: Tensor) -> Tensor:
        return (values[:, 0] - self.target).abs() - self.kappa


class _JointMeans(Constraint):
    r"""Several constraints on means of one quantity: all means of a batch are one product of matrices.

    Args:
        members: of one class; their functions h differ by a number at most.
        wheres: the subsets of the members, one list for each of the means of a row.
        moved: the members' numbers by which the inner value of h is moved, as "kappa" or "target"; None if there are
            none.  They are read here, once.
    """

    def __init__(
        self,
        members: Sequence[MeanAtMost | MeanDifferenceAtMost],
        wheres: Sequence[Sequence[Subset]],
        moved: str | None = None,
    ) -> None:
        first = members[0]
        self.members, self._moved = list(members), moved
        self.quantity, self.part, self.range = first.quantity, first.part, first.range
        self.width, self.sides = first.width, first.sides  # type: ignore[misc]
        self.names = [name for member in members for name in member.names]
        self._subsets = [Subsets(of_mean) for of_mean in wheres]
        self.kappa = first.kappa if moved != "kappa" else 0.0
        numbers = [] if moved is None else [[getattr(member, moved)] for member in members]
        self._shift = torch.tensor(numbers, dtype=torch.float64)

    def take(self, rows: Tensor) -> Constraint:
        if self._moved is None:
            return self
        taken = copy(self)
        taken._shift = self._shift.to(rows.device)[rows]
        return taken

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        return [subsets for member in self.members for subsets in member.subsets(columns)]

    def check(self, outputs: Tensor, batch: Columns) -> None:
        for member in self.members:
            member.check(outputs, batch)

    def inner(self, outputs: Tensor, batch: Columns) -> Inner:
        q, weight = self.quantity(outputs, batch), batch.get("weight")
        means, known = [], torch.ones(len(self.members), dtype=torch.bool, device=q.device)
        for subsets in self._subsets:
            member = subsets.masks(batch).to(q.dtype)
            member = member if weight is None else member * weight.to(q.dtype)
            total = member.sum(1)
            seen = total > 0
            means.append((member @ q) / torch.where(seen, total, 1.0))
            known &= seen
        index, values = known.nonzero().squeeze(1), torch.stack(means, dim=1)
        return Inner(index, values if len(index) == len(known) else values.index_select(0, index))

    def outer(self, phi: OuterFunction) -> OuterFunction:
        if self._moved == "target":
            return Shifted(AbsoluteDistance(phi, 0.0), self._shift)
        return Shifted(phi, self._shift) if self._moved else self.members[0].outer(phi)

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return Shifted(phi, self._shift) if self._moved else self.members[0].signed(phi)

    def violation(self, values: Tensor) -> Tensor:
        return torch.cat([m.violation(v) for m, v in zip(self.members, values.unsqueeze(1), strict=True)])


def _kind(constraint: MeanAtMost | MeanDifferenceAtMost, *more: float) -> Hashable:
    """What neighbours must have equal; None of subclasses from elsewhere, which may measure something else."""
    if type(constraint) not in (MeanAtMost, MeanDifferenceAtMost, MeanNear):
        return None
    quantity = constraint.quantity
    return type(constraint), quantity if isinstance(quantity, Hashable) else id(quantity), constraint.part, *more

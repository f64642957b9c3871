"""Constraints on means of a per-sample quantity over subsets of the data."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.checks import finite, non_negative
from fcco_lightning.constraints.base import DIFFERENCE, Comparison, Constraint, of_rows
from fcco_lightning.constraints.over_sides import OverSides
from fcco_lightning.constraints.subsets import SidesOfSubsets, Subset
from fcco_lightning.data.conditions import Where, described
from fcco_lightning.errors import ConfigError
from fcco_lightning.objectives import Quantity
from fcco_lightning.outer import OuterFunction, Shifted


def _named(quantity: Quantity, where: Where | None) -> str:
    """Name of a mean by quantity and subset: ``soft rate, race=Black``."""
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(quantity).__name__).lower()
    return f"{kind}, {described(where)}" if where else kind


class MeanAtMost(OverSides):
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

    over: SidesOfSubsets

    def __init__(
        self,
        quantity: Quantity,
        kappa: float,
        where: Where | None = None,
        name: str | None = None,
        part: str | None = None,
    ) -> None:
        over = SidesOfSubsets([Subset(where)], [name or _named(quantity, where)])
        super().__init__(quantity, over, Comparison(), finite("kappa", kappa), part)


class MeanDifferenceAtMost(OverSides):
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

    over: SidesOfSubsets

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
        name = name or f"{_named(quantity, where_a)} against {described(where_b)}"
        over = SidesOfSubsets([Subset(where_a, "where_a"), Subset(where_b, "where_b")], [name])
        super().__init__(quantity, over, DIFFERENCE, non_negative("kappa", kappa), part)


class MeanNear(OverSides):
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

    over: SidesOfSubsets

    def __init__(
        self,
        quantity: Quantity,
        target: float,
        kappa: float = 0.01,
        where: Where | None = None,
        name: str | None = None,
        part: str | None = None,
    ) -> None:
        over = SidesOfSubsets([Subset(where)], [name or _named(quantity, where)])
        near = Comparison(sides=2, targets=(finite("target", target),))
        super().__init__(quantity, over, near, non_negative("kappa", kappa), part)


class _Joint(OverSides):
    r"""Several constraints of the same class on means of the same quantity over subsets, each with its own kappa.

    The outer function is made for kappa = 0 and shifted by the kappas of the rows, which margins may change.

    Args:
        members: the constraints, of the same class, quantity and part.
    """

    together = 1

    def __init__(self, members: Sequence[MeanAtMost | MeanNear | MeanDifferenceAtMost]) -> None:
        first, self.joined = members[0], members
        subsets = [subset for member in members for subset in member.over.subsets]
        targets = tuple(target for member in members for target in member.comparison.targets)
        over = SidesOfSubsets(subsets, [name for member in members for name in member.names])
        super().__init__(first.quantity, over, replace(first.comparison, targets=targets), 0.0, first.part)
        self._followed, self._kappas = list[float](), torch.empty(0)

    @property
    def limit(self) -> Tensor:
        kappas = [member.kappa for member in self.joined]
        if kappas != self._followed:
            self._followed, self._kappas = kappas, of_rows(kappas)
        return self._kappas

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return super().outer(Shifted(phi, self.limit))

    def violation(self, values: Tensor) -> Tensor:
        return super().violation(values) - values.new_tensor([member.tolerance for member in self.joined])


def kept_together(constraints: Sequence[Constraint]) -> list[Constraint]:
    """The same rows in the same order, where neighbours that are alike are one constraint, which costs a step less."""
    together: list[Constraint] = []
    for _, run in groupby(enumerate(constraints), lambda item: _alike(item[1]) or item[0]):
        members: list[Any] = [constraint for _, constraint in run]
        together.append(members[0] if len(members) == 1 else _Joint(members))
    return together


def _alike(constraint: Any) -> Hashable:
    """The class, the quantity and the part of a constraint on means; None for others, and subclasses of one's own."""
    if type(constraint) not in (MeanAtMost, MeanNear, MeanDifferenceAtMost):
        return None
    quantity = constraint.quantity
    return type(constraint), quantity if isinstance(quantity, Hashable) else id(quantity), constraint.part


def require_compatible(constraints: Sequence[Constraint]) -> None:
    """Refuse constraints that cannot all be met.

    Only constraints on the mean of the same quantity over the same subset are compared; other contradictions show only
    in constraints that remain violated.

    Raises:
        ConfigError: naming two constraints that contradict each other.
    """
    means = [(c, *c.allowed) for c in constraints if isinstance(c, MeanAtMost | MeanNear)]
    for i, (c, least, most) in enumerate(means):
        for other, other_least, other_most in means[:i]:
            if least <= other_most and other_least <= most:
                continue
            low, high = max(least, other_least), min(most, other_most)
            (where,), (other_where,) = c.over.subsets, other.over.subsets
            if (c.quantity, where.where, c.part) == (other.quantity, other_where.where, other.part):
                raise ConfigError(
                    f"the constraints {other.names[0]!r} and {c.names[0]!r} contradict each other: they ask that the "
                    f"mean of {c.quantity!r} where {where} be at least {low:g} and at most {high:g}. Change "
                    "one of them."
                )

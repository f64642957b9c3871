"""Equal treatment of any number of groups, under the names that practitioners use."""

from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.checks import fraction, non_negative
from fcco_lightning.constraints.base import Constraint, DifferenceAtMost
from fcco_lightning.constraints.comparisons import Against, Comparison, GroupComparisons
from fcco_lightning.constraints.vacuity import constant_decision, too_close
from fcco_lightning.estimators import Range
from fcco_lightning.hosted import on_host
from fcco_lightning.numerics import send
from fcco_lightning.objectives import (
    PairLoss,
    Quantity,
    SigmoidPair,
    SoftRate,
    binary_scores,
    require_binary_labels,
    required_column,
)
from fcco_lightning.outer import AbsoluteDistance, Linear, OuterFunction, RatioDifference, ratio_difference
from fcco_lightning.records import Arrangement, Columns, Usual


class GroupConstraint(Constraint, ABC):
    """What constraints on groups share: one row for every kind of rate and every comparison of groups.

    Args:
        kappa: tolerance.
        by: column of the groups: "group", or with a datamodule of tables any of its columns.
        against: with what a group is compared, see :class:`GroupComparisons`.
        groups: names of the groups 0, 1, ...; None takes them from the datamodule, else there are two.

    Attributes:
        kinds: names of the rates that are compared.
        comparisons: which groups are compared.
    """

    kinds: ClassVar[tuple[str, ...]]

    def __init__(self, kappa: float, by: str, against: Against, groups: Sequence[str] | None) -> None:
        self.kappa, self.comparisons = kappa, GroupComparisons(by, against, groups)
        self._name_rows()

    @property
    def pairs(self) -> Sequence[Comparison]:
        """The two sides of every row of one kind."""
        return self.comparisons.pairs

    def _name_rows(self) -> None:
        self.names = [name for kind in self.kinds for name in self.comparisons.rows(kind)]

    def adapt(self, datamodule: Any) -> None:
        """Take the groups, and their names, from the datamodule."""
        self.comparisons.adapt(datamodule)
        self._name_rows()

    def check(self, outputs: Any, batch: Columns) -> None:  # noqa: ARG002
        if self.needs_labels:
            require_binary_labels(batch, self)
        self.comparisons.check(batch, self)

    @property
    def needs_labels(self) -> bool:
        """Whether the labels ``y``, 0 and 1, play a role."""
        return True


class _Rates(GroupConstraint):
    r"""A row compares the means of q over side a and over side b, for every comparison of two sides.

    The means are over the samples of a class, or over all; a batch without such a sample of one side leaves the row
    untouched.  Where samples are not drawn uniformly the means are weighted by the column ``weight``.

    Attributes:
        classes: the labels over which the means are taken, in the order of ``kinds``; None for all samples.
    """

    width = 2
    classes: ClassVar[tuple[int | None, ...]]

    def __init__(
        self,
        kappa: float = 0.05,
        rate: Quantity | None = None,
        by: str = "group",
        against: Against = "pairs",
        groups: Sequence[str] | None = None,
    ) -> None:
        super().__init__(non_negative("kappa", kappa), by, against, groups)
        self.rate = rate or SoftRate()
        self.range = self.rate.range

    @property
    def needs_labels(self) -> bool:
        return any(label is not None for label in self.classes)

    def check(self, outputs: Any, batch: Columns) -> None:
        super().check(outputs, batch)
        self.rate.check(outputs, batch)

    def _members(self, batch: Columns) -> Tensor:
        """The samples of every class and side, shape (number of classes, number of sides, B), bool."""
        sides = self.comparisons.members(batch, self)
        every = [sides if c is None else sides & (required_column(batch, "y", self) == c) for c in self.classes]
        return torch.stack(every)

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch speaks of a row if it holds a sample of both sides, of the class."""
        return [[of[pair.first], of[pair.second]] for of in self._members(columns) for pair in self.pairs]

    def arrange(self, batch: Columns, like: Tensor) -> Arrangement:
        columns, batch = batch, on_host(batch)
        shares, known = _shares(self._members(batch), batch, like)
        return _of_pairs(known, self.pairs, like, (columns, shares))

    def arrange_usual(self, batch: Columns, like: Tensor) -> Usual:
        """The same for a batch with samples of all sides."""
        shares, known = _shares(self._members(batch), batch, like)
        return Usual(((batch, shares), [side.to(like.device) for side in _sides(self.pairs)], None), known.all())

    def values(self, outputs: Tensor, given: Any) -> Tensor:
        """The rates of both sides, shape (b, 2)."""
        (columns, shares), sides, chosen = given
        return _both_sides((shares @ self.rate(outputs, columns)).unsqueeze(-1), sides, chosen)

    def vacuous(self, outputs: Tensor, batch: Columns) -> str | None:
        """All decisions are equal, or too soft to tell: then all groups are treated alike, whatever the scores."""
        return constant_decision(self.rate(outputs, batch))


class _RateParity(DifferenceAtMost, _Rates):
    r"""``h(w) = |mean of q over side a - mean of q over side b| - kappa <= 0`` for every comparison of two sides."""


class DemographicParity(_RateParity):
    r"""Equal rates of positive decisions: ``|P(s > 0 | a) - P(s > 0 | b)| <= kappa``, for smoothed rates.

    Args:
        kappa: tolerance on a difference of rates, >= 0.
        rate: the smoothed decision of a sample; a :class:`SoftRate` at threshold 0 by default, a :class:`TopShare` for
            a budget.
        by: column of the groups: "group", or with a datamodule of tables any of its columns.
        against: "pairs", "rest" or "whole", see :class:`GroupComparisons`.
        groups: names of the groups 0, 1, ...; None takes them from the datamodule, else there are two.
    """

    kinds = ("selection rate",)
    classes = (None,)


class EqualOpportunity(_RateParity):
    r"""Equal true positive rates: ``|P(s > 0 | y = 1, a) - P(s > 0 | y = 1, b)| <= kappa``, for smoothed rates.

    Args: as of :class:`DemographicParity`.
    """

    kinds = ("tpr",)
    classes = (1,)


class EqualizedOdds(_RateParity):
    r"""Equal true positive rates and equal false positive rates, each up to kappa; for smoothed rates.

    Args: as of :class:`DemographicParity`.
    """

    kinds = ("tpr", "fpr")
    classes = (1, 0)


class FourFifthsRule(_Rates):
    r"""``h(w) = ratio * rate_b - rate_a - kappa <= 0`` both ways: no side is selected less than 4/5 as often.

    Rows come for every comparison in both directions.  Linear in the rates, so nothing is divided by a small rate.

    Args:
        ratio: smallest quotient of two selection rates, in (0, 1]; 0.8 is the rule's.
        kappa: tolerance, >= 0.
        rate, by, against, groups: as of :class:`DemographicParity`.

    Raises:
        ConfigError: if ``ratio`` is not in (0, 1], or ``kappa`` < 0.
    """

    kinds = ("four fifths",)
    classes = (None,)

    def __init__(
        self,
        ratio: float = 0.8,
        kappa: float = 0.0,
        rate: Quantity | None = None,
        by: str = "group",
        against: Against = "pairs",
        groups: Sequence[str] | None = None,
    ) -> None:
        self.ratio = fraction("ratio", ratio)
        super().__init__(kappa, rate, by, against, groups)

    @property
    def pairs(self) -> Sequence[Comparison]:
        """Both directions of every comparison."""
        names, both = self.comparisons.names, []
        for pair in self.comparisons.pairs:
            for a, b in ((pair.first, pair.second), (pair.second, pair.first)):
                sides = [names[side] if side < len(names) else "others" for side in (a, b)]
                both.append(Comparison(a, b, f"{sides[0]} / {sides[1]}"))
        return both

    def _name_rows(self) -> None:
        self.names = [f"{self.kinds[0]}: {pair.name}" for pair in self.pairs]

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return Linear(phi, (-1.0, self.ratio))

    def violation(self, values: Tensor) -> Tensor:
        return self.ratio * values[:, 1] - values[:, 0] - self.tolerance


class PredictiveParity(_Rates):
    r"""Equal precision: ``h(w) = |u_1/u_2 - u_3/u_4| - kappa <= 0`` with u = (mean of q y, mean of q) on both sides.

    q is the smoothed positive decision, so that ``u_1/u_2`` is the share of the positives among those who are decided
    positive.  Ratios of means are not convex in them: use SONEX with multipliers or a smooth penalty
    (``SmoothedHingePenalty``, ``SquaredHingePenalty``), SOX or SONX.  A side without positive decisions has
    no precision; means below 1e-6 count as 1e-6.

    Args: as of :class:`DemographicParity`.
    """

    width = 4
    sides = 2
    kinds = ("precision",)
    classes = (None,)

    @property
    def needs_labels(self) -> bool:
        return True

    def arrange(self, batch: Columns, like: Tensor) -> Arrangement:
        columns, batch = batch, on_host(batch)
        positive = required_column(batch, "y", self) == 1
        shares, known = _shares(self.comparisons.members(batch, self), batch, like)
        return _of_pairs(known.unsqueeze(0), self.pairs, like, (columns, shares, send(positive, like)))

    def values(self, outputs: Tensor, given: Any) -> Tensor:
        """The means of q y and of q on both sides, shape (b, 4)."""
        (columns, shares, positive), sides, chosen = given
        q = self.rate(outputs, columns)
        means = shares @ torch.stack([q * positive, q], dim=1)
        return _both_sides(means.unsqueeze(0), sides, chosen)

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return RatioDifference(AbsoluteDistance(phi))

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return RatioDifference(phi)

    def violation(self, values: Tensor) -> Tensor:
        return ratio_difference(values).abs().squeeze(1) - self.tolerance


class GroupAUCAtLeast(GroupConstraint):
    r"""``h(w) = least - AUC_a(w) <= 0`` for every group a, with ``AUC_a = 1 - mean of l(s_i - s_j)``.

    The mean is over the pairs of a positive i and a negative j of the group; with the sigmoid loss it is a smoothed
    AUC.  A batch that lacks a class of the group leaves its row untouched.  Pairs weigh by the column ``weight`` of
    both samples where samples are not drawn uniformly.

    Args:
        least: smallest AUC, in (0, 1].
        loss: l, the surrogate of 1[d <= 0].
        by: column of the groups: "group", or with a datamodule of tables any of its columns.
        groups: names of the groups 0, 1, ...; None takes them from the datamodule, else there are two.

    Raises:
        ConfigError: if ``least`` is not in (0, 1].
    """

    width = 1
    kinds = ("auc",)

    def __init__(
        self, least: float, loss: PairLoss | None = None, by: str = "group", groups: Sequence[str] | None = None
    ) -> None:
        self.least, self.loss = fraction("least", least), loss or SigmoidPair()
        super().__init__(1 - least, by, "pairs", groups)
        self.range = Range(0.0, 1.0) if isinstance(self.loss, SigmoidPair) else Range()

    def _name_rows(self) -> None:
        self.names = [f"auc: {name}" for name in self.comparisons.names]

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch speaks of a group if it holds both of its classes."""
        y = required_column(columns, "y", self)
        return [[side & (y == 1), side & (y != 1)] for side in self.comparisons.members(columns, self)]

    def vacuous(self, outputs: Tensor, batch: Columns) -> str | None:  # noqa: ARG002
        """All scores are nearly the same: then so are the smoothed AUCs, whatever the order of the scores."""
        return too_close(binary_scores(outputs), self.loss.scale) if isinstance(self.loss, SigmoidPair) else None

    def arrange(self, batch: Columns, like: Tensor) -> Arrangement:
        pairs, known = _pairs_within(self, batch, like)
        index = known.nonzero().squeeze(1)
        return Arrangement(index, (pairs, send(index, like)))

    def values(self, outputs: Tensor, given: Any) -> Tensor:
        """The mean losses of the groups, shape (b, 1)."""
        pairs, chosen = given
        return _mean_losses(self.loss, outputs, pairs).index_select(0, chosen).unsqueeze(1)

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return phi

    def violation(self, values: Tensor) -> Tensor:
        return values[:, 0] - self.tolerance


class AUCParity(DifferenceAtMost, GroupConstraint):
    r"""``h(w) = |AUC_a(w) - AUC_b(w)| - kappa <= 0`` for every comparison of two sides.

    The AUC of a side is as in :class:`GroupAUCAtLeast`, over pairs within the side.

    Args:
        kappa: tolerance on a difference of AUCs, >= 0.
        loss: l, the surrogate of 1[d <= 0].
        by, against, groups: as of :class:`DemographicParity`.
    """

    kinds = ("auc",)

    def __init__(
        self,
        kappa: float = 0.02,
        loss: PairLoss | None = None,
        by: str = "group",
        against: Against = "pairs",
        groups: Sequence[str] | None = None,
    ) -> None:
        super().__init__(non_negative("kappa", kappa), by, against, groups)
        self.loss = loss or SigmoidPair()
        self.range = Range(0.0, 1.0) if isinstance(self.loss, SigmoidPair) else Range()

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch speaks of a row if it holds both classes of both sides."""
        y, sides = required_column(columns, "y", self), self.comparisons.members(columns, self)
        return [
            [sides[side] & is_class for side in (pair.first, pair.second) for is_class in (y == 1, y != 1)]
            for pair in self.pairs
        ]

    def vacuous(self, outputs: Tensor, batch: Columns) -> str | None:  # noqa: ARG002
        """All scores are nearly the same: then so are the smoothed AUCs, whatever the order of the scores."""
        return too_close(binary_scores(outputs), self.loss.scale) if isinstance(self.loss, SigmoidPair) else None

    def arrange(self, batch: Columns, like: Tensor) -> Arrangement:
        pairs, known = _pairs_within(self, batch, like)
        return _of_pairs(known.unsqueeze(0), self.pairs, like, pairs)

    def values(self, outputs: Tensor, given: Any) -> Tensor:
        """The mean losses of both sides, shape (b, 2)."""
        pairs, sides, chosen = given
        return _both_sides(_mean_losses(self.loss, outputs, pairs).view(1, -1, 1), sides, chosen)


class _PairsWithin(NamedTuple):
    """The pairs of a positive and a negative of one side, of all sides.

    Attributes:
        positives: positions, shape (a,).
        negatives: positions, shape (b,).
        of_positives: what every positive counts on a side, shape (number of sides, a).
        of_negatives: what every negative counts, shape (number of sides, b), so that the pairs of a side add up to 1.
    """

    positives: Tensor
    negatives: Tensor
    of_positives: Tensor
    of_negatives: Tensor


def _pairs_within(constraint: GroupConstraint, batch: Columns, like: Tensor) -> tuple[_PairsWithin, Tensor]:
    """The pairs within the sides, and which sides have both classes, on the host."""
    batch = on_host(batch)
    positive = required_column(batch, "y", constraint) == 1
    member = constraint.comparisons.members(batch, constraint).to(like.dtype)
    if "weight" in batch:
        member = member * batch["weight"].to(like.dtype)
    of_positives, of_negatives = member[:, positive], member[:, ~positive]
    total = (of_positives.sum(1) * of_negatives.sum(1)).unsqueeze(1)
    of_negatives = of_negatives / torch.where(total > 0, total, 1.0)
    positions = (side.nonzero().squeeze(1) for side in (positive, ~positive))
    pairs = _PairsWithin(*(send(part, like) for part in (*positions, of_positives, of_negatives)))
    return pairs, total.squeeze(1) > 0


def _mean_losses(loss: PairLoss, outputs: Tensor, pairs: _PairsWithin) -> Tensor:
    """Mean loss of the pairs within every side, shape (number of sides,)."""
    scores = binary_scores(outputs)
    p, n = scores.index_select(0, pairs.positives), scores.index_select(0, pairs.negatives)
    return ((pairs.of_positives @ loss(p.unsqueeze(1) - n)) * pairs.of_negatives).sum(1)


def _shares(member: Tensor, batch: Columns, like: Tensor) -> tuple[Tensor, Tensor]:
    """What every sample counts in the mean over each subset (..., B), and which have samples, on the host.

    Args:
        member: of which subset each sample is, shape (..., B), bool, on the host.
        batch: columns, on the host.
        like: a tensor of the device and dtype of the result.
    """
    weighted = member.to(like.dtype)
    if "weight" in batch:
        weighted = weighted * batch["weight"].to(like.dtype)
    count = weighted.sum(-1, keepdim=True)
    return send(weighted / torch.where(count > 0, count, 1.0), like), count.squeeze(-1) > 0


def _sides(pairs: Sequence[Comparison]) -> list[Tensor]:
    """The first and the second sides of comparisons, on the host."""
    return [torch.tensor(side) for side in zip(*((pair.first, pair.second) for pair in pairs), strict=True)]


def _of_pairs(known: Tensor, pairs: Sequence[Comparison], like: Tensor, given: Any) -> Arrangement:
    """The rows of comparisons.

    Args:
        known: of which kinds and sides the batch has samples, shape (number of kinds, number of sides), on the host.
        pairs: the two sides of every row of a kind.
        like: a tensor of the network's device.
        given: what the means are computed from; beside it are given the sides, and which rows are known.
    """
    sides = _sides(pairs)
    index = (known[:, sides[0]] & known[:, sides[1]]).flatten().nonzero().squeeze(1)
    return Arrangement(index, (given, [send(side, like) for side in sides], send(index, like)))


def _both_sides(means: Tensor, sides: Sequence[Tensor], chosen: Tensor | None) -> Tensor:
    """The rows of comparisons, from means of every kind and side (kinds, number of sides, width of a side).

    Args:
        means: see above.
        sides: the first and the second ones.
        chosen: the known rows; None for all.
    """
    both = torch.cat([means.index_select(1, side) for side in sides], dim=-1)
    rows = both.flatten(0, 1)
    return rows if chosen is None else rows.index_select(0, chosen)

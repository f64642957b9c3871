"""Equal treatment of any number of groups, under the names that practitioners use."""

from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fcco_lightning.checks import fraction, non_negative
from fcco_lightning.constraints.base import Constraint, DifferenceAtMost, ValueAtMost
from fcco_lightning.constraints.comparisons import Against, Comparison, GroupComparisons
from fcco_lightning.constraints.memberships import only_of, shares_of
from fcco_lightning.constraints.vacuity import constant_decision, too_close
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives import PairLoss, Quantity, SigmoidPair, SoftRate, binary_scores, require_binary_labels
from fcco_lightning.objectives.base import one_label_each
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.outer import AbsoluteDistance, Linear, OuterFunction, Range, RatioDifference, ratio_difference

_AT_ONCE = 2**20  # pairs of samples that are compared at once


class GroupConstraint(Constraint, ABC):
    """What constraints on groups share: one row for every kind of rate and every comparison of groups.

    A row compares means over two sides, of the samples of a class or of all; a batch without such a sample of one side
    leaves it untouched.  Where samples are not drawn uniformly the means are weighted by the column ``weight``.

    Args:
        kappa: tolerance.
        by: column of the groups: "group", or with a datamodule of tables any of its columns.
        against: with what a group is compared, see :class:`GroupComparisons`.
        groups: names of the groups 0, 1, ...; None takes them from the datamodule, else there are two.

    Attributes:
        kinds: names of the rates that are compared.
        classes: the labels over which means are taken, of rates in the order of ``kinds``; none for all samples.
        needs_labels: whether the labels ``y``, 0 and 1, play a role.
        comparisons: which groups are compared.
    """

    kinds: ClassVar[tuple[str, ...]]
    classes: ClassVar[tuple[int, ...]] = ()
    needs_labels: ClassVar[bool] = True

    def __init__(self, kappa: float, by: str, against: Against, groups: Sequence[str] | None) -> None:
        self.kappa, self.comparisons = kappa, GroupComparisons(by, against, groups)
        self._labels = Known(torch.tensor(self.classes).view(-1, 1, 1))
        self._name()

    @property
    def pairs(self) -> Sequence[Comparison]:
        """The two sides of every row of one kind."""
        return self.comparisons.pairs

    def _row_names(self) -> list[str]:
        return [name for kind in self.kinds for name in self.comparisons.rows(kind)]

    def _name(self) -> None:
        self.names = self._row_names()
        self._order = Known(torch.tensor([side for pair in self.pairs for side in (pair.first, pair.second)]))

    def adapt(self, datamodule: Any) -> None:
        """Take the groups, and their names, from the datamodule."""
        self.comparisons.adapt(datamodule)
        self._name()

    def check(self, outputs: Any, batch: Columns) -> None:  # noqa: ARG002
        if self.needs_labels:
            require_binary_labels(batch, self)
        self.comparisons.check(batch, self)

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch speaks of a row if it holds a sample of both sides, of the class."""
        of_classes = self.members(columns)
        return [[of[pair.first], of[pair.second]] for of in of_classes for pair in self.pairs]

    def members(self, batch: Columns) -> Tensor:
        """Mark the samples of every class and side, shape (number of classes, number of sides, B), bool.

        Raises:
            DataError: if the batch lacks a column, or has no single label for a sample.
        """
        sides = self.comparisons.members(batch, self)
        if not self.classes:
            return sides.unsqueeze(0)
        y = one_label_each(batch, self)
        return (y == self._labels.like(y)) & sides

    def shares(self, batch: Columns, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What a sample counts in the mean over every class and side, (c, s, B), and which have samples, (c, s).

        The sides are those of the pairs if these are no more, so that nothing has to be picked out later.
        """
        member = self.members(batch)
        if len(self._order.values) <= member.shape[1]:
            member = member.index_select(1, self._order.like(member))
        return shares_of(member, batch, dtype)

    def by_pairs(self, table: Tensor) -> Tensor:
        """What belongs to the sides of every pair, shape (c, p, 2, ...), from that of all sides, (c, s, ...)."""
        if table.shape[1] < len(self._order.values):
            table = table.index_select(1, self._order.like(table))
        return table.view(len(table), -1, 2, *table.shape[2:])


class _Rates(GroupConstraint):
    """A row compares the means of q over side a and over side b, for every comparison of two sides."""

    width = 2

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

    def check(self, outputs: Any, batch: Columns) -> None:
        super().check(outputs, batch)
        self.rate.check(outputs, batch)

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[None, Rows]:
        """The means over both sides, shape (m, k)."""
        return None, self._means(self.rate(outputs, batch), batch)

    @property
    def smooths(self) -> bool:
        return self.rate.smooths

    def decided(self, outputs: Tensor, batch: Columns) -> Tensor:
        return self._means(self.rate.decided(outputs, batch), batch).values

    def _means(self, q: Tensor, batch: Columns) -> Rows:
        values = self.of_samples(q, batch)
        shares, known = self.shares(batch, values.dtype)
        means = self.by_pairs(shares @ only_of(shares, values))  # (class, pair, side, values of a sample)
        return Rows(means.flatten(0, 1).flatten(1), self.by_pairs(known).all(-1).flatten())

    def of_samples(self, q: Tensor, batch: Columns) -> Tensor:  # noqa: ARG002
        """What is averaged: q itself, (B,), or several values of a sample, (B, k / 2)."""
        return q

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
    needs_labels = False


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
    needs_labels = False

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

    def _row_names(self) -> list[str]:
        return [f"{self.kinds[0]}: {pair.name}" for pair in self.pairs]

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

    def of_samples(self, q: Tensor, batch: Columns) -> Tensor:
        """``q y`` and q, shape (B, 2)."""
        return torch.stack([q * (one_label_each(batch, self) == 1), q], dim=1)

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return RatioDifference(AbsoluteDistance(phi))

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return RatioDifference(phi)

    def violation(self, values: Tensor) -> Tensor:
        return ratio_difference(values).abs().squeeze(1) - self.tolerance


class _GroupAUC(GroupConstraint):
    """What constraints on the AUCs of sides share."""

    kinds = ("auc",)
    classes = (1, 0)

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

    def mean_losses(self, outputs: Tensor, batch: Columns) -> tuple[Tensor, Tensor]:
        """The mean losses of the pairs within every side, shape (1, s), and which sides have both classes, (1, s)."""
        scores = binary_scores(outputs)
        shares, known = self.shares(batch, scores.dtype)
        losses = pair_losses(self.loss, only_of(shares, scores), shares[0], shares[1])
        return losses.unsqueeze(0), known.all(0, keepdim=True)

    def vacuous(self, outputs: Tensor, batch: Columns) -> str | None:  # noqa: ARG002
        """All scores are nearly the same: then so are the smoothed AUCs, whatever the order of the scores."""
        return too_close(binary_scores(outputs), self.loss.scale) if isinstance(self.loss, SigmoidPair) else None


class GroupAUCAtLeast(ValueAtMost, _GroupAUC):
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

    def __init__(
        self, least: float, loss: PairLoss | None = None, by: str = "group", groups: Sequence[str] | None = None
    ) -> None:
        self.least = fraction("least", least)
        super().__init__(1 - least, loss, by, "pairs", groups)

    def _name(self) -> None:
        self.names = [f"auc: {name}" for name in self.comparisons.names]
        self._order = Known(torch.arange(self.num_rows))  # a row is of one side

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch speaks of a group if it holds both of its classes."""
        return [list(side) for side in self.members(columns).unbind(1)]

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[None, Rows]:
        """The mean losses of the groups, shape (m, 1)."""
        losses, known = self.mean_losses(outputs, batch)
        return None, Rows(losses.T, known[0])


class AUCParity(DifferenceAtMost, _GroupAUC):
    r"""``h(w) = |AUC_a(w) - AUC_b(w)| - kappa <= 0`` for every comparison of two sides.

    The AUC of a side is as in :class:`GroupAUCAtLeast`, over pairs within the side.

    Args:
        kappa: tolerance on a difference of AUCs, >= 0.
        loss: l, the surrogate of 1[d <= 0].
        by, against, groups: as of :class:`DemographicParity`.
    """

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch speaks of a row if it holds both classes of both sides."""
        sides = self.members(columns).unbind(1)
        return [[*sides[pair.first], *sides[pair.second]] for pair in self.pairs]

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[None, Rows]:
        """The mean losses of both sides, shape (m, 2)."""
        losses, known = self.mean_losses(outputs, batch)
        return None, Rows(self.by_pairs(losses)[0], self.by_pairs(known)[0].all(-1))


def pair_losses(loss: PairLoss, scores: Tensor, of_positives: Tensor, of_negatives: Tensor) -> Tensor:
    """``sum_ij v_i w_j l(s_i - s_j)`` for the shares v and w of every side, shape (s,).

    All pairs of samples are formed, a block of rows at a time where they are many; positives then come first, so that
    no block needs the samples before it.

    Args:
        loss: l.
        scores: s, shape (B,).
        of_positives: v, shape (s, B), >= 0.
        of_negatives: w, shape (s, B), 0 where v is not.
    """
    size = len(scores)
    if size * size <= _AT_ONCE:
        return ((of_positives @ loss(scores.unsqueeze(1) - scores)) * of_negatives).sum(1)
    order = of_positives.sum(0).argsort(descending=True)
    s, v, w = (t.index_select(-1, order) for t in (scores, of_positives, of_negatives))
    rows, sums = max(1, _AT_ONCE // size), list[Tensor]()
    for i in range(0, size, rows):
        losses = loss(s[i : i + rows].unsqueeze(1) - s[i:])
        sums.append(((v[:, i : i + rows] @ losses) * w[:, i:]).sum(1))
    return torch.stack(sums).sum(0)

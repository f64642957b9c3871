"""Equal treatment of any number of groups, under the names that practitioners use."""

from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fcco_lightning.checks import fraction, non_negative
from fcco_lightning.constraints.averages import OfQuantity, OverSides, only_of
from fcco_lightning.constraints.base import DifferenceAtMost, ValueAtMost
from fcco_lightning.constraints.comparisons import Against, GroupComparisons
from fcco_lightning.constraints.vacuity import too_close
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives import PairLoss, Quantity, SigmoidPair, SoftRate, binary_scores, require_binary_labels
from fcco_lightning.objectives.base import one_label_each
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.outer import AbsoluteDistance, Linear, OuterFunction, Range, RatioDifference

_AT_ONCE = 2**20  # pairs of samples that are compared at once


class GroupConstraint(OverSides, ABC):
    """What constraints on groups share: one row for every kind of rate and every comparison of groups.

    Args: as of :class:`DemographicParity`.

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

    def adapt(self, datamodule: Any) -> None:
        """Take the groups, and their names, from the datamodule."""
        self.comparisons.adapt(datamodule)
        self._name()

    def _name(self) -> None:
        """Say which sides the rows compare, and give the rows names, for the groups that are known."""
        self.compare([pair[:2] for pair in self.comparisons.pairs])
        self.names = [name for kind in self.kinds for name in self.comparisons.rows(kind)]

    def check(self, outputs: Any, batch: Columns) -> None:
        if self.needs_labels:
            require_binary_labels(batch, self)
        self.comparisons.check(batch, self)
        super().check(outputs, batch)

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        if self.needs_labels:
            require_binary_labels(columns, self)
        return super().subsets(columns)

    def members(self, batch: Columns) -> Tensor:
        sides = self.comparisons.members(batch, self)
        if not self.classes:
            return sides.unsqueeze(0)
        y = one_label_each(batch, self)
        return (y == self._labels.like(y)) & sides


class _Rates(OfQuantity, GroupConstraint):
    """A row compares the means of a rate over side a and over side b, for every comparison of two sides."""

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
        self.rate = self.quantity = rate or SoftRate()
        self.range = self.rate.range


class _RateParity(DifferenceAtMost, _Rates):
    r"""``h(w) = |mean of q over side a - mean of q over side b| - kappa <= 0`` for every comparison of two sides."""


class DemographicParity(_RateParity):
    r"""Equal rates of positive decisions: ``|P(s > 0 | a) - P(s > 0 | b)| <= kappa``, for smoothed rates.

    Args:
        kappa: tolerance on a difference of rates, >= 0.
        rate: the smoothed decision of a sample; a :class:`SoftRate` at threshold 0 with temperature .4 by default, a
            :class:`TopShare` for a budget.
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
    equalises = True

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

    def _name(self) -> None:
        both = self.comparisons.both_ways()
        self.compare([pair[:2] for pair in both])
        self.names = [f"four fifths: {pair.name}" for pair in both]

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return Linear(phi, (-1.0, self.ratio))


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
    equalises = True
    kinds = ("precision",)

    def of_samples(self, outputs: Tensor, batch: Columns) -> Tensor:
        return self._of_both(super().of_samples(outputs, batch), batch)

    def of_decisions(self, outputs: Tensor, batch: Columns) -> Tensor:
        return self._of_both(super().of_decisions(outputs, batch), batch)

    def _of_both(self, q: Tensor, batch: Columns) -> Tensor:
        """``q y`` and q, shape (B, 2)."""
        return torch.stack([q * (one_label_each(batch, self) == 1), q], dim=1)

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return RatioDifference(AbsoluteDistance(phi))

    def signed(self, phi: OuterFunction) -> OuterFunction:
        return RatioDifference(phi)


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

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[None, Rows]:
        """The mean losses of the pairs within the sides."""
        scores = binary_scores(outputs)
        shares, known = self.shares(batch, scores.dtype)
        losses = pair_losses(self.loss, only_of(shares, scores), shares[0], shares[1])
        return None, Rows(self.values_of(losses.unsqueeze(0)), self.known_of(known.all(0, keepdim=True)))

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch measures a row if it holds both classes of all its sides."""
        by_class = super().subsets(columns)
        positives, negatives = by_class[: self.num_rows], by_class[self.num_rows :]
        return [[*above, *below] for above, below in zip(positives, negatives, strict=True)]

    def vacuous(self, outputs: Tensor, batch: Columns) -> str | None:
        """All scores are nearly the same: then so are the smoothed AUCs, whatever the order of the scores."""
        if not isinstance(self.loss, SigmoidPair):
            return None
        return too_close(binary_scores(outputs), self.loss.scale, batch.get("weight"))


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
        self.compare([[side] for side in range(self.num_rows)])


class AUCParity(DifferenceAtMost, _GroupAUC):
    r"""``h(w) = |AUC_a(w) - AUC_b(w)| - kappa <= 0`` for every comparison of two sides.

    The AUC of a side is as in :class:`GroupAUCAtLeast`, over pairs within the side.

    Args:
        kappa: tolerance on a difference of AUCs, >= 0.
        loss: l, the surrogate of 1[d <= 0].
        by, against, groups: as of :class:`DemographicParity`.
    """


def pair_losses(loss: PairLoss, scores: Tensor, of_positives: Tensor, of_negatives: Tensor) -> Tensor:
    """``sum_ij v_i w_j l(s_i - s_j)`` for the shares v and w of every side, shape (s,).

    All pairs of samples are formed, a block of rows at a time where they are many; positives then come first, so that
    no block needs the samples before it.

    Args:
        loss: l.
        scores: s, shape (B,).
        of_positives: v, shape (s, B), >= 0.
        of_negatives: w, shape (s, B), 0 for samples to which v gives a share.
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

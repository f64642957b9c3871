"""Equal treatment of any number of groups, under the common names of fairness criteria."""

from collections.abc import Sequence
from typing import ClassVar

from fcco_lightning.checks import fraction, list_of, non_negative
from fcco_lightning.constraints.base import DIFFERENCE, Comparison
from fcco_lightning.constraints.measured import LossOfPairs, PrecisionOf, RatesAbove
from fcco_lightning.constraints.over_sides import OverSides
from fcco_lightning.constraints.score_scales import RawScores, ScoreScale
from fcco_lightning.constraints.sides import Against, SidesOfGroups
from fcco_lightning.errors import ConfigError
from fcco_lightning.objectives import PairLoss, Quantity, SigmoidPair, SoftRate


class DemographicParity(OverSides):
    r"""Equal rates of positive decisions: ``|P(s > 0 | a) - P(s > 0 | b)| <= kappa`` for sides a, b and smoothed rates.

    Args:
        kappa: tolerance on a difference of rates, >= 0.
        rate: the smoothed decision of a sample; by default a :class:`SoftRate` at threshold 0 with temperature .4, or a
            :class:`TopShare` for a budget.
        by: column of the groups: "group", or with a datamodule of tables any of its columns.
        against: "pairs", "rest" or "whole", see :class:`SidesOfGroups`.
        groups: names of the groups 0, 1, ...; None takes them from the datamodule, else there are two.

    Attributes:
        kinds: names of the rates.
        classes: the labels over whose samples the rates are taken; empty for all samples.
    """

    kinds: ClassVar[tuple[str, ...]] = ("selection rate",)
    classes: ClassVar[tuple[int, ...]] = ()

    def __init__(
        self,
        kappa: float = 0.05,
        rate: Quantity | None = None,
        by: str = "group",
        against: Against = "pairs",
        groups: Sequence[str] | None = None,
    ) -> None:
        over = SidesOfGroups(by, against, groups, self.kinds, self.classes, labelled=bool(self.classes))
        super().__init__(rate or SoftRate(), over, DIFFERENCE, non_negative("kappa", kappa))


class EqualOpportunity(DemographicParity):
    r"""Equal true positive rates: ``|P(s > 0 | y = 1, a) - P(s > 0 | y = 1, b)| <= kappa``, for smoothed rates.

    This is :class:`DemographicParity` among the positives, with the same arguments.
    """

    kinds = ("tpr",)
    classes = (1,)


class EqualizedOdds(DemographicParity):
    r"""Equal true positive rates and equal false positive rates, each up to kappa; for smoothed rates.

    This is :class:`DemographicParity` among the positives and among the negatives, with the same arguments.
    """

    kinds = ("tpr", "fpr")
    classes = (1, 0)


class FourFifthsRule(OverSides):
    r"""``h(w) = ratio * rate_b - rate_a - kappa <= 0`` both ways: selection rates differ by at most a factor of 4/5.

    There is a row for each direction of every comparison.  The constraint is linear in the rates, without a division by
    a small rate.

    Args:
        ratio: smallest allowed quotient of two selection rates, in (0, 1].
        kappa: tolerance, >= 0.
        rate: the smoothed decision of a sample, as of :class:`DemographicParity`.
        by: column of the groups.
        against: "pairs", "rest" or "whole", see :class:`SidesOfGroups`.
        groups: names of the groups 0, 1, ...; None takes them from the datamodule, else there are two.

    Raises:
        ConfigError: if ``ratio`` is not in (0, 1], or ``kappa`` < 0.
    """

    def __init__(
        self,
        ratio: float = 0.8,
        kappa: float = 0.0,
        rate: Quantity | None = None,
        by: str = "group",
        against: Against = "pairs",
        groups: Sequence[str] | None = None,
    ) -> None:
        compared = Comparison((-1.0, fraction("ratio", ratio)))
        over = SidesOfGroups(by, against, groups, ("four fifths",), labelled=False, compared="both ways")
        super().__init__(rate or SoftRate(), over, compared, non_negative("kappa", kappa))


class PredictiveParity(OverSides):
    r"""Equal precision: ``h(w) = |u_1/u_2 - u_3/u_4| - kappa <= 0`` with u = (mean of q y, mean of q) on both sides.

    q is the smoothed positive decision, so that ``u_1/u_2`` is the fraction of positives among the samples with a
    positive decision.  Ratios of means are not convex in the means: use SONEX with multipliers or a smooth penalty
    (``SmoothedHingePenalty``, ``SquaredHingePenalty``), SOX or SONX.  A side without positive decisions has no
    precision; means below 1e-6 are replaced by 1e-6.

    Args:
        kappa: tolerance on a difference of precisions, >= 0.
        rate: the smoothed decision of a sample, as of :class:`DemographicParity`.
        by: column of the groups.
        against: "pairs", "rest" or "whole", see :class:`SidesOfGroups`.
        groups: names of the groups 0, 1, ...; None takes them from the datamodule, else there are two.
    """

    def __init__(
        self,
        kappa: float = 0.05,
        rate: Quantity | None = None,
        by: str = "group",
        against: Against = "pairs",
        groups: Sequence[str] | None = None,
    ) -> None:
        over = SidesOfGroups(by, against, groups, ("precision",))
        compared = Comparison((1.0, -1.0), sides=2, ratios=True)
        super().__init__(PrecisionOf(rate or SoftRate()), over, compared, non_negative("kappa", kappa))


class GroupAUCAtLeast(OverSides):
    r"""``h(w) = least - AUC_a(w) <= 0`` for every group a, with ``AUC_a = 1 - mean of l(s_i - s_j)``.

    The mean is over the pairs of a positive i and a negative j of the group; with the sigmoid loss it is a smoothed
    AUC.  A batch that lacks a class of the group leaves its row unchanged.  If samples are not drawn uniformly, a pair
    has the product of its samples' ``weight``.

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
        over = SidesOfGroups(by, "pairs", groups, ("auc",), (1, 0), compared="each")
        super().__init__(LossOfPairs(loss or SigmoidPair()), over, Comparison(), 1 - fraction("least", least))


class AUCParity(OverSides):
    r"""``h(w) = |AUC_a(w) - AUC_b(w)| - kappa <= 0`` for every comparison of two sides.

    The AUC of a side is as in :class:`GroupAUCAtLeast`, over pairs within the side.

    Args:
        kappa: tolerance on a difference of AUCs, >= 0.
        loss: l, the surrogate of 1[d <= 0].
        by: column of the groups.
        against: "pairs", "rest" or "whole", see :class:`SidesOfGroups`.
        groups: names of the groups 0, 1, ...; None takes them from the datamodule, else there are two.
    """

    def __init__(
        self,
        kappa: float = 0.02,
        loss: PairLoss | None = None,
        by: str = "group",
        against: Against = "pairs",
        groups: Sequence[str] | None = None,
    ) -> None:
        over = SidesOfGroups(by, against, groups, ("auc",), (1, 0))
        super().__init__(LossOfPairs(loss or SigmoidPair()), over, DIFFERENCE, non_negative("kappa", kappa))


class ROCFairness(OverSides):
    r"""``h_tau^{+-}(w) = |mean_favoured sigma((s - tau)/T) - mean_other sigma((s - tau)/T)| - kappa <= 0``.

    There is a row of width 2 (rate of the favoured group, rate of the other) for every threshold among the positives
    (true positive rates, the first rows) and for every threshold among the negatives (false positive rates).  Source:
    SONEX paper, F.2, which uses T = 1, raw scores and thresholds -3..3.  If a group has no samples of a class in a
    batch, the rows of that class stay unchanged.  If samples are not drawn uniformly, means are weighted by the column
    ``weight``.

    With G > 2 groups there are such rows for every comparison selected by ``against`` (:class:`SidesOfGroups`), by
    default for every pair of groups; they are ordered by class, comparison and threshold.

    Warning: with raw scores the constraints can be met without any fairness, as an AUC objective does not change if all
    scores are shifted beyond the thresholds or shrunk; :meth:`vacuous` detects this.  ``QuantileScores`` prevents it.

    Args:
        thresholds: tau, in units of ``scale``.
        kappa: tolerance on a difference of rates, in [0, 1).
        temperature: T, > 0, in units of ``scale``.
        scale: unit of thresholds and temperature.
        by: column of the groups: "group", or with a datamodule of tables any of its columns.
        against: what a group is compared with: "pairs" (every other group), "rest" (all others together) or "whole".
        groups: names of the groups 0, 1, ...; None takes them from the datamodule, else there are two.

    Raises:
        ConfigError: if an argument is out of range.
    """

    def __init__(
        self,
        thresholds: Sequence[float] = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0),
        kappa: float = 0.005,
        temperature: float = 1.0,
        scale: ScoreScale | None = None,
        by: str = "group",
        against: Against = "pairs",
        groups: Sequence[str] | None = None,
    ) -> None:
        thresholds = list_of("thresholds", thresholds)
        if not thresholds or len(set(thresholds)) != len(thresholds):
            raise ConfigError(f"thresholds must be a non-empty list without repeats, got {thresholds!r}.")
        if non_negative("kappa", kappa) >= 1:
            raise ConfigError(f"kappa is a difference of rates and must be < 1, got {kappa!r}.")
        rates = RatesAbove([float(t) for t in thresholds], temperature, scale or RawScores())
        levels = [f"{t:g}" for t in rates.thresholds]
        over = SidesOfGroups(by, against, groups, ("tpr", "fpr"), (1, 0), levels=levels)
        super().__init__(rates, over, DIFFERENCE, kappa)

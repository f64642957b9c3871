"""Equal ROC curves for all groups, as equal rates at a set of thresholds."""

from collections.abc import Sequence

from fcco_lightning.checks import non_negative, positive
from fcco_lightning.constraints.compared import Difference
from fcco_lightning.constraints.comparisons import Against
from fcco_lightning.constraints.measured import RatesAbove
from fcco_lightning.constraints.over_sides import OverSides
from fcco_lightning.constraints.score_scales import RawScores, ScoreScale
from fcco_lightning.constraints.sides import SidesOfGroups
from fcco_lightning.errors import ConfigError


class ROCFairness(OverSides):
    r"""``h_tau^{+-}(w) = |mean_favoured sigma((s - tau)/T) - mean_other sigma((s - tau)/T)| - kappa <= 0``.

    One row of width 2 (rate of the favoured group, rate of the other) per threshold over the positives (true positive
    rates, rows 0..|thresholds|-1) and per threshold over the negatives (false positive rates, the rest): SONEX paper,
    F.2, with T = 1, raw scores and thresholds -3..3 there.  A class that one of the groups lacks in a batch leaves its
    rows untouched.  Where samples are not drawn uniformly the means are weighted by the column ``weight``.

    With G > 2 groups there are such rows for every comparison that ``against`` asks for (:class:`GroupComparisons`), by
    class, comparison and threshold: by default for every pair of groups.

    Warning: on raw scores the constraints can be met without any fairness, because an AUC objective does not change
    when all scores are shifted out of the thresholds' window or shrunk; :meth:`vacuous` says when.  ``QuantileScores``
    cannot be gamed.

    Args:
        thresholds: tau, in units of ``scale``.
        kappa: tolerance on a difference of rates, in [0, 1).
        temperature: T, > 0, in units of ``scale``.
        scale: unit of thresholds and temperature.
        by: column of the groups: "group", or with a datamodule of tables any of its columns.
        against: with what a group is compared: "pairs" (every other group), "rest" (all others together) or "whole".
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
        if not thresholds or len(set(thresholds)) != len(thresholds):
            raise ConfigError(f"thresholds must be a non-empty list without repeats, got {list(thresholds)!r}.")
        if non_negative("kappa", kappa) >= 1:
            raise ConfigError(f"kappa is a difference of rates and must be < 1, got {kappa!r}.")
        rates = RatesAbove([float(t) for t in thresholds], positive("temperature", temperature), scale or RawScores())
        levels = [f"{t:g}" for t in rates.thresholds]
        over = SidesOfGroups(by, against, groups, ("tpr", "fpr"), (1, 0), levels=levels)
        super().__init__(rates, over, Difference(), kappa)

"""Equal ROC curves for all groups, as equal rates at a set of thresholds."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fcco_lightning.checks import non_negative, positive
from fcco_lightning.constraints.averages import OfMeans
from fcco_lightning.constraints.base import DifferenceAtMost
from fcco_lightning.constraints.comparisons import Against
from fcco_lightning.constraints.parity import GroupConstraint
from fcco_lightning.constraints.score_scales import RawScores, ScoreScale
from fcco_lightning.constraints.vacuity import enough_decisions, spread
from fcco_lightning.errors import ConfigError
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives import binary_scores
from fcco_lightning.outer import Range


class ROCFairness(DifferenceAtMost, OfMeans, GroupConstraint):
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

    range = Range(0.0, 1.0)
    kinds = ("tpr", "fpr")
    classes = (1, 0)
    smooths = True

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
        self.thresholds = tuple(float(t) for t in thresholds)
        if non_negative("kappa", kappa) >= 1:
            raise ConfigError(f"kappa is a difference of rates and must be < 1, got {kappa!r}.")
        self.temperature = positive("temperature", temperature)
        self.scale = scale or RawScores()
        self._levels = Known(torch.tensor(self.thresholds, dtype=torch.float64))
        super().__init__(kappa, by, against, groups)

    def _name(self) -> None:
        """Rows are by class, comparison and threshold."""
        super()._name()
        self.names = []
        for rate in self.kinds:
            by_threshold = [self.comparisons.rows(f"{rate}@{t:g}", always=False) for t in self.thresholds]
            self.names += [name for of_pair in zip(*by_threshold, strict=True) for name in of_pair]

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        return [sides for sides in super().subsets(columns) for _ in self.thresholds]

    def of_samples(self, outputs: Tensor, batch: Columns) -> Tensor:
        """Whether the score is above every threshold, smoothed, shape (B, t)."""
        above = self._above(outputs, batch)
        return torch.sigmoid(above if self.temperature == 1 else above / self.temperature)

    def of_decisions(self, outputs: Tensor, batch: Columns) -> Tensor:
        return (self._above(outputs, batch) > 0).to(outputs.dtype)

    def _above(self, outputs: Tensor, batch: Columns) -> Tensor:
        scores = self.scale(binary_scores(outputs), batch.get("weight")).unsqueeze(1)
        return scores - self._levels.like(scores, scores.dtype)

    def mean(self, shares: Tensor, values: Tensor) -> Tensor:
        return shares @ values  # those of samples that count nowhere are finite, so nothing is put in their place

    def values_of(self, measured: Tensor) -> Tensor:
        return self.by_rows(measured).transpose(2, 3).reshape(-1, 2)  # by class, comparison, threshold and side

    def known_of(self, known: Tensor) -> Tensor:
        return super().known_of(known).repeat_interleave(len(self.thresholds), output_size=self.num_rows)

    def vacuous(self, outputs: Tensor, batch: Columns) -> str | None:
        """Fewer than two thresholds separate scores, or the scores span less than one temperature."""
        edges, weight = enough_decisions(batch, len(outputs)).edges, batch.get("weight")
        low, high = spread(self.scale(binary_scores(outputs).detach().double(), weight), edges, weight)
        inside = sum(low < t < high for t in self.thresholds)
        if inside < min(2, len(self.thresholds)):
            return (
                f"{inside} of {len(self.thresholds)} thresholds in [{min(self.thresholds):g}, "
                f"{max(self.thresholds):g}] lie within the scores' range [{low:.3g}, {high:.3g}]. "
                "Put them at quantiles (scale: QuantileScores)"
            )
        if high - low < self.temperature:
            return (
                f"the scores span {high - low:.3g}, less than one temperature ({self.temperature:g}). Lower it, or use "
                "scale: QuantileScores"
            )
        return None

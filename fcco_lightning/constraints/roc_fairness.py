"""Equal ROC curves for all groups, as equal rates at a set of thresholds."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.checks import at_least, non_negative, positive
from fcco_lightning.constraints.base import DifferenceAtMost
from fcco_lightning.constraints.comparisons import Against, GroupComparisons
from fcco_lightning.constraints.vacuity import spread
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import Range
from fcco_lightning.hosted import on_host
from fcco_lightning.numerics import send
from fcco_lightning.objectives import Quantity, binary_scores, require_binary_labels, required_column
from fcco_lightning.records import Arrangement, Columns, Usual


class ScoreScale(ABC):
    """The unit in which thresholds are given: a map of the batch's scores, with graph."""

    @abstractmethod
    def __call__(self, scores: Tensor) -> Tensor:
        """Scores (B,) in the unit of the thresholds, (B,)."""


@dataclass(frozen=True)
class RawScores(ScoreScale):
    """The score itself (the paper's form).  The constraint can be met by moving or shrinking all scores."""

    def __call__(self, scores: Tensor) -> Tensor:
        return scores


@dataclass(frozen=True)
class StandardScores(ScoreScale):
    r"""``(s - mean(s)) / std(s)`` over the batch: no shift and no scaling of the scores changes the constraint.

    A few extreme scores still can, by making the standard deviation large; :class:`QuantileScores` knows no such way.

    Args:
        floor: smallest standard deviation, > 0, in units of the score.
    """

    floor: float = 1e-6

    def __post_init__(self) -> None:
        positive("floor", self.floor)

    def __call__(self, scores: Tensor) -> Tensor:
        centred = scores - scores.mean()
        # clamped before the root, whose slope at 0 is infinite: equal scores have gradient 0, not NaN
        return centred / centred.square().mean().clamp(min=self.floor**2).sqrt()


@dataclass(frozen=True)
class QuantileScores(ScoreScale):
    r"""The level of the score among all scores of the batch, in [0, 1]: thresholds are quantiles of the pooled scores.

    Piecewise linear between ``knots`` quantiles of the batch, through which the gradient flows too.  No increasing map
    of the scores changes the values at the knots, so neither shifts, nor scalings, nor heavy tails can meet the
    constraint: the same invariance as that of the ROC curves.

    Args:
        knots: number of quantiles, >= 2; fewer than a batch has samples.
        floor: smallest distance of two quantiles, > 0, in units of the score.
    """

    knots: int = 33
    floor: float = 1e-6

    def __post_init__(self) -> None:
        at_least("knots", self.knots, 2)
        positive("floor", self.floor)

    def __call__(self, scores: Tensor) -> Tensor:
        levels = torch.linspace(0, 1, self.knots, device=scores.device, dtype=scores.dtype)
        quantiles = _quantiles(scores, levels)
        right = torch.searchsorted(quantiles.detach(), scores.detach()).clamp(1, self.knots - 1)
        low, high = quantiles[right - 1], quantiles[right]
        within = (scores - low) / (high - low).clamp(min=self.floor)
        return (right - 1 + within.clamp(0, 1)) / (self.knots - 1)


def _quantiles(scores: Tensor, levels: Tensor) -> Tensor:
    """Linearly interpolated quantiles; ``torch.quantile`` refuses more than 2^24 values and half precision."""
    ranked = scores.sort().values
    position = levels * (len(scores) - 1)
    below = position.floor().long().clamp(max=len(scores) - 1)
    above = (below + 1).clamp(max=len(scores) - 1)
    return torch.lerp(ranked[below], ranked[above], position - below)


class ROCFairness(DifferenceAtMost):
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
        self.kappa = non_negative("kappa", kappa)
        if kappa >= 1:
            raise ConfigError(f"kappa is a difference of rates and must be < 1, got {kappa!r}.")
        self.temperature = positive("temperature", temperature)
        self.scale = scale or RawScores()
        self.comparisons = GroupComparisons(by, against, groups)
        self._cached: tuple[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] | None = None
        self._name_rows()

    def _name_rows(self) -> None:
        """By class, comparison and threshold."""
        self.names = []
        for rate in ("tpr", "fpr"):
            by_threshold = [self.comparisons.rows(f"{rate}@{t:g}", always=False) for t in self.thresholds]
            self.names += [name for of_pair in zip(*by_threshold, strict=True) for name in of_pair]

    def adapt(self, datamodule: Any) -> None:
        """Take the groups, and their names, from the datamodule."""
        self.comparisons.adapt(datamodule)
        self._cached = None
        self._name_rows()

    def check(self, outputs: Any, batch: Columns) -> None:  # noqa: ARG002
        require_binary_labels(batch, self)
        self.comparisons.check(batch, self)

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch speaks of the rates of a class if it holds a sample of it from both sides."""
        sides, rows = self.comparisons.members(columns, self), list[Sequence[Tensor]]()
        for label in (1, 0):
            of_class = columns["y"] == label
            for pair in self.comparisons.pairs:
                both = [of_class & sides[pair.first], of_class & sides[pair.second]]
                rows += [both] * len(self.thresholds)
        return rows

    def arrange(self, batch: Columns, like: Tensor) -> Arrangement:
        thresholds, order = self._constants(like)
        shares, known = self._shares(on_host(batch), like.dtype)
        given = (send(shares, like), thresholds, order)
        index = torch.arange(self.num_rows)
        if bool(known.all()):
            return Arrangement(index, (*given, None))
        both = torch.stack([known[:, pair.first] & known[:, pair.second] for pair in self.comparisons.pairs], dim=1)
        index = index[both.flatten().repeat_interleave(len(self.thresholds))]
        return Arrangement(index, (*given, send(index, like)))

    def arrange_usual(self, batch: Columns, like: Tensor) -> Usual:
        """The same for a batch with both classes of all sides."""
        shares, known = self._shares(batch, like.dtype)
        return Usual((shares, *self._constants(like), None), known.all())

    def values(self, outputs: Tensor, given: tuple[Tensor, Tensor, Tensor, Tensor | None]) -> Tensor:
        """The rates of both sides, shape (b, 2)."""
        shares, thresholds, order, chosen = given
        scores = self.scale(binary_scores(outputs))
        rates = shares @ torch.sigmoid((scores.unsqueeze(1) - thresholds) / self.temperature)
        # (class, pair; side; tau) -> (class, pair, tau; side)
        rates = rates.index_select(0, order).view(-1, 2, len(self.thresholds)).transpose(1, 2).reshape(-1, 2)
        return rates if chosen is None else rates.index_select(0, chosen)

    def _shares(self, batch: Columns, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What every sample counts in the rate of a class and a side, shape (2 sides, B), and which rates are known.

        The positives are first; the second has the shape (2, sides), bool.  Both are on the host.
        """
        positive, sides = required_column(batch, "y", self) == 1, self.comparisons.members(batch, self)
        member = torch.cat([sides & positive, sides & ~positive])
        weighted = member * batch["weight"].to(dtype) if "weight" in batch else member.to(dtype)
        count = weighted.sum(dim=1, keepdim=True)
        return weighted / torch.where(count > 0, count, 1.0), (count > 0).view(2, -1)

    def _constants(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Thresholds, and the first and the second side of every pair, on the device and in the dtype of ``like``."""
        key = (like.device, like.dtype)
        if self._cached is None or self._cached[0] != key:
            with torch.inference_mode(False):  # they may be part of a graph later
                sides = [side for pair in self.comparisons.pairs for side in (pair.first, pair.second)]
                rows = [row * len(self.comparisons.sides) + side for row in range(2) for side in sides]
                thresholds = torch.tensor(self.thresholds, dtype=like.dtype, device=like.device)
                self._cached = key, (thresholds, torch.tensor(rows, device=like.device))
        return self._cached[1]

    def vacuous(self, outputs: Tensor, batch: Columns) -> str | None:  # noqa: ARG002
        """Fewer than two thresholds separate scores, or the scores span less than one temperature."""
        low, high = spread(self.scale(binary_scores(outputs).detach().double()))
        inside = sum(low < t < high for t in self.thresholds)
        if inside < min(2, len(self.thresholds)):
            return (
                f"{inside} of {len(self.thresholds)} thresholds in [{min(self.thresholds):g}, "
                f"{max(self.thresholds):g}] lie within the scores' range [{low:.3g}, {high:.3g}]"
            )
        if high - low < self.temperature:
            return f"the scores span {high - low:.3g}, less than one temperature ({self.temperature:g})"
        return None


@dataclass(frozen=True)
class TopShare(Quantity):
    r"""``sigmoid((level of s - (1 - share)) / temperature)``: whether a sample is among the highest scores of all.

    A budget: its mean over everyone is about ``share`` whatever the scores, so means over groups say who gets it.
    Levels are those of :class:`QuantileScores` among the samples of the batch, so that batches estimate them with a
    bias that falls with their size.

    Args:
        share: of the samples that are selected, in (0, 1).
        temperature: unit of the level, > 0; the smaller, the closer to the hard rate.
        scale: how levels are measured.

    Raises:
        ConfigError: if an argument is out of range.
    """

    share: float
    temperature: float = 0.05
    scale: QuantileScores = QuantileScores()
    range = Range(0.0, 1.0)

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(f"share must lie in (0, 1), got {self.share!r}: 0.1 selects a tenth of the samples.")
        positive("temperature", self.temperature)

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:  # noqa: ARG002
        levels = self.scale(binary_scores(outputs))
        return torch.sigmoid((levels - (1 - self.share)) / self.temperature)

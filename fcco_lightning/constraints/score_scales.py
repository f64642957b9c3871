"""Units for thresholds on scores."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.checks import at_least, positive
from fcco_lightning.objectives.vacuity import quantiles


class ScoreScale(ABC):
    """A unit for thresholds: a differentiable map of the scores of a batch."""

    @abstractmethod
    def __call__(self, scores: Tensor, weight: Tensor | None = None) -> Tensor:
        """The scores in the unit of the thresholds, (B,).

        Args:
            scores: the scores of a batch, (B,).
            weight: number of samples of the data that each sample represents, (B,), if they are not drawn uniformly.
        """


@dataclass(frozen=True)
class RawScores(ScoreScale):
    """The score itself (as in the paper).  The constraint can be met by shifting or shrinking all scores."""

    def __call__(self, scores: Tensor, weight: Tensor | None = None) -> Tensor:  # noqa: ARG002
        return scores


@dataclass(frozen=True)
class StandardScores(ScoreScale):
    r"""``(s - mean(s)) / std(s)`` over the batch: the constraint is invariant to shifts and scalings of the scores.

    A few extreme scores can still change it by increasing the standard deviation; :class:`QuantileScores` prevents
    this.

    Args:
        floor: smallest standard deviation, > 0, in units of the score.
    """

    floor: float = 1e-6

    def __post_init__(self) -> None:
        positive("floor", self.floor)

    def __call__(self, scores: Tensor, weight: Tensor | None = None) -> Tensor:
        scores = scores - scores[:1].detach()  # so that equal scores become exactly 0
        centred = scores - _mean(scores, weight)
        # clamped before the root, so that equal scores have the gradient 0 and not NaN
        return centred / _mean(centred.square(), weight).clamp(min=self.floor**2).sqrt()


def _mean(values: Tensor, weight: Tensor | None) -> Tensor:
    return values.mean() if weight is None else torch.dot((weight / weight.sum()).to(values.dtype), values)


@dataclass(frozen=True)
class QuantileScores(ScoreScale):
    r"""The level of the score among all scores of the batch, in [0, 1]: thresholds are quantiles of the pooled scores.

    The map is piecewise linear between ``knots`` quantiles of the batch, and the gradient includes the quantiles.
    Increasing maps of the scores do not change the values at the knots, so the constraint cannot be met by shifts,
    scalings or heavy tails: ROC curves have the same invariance.  If samples are not drawn uniformly, the quantiles are
    those of the data, by the column ``weight``.

    Args:
        knots: number of quantiles, >= 2; it should be smaller than the batch size.
        floor: smallest distance of two quantiles, > 0, in units of the score.
    """

    knots: int = 33
    floor: float = 1e-6

    def __post_init__(self) -> None:
        at_least("knots", self.knots, 2)
        positive("floor", self.floor)

    def __call__(self, scores: Tensor, weight: Tensor | None = None) -> Tensor:
        levels = torch.linspace(0, 1, self.knots, device=scores.device, dtype=scores.dtype)
        knots = quantiles(scores, levels, weight)
        right = torch.searchsorted(knots.detach(), scores.detach()).clamp(1, self.knots - 1)
        low, high = knots[right - 1], knots[right]
        within = (scores - low) / (high - low).clamp(min=self.floor)
        return (right - 1 + within.clamp(0, 1)) / (self.knots - 1)

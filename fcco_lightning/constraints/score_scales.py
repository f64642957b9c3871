"""The unit in which thresholds on scores are given."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.checks import at_least, positive
from fcco_lightning.constraints.vacuity import quantiles


class ScoreScale(ABC):
    """The unit in which thresholds are given: a map of the batch's scores, with graph."""

    @abstractmethod
    def __call__(self, scores: Tensor, weight: Tensor | None = None) -> Tensor:
        """Scores (B,) in the unit of the thresholds, (B,).

        Args:
            scores: of the samples of a batch.
            weight: how many samples of the data each stands for, (B,), where they are not drawn uniformly.
        """


@dataclass(frozen=True)
class RawScores(ScoreScale):
    """The score itself (the paper's form).  The constraint can be met by moving or shrinking all scores."""

    def __call__(self, scores: Tensor, weight: Tensor | None = None) -> Tensor:  # noqa: ARG002
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

    def __call__(self, scores: Tensor, weight: Tensor | None = None) -> Tensor:
        scores = scores - scores[:1].detach()  # so that equal scores are 0 to the last bit
        centred = scores - _mean(scores, weight)
        # clamped before the root, whose slope at 0 is infinite: equal scores have gradient 0, not NaN
        return centred / _mean(centred.square(), weight).clamp(min=self.floor**2).sqrt()


def _mean(values: Tensor, weight: Tensor | None) -> Tensor:
    return values.mean() if weight is None else torch.dot((weight / weight.sum()).to(values.dtype), values)


@dataclass(frozen=True)
class QuantileScores(ScoreScale):
    r"""The level of the score among all scores of the batch, in [0, 1]: thresholds are quantiles of the pooled scores.

    Piecewise linear between ``knots`` quantiles of the batch, through which the gradient flows too.  No increasing map
    of the scores changes the values at the knots, so neither shifts, nor scalings, nor heavy tails can meet the
    constraint: the same invariance as that of the ROC curves.  Where samples are not drawn uniformly, the quantiles are
    those of the data, by the column ``weight``.

    Args:
        knots: number of quantiles, >= 2; fewer than a batch has samples.
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

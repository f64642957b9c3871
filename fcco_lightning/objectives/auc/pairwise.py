"""Surrogate losses l(d) of a pair, with d = score of the positive - score of the negative."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fcco_lightning.checks import positive
from fcco_lightning.numerics import exp_with_tangent
from fcco_lightning.objectives.pair_sums import PairLoss as PairLoss  # noqa: PLC0414 - it is one of them

_MOST_IN_FLOAT32 = 50.0  # exponent; float32 overflows at 88
_MOST_EXPONENT = 500.0  # exponent; float64 overflows at 709, and the mean and f follow


@dataclass(frozen=True)
class SigmoidPair(PairLoss):
    r"""``l(d) = sigmoid(-d / scale)``: the mean over pairs is 1 minus the smoothed AUC.

    It is the surrogate of the SONEX paper, F.2, up to the constant 1.

    Args:
        scale: unit of the difference, > 0.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        positive("scale", self.scale)

    def __call__(self, d: Tensor) -> Tensor:
        return torch.sigmoid(d * (-1 / self.scale))

    def with_slope(self, d: Tensor) -> tuple[Tensor, Tensor]:
        losses = self(d)
        slopes = (losses - 1).mul_(losses)
        return losses, slopes if self.scale == 1 else slopes.div_(self.scale)


@dataclass(frozen=True)
class SquaredPair(PairLoss):
    """``l(d) = (margin - d)^2``, margin > 0."""

    margin: float = 1.0
    square: ClassVar[Literal["no", "everywhere", "hinge"]] = "everywhere"

    def __post_init__(self) -> None:
        positive("margin", self.margin)

    def __call__(self, d: Tensor) -> Tensor:
        return self._gap(d).square()

    def with_slope(self, d: Tensor) -> tuple[Tensor, Tensor]:
        gap = self._gap(d)
        return gap.square(), gap.mul_(-2)

    def _gap(self, d: Tensor) -> Tensor:
        return self.margin - d


@dataclass(frozen=True)
class SquaredHingePair(SquaredPair):
    """``l(d) = max(0, margin - d)^2``, margin > 0."""

    square = "hinge"

    def _gap(self, d: Tensor) -> Tensor:
        return (self.margin - d).relu_()


@dataclass(frozen=True)
class LogisticPair(PairLoss):
    """``l(d) = log(1 + exp(-d))``."""

    def __call__(self, d: Tensor) -> Tensor:
        return softplus(-d)

    def with_slope(self, d: Tensor) -> tuple[Tensor, Tensor]:
        return softplus(-d), torch.sigmoid(-d).neg_()


@dataclass(frozen=True)
class ExponentialPair(PairLoss):
    r"""``l(d) = exp(-d / scale)``, continued by its tangent where the exponent exceeds 50, so that it stays finite.

    Args:
        scale: unit of the difference, > 0.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        positive("scale", self.scale)

    def __call__(self, d: Tensor) -> Tensor:
        return exp_with_tangent(d / -self.scale, _MOST_IN_FLOAT32)

    def with_slope(self, d: Tensor) -> tuple[Tensor, Tensor]:
        losses, slopes = _exp_with_slope(d / -self.scale, _MOST_IN_FLOAT32)
        return losses, slopes.div_(-self.scale)


@dataclass(frozen=True)
class ExponentialOf(PairLoss):
    r"""``exp(l(d) / lam)`` in float64, continued by its tangent in l where the exponent exceeds 500.

    Args:
        loss: l.
        lam: scale of the loss, > 0, in units of the loss.
    """

    loss: PairLoss
    lam: float

    def __call__(self, d: Tensor) -> Tensor:
        return exp_with_tangent(self.loss(d).double() / self.lam, _MOST_EXPONENT)

    def with_slope(self, d: Tensor) -> tuple[Tensor, Tensor]:
        inner, slopes = self.loss.with_slope(d)
        losses, by_exponent = _exp_with_slope(inner.double().div_(self.lam), _MOST_EXPONENT)
        return losses, slopes / self.lam * by_exponent


def _exp_with_slope(x: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """:func:`exp_with_tangent` of x and its derivative; overwrites x."""
    power = x.clamp(max=most)
    excess = x.sub_(power)
    slope = power.exp_()
    return slope * excess.add_(1), slope

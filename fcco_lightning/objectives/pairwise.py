"""Surrogate losses of a pair: l(d) with d = score of the positive - score of the negative."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fcco_lightning.checks import positive
from fcco_lightning.numerics import exp_with_tangent


class PairLoss(ABC):
    """A loss of the difference d (any shape, unit: score) that falls as d grows; elementwise."""

    @abstractmethod
    def __call__(self, d: Tensor) -> Tensor:
        """l(d), the shape of ``d``."""


@dataclass(frozen=True)
class SigmoidPair(PairLoss):
    r"""``l(d) = sigmoid(-d / scale)``: the mean over pairs is 1 - (smoothed AUC).

    It is the surrogate of the SONEX paper, F.2, up to the constant 1.

    Args:
        scale: unit of the difference, > 0.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        positive("scale", self.scale)

    def __call__(self, d: Tensor) -> Tensor:
        return torch.sigmoid(d / -self.scale)


@dataclass(frozen=True)
class SquaredPair(PairLoss):
    """``l(d) = (margin - d)^2``, margin > 0."""

    margin: float = 1.0

    def __post_init__(self) -> None:
        positive("margin", self.margin)

    def __call__(self, d: Tensor) -> Tensor:
        return (self.margin - d).square()


@dataclass(frozen=True)
class SquaredHingePair(PairLoss):
    """``l(d) = max(0, margin - d)^2``, margin > 0."""

    margin: float = 1.0

    def __post_init__(self) -> None:
        positive("margin", self.margin)

    def __call__(self, d: Tensor) -> Tensor:
        return (self.margin - d).clamp(min=0).square()


@dataclass(frozen=True)
class LogisticPair(PairLoss):
    """``l(d) = log(1 + exp(-d))``."""

    def __call__(self, d: Tensor) -> Tensor:
        return softplus(-d)


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
        return exp_with_tangent(d / -self.scale, 50.0)

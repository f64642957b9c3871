"""Surrogate losses of a pair: l(d) with d = score of the positive - score of the negative."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fcco_lightning.checks import positive
from fcco_lightning.errors import ConfigError
from fcco_lightning.numerics import exp_with_tangent

_FEW = 2**16
"""Number of pairs up to which they are formed all at once, which is then fastest."""
_BLOCK = 2**16  # pairs that are formed at a time beyond it: what fits into a core's cache


class PairLoss(ABC):
    """A loss of the difference d (any shape, unit: score) that falls as d grows; elementwise."""

    @abstractmethod
    def __call__(self, d: Tensor) -> Tensor:
        """l(d), the shape of ``d``."""

    def mean(
        self,
        positives: Tensor,
        negatives: Tensor,
        of_positives: Tensor | None = None,
        of_negatives: Tensor | None = None,
    ) -> Tensor:
        """The weighted mean of ``l(s_i - s_j)`` over all pairs of a positive i and a negative j, a scalar.

        Of many pairs no more are held at a time than fit into a cache, so that memory is O(a + b); the gradient is that
        of all pairs, and can be taken once.

        Args:
            positives: scores, shape (a,), a >= 1.
            negatives: scores, shape (b,), b >= 1.
            of_positives: their weights, shape (a,); None where all are alike.
            of_negatives: likewise, shape (b,).
        """
        if len(positives) * len(negatives) <= _FEW:
            losses = self(positives.unsqueeze(1) - negatives)
            if of_positives is None and of_negatives is None:
                return losses.mean()
            v, w = _shares(of_positives, positives), _shares(of_negatives, negatives)
            return v @ losses @ w
        return self._mean_of_many(
            positives, negatives, _shares(of_positives, positives), _shares(of_negatives, negatives)
        )

    def _mean_of_many(self, positives: Tensor, negatives: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """The same for shares v (a,) and w (b,) that add up to 1."""
        mean: Tensor = _MeanByBlocks.apply(self, positives, negatives, v, w)
        return mean


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

    def _mean_of_many(self, positives: Tensor, negatives: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """``(margin - E p + E n)^2 + Var p + Var n``: O(a + b)."""
        p, n, v, w = positives.double(), negatives.double(), v.double(), w.double()
        at_p, at_n = v @ p, w @ n
        mean = (self.margin - at_p + at_n).square() + v @ (p - at_p).square() + w @ (n - at_n).square()
        return mean.to(positives.dtype)


@dataclass(frozen=True)
class SquaredHingePair(PairLoss):
    """``l(d) = max(0, margin - d)^2``, margin > 0."""

    margin: float = 1.0

    def __post_init__(self) -> None:
        positive("margin", self.margin)

    def __call__(self, d: Tensor) -> Tensor:
        return (self.margin - d).clamp(min=0).square()

    def _mean_of_many(self, positives: Tensor, negatives: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """By sorting, O((a + b) log a): negative j has a loss with the positives below ``c_j = s_j + margin``.

        Their losses add up to ``c_j^2 V_0 - 2 c_j V_1 + V_2`` with the sums V of their shares times 1, s_i and s_i^2.
        """
        # differences of large sums: in float64, around a middle of the scores
        centre = positives.detach().double().mean()
        p, order = (positives.double() - centre).sort()
        c, v, w = negatives.double() - centre + self.margin, v.double()[order], w.double()
        sums = torch.stack([v, v * p, v * p.square()]).cumsum(1)
        below = torch.searchsorted(p.detach(), c.detach())
        v0, v1, v2 = torch.cat([sums.new_zeros(3, 1), sums], dim=1)[:, below]
        mean: Tensor = w @ (c.square() * v0 - 2 * c * v1 + v2)
        return mean.to(positives.dtype)


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


class _MeanByBlocks(torch.autograd.Function):
    """The mean over all pairs and its gradient by the scores, a block of positives at a time."""

    @staticmethod
    def forward(ctx: Any, loss: PairLoss, positives: Tensor, negatives: Tensor, v: Tensor, w: Tensor) -> Tensor:
        wanted = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        total = torch.zeros((), dtype=torch.float64, device=positives.device)
        slopes, of_negatives = [], torch.zeros_like(negatives)
        size = max(1, _BLOCK // len(negatives))
        for first in range(0, len(positives), size):
            block, share = positives.detach()[first : first + size], v[first : first + size]
            with torch.set_grad_enabled(wanted):
                scores, others = block.requires_grad_(wanted), negatives.detach().requires_grad_(wanted)
                part = share @ loss(scores.unsqueeze(1) - others) @ w
            total += part.detach()
            if wanted:
                slope, of_others = torch.autograd.grad(part, (scores, others))
                slopes.append(slope)
                of_negatives += of_others
        if wanted:
            ctx.save_for_backward(torch.cat(slopes), of_negatives)
        return total.to(positives.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # the slopes would count as constants
            raise ConfigError(
                f"a mean over more than {_FEW} pairs has no second derivative here. Use smaller batches, or the loss "
                "SquaredPair or SquaredHingePair."
            )
        of_positives, of_negatives = ctx.saved_tensors
        (gradient,) = gradients
        return None, gradient * of_positives, gradient * of_negatives, None, None


def _shares(weight: Tensor | None, scores: Tensor) -> Tensor:
    """Weights of the scores that add up to 1, shape (a,)."""
    if weight is None:
        return torch.full_like(scores, 1 / len(scores), requires_grad=False)
    return weight.to(scores.dtype) / weight.sum()

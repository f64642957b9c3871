"""Surrogate losses of a pair: l(d) with d = score of the positive - score of the negative."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fcco_lightning.checks import positive
from fcco_lightning.numerics import exp_with_tangent, send
from fcco_lightning.objectives.pair_sums import mean_by_blocks, pair_mean

FEW_PAIRS = 2**16
"""Number of pairs up to which they are formed all at once, which is then fastest."""
_MOST_IN_FLOAT32 = 50.0  # exponent of a loss, which overflows at 88
_MOST_EXPONENT = 500.0  # float64 overflows at 709, and the mean over negatives and f are still to come


class PairLoss(ABC):
    """A loss of the difference d (any shape, unit: score) that falls as d grows; elementwise."""

    @abstractmethod
    def __call__(self, d: Tensor) -> Tensor:
        """l(d), the shape of ``d``."""

    def with_slope(self, d: Tensor) -> tuple[Tensor, Tensor]:
        """l(d) and its derivative l'(d), both without graph.

        By autograd, unless a subclass knows a formula, which then costs less.
        """
        with torch.enable_grad():
            d = d.detach().requires_grad_()
            losses = self(d)
            (slopes,) = torch.autograd.grad(losses.sum(), d)
        return losses.detach(), slopes

    def mean(
        self,
        scores: Tensor,
        positives: Tensor,
        negatives: Tensor,
        v: Tensor | None = None,
        w: Tensor | None = None,
    ) -> Tensor:
        """The weighted mean of ``l(s_i - s_j)`` over all pairs of a positive i and a negative j, a scalar.

        Of many pairs no more are held at a time than fit into a cache, so that memory is O(B); the gradient is that of
        all pairs, and can be taken once.

        Args:
            scores: s, shape (B,).
            positives: positions of the i, shape (a,), int64, a >= 1.
            negatives: positions of the j, shape (b,), int64, b >= 1.
            v: weights of the positives, shape (a,), of sum 1, see :func:`shares`; None where all are alike.
            w: weights of the negatives, shape (b,), likewise.
        """
        v = shares(None, positives, scores) if v is None else v
        w = shares(None, negatives, scores) if w is None else w
        if len(positives) * len(negatives) <= FEW_PAIRS:
            return pair_mean(self, scores, positives, negatives, v, w)
        return self._mean_of_many(scores[positives], scores[negatives], v, w)

    def mean_over_all(self, scores: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """``sum_ij v_i w_j l(s_i - s_j)`` over all pairs of samples, a scalar.

        The shapes do not depend on the classes, so that it can be compiled once.

        Args:
            scores: s, shape (B,).
            v: shares of the samples among the positives, shape (B,), of sum 1; 0 for a negative.
            w: shares among the negatives, likewise.
        """
        mean: Tensor = v @ (self(scores.unsqueeze(1) - scores) @ w)
        return mean

    def _mean_of_many(self, positives: Tensor, negatives: Tensor, v: Tensor, w: Tensor) -> Tensor:
        """The same of scores of positives (a,) and negatives (b,) for shares v and w that add up to 1."""
        return mean_by_blocks(self, positives, negatives, v, w)


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

    def with_slope(self, d: Tensor) -> tuple[Tensor, Tensor]:
        losses = torch.sigmoid(d / -self.scale)
        slopes = (losses - 1).mul_(losses)
        return losses, slopes if self.scale == 1 else slopes.div_(self.scale)


@dataclass(frozen=True)
class SquaredPair(PairLoss):
    """``l(d) = (margin - d)^2``, margin > 0."""

    margin: float = 1.0

    def __post_init__(self) -> None:
        positive("margin", self.margin)

    def __call__(self, d: Tensor) -> Tensor:
        return (self.margin - d).square()

    def with_slope(self, d: Tensor) -> tuple[Tensor, Tensor]:
        gap = self.margin - d
        return gap.square(), gap.mul_(-2)

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

    def with_slope(self, d: Tensor) -> tuple[Tensor, Tensor]:
        gap = (self.margin - d).clamp_(min=0)
        return gap.square(), gap.mul_(-2)

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
        exponent = d / -self.scale
        power = exponent.clamp(max=_MOST_IN_FLOAT32)
        excess = exponent.sub_(power)
        value = power.exp_()
        return value * excess.add_(1), value.div(-self.scale)


@dataclass(frozen=True)
class ExponentialOf(PairLoss):
    r"""``exp(l(d) / lam)`` in float64, continued by its tangent in l where the exponent exceeds 500.

    Args:
        loss: l.
        lam: > 0, in units of the loss.
    """

    loss: PairLoss
    lam: float

    def __call__(self, d: Tensor) -> Tensor:
        return exp_with_tangent(self.loss(d).double() / self.lam, _MOST_EXPONENT)

    def with_slope(self, d: Tensor) -> tuple[Tensor, Tensor]:
        losses, slopes = self.loss.with_slope(d)
        exponent = losses.double().div_(self.lam)
        power = exponent.clamp(max=_MOST_EXPONENT)
        excess = exponent.sub_(power)
        value = power.exp_()
        return value * excess.add_(1), slopes / self.lam * value


def shares(weight: Tensor | None, positions: Tensor, like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Weights of the samples at some positions that add up to 1, shape (a,).

    Args:
        weight: of all samples, shape (B,), where the positions are; None where all are alike.
        positions: shape (a,), int64.
        like: a tensor of the device of the result.
        dtype: of the result; None for that of ``like``.
    """
    dtype = dtype or like.dtype
    if weight is None:
        return torch.full(positions.shape, 1 / len(positions), device=like.device, dtype=dtype)
    weight = weight.index_select(0, positions).to(dtype)
    return send(weight / weight.sum(), like)

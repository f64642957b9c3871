"""Balls of weights around the uniform weights."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.ambiguity.base import AmbiguitySet, dtype_of_q, on_host
from fcco_lightning.checks import non_negative
from fcco_lightning.numerics import project_to_simplex, root, widest

_TIES = 1e-14  # relative difference up to which losses count as equal
_ON_BALL = 1e-15  # distance from the boundary that counts as 0
_STEPS = 100


@dataclass(frozen=True)
class _Ball(AmbiguitySet):
    """``{q >= 0, sum q = 1, D(q, 1/n) <= rho}``."""

    rho: float

    def __post_init__(self) -> None:
        non_negative("rho", self.rho)

    @abstractmethod
    def distance(self, q: Tensor) -> float:
        """``D(q, 1/n) - rho``, up to a positive factor."""

    def on_boundary(self, v: Tensor, weights: Callable[[float], Tensor]) -> Tensor:
        """The ``weights(x)`` on the boundary of the ball, found by a root search over x.

        Args:
            v: a tensor with the shape (n,) and type of the result.
            weights: x -> weights (n,), which tend to 1/n for x -> -inf, and leave the ball as x grows.
        """
        if self.rho == 0:
            return torch.full_like(v, 1 / len(v))
        return weights(root(lambda x: self.distance(weights(x)), _ON_BALL))


class ChiSquareBall(_Ball):
    r"""``{q >= 0, sum q = 1, (1/n) sum_i (n q_i - 1)^2 <= rho}``.

    The ball is ``|q - 1/n|^2 / 2 <= rho/(2n)``: rho = 2 gives the radius 1/n of the DRAGO paper (E.4; erratum
    DRAGO-14).  While all weights stay positive ``max <q, R>`` is the mean of R plus sqrt(rho) standard deviations.

    Args:
        rho: squared radius, >= 0; with 0 Q holds the uniform weights only, from n - 1 on it is the whole simplex.

    Raises:
        ConfigError: if rho is negative or not finite.
    """

    def distance(self, q: Tensor) -> float:
        """``|q - 1/n|^2 - rho/n``."""
        return float((q - 1 / len(q)).square().sum()) - self.rho / len(q)

    def worst_case(self, risks: Tensor) -> Tensor:
        v = risks.to(widest(risks))
        v = v - v.max()
        tied = (v >= -_TIES * v.min().abs()).to(v.dtype)
        ties = tied.sum()
        q = torch.where(1 / ties <= (self.rho + 1) / len(v), tied / ties, self._scaled(v))
        return q.to(dtype_of_q(risks))

    def project(self, v: Tensor) -> Tensor:
        dtype, v = dtype_of_q(v), v.to(widest(v))
        free = project_to_simplex(v)
        fits = free.square().sum() <= (self.rho + 1) / len(v)
        return torch.where(fits, free, self._scaled(v)).to(dtype)

    def _scaled(self, v: Tensor) -> Tensor:
        """The projection q of s v onto the simplex for the largest s for which it is in the ball.

        The support grows as s decreases: it is the k largest entries for ``h_k < 1/s <= h_{k+1}``, and then |q|^2 is
        ``s^2 W_k + 1/k``, with W_k their sum of squares around the mean and ``h_k = sum (v_j - v_k)`` over them.
        """
        n, v = len(v), v - v.max()
        bound = (self.rho + 1) / n  # on |q|^2
        descending = v.sort(descending=True).values
        rank = torch.arange(1, n + 1, device=v.device, dtype=v.dtype)
        sums = descending.cumsum(0)
        around = ((rank[:-1] / rank[1:]) * (descending[1:] - sums[:-1] / rank[:-1]).square()).cumsum(0)
        around = torch.cat([around.new_zeros(1), around])  # W_k, without a difference of squares
        h = sums - rank * descending
        ahead = torch.cat([h[1:], h.new_full((1,), math.inf)])  # h_{k+1}
        least = torch.where(ahead > 0, around / ahead.square(), math.inf) + 1 / rank
        inside = least <= bound * (1 + 1e-15)
        place = inside.to(torch.int8).argmax(0, keepdim=True)
        k, spread = (one.index_select(0, place) for one in (rank, around))
        # for rho = 0, up to rounding, no s exists, and q is uniform
        scale = (torch.where(spread > 0, (bound - 1 / k).clamp(min=0) / spread, 0.0) * inside.any()).sqrt()
        return project_to_simplex(scale * v)

    @on_host
    def project_kl(self, log_p: Tensor) -> Tensor:
        q = log_p.softmax(0)
        if self.distance(q) <= 0:
            return q
        return self.on_boundary(q, lambda x: _sum_to_one(log_p, math.exp(-x), 1.0))


class KLBall(_Ball):
    r"""``{q >= 0, sum q = 1, KL(q, 1/n) <= rho}``, with ``KL(q, 1/n) = sum_i q_i log(n q_i)``.

    Args:
        rho: radius, >= 0; with 0 Q holds the uniform weights only, from log n on it is the whole simplex.

    Raises:
        ConfigError: if rho is negative or not finite.
    """

    def distance(self, q: Tensor) -> float:
        """``KL(q, 1/n) - rho``."""
        return float(torch.special.xlogy(q, len(q) * q).sum()) - self.rho

    @on_host
    def worst_case(self, risks: Tensor) -> Tensor:
        v = risks - risks.max()
        spread = float(v.abs().max())
        tied = v >= -_TIES * spread
        ties = int(tied.count_nonzero())
        if math.log(len(v) / ties) <= self.rho:
            return tied.to(v.dtype) / ties
        return self._tempered(v / spread)

    @on_host
    def project_kl(self, log_p: Tensor) -> Tensor:
        q = log_p.softmax(0)
        return q if self.distance(q) <= 0 else self._tempered(log_p - log_p.max())

    def _tempered(self, v: Tensor) -> Tensor:
        """``softmax(s v)`` on the boundary of the ball."""
        return self.on_boundary(v, lambda x: (math.exp(x) * v).softmax(0))

    @on_host
    def project(self, v: Tensor) -> Tensor:
        q = project_to_simplex(v)
        if self.distance(q) <= 0:
            return q
        return self.on_boundary(v, lambda x: _sum_to_one(v, 1.0, math.exp(-x)))


def _sum_to_one(r: Tensor, a: float, b: float) -> Tensor:
    """Find q > 0 with ``a q_i + b log q_i = r_i - u`` for some u and ``sum q = 1``; a > 0, b > 0.

    The sum is convex and decreasing in u, so Newton's method, started where the sum is at least 1, converges from
    below.
    """
    u, rounding = r.max() - a, 4 * torch.finfo(r.dtype).eps  # here the largest q is 1
    for _ in range(_STEPS):
        q = _entropic_root(r - u, a, b)
        step = (q.sum() - 1) / (q / (a * q + b)).sum()
        u = u + step
        if float(step.abs()) <= rounding * (1 + float(u.abs())):
            break
    return q / q.sum()


def _entropic_root(r: Tensor, a: float, b: float) -> Tensor:
    """Solve ``a q + b log q = r``: q is b/a times Wright's omega w, with ``w + log w = r/b + log(a/b)``."""
    from scipy.special import wrightomega  # noqa: PLC0415 (slow to import)

    return torch.from_numpy(wrightomega((r / b + math.log(a / b)).numpy())) * (b / a)

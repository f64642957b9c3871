"""Balls of weights around the uniform ones."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.ambiguity.base import AmbiguitySet, Weights, on_host, type_of_weights, wide
from fcco_lightning.checks import non_negative
from fcco_lightning.numerics import project_to_simplex, root

_TIES = 1e-14  # relative: losses that count as equal
_ON_BALL = 1e-15  # distance from the sphere that counts as on it
_STEPS = 100


@dataclass(frozen=True)
class _Ball(AmbiguitySet):
    """``{q >= 0, sum q = 1, D(q, 1/n) <= rho}``."""

    rho: float

    def __post_init__(self) -> None:
        non_negative("rho", self.rho)

    @abstractmethod
    def distance(self, q: Tensor) -> float:
        """``D(q, 1/n) - rho`` in some unit."""

    def balanced(self, equation: Callable[[float], tuple[Tensor, float, float]]) -> tuple[Tensor, Tensor, float]:
        """The multiplier lam > 0 for which q lies on the boundary: q, u and lam.

        ``equation(lam)`` is (r, a, b), and q solves ``a q_i + b log q_i = r_i - u`` with ``sum q = 1``.
        """

        def inside(log_lam: float) -> float:
            return -self.distance(_sum_to_one(*equation(math.exp(log_lam)))[0])

        lam = math.exp(root(inside, _ON_BALL))
        return *_sum_to_one(*equation(lam)), lam


class ChiSquareBall(_Ball):
    r"""``{q >= 0, sum q = 1, (1/n) sum_i (n q_i - 1)^2 <= rho}``.

    The ball is ``|q - 1/n|^2 / 2 <= rho/(2n)``: rho = 2 gives the radius 1/n of the DRAGO paper (E.4; erratum
    DRAGO-14).  While all weights stay positive ``max <q, R>`` is the mean of R plus sqrt(rho) standard deviations.

    Args:
        rho: squared radius, >= 0; 0 leaves only the mean, from n - 1 on there are all weights.

    Raises:
        ConfigError: if rho is negative or not finite.
    """

    def distance(self, q: Tensor) -> float:
        """``|q - 1/n|^2 - rho/n``."""
        return float((q - 1 / len(q)).square().sum()) - self.rho / len(q)

    def worst_case(self, risks: Tensor) -> Tensor:
        v = wide(risks)
        v = v - v.max()
        tied = (v >= -_TIES * v.min().abs()).to(v.dtype)
        ties = tied.sum()
        q = torch.where(1 / ties <= (self.rho + 1) / len(v), tied / ties, self._scaled(v)[0])
        return q.to(type_of_weights(risks))

    def nearest(self, v: Tensor) -> Weights:
        dtype, v = type_of_weights(v), wide(v)
        free, (q, t, lam) = project_to_simplex(v), self._scaled(v)
        fits = free.square().sum() <= (self.rho + 1) / len(v)
        q, t = torch.where(fits, free, q), torch.where(fits, v.max() - free.max(), t)
        return Weights(q.to(dtype), t.to(dtype), torch.where(fits, 0.0, lam).to(dtype))

    def _scaled(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The projection q of s v onto the simplex for the largest s for which it is in the ball; with t and 1/s - 1.

        The support grows as s falls: the k largest are it for ``h_k < 1/s <= h_{k+1}``, and then |q|^2 is
        ``s^2 W_k + 1/k``, with W_k their sum of squares around the mean and ``h_k = sum (v_j - v_k)``.
        """
        n, top = len(v), v.max()
        v, bound = v - top, (self.rho + 1) / n  # of |q|^2
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
        k, spread, total = (one.index_select(0, place) for one in (rank, around, sums))
        scale = (torch.where(spread > 0, (bound - 1 / k).clamp(min=0) / spread, 0.0) * inside.any()).sqrt()
        lam = torch.where(scale > 0, 1 / scale - 1, math.inf)
        # on the support (1 + lam) (q - 1/n) = v - t - 1/n; for rho = 0, up to rounding, there is no s and q is uniform
        t = torch.where(scale > 0, total / k - (1 / k - 1 / n) * (1 + lam), v.mean()) + top - 1 / n
        return project_to_simplex(scale * v), t.squeeze(0), lam.squeeze(0)

    @on_host
    def nearest_kl(self, log_p: Tensor) -> Weights:
        n = len(log_p)
        q = log_p.softmax(0)
        if self.distance(q) <= 0:
            return Weights(q, log_p.logsumexp(0) - math.log(n) - 1)
        if self.rho == 0:
            return Weights(torch.full_like(q, 1 / n), log_p.mean(), math.inf)
        q, u, lam = self.balanced(lambda lam: (log_p, lam, 1.0))
        return Weights(q, u - math.log(n) - 1 + lam / n, lam)


class KLBall(_Ball):
    r"""``{q >= 0, sum q = 1, KL(q, 1/n) <= rho}``, with ``KL(q, 1/n) = sum_i q_i log(n q_i)``.

    Args:
        rho: >= 0; 0 leaves only the mean, from log n on there are all weights.

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
        return self._tempered(v / spread)[0]

    @on_host
    def nearest_kl(self, log_p: Tensor) -> Weights:
        n = len(log_p)
        q = log_p.softmax(0)
        if self.distance(q) <= 0:
            return Weights(q, log_p.logsumexp(0) - math.log(n) - 1)
        q, s = self._tempered(log_p - log_p.max())
        if s == 0:
            return Weights(q, log_p.mean(), math.inf)
        return Weights(q, ((s * log_p).logsumexp(0) - math.log(n) - 1) / s, 1 / s - 1)

    def _tempered(self, v: Tensor) -> tuple[Tensor, float]:
        """``softmax(s v)`` on the boundary of the ball, and s."""
        if self.rho == 0:
            return torch.full_like(v, 1 / len(v)), 0.0

        def ahead(log_s: float) -> float:
            return self.distance((math.exp(log_s) * v).softmax(0))

        s = math.exp(root(ahead, _ON_BALL))
        return (s * v).softmax(0), s

    @on_host
    def nearest(self, v: Tensor) -> Weights:
        n = len(v)
        q = project_to_simplex(v)
        if self.distance(q) <= 0:
            return Weights(q, v.max() - q.max())
        if self.rho == 0:
            return Weights(torch.full_like(v, 1 / n), v.mean(), math.inf)
        q, u, lam = self.balanced(lambda lam: (v, 1.0, lam))
        return Weights(q, u - lam * (math.log(n) + 1), lam)


def _sum_to_one(r: Tensor, a: float, b: float) -> tuple[Tensor, Tensor]:
    """Find q > 0 and u with ``a q_i + b log q_i = r_i - u`` and ``sum q = 1``; a > 0, b > 0.

    The sum is convex and decreasing in u, so Newton's method from where it is at least 1 rises to its root.
    """
    u, rounding = r.max() - a, 4 * torch.finfo(r.dtype).eps  # the largest q is 1 at this u
    for _ in range(_STEPS):
        q = _entropic_root(r - u, a, b)
        step = (q.sum() - 1) / (q / (a * q + b)).sum()
        u = u + step
        if float(step.abs()) <= rounding * (1 + float(u.abs())):
            break
    return q / q.sum(), u


def _entropic_root(r: Tensor, a: float, b: float) -> Tensor:
    """Find q with ``a q + b log q = r``: b/a times Wright's function, the w with ``w + log w = r/b + log(a/b)``."""
    from scipy.special import wrightomega  # noqa: PLC0415 (slow to import)

    return torch.from_numpy(wrightomega((r / b + math.log(a / b)).numpy())) * (b / a)

"""The simplex, for the worst case, and the capped simplex, for the conditional value at risk."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.ambiguity.base import AmbiguitySet, dtype_of_q
from fcco_lightning.checks import fraction
from fcco_lightning.errors import ConfigError
from fcco_lightning.numerics import mean_of_equals, project_to_simplex, widest

_ROUNDING = 1e-9  # tolerance for alpha n being a whole number, or 1
_TABLE = 2**15  # number of entries up to which a table is faster than bisection


@dataclass(frozen=True)
class Simplex(AmbiguitySet):
    """``{q >= 0, sum q = 1}``: ``max <q, R>`` is the largest R_i; ties share the weight."""

    def worst_case(self, risks: Tensor) -> Tensor:
        largest = (risks == risks.max()).to(risks.dtype)
        return largest / largest.sum()

    def project(self, v: Tensor) -> Tensor:
        return project_to_simplex(v)

    def project_kl(self, log_p: Tensor) -> Tensor:
        return log_p.softmax(0)


@dataclass(frozen=True)
class CappedSimplex(AmbiguitySet):
    r"""``{q >= 0, sum q = 1, q_i <= 1/(alpha n)}``: ``max <q, R>`` is the mean of the worst alpha n of the R_i (CVaR).

    alpha = 1/n sets no cap (the worst group); with alpha = 1 it is the mean.

    Args:
        alpha: fraction of the groups, in [1/n, 1].
    Source: ALEXR paper, section 5.1; SONEX paper, F.1.
    """

    alpha: float

    def __post_init__(self) -> None:
        fraction("alpha", self.alpha)

    def check(self, num_groups: int) -> None:
        if self.alpha * num_groups < 1 - _ROUNDING:
            raise ConfigError(
                f"alpha={self.alpha!r} of {num_groups} groups or samples is {self.alpha * num_groups:.3g} of one, must "
                f"be at least one. Use alpha >= {1 / num_groups:.6g}, or for the worst one alone Simplex (of groups "
                "also WorstGroupDRO)."
            )

    def cap(self, n: int) -> float:
        """Largest weight of one of ``n`` groups."""
        return min(1.0, 1 / (self.alpha * n))

    def worst_case(self, risks: Tensor) -> Tensor:
        cap, n = self.cap(len(risks)), len(risks)
        before = cap * torch.arange(n, device=risks.device, dtype=risks.dtype)
        weights = (1 - before).clamp(min=0, max=cap)  # from the worst group on
        return mean_of_equals(torch.empty_like(weights).scatter_(0, risks.argsort(descending=True), weights), risks)

    def project(self, v: Tensor) -> Tensor:
        # q = clip(v - t, 0, cap); its sum decreases with t, linearly between the breakpoints v and v - cap
        cap = self.cap(len(v))
        dtype = dtype_of_q(v)
        v = v.to(widest(v))
        v = v - v.max()  # only shifts t; avoids cancellation for large v
        t = _last_end(v, cap)
        inner = (v > t).sum() - (v - cap > t).sum()
        t = t + ((v - t).clamp(min=0, max=cap).sum() - 1) / inner.clamp(min=1)
        q = (v - t).clamp(min=0, max=cap)
        return _of_sum_one(q, v, cap).to(dtype)

    def project_kl(self, log_p: Tensor) -> Tensor:
        # q = min(c p, cap): the k largest entries are at the cap, the others share the rest; k is the smallest possible
        # number, which is not read from the device, to avoid a synchronisation
        cap = self.cap(len(log_p))
        n = len(log_p)
        dtype = dtype_of_q(log_p)
        log_p = log_p.to(widest(log_p))
        log_p = log_p - log_p.max()  # changes nothing but c
        most = math.ceil(1 / cap - _ROUNDING) - 1  # at most so many can be at the cap
        ascending = log_p.sort().values
        tails = ascending.logcumsumexp(0)[n - most - 1 :]  # log of the sum of all but the k largest, for k = most..0
        remaining = torch.linspace(1 - cap * most, 1, most + 1, device=log_p.device, dtype=log_p.dtype)
        fits = remaining[1:] * torch.exp(ascending[n - most :] - tails[1:]) <= cap * (1 + 1e-12)
        remaining, tail = (one.index_select(0, fits.sum(0, keepdim=True)) for one in (remaining, tails))
        q = (remaining * torch.exp(log_p - tail)).clamp(max=cap)
        # correct the sum, as the exponential of a large number loses digits
        inside = q * (q < cap)
        q = torch.addcmul(q, inside, (1 - q.sum()) / inside.sum().clamp(min=torch.finfo(q.dtype).tiny)).clamp(max=cap)
        return q.to(dtype)


def _of_sum_one(q: Tensor, v: Tensor, cap: float) -> Tensor:
    """Correct weights in [0, cap] whose sum differs from 1 by rounding, for large v.

    The correction is applied to the weights between the bounds; if there are none, to the next ones in the order of v.
    """
    excess, inside = q.sum() - 1, (q > 0) & (q < cap)
    next_up, next_down = torch.where(q < cap, v, -torch.inf).amax(), torch.where(q > 0, v, torch.inf).amin()
    chosen = torch.where(inside.any(), inside, v == torch.where(excess < 0, next_up, next_down))
    return torch.where(chosen, q - excess / chosen.sum().clamp(min=1), q).clamp(min=0, max=cap)


def _last_end(v: Tensor, cap: float) -> Tensor:
    """The largest breakpoint t of v or v - cap at which ``sum_i clip(v_i - t, 0, cap)`` is at least 1, a scalar.

    All sums are over numbers in [0, cap]: a difference of two sums of v would lose its digits for large v.
    """
    ends, least = torch.cat([v, v - cap]), 1 - 16 * torch.finfo(v.dtype).eps
    if len(ends) * len(v) <= _TABLE:
        sums = (v - ends.unsqueeze(1)).clamp(min=0, max=cap).sum(1)
        return torch.where(sums >= least, ends, ends.amin()).amax()
    ends, place = ends.sort().values, torch.zeros(1, dtype=torch.int64, device=v.device)
    for power in reversed(range((len(ends) - 1).bit_length())):  # bisection, as the sums decrease
        after = place + 2**power
        t = ends.index_select(0, after.clamp(max=len(ends) - 1))
        enough = (v - t).clamp(min=0, max=cap).sum() >= least
        place = torch.where(enough & (after < len(ends)), after, place)
    return ends.index_select(0, place).squeeze(0)

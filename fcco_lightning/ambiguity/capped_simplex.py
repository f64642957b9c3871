"""The set behind the conditional value at risk."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.ambiguity.base import AmbiguitySet
from fcco_lightning.checks import fraction
from fcco_lightning.errors import ConfigError

_ROUNDING = 1e-9  # alpha n counts as whole, and as 1, up to it


@dataclass(frozen=True)
class CappedSimplex(AmbiguitySet):
    r"""``{q >= 0, sum q = 1, q_i <= 1/(alpha n)}``: ``max <q, R>`` is the mean of the worst alpha n of the R_i (CVaR).

    alpha = 1/n caps nothing (the worst group), alpha = 1 leaves only the mean.

    Args:
        alpha: share of the groups, in [1/n, 1].
    Source: ALEXR paper, section 5.1; SONEX paper, F.1.
    """

    alpha: float

    def __post_init__(self) -> None:
        fraction("alpha", self.alpha)

    def check(self, num_groups: int) -> None:
        if self.alpha * num_groups < 1 - _ROUNDING:
            raise ConfigError(
                f"alpha={self.alpha!r} of {num_groups} groups is {self.alpha * num_groups:.3g} of a group, must be at "
                f"least one. Use alpha >= {1 / num_groups:.6g}, or WorstGroupDRO for the worst group alone."
            )

    def cap(self, n: int) -> float:
        """Largest weight of one of ``n`` groups."""
        return min(1.0, 1 / (self.alpha * n))

    def worst_case(self, risks: Tensor) -> Tensor:
        cap, n = self.cap(len(risks)), len(risks)
        before = cap * torch.arange(n, device=risks.device, dtype=risks.dtype)
        weights = (1 - before).clamp(min=0, max=cap)  # of the worst group, the next one, ...
        return torch.empty_like(weights).scatter_(0, risks.argsort(descending=True), weights)

    def project(self, v: Tensor) -> Tensor:
        # q = clip(v - t, 0, cap); its sum is piecewise linear in t, with kinks at v_i (where q_i leaves 0) and at
        # v_i - cap (where it is full)
        cap, n = self.cap(len(v)), len(v)
        v = v - v.max()  # changes nothing, and keeps the digits of large v
        kinks, order = torch.cat([v, v - cap]).sort(descending=True)
        rising = torch.where(order < n, 1.0, -1.0).to(v.dtype).cumsum(0)  # how many entries grow below each kink
        total = torch.cat([v.new_zeros(1), (rising[:-1] * -kinks.diff()).cumsum(0)])
        k = int(torch.searchsorted(total, v.new_ones(1)).clamp(1, 2 * n - 1)) - 1  # total[k] < 1 <= total[k + 1]
        t = kinks[k] - (1 - total[k]) / rising[k].clamp(min=1)
        return (v - t).clamp(min=0, max=cap)

    def project_kl(self, log_p: Tensor) -> Tensor:
        # the k largest entries are at the cap, the others are p scaled to what is left; k is the least that fits
        cap, n = self.cap(len(log_p)), len(log_p)
        descending, order = log_p.sort(descending=True)
        tails = descending.flip(0).logcumsumexp(0).flip(0)  # log of sum_{j > k} p_j for k = 0..n-1
        left = 1 - cap * torch.arange(n, device=log_p.device, dtype=log_p.dtype)
        left = torch.where(left < _ROUNDING, 0.0, left)
        scale = left.log() - tails
        k = int((scale + descending <= torch.log(scale.new_tensor(cap)) + 1e-12).to(torch.int8).argmax())
        sorted_q = torch.exp(scale[k] + descending).clamp(max=cap)
        sorted_q[:k] = cap
        return torch.empty_like(sorted_q).scatter_(0, order, sorted_q)

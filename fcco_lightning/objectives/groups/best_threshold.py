"""The threshold of a conditional value at risk, or of another worst case, that is best for given risks."""

import torch
from torch import Tensor

from fcco_lightning.outer import OuterFunction, slopes, widest

_CANDIDATES = 64  # at once, for every round of the search
_ROUNDS = 3


def best_threshold(risks: Tensor, f: OuterFunction, present: Tensor) -> Tensor:
    r"""The c that minimises ``c + (1/m) sum_i f_c(R_i)`` over the m risks that are known, ``f_c(R) = phi(R - c)``.

    The sum is convex in c, and has the slope ``1 - (1/m) sum_i phi'(R_i - c)``, which rises with c.  So the minimiser
    is where the mean of phi' falls below 1; where phi has kinks it is the largest such c from below.  It is found among
    candidates between neighbours of which the next round looks, to a millionth of the distance between the outermost.

    Args:
        risks: R_i, shape (n, 1), without graph; NaN where not known.
        f: f_c at the present threshold, convex and non-decreasing, with slopes from at most 1 to at least 1.
        present: the present c, a scalar.

    Returns: c, a scalar in the widest floating-point type; the present one where no risk is known.
    """
    known = ~risks.isnan()
    risks = torch.where(known, risks, risks.nanmean()).to(widest(risks))
    present = present.detach().to(risks.dtype)
    number = known.sum()

    def enough(candidates: Tensor) -> Tensor:
        """Of every candidate whether the mean of phi' is at least 1, so that the minimiser is not below it."""
        at = (risks - candidates + present).reshape(-1, 1)  # f has its own threshold, the present one
        each = slopes(f, at).view(len(risks), -1)  # of an exponential far away it is infinite
        return torch.where(known, each, 0.0).sum(0) >= number

    low, high = risks.amin(), risks.amax()
    span = (high - low).clamp(min=1e-6)
    below = torch.logspace(8, -2, _CANDIDATES, dtype=risks.dtype, device=risks.device)
    candidates = torch.cat([low - span * below, high.reshape(1)])
    for _ in range(_ROUNDS):
        last = enough(candidates).sum().clamp(1, len(candidates) - 1)
        low, high = candidates[last - 1], candidates[last]
        candidates = torch.lerp(low, high, torch.linspace(0, 1, _CANDIDATES, dtype=risks.dtype, device=risks.device))
    found = candidates[(enough(candidates).sum() - 1).clamp(min=0)]
    return torch.where(found.isnan(), present, found)

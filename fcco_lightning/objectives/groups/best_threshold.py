"""The threshold of a conditional value at risk, or of another worst case, that is best for given risks."""

import torch
from torch import Tensor

from fcco_lightning.outer import OuterFunction, widest

_CANDIDATES = 64  # at once, in every round of the search
_ROUNDS = 3


@torch.no_grad()
def best_threshold(risks: Tensor, f: OuterFunction, present: Tensor) -> Tensor:
    r"""The c that minimises ``c + (1/m) sum_i f_c(R_i)`` over the m risks that are known, ``f_c(R) = phi(R - c)``.

    The sum is convex in c.  It is computed at many candidates, first at ever larger distances below the least risk, and
    then, round by round, between the two neighbours of the best one so far.  The last neighbours are some 1e-5 of the
    distance between the outermost risks apart.

    Args:
        risks: R_i, shape (n, 1), without graph; NaN where not known.
        f: f_c at the present threshold, convex and non-decreasing, and as steep as 1 above the largest risk or before.
        present: the present c, a scalar.

    Returns: c, a scalar in the widest floating-point type; the present one where no risk is known.
    """
    known = ~risks.isnan()
    number = known.sum()
    risks = torch.where(known, risks, risks.nanmean()).to(widest(risks))
    moved = risks + present.to(risks.dtype)  # f_c takes the present threshold off again

    def totals(candidates: Tensor) -> Tensor:
        values = f((moved - candidates).view(-1, 1)).view(len(moved), -1)
        total = torch.where(known, values, 0.0).sum(0).nan_to_num(torch.inf, torch.inf)  # of exponentials far away
        return candidates + total / number

    low, high = risks.aminmax()
    shares = torch.linspace(0, 1, _CANDIDATES, dtype=risks.dtype, device=risks.device)
    below = 10 ** (8 - 10 * shares)
    candidates = torch.cat([low - (high - low).clamp(min=1e-6) * below, high.view(1)])
    for _ in range(_ROUNDS):
        best = totals(candidates).argmin().clamp(1, len(candidates) - 2)
        candidates = torch.lerp(candidates[best - 1], candidates[best + 1], shares)
    found = candidates[totals(candidates).argmin()]
    return torch.where(number > 0, found, present.to(found.dtype))

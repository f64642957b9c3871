"""The threshold of a conditional value at risk, or of another worst case, that is best for given risks."""

import torch
from torch import Tensor

from fcco_lightning.outer import OuterFunction, widest

_EACH_WAY = 16  # candidates below the present threshold, and above


@torch.no_grad()
def better_threshold(risks: Tensor, f: OuterFunction, present: Tensor) -> Tensor:
    r"""A threshold c that comes nearer to the minimiser of ``c + (1/m) sum_i f_c(R_i)``, ``f_c(R) = phi(R - c)``.

    The sum, over the m risks that are known, is convex in c.  It is computed at the present c and at 16 places each
    way, ``c -+ r (j/16)^5`` with r four times the distance to the farther of the outermost risks, and the least is
    taken.  Places are so dense near c, 1e-6 r, that where the risks move little from update to update c is the
    minimiser but for that, and reach so far that a few updates bring c there from anywhere.

    Args:
        risks: R_i, shape (n, 1), without graph; NaN where not known.
        f: f_c at the present threshold, convex and non-decreasing.
        present: the present c, a scalar.

    Returns: c, a scalar in the widest floating-point type; the present one where no risk is known.
    """
    known = ~risks.isnan()
    away = torch.where(known, risks.to(widest(risks)) - present, 0.0)
    places = torch.arange(1, _EACH_WAY + 1, dtype=away.dtype, device=away.device).div(_EACH_WAY).pow(5)
    steps = 4 * away.abs().amax().clamp(min=1e-6) * torch.cat([0 * places[:1], places, -places])  # of equals the first
    values = f((present + away - steps).view(-1, 1)).view(len(away), -1)  # f_c takes the present threshold off
    total = torch.where(known, values, 0.0).sum(0) + known.sum() * steps
    return present + steps[total.nan_to_num(torch.inf, torch.inf).argmin()]  # an exponential far away is infinite

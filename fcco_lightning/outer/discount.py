"""The discounted gain of an item by its rank in a list."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.checks import positive
from fcco_lightning.outer.base import OuterFunction, not_below


@dataclass(frozen=True)
class DiscountedGain(OuterFunction):
    r"""``f(r) = -sum_j C(r_j) / log2(1 + r_j)`` for r > 0: NDCG, minus the gain of an item of rank r >= 1.

    C is 1, or the smooth cutoff ``1 / (1 + (r / cutoff)^sharpness)`` at the first ranks.  Increasing, smooth, and
    concave without cutoff; the slope for r >= 1 is then at most ``1 / (2 ln 2) = 0.72``, whatever the length of the
    list.  Source: SONG, Qiu et al. (2022), without its 1/N in the rank.

    Args:
        cutoff: rank at which a gain counts half, > 0; None for no cutoff.
        sharpness: exponent of the cutoff, > 0.
        floor: smaller ranks are replaced by it, > 0.

    Raises:
        ConfigError: if a number is not positive.
    """

    cutoff: float | None = None
    sharpness: float = 2.0
    floor: float = 1e-12
    smooth = True
    above_zero = ("sharpness", "floor")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cutoff is not None:
            positive("cutoff", self.cutoff)

    @property
    def lipschitz(self) -> float:
        """C_f: the slope at the floor; with a cutoff an upper bound of it."""
        discount = math.log(2) / math.log1p(self.floor)
        cutoff_slope = 0.0 if self.cutoff is None else discount * self.sharpness / (4 * self.floor)
        return discount**2 / (math.log(2) * (1 + self.floor)) + cutoff_slope

    def __call__(self, u: Tensor) -> Tensor:
        rank = not_below(u, self.floor)
        gain = math.log(2) / torch.log1p(rank)
        if self.cutoff is not None:
            gain = gain * torch.sigmoid(self.sharpness * (math.log(self.cutoff) - rank.log()))
        return -gain.sum(-1)

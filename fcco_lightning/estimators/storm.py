"""Recursive variance reduction of the gradient (STORM), the gradient part of MSVR."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fcco_lightning.checks import fraction
from fcco_lightning.state.divided import parts_of


class Storm:
    r"""``v_t = G(w_t; B) + (1 - b) (v_{t-1} - G(w_{t-1}; B))``, both on the same samples; ``v_0 = G(w_0; B)``.

    Args:
        b: weight of the plain gradient, in (0, 1]; 1 is no variance reduction.
    Source: the papers name STORM (ALEXR paper, section 3.2; SONEX paper, section 4.1); the formula is general
    knowledge.
    """

    def __init__(self, b: float = 0.1) -> None:
        self.b = fraction("b", b)
        self.v: list[Tensor] = []

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor], previous: Sequence[Tensor] | None) -> list[Tensor]:
        """The new v, from the gradients at w_t and at w_{t-1} (None at the first step)."""
        new = [g.clone() for g in gradients]
        if previous is not None and self.v:
            torch._foreach_sub_(parts_of(self.v), parts_of(previous))
            torch._foreach_add_(parts_of(new), parts_of(self.v), alpha=1 - self.b)
        self.v = new
        return new

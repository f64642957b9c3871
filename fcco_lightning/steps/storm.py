"""Recursive variance reduction of the gradient (STORM), the gradient part of MSVR."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fcco_lightning.checks import fraction
from fcco_lightning.steps.base import Step, like_parameters


class Storm(Step):
    r"""``v_t = G(w_t; B) + (1 - b) (v_{t-1} - G(w_{t-1}; B))`` with the same samples, then the user's optimizer on v_t.

    G(w_{t-1}; B) takes the outer gradients at the rows from before this step, G(w_t; B) at the rows after it, so that
    the difference estimates ``grad F(w_t) - grad F(w_{t-1})``.  Two forwards and two backwards a batch.

    Args:
        b: weight of the plain gradient, in (0, 1]; 1 is no variance reduction.
    Source: the papers name STORM (000 section 3.2, 004 section 4.1); the formula is general knowledge.
    """

    needs_previous_gradient = True

    def __init__(self, b: float = 0.1) -> None:
        self.b = fraction("b", b)

    def bind(self, params: Sequence[nn.Parameter]) -> None:
        super().bind(params)
        self._v: list[Tensor] = []

    @torch.no_grad()
    def correct(self, previous_gradients: Sequence[Tensor | None] | None) -> None:
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        if not bool(torch.stack(torch._foreach_norm(gradients)).isfinite().all()):
            return  # an overflow in half precision: the loss scaler drops this step, v must not remember it
        if previous_gradients is not None and self._v:
            old = [
                torch.zeros_like(p) if g is None else g for p, g in zip(self.params, previous_gradients, strict=True)
            ]
            torch._foreach_sub_(self._v, old)
            torch._foreach_add_(gradients, self._v, alpha=1 - self.b)
        self._v = [g.clone() for g in gradients]
        for p, g in zip(self.params, gradients, strict=True):
            p.grad = g

    def state_dict(self) -> dict[str, Any]:
        return {"v": list(self._v)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._v = like_parameters(state["v"], self.params)

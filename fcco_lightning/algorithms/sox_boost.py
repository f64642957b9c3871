"""SOX-boost."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fcco_lightning.algorithms.base import Algorithm
from fcco_lightning.checks import at_least
from fcco_lightning.estimators import EMA, Estimator
from fcco_lightning.state import DualState


class SOXBoost(Algorithm):
    r"""SOX in stages (001 Alg. 2): every stage halves step size, beta and gamma and doubles its length.

    A stage hands on a uniformly random iterate (w, u, v) of its own (erratum E-001-8).  Halving instead of the
    constants of Thm 2 is what one does in practice.  beta is halved through the optimizer's momentum
    (``optimizer: HeavyBall``).

    Args:
        gamma: weight of the new value in the first stage, in (0, 1].
        first_stage: updates in the first stage, >= 1.
        seed: for the random iterate.
    """

    def __init__(self, gamma: float = 0.5, first_stage: int = 1000, seed: int = 0) -> None:
        super().__init__(EMA(gamma))
        self.gamma = gamma
        self.length = at_least("first_stage", first_stage, 1)
        self.stage, self.updates = 0, 0
        self._generator = torch.Generator().manual_seed(seed)
        self._kept: list[Tensor] = []
        self._draw()

    @property
    def estimator(self) -> Estimator:
        """SOX's average with the stage's gamma."""
        return EMA(self.gamma / 2**self.stage)

    @property
    def objective_estimator(self) -> Estimator:
        """As for the constraints."""
        return self.estimator

    @torch.no_grad()
    def after_update(self, optimizer: Optimizer, states: Sequence[DualState]) -> None:
        self.updates += 1
        if self.updates == self._keep_at:
            self._kept = [t.detach().clone() for t in _iterate(optimizer, states)]
        if self.updates < self.length:
            return
        for now, kept in zip(_iterate(optimizer, states), self._kept, strict=True):
            now.copy_(kept)
        for state in states:
            state.rewritten()
        self.stage, self.updates, self.length = self.stage + 1, 0, 2 * self.length
        self._draw()
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] / 2
            if "momentum" in group:
                group["momentum"] = group["dampening"] = 1 - (1 - group["momentum"]) / 2

    def _draw(self) -> None:
        self._keep_at = int(torch.randint(1, self.length + 1, (), generator=self._generator))

    def state_dict(self) -> dict[str, Any]:
        own = {
            "stage": self.stage,
            "updates": self.updates,
            "length": self.length,
            "keep_at": self._keep_at,
            "kept": list(self._kept),
            "generator": self._generator.get_state(),
        }
        return {**super().state_dict(), "boost": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        own = state["boost"]
        self.stage, self.updates, self.length = own["stage"], own["updates"], own["length"]
        self._keep_at, self._kept = own["keep_at"], [t.clone() for t in own["kept"]]
        self._generator.set_state(own["generator"])


def _iterate(optimizer: Optimizer, states: Sequence[DualState]) -> list[Tensor]:
    """The tensors that make up (w, u, v): parameters, rows with their marks, floating-point optimizer state."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    memory = [
        value
        for p in params
        for _, value in sorted(optimizer.state.get(p, {}).items())
        if isinstance(value, Tensor) and value.shape == p.shape
    ]
    return [*params, *memory, *(t for s in states for t in (s.rows, s.seen))]

"""SOX-boost."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fcco_lightning.algorithms.estimation import SingleLoop
from fcco_lightning.checks import at_least
from fcco_lightning.engine import Engine, Problem, Term
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import Average, Estimator
from fcco_lightning.models.batch import Batch
from fcco_lightning.state import DualState


class SOXBoost(SingleLoop):
    r"""SOX in stages (SOX paper, Alg. 2): each stage has half the step size, beta and gamma, and twice the length.

    The next stage starts from a uniformly random iterate (w, u, v) of a stage (erratum SOX-8).  Halving, as in
    practice, replaces the constants of Thm 2. beta is halved through the optimizer's momentum (``optimizer:
    HeavyBall``).

    Args:
        gamma: weight of the new value in the first stage, in (0, 1].
        first_stage: updates in the first stage, >= 1.
        seed: seed of the random choice of iterates, >= 0.
    """

    def __init__(self, gamma: float = 0.5, first_stage: int = 1000, seed: int = 0) -> None:
        super().__init__(Average(gamma))
        self.gamma, self.first_stage = gamma, at_least("first_stage", first_stage, 1)
        self.seed = at_least("seed", seed, 0)
        self._engine: Engine | None = None
        self._begin()

    def _begin(self) -> None:
        """Set the state of the first stage."""
        self.stage, self.updates, self.length = 0, 0, self.first_stage
        self._generator = torch.Generator().manual_seed(self.seed)
        self._kept: dict[str, Tensor] = {}
        self._draw()

    def start(self, engine: Engine) -> None:
        """Begin with the first stage for a new engine; freezing or unfreezing layers does not restart the stages."""
        super().start(engine)
        if engine is not self._engine:
            self._begin()
        self._engine = engine

    def estimator_of(self, term: Term) -> Estimator:  # noqa: ARG002
        """SOX's average with the stage's gamma."""
        return Average(self.gamma / 2**self.stage)

    def prepare(self, problem: Problem) -> None:
        super().prepare(problem)
        if any(state.sharded for state in problem.numbered_states()):
            raise ConfigError(
                "SOXBoost keeps a second copy of all rows, which cannot be sharded over processes. Use "
                "--model.execution.state_layout replicated, or another algorithm."
            )

    def iteration(self, engine: Engine, batch: Batch) -> None:
        if engine.has_schedule:
            raise ConfigError("SOXBoost sets its own step sizes: leave out --model.schedule.scheduler.")
        if any("dampening" not in group for group in engine.optimizer.param_groups):
            raise ConfigError(
                "SOXBoost halves beta, which it sets through the dampening of the optimizer's momentum; "
                f"{type(engine.optimizer).__name__} has no dampening. Use HeavyBall or SGD."
            )
        super().iteration(engine, batch)
        self._count(engine.optimizer, engine.problem.numbered_states())

    @torch.no_grad()
    def _count(self, optimizer: Optimizer, states: Sequence[DualState]) -> None:
        """Store the randomly chosen iterate; at the end of a stage go back to it and halve the step sizes."""
        self.updates += 1
        if self.updates == self._keep_at:
            self._kept = {name: t.detach().clone() for name, t in _iterate(optimizer, states).items()}
        if self.updates < self.length:
            return
        for name, now in _iterate(optimizer, states).items():
            if name in self._kept:
                now.copy_(self._kept[name])
            elif not name.startswith("w"):  # momentum that did not exist yet was 0; a weight was not trained
                now.zero_()
        self.stage, self.updates, self.length = self.stage + 1, 0, 2 * self.length
        self._draw()
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] / 2
            if "momentum" in group:
                group["momentum"] = group["dampening"] = 1 - (1 - group["momentum"]) / 2

    def _draw(self) -> None:
        self._keep_at = int(torch.randint(1, self.length + 1, (), generator=self._generator))

    def state_dict(self) -> dict[str, Any]:
        boost = {
            "stage": self.stage,
            "updates": self.updates,
            "length": self.length,
            "keep_at": self._keep_at,
            "kept": dict(self._kept),
            "generator": self._generator.get_state(),
        }
        return {**super().state_dict(), "boost": boost}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        boost = state["boost"]
        self.stage, self.updates, self.length = boost["stage"], boost["updates"], boost["length"]
        self._keep_at, self._kept = boost["keep_at"], {k: t.clone() for k, t in boost["kept"].items()}
        self._generator.set_state(boost["generator"])


def _iterate(optimizer: Optimizer, states: Sequence[DualState]) -> dict[str, Tensor]:
    """The tensors of an iterate (w, u, v) by name: parameters, rows, the optimizer's state."""
    named: dict[str, Tensor] = {}
    for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        named[f"w{i}"] = p
        memory = optimizer.state.get(p, {})
        named |= {f"{k}{i}": v for k, v in memory.items() if isinstance(v, Tensor) and v.shape == p.shape}
    for i, s in enumerate(states):
        named[f"rows{i}"] = s.rows
    return named

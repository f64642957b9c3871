"""Algorithms with two loops: inner iterations on z around a centre w, then an update of w."""

from collections.abc import Iterator
from typing import Any, Literal, get_args

import torch

from fcco_lightning.algorithms.estimation import Estimation
from fcco_lightning.algorithms.two_draws import Jacobian
from fcco_lightning.checks import at_least, one_of, positive
from fcco_lightning.engine import Engine
from fcco_lightning.estimators import Estimator, InnerPoint, ProximalDescent, copied
from fcco_lightning.models.batch import Batch
from fcco_lightning.outer import Smoothing
from fcco_lightning.state.sharded import parts_of

Clipped = Literal["inner", "outer", "both"]


class DoubleLoop(Estimation):
    r"""K inner iterations on z around w, then a step of the user's optimizer with ``G_t = (w - z_K) / nu``.

    One batch is one inner iteration.  ``G_t`` is the gradient of the nested-smoothed objective
    ``F_{lam,nu}(w) = min_z F_lam(z) + |z - w|^2 / (2 nu)`` (SONEX paper, eq. (5); erratum SONEX-1 for the missing
    beta).  The last batch of an epoch ends the inner loop, which may therefore be shorter than K there, and every epoch
    ends with an update of w.  Outside an iteration the network's parameters are w; z is stored here.

    The optimizer's weight decay acts on w in the outer step only, outside the envelope.

    Args:
        estimator: estimator of the constraints, and of the objective without ``objective_estimator``.
        smoothing: smoothing of non-smooth outer functions; None for none.
        objective_estimator: estimator of the objective's inner functions; None for ``estimator``.
        jacobian: which samples give the Jacobian, see :class:`Estimation`.
        K: inner iterations per update of w, >= 1 (SONEX paper, F.2: 5, 10).
        eta: inner step size, > 0 (SONEX paper, F.2: 1e-3, 1e-2, .1, 1).
        nu: smoothing of the whole objective, > 0 (SONEX paper, F.2: .1, .01).
        recovery_steps: inner iterations of the recovery step of Cor. 4.11 of the SONEX paper: after training, the inner
            loop runs once more around the final w, and its last z becomes the weights; 0 for none.
        clip: whether gradient clipping acts on the gradient of the "inner" iterations, on the "outer" gradient, or on
            "both".
    """

    def __init__(
        self,
        estimator: Estimator,
        smoothing: Smoothing | None = None,
        objective_estimator: Estimator | None = None,
        jacobian: Jacobian = "halves",
        *,
        K: int = 5,
        eta: float = 0.1,
        nu: float = 0.1,
        recovery_steps: int = 0,
        clip: Clipped = "inner",
    ) -> None:
        super().__init__(estimator, smoothing, objective_estimator, jacobian)
        self.K = at_least("K", K, 1)
        self.eta, self.nu = positive("eta", eta), positive("nu", nu)
        self.recovery_steps = at_least("recovery_steps", recovery_steps, 0)
        self.clip = one_of("clip", clip, get_args(Clipped))

    def start(self, engine: Engine) -> None:
        super().start(engine)
        self._count = 0
        self._point = InnerPoint(self._params)
        self._descent = ProximalDescent(self._params, self.eta, self.nu)

    def iteration(self, engine: Engine, batch: Batch) -> None:
        self._inner_iteration(engine, batch)
        if self._count == self.K or engine.last_batch:
            self.close(engine)

    def close(self, engine: Engine) -> None:
        if not self._count:
            return
        gradient = [(p.data - z).div_(self.nu) for p, z in zip(self._params, self._point.tensors, strict=True)]
        self._count = 0
        self._previous = []
        engine.update(gradient, clip=self.clip in ("outer", "both"))

    def finish(self, engine: Engine, batches: Iterator[Batch]) -> bool:
        """The recovery step (SONEX paper, Cor. 4.11): one more inner loop around w, whose z becomes the weights."""
        if not self.recovery_steps:
            return False
        self._previous = []
        for _ in range(self.recovery_steps):
            engine.optimizer.zero_grad(set_to_none=True)
            self._inner_iteration(engine, next(batches))
        with torch.no_grad():
            torch._foreach_copy_(parts_of(self._params), parts_of(self._point.tensors))
        self._count = 0
        return True

    def _inner_iteration(self, engine: Engine, batch: Batch) -> None:
        if self._count == 0:
            self._point.restart()
        with self._point.held() as centre:
            self._descent.centre = centre
            engine.descend(self.estimate(engine, batch))
            engine.commit(self._descent)
            if self.needs_previous:
                self._previous = copied(engine.params, self._previous)
            engine.update(by=self._descent, clip=self.clip in ("inner", "both"))
        self._count += 1

    def state_dict(self) -> dict[str, Any]:
        iterate = list(self._point.tensors) if self._count else []  # z = w between inner loops
        return {**super().state_dict(), "iterate": iterate, "inner_count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._point.load(state["iterate"])
        self._count = int(state["inner_count"])

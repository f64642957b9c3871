"""MSVR."""

from typing import Any, Literal

import torch

from fcco_lightning.algorithms.estimation import Estimation
from fcco_lightning.engine import Engine, Surrogate
from fcco_lightning.estimators import CorrectedEMA
from fcco_lightning.records import Batch
from fcco_lightning.steps import Storm, like_parameters


class MSVR(Estimation):
    r"""Corrected average of u_i and a STORM gradient, ``w <- step(w, v)``.

    ``u_i <- (1-gamma) u_i + gamma g_i(w_t) + gamma' (g_i(w_t) - g_i(w_{t-1}))`` and
    ``v <- G(w_t) + (1-b)(v - G(w_{t-1}))`` on the same samples; two forwards and two backwards.  G(w_{t-1}) takes the
    outer gradients at the rows from before the step, G(w_t) at the rows after it, so that the difference estimates
    ``grad F(w_t) - grad F(w_{t-1})``.  Where an objective bounds how far a value may be above its row
    (:attr:`~fcco_lightning.objectives.Objective.growth`), G(w_{t-1}) takes the fresh value in the place of a row that
    is further below it, by :meth:`~fcco_lightning.estimators.Sampling.plausible`.

    Where rows lag far behind the values (a slow gamma, small temperatures) the two gradients have different biases, and
    v holds 1/b times their difference: the loss can then rise.  Raise gamma or b, or take SONEX, which needs no second
    gradient.

    Args:
        gamma: weight of the new value, in (0, 1) (ALEXR paper: .1, .5, .9).
        gamma_prime: weight of the correction, or ``theory``: ``(n - B1)/(B1 (1-gamma)) + 1 - gamma``.
        b: weight of the plain gradient in v, in (0, 1].
    Source: described in section 3.2 of the ALEXR paper and section 4.1 of the SONEX paper.
    """

    def __init__(self, gamma: float = 0.5, gamma_prime: float | Literal["theory"] = "theory", b: float = 0.1) -> None:
        super().__init__(CorrectedEMA(gamma, gamma_prime, fresh=True))
        self.b = b
        self._storm = Storm(b)

    def start(self, engine: Engine) -> None:
        super().start(engine)
        self._storm = Storm(self.b)
        self.require_stored_activations(engine)

    def iteration(self, engine: Engine, batch: Batch) -> None:
        weights = self._previous.tensors
        before = None if weights is None else [w.detach().requires_grad_() for w in weights]
        now = engine.inner(engine.evaluate(batch, before, graph=True))
        surrogate, previous = Surrogate(now.direct), Surrogate(now.previous_direct)
        for reading in now.readings:
            if reading.previous is not None:
                earlier = reading.at_previous()
                self.add(previous, earlier, *self.recall(engine, earlier))
            self.add(surrogate, reading, *self.track(engine, reading))
        engine.descend(surrogate)
        old = None if before is None else engine.gradients(previous, before)
        if engine.commit():
            new = [torch.zeros_like(p) if p.grad is None else p.grad for p in engine.params]
            engine.replace_gradient([g.clone() for g in self._storm.update(new, old)])
        self._previous.remember(engine.params)
        engine.update()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "v": list(self._storm.v)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._storm.v = like_parameters(state["v"], self._params)

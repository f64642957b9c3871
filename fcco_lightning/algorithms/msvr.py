"""MSVR."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from fcco_lightning.algorithms.estimation import Estimation
from fcco_lightning.engine import Engine, Reading, Surrogate
from fcco_lightning.estimators import CorrectedEMA
from fcco_lightning.outer import OuterFunction
from fcco_lightning.records import Batch, Tracked
from fcco_lightning.state import replaced
from fcco_lightning.steps import Storm, like_parameters


class MSVR(Estimation):
    r"""Corrected average of u_i and a STORM gradient, ``w <- step(w, v)``.

    ``u_i <- (1-gamma) u_i + gamma g_i(w_t) + gamma' (g_i(w_t) - g_i(w_{t-1}))`` and
    ``v <- G_t(w_t) + (1-b)(v - G_{t-1}(w_{t-1}))``, both on the samples of step t; two forwards and two backwards.

    G_t takes the outer gradients at the rows from before step t, and G_{t-1} at those from before step t - 1: all n of
    them are given before the batch is drawn, so that the difference estimates without bias by how much
    ``(1/n) sum_i [Jac g_i(w)]^T grad f(u_i)`` has changed between the two steps.  (At rows which the batch itself has
    moved it would not: the batch's rows have all moved, of the n rows only these, and v would hold the excess 1/b
    times.)  The rows that the step before has changed are therefore kept, one batch of them.

    Args:
        gamma: weight of the new value, in (0, 1) (ALEXR paper: .1, .5, .9).
        gamma_prime: weight of the correction, or ``theory``: ``(n - B1)/(B1 (1-gamma)) + 1 - gamma``.
        b: weight of the plain gradient in v, in (0, 1].
    Source: described in section 3.2 of the ALEXR paper and section 4.1 of the SONEX paper.
    """

    def __init__(self, gamma: float = 0.5, gamma_prime: float | Literal["theory"] = "theory", b: float = 0.1) -> None:
        super().__init__(CorrectedEMA(gamma, gamma_prime))
        self.b = b
        self._storm, self._changed = Storm(b), _ChangedRows()

    def start(self, engine: Engine) -> None:
        super().start(engine)
        self._storm, self._changed = Storm(self.b), _ChangedRows()
        self.require_stored_activations(engine)

    def iteration(self, engine: Engine, batch: Batch) -> None:
        weights = self._previous.tensors
        before = None if weights is None else [w.detach().requires_grad_() for w in weights]
        now = engine.inner(engine.evaluate(batch, before, graph=True))
        surrogate, previous, changed = Surrogate(now.direct), Surrogate(now.previous_direct), _ChangedRows()
        for reading in now.readings:
            number = engine.problem.all_terms.index(reading.term)
            changed.note(number, reading.index, self.held(engine, reading)[0])
            if reading.previous is not None:
                earlier = reading.at_previous()
                self.add(previous, earlier, *self._recalled(engine, earlier, number))
            self.add(surrogate, reading, *self.track(engine, reading))
        engine.descend(surrogate)
        old = None if before is None else engine.gradients(previous, before)
        if engine.commit():
            new = [torch.zeros_like(p) if p.grad is None else p.grad for p in engine.params]
            engine.replace_gradient([g.clone() for g in self._storm.update(new, old)])
        self._changed = changed
        self._previous.remember(engine.params)
        engine.update()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "v": list(self._storm.v), "changed": self._changed.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._storm.v = like_parameters(state["v"], self._params)
        self._changed.load_state_dict(state["changed"], self._params[0].device)

    def _recalled(self, engine: Engine, reading: Reading, number: int) -> tuple[Tracked, OuterFunction]:
        """The outer gradients at the rows from before the previous step."""
        estimator, outer = self.estimator_of(reading.term), self.smoothing(reading.outer)
        rows, inner, sampling = self.held(engine, reading)
        rows = sampling.trusted(self._changed.undone(number, reading.index, rows), inner)
        return Tracked(rows, estimator.weights(rows, outer), rows), outer


class _ChangedRows:
    """The rows that a step has changed, as they were before it, by the number of their term."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def note(self, number: int, index: Tensor, rows: Tensor) -> None:
        """Keep rows (b, k) of the indices (b,)."""
        self._before[number] = (index, rows)

    def undone(self, number: int, index: Tensor, rows: Tensor) -> Tensor:
        """The present rows (b, k) of the indices (b,) with the changes undone."""
        if number not in self._before:
            return rows
        return replaced(rows, index, *self._before[number])[0]

    def state_dict(self) -> dict[str, Any]:
        """Tensors and primitives only."""
        return {str(number): {"index": i.clone(), "before": r.clone()} for number, (i, r) in self._before.items()}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore, with rows on a device."""
        self._before = {int(n): (one["index"].cpu(), one["before"].to(device)) for n, one in state.items()}

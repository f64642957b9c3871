"""MSVR."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fcco_lightning.algorithms.estimation import Estimation
from fcco_lightning.engine import Engine, Estimate, Seen
from fcco_lightning.estimators import CorrectedEMA, Storm, like_parameters, trusted
from fcco_lightning.models.batch import Batch
from fcco_lightning.state import replaced
from fcco_lightning.state.checkpoint_schema import require


class MSVR(Estimation):
    r"""Corrected average of u_i and a STORM gradient, ``w <- step(w, v)``.

    ``u_i <- (1-gamma) u_i + gamma g_i(w_t) + gamma' (g_i(w_t) - g_i(w_{t-1}))`` and
    ``v <- G_t(w_t) + (1-b)(v - G_{t-1}(w_{t-1}))``, both on the samples of step t; two forwards and two backwards.

    G_t takes the outer gradients at the rows from before step t, and G_{t-1} at those from before step t - 1: all n of
    them are given before the batch is drawn, so that the difference estimates without bias by how much
    ``(1/n) sum_i [Jac g_i(w)]^T grad f(u_i)`` has changed between the two steps.  (At rows which the batch itself has
    moved it would not: the batch's rows have all moved, of the n rows only these, and v would hold the excess 1/b
    times.)  The rows that the step before has changed are therefore kept, one batch of them, and the multipliers of
    constraints from before it.

    Args:
        gamma: weight of the new value, in (0, 1) (ALEXR paper: .1, .5, .9).
        gamma_prime: weight of the correction, or ``theory``: ``(n - B1)/(B1 (1-gamma)) + 1 - gamma``.
        b: weight of the plain gradient in v, in (0, 1].
    Source: described in section 3.2 of the ALEXR paper and section 4.1 of the SONEX paper.
    """

    def __init__(self, gamma: float = 0.5, gamma_prime: float | Literal["theory"] = "theory", b: float = 0.1) -> None:
        super().__init__(CorrectedEMA(gamma, gamma_prime))
        self.b, self.needs_previous = b, True
        self._storm, self._changed = Storm(b), _ChangedRows()

    def start(self, engine: Engine) -> None:
        super().start(engine)
        self._storm, self._changed = Storm(self.b), _ChangedRows()
        self.require_stored_activations(engine)

    def iteration(self, engine: Engine, batch: Batch) -> None:
        before, old = self._at_previous(engine, batch)
        g0, terms = engine.measure(engine.evaluate(batch))
        estimate, changed = Estimate(g0), _ChangedRows()
        for number, seen in enumerate(terms):
            rows, inner, _ = self.held(seen, self.estimator_of(seen.term))
            gap = None
            if seen.gap is not None:
                gap = torch.where(seen.present.unsqueeze(1), self._gap(seen, inner), seen.gap)
            changed.note(number, seen, rows, gap)
            there = seen._replace(before=before[number] if before else None)
            estimate.add(there, self.track(estimate, there))
        engine.descend(estimate)
        if engine.commit():
            new = [torch.zeros_like(p) if p.grad is None else p.grad for p in engine.params]
            for p, g in zip(engine.params, self._storm.update(new, old), strict=True):
                p.grad = g.clone()
        self._changed = changed
        self._previous.remember(engine.params)
        engine.update()

    def _at_previous(self, engine: Engine, batch: Batch) -> tuple[list[Tensor], list[Tensor] | None]:
        """The inner values at the previous weights, without graph, and ``G_{t-1}(w_{t-1})``; nothing at first."""
        weights = self._previous.tensors
        if weights is None:
            return [], None
        with engine.functions.elsewhere(weights):
            outputs, samples = engine.evaluate(batch), engine.problem.row_parameters
            if samples is not None:
                outputs = outputs._replace(columns=samples.at_previous(outputs.columns))
            g0, terms = engine.measure(outputs)
            estimate = Estimate(g0)
            for number, seen in enumerate(terms):
                estimate.add(seen, self._recalled(seen, number))
            return [seen.g.detach() for seen in terms], engine.gradients(estimate.value)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "v": list(self._storm.v), "changed": self._changed.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._storm.v = like_parameters(state["v"], self._params)
        self._changed.load_state_dict(state["changed"], self._params[0].device)

    def _recalled(self, seen: Seen, number: int) -> Tensor:
        """F of every row, (r,), at the rows from before the previous step."""
        multipliers, noted = seen.term.multipliers, self._changed.multipliers(number)
        if multipliers is not None and noted is not None:
            seen = seen._replace(f=multipliers.outer_of(noted), gap=self._changed.gap(number))
        rows, inner, _ = self.held(seen, self.estimator_of(seen.term))
        rows = trusted(self._changed.undone(number, seen.rows, rows), inner, seen.term.growth)
        return self.at_rows(seen, rows, inner)


class _ChangedRows:
    """The rows that a step has changed, and the multipliers, as they were before it, by the number of their term."""

    def __init__(self) -> None:
        self._before: dict[int, dict[str, Tensor | None]] = {}

    def note(self, number: int, seen: Seen, rows: Tensor, gap: Tensor | None) -> None:
        """Keep the rows (r, k) of a term, NaN of those that the batch does not contain; and of its decisions."""
        multipliers = seen.term.multipliers
        self._before[number] = {
            "index": seen.rows,
            "before": torch.where(seen.present.unsqueeze(1), rows, torch.nan),
            "multipliers": None if multipliers is None else multipliers.noted(),
            "gap": gap,
        }

    def undone(self, number: int, index: Tensor | None, rows: Tensor) -> Tensor:
        """The present rows (r, k) of the indices (r,), or of all, with the changes undone."""
        noted = self._before.get(number, {})
        at, before = noted.get("index"), noted.get("before")
        if before is None:
            return rows
        undone = replaced(rows, index, at, before)
        return torch.where(undone.isnan(), rows, undone)

    def multipliers(self, number: int) -> Tensor | None:
        """What the multipliers of a term were made of; None where there are none."""
        return self._before.get(number, {}).get("multipliers")

    def gap(self, number: int) -> Tensor | None:
        """How far values on decisions were from the smooth ones; None where multipliers do not follow them."""
        return self._before.get(number, {}).get("gap")

    def state_dict(self) -> dict[str, Any]:
        """Tensors and primitives only."""
        held = {str(number): noted for number, noted in self._before.items()}
        return pytree.tree_map_only(Tensor, Tensor.clone, held)  # type: ignore[no-any-return]

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore, with rows on a device."""
        require(state, dict[str, dict[str, Tensor | None]], "the rows before the last step")
        held = {int(number): dict(noted) for number, noted in state.items()}
        self._before = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), held)

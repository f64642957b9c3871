"""MSVR."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fcco_lightning.algorithms.estimation import Estimation
from fcco_lightning.engine import Engine, Estimate, Seen
from fcco_lightning.estimators import Average, Storm, copied, like_parameters, trusted
from fcco_lightning.models.batch import Batch
from fcco_lightning.state import replaced
from fcco_lightning.state.checkpoint_schema import Either, require


@dataclass(frozen=True)
class _Before:
    """The state of a term before the last step, where that step has changed it.

    Attributes:
        index: numbers of the batch's rows, shape (r,); None for all.
        before: the rows, shape (r, k), NaN where the batch does not contain them.
        multipliers: the result of :meth:`MultiplierRows.noted`; None without multipliers.
        gap: the gap between decisions and smooth values; None where multipliers do not follow decisions.
    """

    index: Tensor | None
    before: Tensor
    multipliers: Tensor | None
    gap: Tensor | None


class MSVR(Estimation):
    r"""Corrected running averages u_i, and a STORM estimate v of the gradient; ``w <- step(w, v)``.

    ``u_i <- (1-gamma) u_i + gamma g_i(w_t) + gamma' (g_i(w_t) - g_i(w_{t-1}))`` and
    ``v <- G_t(w_t) + (1-b)(v - G_{t-1}(w_{t-1}))``, both on the samples of step t; two forward and two backward passes.

    G_t takes the outer gradients at the rows before step t, and G_{t-1} at the rows before step t - 1.  All n rows are
    then known before the batch is drawn, so that the difference is an unbiased estimate of the change of ``(1/n) sum_i
    [Jac g_i(w)]^T grad f(u_i)`` between the two steps. (With rows updated by the batch itself it would be biased: all
    rows of the batch have changed, but only these of the n rows, and v would accumulate the excess 1/b times.)  The
    rows changed by the previous step, one batch of them, and the multipliers before it are therefore stored.

    Args:
        gamma: weight of the new value, in (0, 1) (ALEXR paper: .1, .5, .9).
        gamma_prime: weight of the correction, or ``theory``: ``(n - B1)/(B1 (1-gamma)) + 1 - gamma``, with B1 of n rows
            in a batch.
        b: weight of the plain gradient in v, in (0, 1].
    Source: described in section 3.2 of the ALEXR paper and section 4.1 of the SONEX paper.
    """

    def __init__(self, gamma: float = 0.5, gamma_prime: float | Literal["theory"] = "theory", b: float = 0.1) -> None:
        super().__init__(Average(gamma, gamma_prime))
        self.b, self.needs_previous = b, True
        self._storm, self._before = Storm(b), dict[int, _Before]()

    def start(self, engine: Engine) -> None:
        super().start(engine)
        self._storm, self._before = Storm(self.b), {}
        self.require_stored_activations(engine)

    def iteration(self, engine: Engine, batch: Batch) -> None:
        there, old = self._at_previous(engine, batch)
        g0, terms = engine.measure(engine.evaluate(batch))
        estimate, before = Estimate(g0), {seen.term.number: self._held_before(seen) for seen in terms}
        for seen in terms:
            both = seen._replace(before=there.get(seen.term.number))
            estimate.add(both, self.track(estimate, both))
        engine.descend(estimate)
        if engine.commit():
            new = [torch.zeros_like(p) if p.grad is None else p.grad for p in engine.params]
            for p, g in zip(engine.params, self._storm.update(new, old), strict=True):
                p.grad = g.clone()
        self._before = before
        self._previous = copied(engine.params, self._previous)
        engine.update()

    def _at_previous(self, engine: Engine, batch: Batch) -> tuple[dict[int, Tensor], list[Tensor] | None]:
        """The inner values at the previous weights, without graph, and ``G_{t-1}(w_{t-1})``; empty at first."""
        if not self._previous:
            return {}, None
        with engine.functions.elsewhere(self._previous):
            outputs, samples = engine.evaluate(batch), engine.problem.row_parameters
            if samples is not None:
                outputs = outputs._replace(columns=samples.at_previous(outputs.columns))
            g0, terms = engine.measure(outputs)
            estimate = Estimate(g0)
            for seen in terms:
                estimate.add(seen, self._recalled(seen))
            return {seen.term.number: seen.g.detach() for seen in terms}, engine.gradients(estimate.value)

    def state_dict(self) -> dict[str, Any]:
        changed = {str(number): dict(vars(one)) for number, one in self._before.items()}
        return {**super().state_dict(), "v": list(self._storm.v), "changed": changed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._storm.v = like_parameters(state["v"], self._params)
        require(state["changed"], {str: {str: Either(Tensor, None)}}, "the rows before the last step")
        device = self._params[0].device
        held = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), dict(state["changed"]))
        self._before = {int(number): _Before(**one) for number, one in held.items()}

    def _held_before(self, seen: Seen) -> _Before:
        """The state of a term before the step."""
        rows, inner, _ = self.held(seen, self.estimator_of(seen.term))
        present, multipliers = seen.present.unsqueeze(1), seen.term.multipliers
        return _Before(
            seen.rows,
            torch.where(present, rows, torch.nan),
            None if multipliers is None else multipliers.noted(),
            None if seen.gap is None else torch.where(present, self._gap(seen, inner), seen.gap),
        )

    def _recalled(self, seen: Seen) -> Tensor:
        """The f(u_i) of the rows before the previous step, with graph, (r,)."""
        before = self._before.get(seen.term.number)
        if before is not None and before.multipliers is not None and seen.term.multipliers is not None:
            seen = seen._replace(f=seen.term.multipliers.outer_of(before.multipliers), gap=before.gap)
        rows, inner, _ = self.held(seen, self.estimator_of(seen.term))
        if before is not None:
            undone = replaced(rows, seen.rows, before.index, before.before)
            rows = torch.where(undone.isnan(), rows, undone)
        return self.at_rows(seen, trusted(rows, inner, seen.term.growth), inner)

"""What algorithms with one and with two loops share: rows by an estimator, outer functions by a smoothing."""

from abc import ABC
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fcco_lightning.algorithms.base import Algorithm
from fcco_lightning.algorithms.compiled import CompiledSurrogate
from fcco_lightning.engine import Engine, Problem, Reading, Surrogate, Term
from fcco_lightning.engine.engine import Evaluated
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import Estimator, Sampling, fill
from fcco_lightning.outer import NoSmoothing, OuterFunction, Smoothing
from fcco_lightning.records import Batch, Tracked
from fcco_lightning.steps import PreviousWeights


class Estimation(Algorithm, ABC):
    r"""Outer gradients from remembered rows, moved with the batch on which the gradient is taken.

    Args:
        estimator: for the constraints, and for the objective unless it has its own.
        smoothing: map on non-smooth outer functions; None for none.
        objective_estimator: for the objective's inner functions, if other than ``estimator`` (SONEX paper, F.3).
    """

    needs_all_rows = False

    def __init__(
        self,
        estimator: Estimator,
        smoothing: Smoothing | None = None,
        objective_estimator: Estimator | None = None,
    ) -> None:
        self.estimator = estimator
        self.objective_estimator = objective_estimator or estimator
        self.smoothing = smoothing or NoSmoothing()
        self._previous = PreviousWeights()

    def estimator_of(self, term: Term) -> Estimator:
        """The estimator of a term."""
        return self.objective_estimator if term.name == "objective" else self.estimator

    @property
    def needs_previous(self) -> bool:
        """Whether inner functions are measured at the previous weights, too."""
        return self.estimator.needs_previous or self.objective_estimator.needs_previous

    def prepare(self, problem: Problem) -> None:
        for term in problem.all_terms:
            estimator = self.estimator_of(term)
            if term.outer.coupled:
                raise ConfigError(
                    f"{self.name} takes outer functions of single rows, {term.outer!r} couples all of them. Use OOA or "
                    "SMD, or the objective itself instead of its max form."
                )
            if term.multipliers is not None and not estimator.follows_values:
                raise ConfigError(
                    f"{self.name} remembers dual variables of its own, and no inner values that multipliers could "
                    f"follow. Use ALEXR with mirror=True, ALEXR2 or SONEX, or a fixed penalty such as HingePenalty."
                )
            if estimator.convex_only:
                self.smoothing(term.outer).require_convex(self.name)
            if estimator.remembers:
                term.remember()

    def start(self, engine: Engine) -> None:
        self._params = engine.params
        self._previous = PreviousWeights()
        self._compiled = CompiledSurrogate(self, engine) if engine.compilable else None
        self._fading = [term for term in engine.problem.all_terms if self.estimator_of(term).decay() != 1]

    def surrogate(self, engine: Engine, batch: Batch) -> Surrogate:
        """Measure a batch, propose rows, and pair the outer gradients with the inner functions."""
        before = self._previous.tensors if self.needs_previous else None
        if self._compiled is not None:
            return self._compiled(batch, before)
        return self.uncompiled(engine, engine.evaluate(batch, before))

    def uncompiled(self, engine: Engine, seen: Evaluated) -> Surrogate:
        """The same from the network's outputs."""
        now = engine.inner(seen)
        surrogate = Surrogate(now.direct)
        for reading in now.readings:
            self.add(surrogate, reading, *self.track(engine, reading))
        self.fade(engine, now.readings)
        return surrogate

    def pairs_old(self, term: Term) -> bool:  # noqa: ARG002
        """Whether a term's Jacobian meets the outer gradients from before the step, where the estimator says others."""
        return False

    def fade(self, engine: Engine, readings: Sequence[Reading]) -> None:
        """Let the rows of terms of which the batch does not speak shrink, where the estimator has it so."""
        for term in self._fading:
            if all(reading.term is not term for reading in readings):
                engine.shrink(term, self.estimator_of(term).decay())

    def add(self, surrogate: Surrogate, reading: Reading, tracked: Tracked, outer: OuterFunction) -> None:
        """Add a term to the surrogate: ``<y_i, g_i>``, and what carries the gradient of known parameters of f."""
        learnt = any(parameter.requires_grad for parameter in outer.parameters())
        known = self.estimator_of(reading.term).known_part(tracked, outer) if learnt else None
        surrogate.add(reading, tracked.weights, known)
        term = reading.term
        surrogate.estimates.add(term.name, term.share, outer, tracked.at, reading.importance())

    def track(self, engine: Engine, reading: Reading) -> tuple[Tracked, OuterFunction]:
        """Move the rows of a reading; the outer gradients, and f as the algorithm smooths it."""
        estimator, outer = self.estimator_of(reading.term), self.smoothing(reading.outer)
        rows, inner, sampling = self.held(engine, reading)
        previous = None if reading.previous is None else reading.previous.detach().to(rows.dtype)
        tracked = estimator.update(rows, inner, previous, outer, sampling)
        if estimator.remembers:
            engine.propose(reading, tracked.rows, estimator.decay())
        engine.propose_multipliers(reading, estimator.values(tracked.rows, inner))
        return tracked, outer

    def recall(self, engine: Engine, reading: Reading) -> tuple[Tracked, OuterFunction]:
        """The outer gradients that the rows of a reading stand for; a row never visited counts as the fresh one."""
        estimator, outer = self.estimator_of(reading.term), self.smoothing(reading.outer)
        rows, inner, _ = self.held(engine, reading)
        return estimator.recalled(rows, inner, outer), outer

    def held(self, engine: Engine, reading: Reading) -> tuple[Tensor, Tensor, Sampling]:
        """The rows of a reading from before the step, the fresh inner values, and what is known of the rows.

        A row never visited is the one that the estimator begins with.
        """
        rows, seen = engine.rows(reading)
        inner = reading.values.detach().to(rows.dtype)
        sampling = Sampling(reading.inverse, seen, reading.term.range, reading.term.growth)
        return fill(rows, seen, self.estimator_of(reading.term).first(inner)), inner, sampling

    def duals(self, term: Term, rows: Tensor) -> Tensor:
        return self.estimator_of(term).weights(rows, self.smoothing(term.present_outer))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "previous": self._previous.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._previous.load_state_dict(state["previous"], self._params)

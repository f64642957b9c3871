"""Rows by an estimator, outer functions by a smoothing: what most algorithms share, and those with one loop are."""

from abc import ABC
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.algorithms.base import Algorithm
from fcco_lightning.engine import Engine, Measured, Problem, Reading, Surrogate, Term
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import Estimator, PreviousWeights, Sampling
from fcco_lightning.estimators.base import Tracked
from fcco_lightning.models.batch import Batch
from fcco_lightning.outer import NoSmoothing, OuterFunction, Smoothing


class Estimation(Algorithm, ABC):
    r"""Outer gradients from remembered rows, moved with the batch on which the gradient is taken.

    Args:
        estimator: for the constraints, and for the objective unless it has its own.
        smoothing: map on non-smooth outer functions; None for none.
        objective_estimator: for the objective's inner functions, if other than ``estimator`` (SONEX paper, F.3).
    """

    def __init__(
        self,
        estimator: Estimator,
        smoothing: Smoothing | None = None,
        objective_estimator: Estimator | None = None,
    ) -> None:
        self.estimator = estimator
        self.objective_estimator = objective_estimator or estimator
        self.smoothing = smoothing or NoSmoothing()
        self.needs_previous = self.estimator.needs_previous or self.objective_estimator.needs_previous
        self._previous = PreviousWeights()

    def estimator_of(self, term: Term) -> Estimator:
        """The estimator of a term."""
        return self.objective_estimator if term.name == "objective" else self.estimator

    def smoothed(self, reading: Reading) -> OuterFunction:
        """The outer function of a reading, as the algorithm smooths it."""
        fixed = reading.term.smoothed if reading.outer is reading.term.outer else None
        return fixed or self.smoothing(reading.outer)

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
            term.smooth(self.smoothing)

    def start(self, engine: Engine) -> None:
        self._params = engine.params
        self._previous = PreviousWeights()

    def surrogate(self, engine: Engine, batch: Batch) -> Surrogate:
        """Measure a batch and let :meth:`step` follow."""
        return engine.run(self.step, batch, self._previous.tensors if self.needs_previous else None)

    def step(self, now: Measured) -> Surrogate:
        """New rows and outer gradients from what a batch says: a function of tensors, which can be compiled."""
        surrogate = Surrogate(now.direct)
        for reading in now.readings:
            self.add(surrogate, reading, *self.track(surrogate, reading))
        return surrogate

    def add(self, surrogate: Surrogate, reading: Reading, tracked: Tracked, outer: OuterFunction) -> None:
        """Add a term to the surrogate: ``<y_i, g_i>``, and what carries the gradient of known parameters of f."""
        fixed = outer is reading.term.smoothed
        learnt = not fixed and any(parameter.requires_grad for parameter in outer.parameters())
        known = self.estimator_of(reading.term).known_part(tracked, outer) if learnt else None
        surrogate.add(reading, tracked.weights, outer, tracked.at, known)

    def track(self, surrogate: Surrogate, reading: Reading) -> tuple[Tracked, OuterFunction]:
        """Move the rows of a reading, and the multipliers that follow them.

        Args:
            surrogate: takes the new rows, which are to be written.
            reading: of a term.

        Returns: the outer gradients, and f as the algorithm smooths it.
        """
        estimator, outer = self.estimator_of(reading.term), self.smoothed(reading)
        rows, inner, sampling = self.held(reading, estimator)
        earlier = None if reading.earlier is None else reading.earlier.to(rows.dtype)
        tracked = estimator.update(rows, inner, earlier, outer, sampling)
        if estimator.remembers:
            surrogate.remember(reading, tracked.rows, estimator.decay())
        multipliers = reading.term.multipliers
        if multipliers is not None:
            u = estimator.values(tracked.rows, inner)
            if reading.apart is not None and multipliers.decisions is not None:
                before = self._apart(reading, inner)
                apart = torch.lerp(before, self._apart_now(reading, inner), estimator.gamma)
                surrogate.propose(reading, multipliers.decisions, reading.apart, apart)
                u, tracked = u + apart, _moved(tracked, outer, apart if estimator.fresh else before)
            surrogate.propose(reading, multipliers.state, multipliers.state.gather(None), multipliers.moved(u))
        return tracked, outer

    def recall(self, reading: Reading) -> tuple[Tracked, OuterFunction]:
        """The outer gradients that the rows of a reading stand for; a row never visited counts as the fresh one."""
        estimator, outer = self.estimator_of(reading.term), self.smoothed(reading)
        rows, inner, _ = self.held(reading, estimator)
        tracked = Tracked(rows, estimator.weights(rows, outer), estimator.values(rows, inner))
        return self.at_decisions(reading, tracked, outer, inner), outer

    def at_decisions(self, reading: Reading, tracked: Tracked, outer: OuterFunction, inner: Tensor) -> Tracked:
        """The outer gradients at the values on decisions that are remembered, where multipliers follow decisions."""
        return tracked if reading.apart is None else _moved(tracked, outer, self._apart(reading, inner))

    def _apart(self, reading: Reading, inner: Tensor) -> Tensor:
        """How far a constraint's values on decisions are from the smooth ones, as remembered, (r, k)."""
        assert reading.apart is not None  # noqa: S101 - the caller has seen to it
        return torch.where(reading.apart.isnan(), self._apart_now(reading, inner), reading.apart)

    def _apart_now(self, reading: Reading, inner: Tensor) -> Tensor:
        """The same in this batch: both on the same samples, so that the difference has less noise than either."""
        assert reading.decided is not None  # noqa: S101 - the caller has seen to it
        return reading.decided.to(inner.dtype) - inner

    def held(self, reading: Reading, estimator: Estimator) -> tuple[Tensor, Tensor, Sampling]:
        """The rows of a reading from before the step, the fresh inner values, and how the rows were drawn.

        A row never visited is the one that the estimator begins with.  Of rows that the batch does not contain the
        inner value is 1, where every f and its slope are finite: they have the weight 0, and nothing of them is kept.
        """
        term, inner = reading.term, torch.where(reading.present.unsqueeze(1), reading.values.detach(), 1.0)
        inverse = reading.inverse if estimator.by_chance else 1.0
        if reading.held is None:
            return inner, inner, Sampling(inverse, None, term.range, term.growth)
        inner, unseen = inner.to(reading.held.dtype), reading.held.isnan()
        rows = torch.where(unseen, estimator.first(inner), reading.held)
        return rows, inner, Sampling(inverse, unseen, term.range, term.growth)

    def duals(self, term: Term, rows: Tensor) -> Tensor:
        return self.estimator_of(term).weights(rows, self.smoothing(term.present_outer))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "previous": self._previous.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._previous.load_state_dict(state["previous"], self._params)


def _moved(tracked: Tracked, outer: OuterFunction, apart: Tensor) -> Tracked:
    """The outer gradients at inner values moved by ``apart`` (r, k)."""
    at = tracked.at + apart
    return tracked._replace(weights=outer.subgradient(at), at=at)


class SingleLoop(Estimation):
    """``G`` with outer gradients from the estimator, then the user's optimizer.

    An instance of this class is an algorithm without a name of its own: any estimator with any smoothing.

    Raises:
        ConfigError: from ``pose``, if it would remember inner functions and the problem has none.
    """

    def prepare(self, problem: Problem) -> None:
        if not problem.all_terms and problem.penalty.acts and self.estimator.remembers:
            raise ConfigError(
                f"{self.name} would do nothing that SGD does not: {type(problem.objective).__name__} has no inner "
                "functions, and there are no constraints. Use SGD, add a constraint, or choose an objective with inner "
                "functions, such as AveragePrecision."
            )
        super().prepare(problem)

    def iteration(self, engine: Engine, batch: Batch) -> None:
        engine.descend(self.surrogate(engine, batch))
        engine.commit()
        if self.needs_previous:
            self._previous.remember(engine.params)
        engine.update()

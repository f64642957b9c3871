"""Rows by an estimator, outer functions by a smoothing: what most algorithms share, and those with one loop are."""

from abc import ABC
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.algorithms.base import Algorithm
from fcco_lightning.engine import Engine, Estimate, Measured, Problem, Reading, Term
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import Estimator, PreviousWeights, Sampling
from fcco_lightning.models.batch import Batch
from fcco_lightning.outer import NoSmoothing, OuterFunction, Smoothing, slopes


class Estimation(Algorithm, ABC):
    r"""F at remembered rows, moved with the batch on which the gradient is taken.

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
                term.outer.require_convex(self.name)
            if estimator.remembers:
                term.remember()
            term.smooth(self.smoothing)

    def start(self, engine: Engine) -> None:
        self._params = engine.params
        self._previous = PreviousWeights()

    def estimate(self, engine: Engine, batch: Batch) -> Estimate:
        """Measure a batch and let :meth:`step` follow."""
        return engine.run(self.step, batch, self._previous.tensors if self.needs_previous else None)

    def step(self, now: Measured) -> Estimate:
        """New rows, and F at remembered ones, from what a batch says: a function of tensors, which can be compiled."""
        estimate = Estimate(now.direct)
        for reading in now.readings:
            estimate.add(reading, self.track(estimate, reading))
        return estimate

    def track(self, estimate: Estimate, reading: Reading) -> Tensor:
        """Move the rows of a reading, and the multipliers that follow them.

        Args:
            estimate: takes the new rows, which are to be written.
            reading: of a term.

        Returns: f of every row, (r,), see :meth:`Estimator.estimate`.
        """
        estimator, outer = self.estimator_of(reading.term), self.smoothed(reading)
        rows, inner, sampling = self.held(reading, estimator)
        earlier = None if reading.earlier is None else reading.earlier.to(rows.dtype)
        new = estimator.update(rows, inner, earlier, outer, sampling)
        if estimator.remembers:
            estimate.remember(reading, new, estimator.decay())
        at = sampling.trusted(new if estimator.fresh else rows, inner)
        multipliers = reading.term.multipliers
        if multipliers is not None:
            u = new
            if reading.gap is not None and multipliers.decisions is not None:
                before = self._gap(reading, inner)
                gap = torch.lerp(before, self._gap_now(reading, inner), estimator.gamma)
                estimate.propose(reading, multipliers.decisions, reading.gap, gap)
                u, at = u + gap, at + (gap if estimator.fresh else before)
            estimate.propose(reading, multipliers.state, multipliers.state.gather(None), multipliers.moved(u))
        return estimator.estimate(outer, at, reading.values, inner)

    def recall(self, reading: Reading) -> Tensor:
        """F of every row as it is remembered, (r,); a row never visited counts as the fresh one."""
        estimator = self.estimator_of(reading.term)
        rows, inner, _ = self.held(reading, estimator)
        return self.at_rows(reading, rows, inner)

    def at_rows(self, reading: Reading, rows: Tensor, inner: Tensor) -> Tensor:
        """F of every row, (r,), at given rows; and at decisions as they are remembered, if multipliers follow these."""
        at = rows if reading.gap is None else rows + self._gap(reading, inner)
        return self.estimator_of(reading.term).estimate(self.smoothed(reading), at, reading.values, inner)

    def _gap(self, reading: Reading, inner: Tensor) -> Tensor:
        """How far a constraint's values on decisions are from the smooth ones, as remembered, (r, k)."""
        assert reading.gap is not None  # noqa: S101 - the caller has seen to it
        return torch.where(reading.gap.isnan(), self._gap_now(reading, inner), reading.gap)

    def _gap_now(self, reading: Reading, inner: Tensor) -> Tensor:
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
        estimator = self.estimator_of(term)
        return slopes(self.smoothing(term.present_outer), rows) if estimator.follows_values else rows

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "previous": self._previous.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._previous.load_state_dict(state["previous"], self._params)


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
        engine.descend(self.estimate(engine, batch))
        engine.commit()
        if self.needs_previous:
            self._previous.remember(engine.params)
        engine.update()

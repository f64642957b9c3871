"""Algorithms composed of an estimator and a smoothing; with a single loop they are complete."""

from abc import ABC
from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from fcco_lightning.algorithms.two_draws import Jacobian, check_copies, dual_names, dual_part, halves
from fcco_lightning.checks import one_of
from fcco_lightning.engine import Algorithm, Engine, Estimate, Outputs, Problem, Seen, Term, read
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import Estimator, copied, like_parameters, moved, trusted
from fcco_lightning.models.batch import Batch
from fcco_lightning.objectives import Measurable
from fcco_lightning.outer import NoSmoothing, Smoothing


class Estimation(Algorithm, ABC):
    r"""Estimates F at remembered rows, which follow the samples of the gradient, or independent samples.

    Args:
        estimator: estimator of the constraints, and of the objective without ``objective_estimator``.
        smoothing: smoothing of non-smooth outer functions; None for none.
        objective_estimator: estimator of the objective's inner functions; None for ``estimator`` (SONEX paper, F.3).
        jacobian: which samples give the Jacobian if the estimator takes dual steps, see
            :mod:`~fcco_lightning.algorithms.two_draws`.
    """

    def __init__(
        self,
        estimator: Estimator,
        smoothing: Smoothing | None = None,
        objective_estimator: Estimator | None = None,
        jacobian: Jacobian = "reuse",
    ) -> None:
        self.jacobian: Jacobian = one_of("jacobian", jacobian, get_args(Jacobian))
        self.estimator = estimator
        self.objective_estimator = objective_estimator or estimator
        self.smoothing = smoothing or NoSmoothing()
        self.needs_previous = self.estimator.needs_previous or self.objective_estimator.needs_previous
        half = 0.5 if jacobian == "halves" else 1.0
        self.constraint_share = half if self.estimator.convex_only else 1.0
        self.objective_share = half if self.objective_estimator.convex_only else 1.0
        self._previous: list[Tensor] = []  # weights of the previous step; empty at first

    def estimator_of(self, term: Term) -> Estimator:
        """The estimator of a term."""
        return self.objective_estimator if term.name == "objective" else self.estimator

    def smoothing_of(self, measurable: Measurable) -> Smoothing:  # noqa: ARG002 - that of SONEX depends on it
        """The smoothing of the outer function of the objective or of a constraint."""
        return self.smoothing

    def prepare(self, problem: Problem) -> None:
        for term in problem.all_terms:
            estimator = self.estimator_of(term)
            if term.outer.coupled:
                raise ConfigError(
                    f"{self.name} needs an outer function for each row, but {term.outer!r} couples all rows. Use "
                    "OOA or SMD, or the objective itself in place of its max form."
                )
            if term.multipliers is not None and not estimator.follows_values:
                raise ConfigError(
                    f"{self.name} stores dual variables and no estimates of inner values, which multipliers need. "
                    "Use ALEXR with mirror=True, ALEXR2 or SONEX, or a fixed penalty such as HingePenalty."
                )
            if estimator.convex_only:
                term.outer.require_convex(self.name)
            if estimator.remembers:
                term.remember()
            term.smooth(self.smoothing_of(term.measurable))
            term.corrected = estimator.needs_previous
        objective = problem.objective
        problem.settles = objective.recommended and objective.settles and self.objective_estimator.estimates_values

    def start(self, engine: Engine) -> None:
        self._params, self._objective = engine.params, engine.problem.objective
        self._previous = []

    def check(self, outputs: Outputs) -> None:
        if self.jacobian == "halves":
            check_copies(outputs)
            for half in halves(outputs) if self.objective_share < 1 else ():
                self._objective.check(*read(half.now, half.columns, self._objective))
        elif self.jacobian == "part":
            dual_names(outputs)

    def estimate(self, engine: Engine, batch: Batch) -> Estimate:
        """Measure a batch and apply :meth:`step`; with two draws of samples the first one updates y."""
        if self.jacobian in ("old", "reuse"):
            return engine.run(self.step, batch, self._previous or None)
        outputs = engine.evaluate(batch, self._previous or None)
        dual = [term for term in engine.problem.all_terms if self.estimator_of(term).convex_only]
        rest = [term for term in engine.problem.all_terms if term not in dual]
        estimate = self.step(*engine.measure(outputs, rest))
        first, second = halves(outputs) if self.jacobian == "halves" else (dual_part(outputs), outputs)
        for seen in engine.measure(first, dual, direct=False)[1]:
            self.track(estimate, seen)
        for seen in engine.measure(second.at_present(), dual, direct=False)[1]:
            estimate.add(seen, self.recall(estimate.latest(seen)))
        return estimate

    def step(self, g0: Tensor | None, terms: Sequence[Seen]) -> Estimate:
        """Estimate F and new rows from the contents of a batch; a function of tensors, which can be compiled.

        Args:
            g0: estimate of g_0 with graph, a scalar, or None.
            terms: the contents of the batch for every term.
        """
        estimate = Estimate(g0)
        for seen in terms:
            estimate.add(seen, self.track(estimate, seen))
        return estimate

    def track(self, estimate: Estimate, seen: Seen) -> Tensor:
        """Update the rows of a term, and the multipliers that depend on them.

        Args:
            estimate: collects the new rows.
            seen: what the batch contains of the term.

        Returns: f of every row with graph, (r,), see :meth:`Estimator.estimate`.
        """
        term, estimator = seen.term, self.estimator_of(seen.term)
        rows, inner, unseen = self.held(seen, estimator)
        before = None if seen.before is None else seen.before.to(rows.dtype)
        inverse = seen.inverse_inclusion if estimator.by_inclusion else 1.0
        new = moved(estimator, rows, inner, before, seen.f, inverse, unseen, term.range)
        if estimator.remembers:
            estimate.remember(seen, new, estimator.decay)
        fresh = estimator.fresh and not (self.jacobian == "old" and estimator.convex_only)
        point = new if fresh else rows
        point = point if term.growth is None else trusted(point, inner, term.growth)
        if term.multipliers is not None:
            u = new
            if seen.gap is not None and term.multipliers.decisions is not None:
                held = self._gap(seen, inner)
                gap = torch.lerp(held, self._gap_now(seen, inner), estimator.gamma)
                estimate.remember(seen, gap, of=(term.multipliers.decisions, seen.gap))
                u, point = u + gap, point + (gap if fresh else held)
            memory = term.multipliers.state
            estimate.remember(seen, term.multipliers.moved(u), of=(memory, memory.gather(None)))
        return estimator.estimate(seen.f, point, seen.g, inner)

    def recall(self, seen: Seen) -> Tensor:
        """The f(u_i) of remembered rows with graph, (r,); a row never visited is replaced by its fresh value."""
        rows, inner, _ = self.held(seen, self.estimator_of(seen.term))
        return self.at_rows(seen, rows, inner)

    def at_rows(self, seen: Seen, rows: Tensor, inner: Tensor) -> Tensor:
        """The f(u_i) of given rows with graph, (r,); shifted by the remembered gap, if multipliers follow decisions."""
        point = rows if seen.gap is None else rows + self._gap(seen, inner)
        return self.estimator_of(seen.term).estimate(seen.f, point, seen.g, inner)

    def _gap(self, seen: Seen, inner: Tensor) -> Tensor:
        """The remembered gap between a constraint's values on decisions and its smooth values, (r, k)."""
        assert seen.gap is not None  # noqa: S101 - the caller has seen to it
        return torch.where(seen.gap.isnan(), self._gap_now(seen, inner), seen.gap)

    def _gap_now(self, seen: Seen, inner: Tensor) -> Tensor:
        """The gap in this batch; on the same samples, so that the difference has less noise than either value."""
        assert seen.decided is not None  # noqa: S101 - the caller has seen to it
        return seen.decided.to(inner.dtype) - inner

    def held(self, seen: Seen, estimator: Estimator) -> tuple[Tensor, Tensor, Tensor | None]:
        """The rows of a term before the step, the fresh inner values, and a mask of numbers that were never written.

        A row never visited is replaced by its fresh value, so that the first visit is exact; a dual one by 0.  The
        inner value of a row that the batch does not contain is set to 1, where every f and its slope are finite; such
        rows have the weight 0 and are not written.
        """
        inner = torch.where(seen.present.unsqueeze(1), seen.g.detach(), 1.0)
        if seen.held is None:
            return inner, inner, None
        inner, unseen = inner.to(seen.held.dtype), seen.held.isnan()
        first = inner if estimator.follows_values else torch.zeros_like(inner)
        return torch.where(unseen, first, seen.held), inner, unseen

    def duals(self, term: Term, rows: Tensor) -> Tensor:
        return super().duals(term, rows) if self.estimator_of(term).follows_values else rows

    def state_dict(self) -> dict[str, Any]:
        previous = {"copy": list(self._previous), "valid": bool(self._previous)}
        return {**super().state_dict(), "previous": previous}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        previous = state["previous"]
        self._previous = like_parameters(previous["copy"] if previous["valid"] else [], self._params)


class SingleLoop(Estimation):
    """The gradient estimate G of the estimator, then a step of the user's optimizer.

    An instance of this class combines any estimator with any smoothing.

    Raises:
        ConfigError: from ``pose``, if the estimator keeps rows, and the problem has no inner functions.
    """

    def prepare(self, problem: Problem) -> None:
        if not problem.all_terms and problem.penalty.acts and self.estimator.remembers:
            raise ConfigError(
                f"{self.name} would do the same as SGD here: {type(problem.objective).__name__} has no inner "
                "functions, and there are no constraints. Use SGD, add a constraint, or choose an objective with "
                "inner functions, such as AveragePrecision."
            )
        super().prepare(problem)

    def iteration(self, engine: Engine, batch: Batch) -> None:
        engine.descend(self.estimate(engine, batch))
        engine.commit()
        if self.needs_previous:
            self._previous = copied(engine.params, self._previous)
        engine.update()

r"""Dual steps and Jacobians on independent samples.

ALEXR and ALEXR2 move y_i with one draw of samples and take the Jacobian of g_i on another, independent one.  On the
same samples the two are correlated, and ``Cov(y_i, grad g_i)`` biases the gradient estimate however small the steps
are.  This module says where the two draws come from.
"""

from abc import ABC
from typing import Literal, get_args

from fcco_lightning.algorithms.estimation import Estimation
from fcco_lightning.checks import one_of
from fcco_lightning.engine import Engine, Measured, Surrogate
from fcco_lightning.engine.engine import Evaluated
from fcco_lightning.engine.terms import Term
from fcco_lightning.estimators import Estimator
from fcco_lightning.outer import Smoothing
from fcco_lightning.records import Batch

Jacobian = Literal["halves", "part", "old", "reuse"]


class TwoDraws(Estimation, ABC):
    r"""Outer gradients and Jacobians from the draws of samples that ``jacobian`` names.

    Terms whose estimator takes no dual steps (an averaged objective that is not convex) are measured on the whole
    batch, their outer gradient at the rows from before the step, which is independent of the batch.

    Args:
        estimator: for the constraints, and for the objective unless it has its own.
        smoothing: map on non-smooth outer functions; None for none.
        objective_estimator: for the objective's inner functions, if other than ``estimator``.
        jacobian: where the samples of the Jacobian come from.

            - "halves": the first half of a batch moves y, the second half gives the Jacobian.  With group-wise batches
              each half holds half the samples of every group.  A row of which only the second half speaks takes the y
              that it remembers.
            - "part": a second batch from a loader of its own, the part "dual" (``batches: TwoDraws`` of a datamodule),
              moves y; the batch itself gives the Jacobian.  Twice the samples go through the network.
            - "old": the Jacobian of the whole batch meets the y from before this step, then the batch moves y.
            - "reuse": the same batch moves y and gives the Jacobian.  This is biased.
    """

    def __init__(
        self,
        estimator: Estimator,
        smoothing: Smoothing | None = None,
        objective_estimator: Estimator | None = None,
        jacobian: Jacobian = "halves",
    ) -> None:
        super().__init__(estimator, smoothing, objective_estimator)
        self.jacobian: Jacobian = one_of("jacobian", jacobian, get_args(Jacobian))
        half = 0.5 if jacobian == "halves" else 1.0
        self.constraint_share = half
        self.objective_share = half if self.objective_estimator.convex_only else 1.0

    def surrogate(self, engine: Engine, batch: Batch) -> Surrogate:
        before = self._previous.tensors if self.needs_previous else None
        if self._compiled is not None and self.jacobian == "old":  # else samples differ, and terms are measured twice
            return self._compiled(batch, before)
        return self.uncompiled(engine, engine.evaluate(batch, before))

    def pairs_old(self, term: Term) -> bool:
        return self.jacobian == "old" and self.estimator_of(term).convex_only

    def uncompiled(self, engine: Engine, seen: Evaluated) -> Surrogate:
        terms = engine.problem.all_terms
        dual = [term for term in terms if self.estimator_of(term).convex_only]
        averaged = engine.inner(seen, terms=[term for term in terms if term not in dual])
        surrogate = Surrogate(averaged.direct)
        for reading in averaged.readings:
            self.add(surrogate, reading, *self.track(engine, reading))
        if dual:
            self._add_dual(engine, surrogate, seen, dual)
        return surrogate

    def _add_dual(self, engine: Engine, surrogate: Surrogate, seen: Evaluated, terms: list[Term]) -> None:
        moving, jacobian = self._measured(engine, seen, terms)
        if self.jacobian == "reuse":
            for reading in moving.readings:
                self.add(surrogate, reading, *self.track(engine, reading))
            return
        if self.jacobian == "old":
            for reading in jacobian.readings:
                self.add(surrogate, reading, *self.recall(engine, reading))
        for reading in moving.readings:
            self.track(engine, reading)
        if self.jacobian != "old":
            for reading in jacobian.readings:
                self.add(surrogate, reading, *self.recall(engine, reading))

    def _measured(self, engine: Engine, seen: Evaluated, terms: list[Term]) -> tuple[Measured, Measured]:
        """The samples that move y, and those of the Jacobian."""
        if self.jacobian in ("old", "reuse"):
            now = engine.inner(seen, direct=False, terms=terms)
            return now, now
        first, second = seen.halves() if self.jacobian == "halves" else (seen.dual_part(), seen)
        moving = engine.inner(first, direct=False, terms=terms)
        return moving, engine.inner(second.at_present(), direct=False, terms=terms)

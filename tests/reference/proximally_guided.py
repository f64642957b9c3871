"""PG-SMD and PG-SVRG in NumPy, from the boxes of the PG-SMD paper (Alg. 1 to 4), and the linearised problem (7).

``min_x max_{y in Y} sum_i y_i f_i(x) - theta KL(y, 1/n)`` with Y the simplex, or its part below a cap.  The single part
of the problem gives the f_i of the rows in a batch; a row with inclusion probability p_i contributes
``g_x = sum y_i / p_i grad f_i`` and ``g_y = f_i / p_i`` (n y_i grad f_i and n f_i e_i for one of n samples).
``w`` is the centre, ``x`` the inner point, ``y`` the weights; a stage is one call of Alg. 1 or 3.

A pass over the data at one point reads batches until every row has occurred, each with its first value.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .algorithms import Batch, Method
from .networks import Array
from .primal_dual import project_capped_kl
from .toy import Problem


class Steps(NamedTuple):
    """J, eta_x and eta_y of a stage."""

    J: int
    eta_x: float
    eta_y: float


class Inner(NamedTuple):
    """Values, Jacobians and probabilities of the rows of a batch."""

    rows: Array
    f: Array
    jacobian: Array
    p: Array


class Guided(Method):
    """What the two algorithms share: estimates, the two proximal steps, passes."""

    def __init__(
        self,
        problem: Problem,
        w: Array,
        stages: Callable[[int], Steps],
        *,
        gamma: float,
        theta: float = 0.0,
        cap: float = 1.0,
        linearised: bool = False,
    ) -> None:
        super().__init__(problem, w, _NoOptimizer())
        (self.part,) = problem.parts
        self.n = self.part.term.n_rows
        self.stages, self.gamma, self.theta, self.cap = stages, gamma, theta, cap
        self.linearised = linearised
        self.t = self.j = 0
        self.x = self.w
        self.y = self.uniform
        self.passed = np.full(self.n, np.nan)

    @property
    def uniform(self) -> Array:
        return np.full(self.n, 1 / self.n)

    def look(self, x: Array, batch: Batch) -> Inner:
        """The f_i of a batch at x, or in (7) their linearisation at the centre."""
        inner = self.part.term.measure(self.problem.at(self.w if self.linearised else x), np.asarray(batch))
        jacobian = inner.jacobians[:, 0]
        f = inner.values[:, 0] + (jacobian @ (x - self.w) if self.linearised else 0.0)
        return Inner(inner.rows, f, jacobian, self.part.presence[inner.rows])

    def g_x(self, inner: Inner, y: Array) -> Array:
        return (y[inner.rows] / inner.p) @ inner.jacobian

    def g_y(self, inner: Inner) -> Array:
        h = np.zeros(self.n)
        h[inner.rows] = inner.f / inner.p
        return h

    def move(self, g_x: Array, g_y: Array, eta_x: float, eta_y: float, pull: float = 0.0) -> None:
        """Both arg min of line 5; ``pull`` is the 1/lambda of V(y, uniform)."""
        x = (self.x / eta_x + self.w / self.gamma - g_x) / (1 / eta_x + 1 / self.gamma)
        power = (g_y + np.log(self.y) / eta_y) / (self.theta + 1 / eta_y + pull)
        self.x, self.y = x, project_capped_kl(np.exp(power - power.max()), self.cap)


class PGSMD(Guided):
    """Alg. 1 inside Alg. 2; ``best_start`` is line 3 of case D2: after a pass at the centre y is the arg max."""

    def __init__(
        self, problem: Problem, w: Array, stages: Callable[[int], Steps], *, best_start: bool = False, **options: float
    ) -> None:
        super().__init__(problem, w, stages, **options)  # type: ignore[arg-type]
        self.best_start = best_start
        self.sum = self.w

    def step(self, batch: Batch) -> None:
        if self.j == 0 and self.best_start and np.isnan(self.passed).any():
            inner = self.look(self.w, batch)
            new = np.isnan(self.passed[inner.rows])
            self.passed[inner.rows[new]] = inner.f[new]
            return
        J, eta_x, eta_y = self.stages(self.t)
        if self.j == 0:
            self.x, self.sum, self.y = self.w, self.w, self.uniform
            if self.best_start:
                power = self.passed / self.theta
                self.y = project_capped_kl(np.exp(power - power.max()), self.cap)
        inner = self.look(self.x, batch)
        self.move(self.g_x(inner, self.y), self.g_y(inner), eta_x, eta_y)
        self.sum = self.sum + self.x
        self.j += 1
        if self.j == J - 1:
            self.w, self.j, self.t = self.sum / J, 0, self.t + 1
            self.passed = np.full(self.n, np.nan)


class PGSVRG(Guided):
    """Alg. 3 inside Alg. 4, with lambda_t = t + 2 where theta = 0, and K(t) - 1 snapshots in stage t."""

    def __init__(
        self, problem: Problem, w: Array, stages: Callable[[int], Steps], K: Callable[[int], int], **options: float
    ) -> None:
        super().__init__(problem, w, stages, **options)  # type: ignore[arg-type]
        self.K, self.k = K, 0
        self.full_x = np.zeros_like(self.w)

    def step(self, batch: Batch) -> None:
        if self.k == 0 and self.j == 0 and np.isnan(self.passed).all():
            self.x, self.y = self.w, self.uniform
        if np.isnan(self.passed).any():
            self.pass_by(batch)
            return
        J, eta_x, eta_y = self.stages(self.t)
        now, before = self.look(self.x, batch), self.look(self.snapshot_x, batch)
        g_x = self.full_x - self.g_x(before, self.snapshot_y) + self.g_x(now, self.y)
        g_y = self.passed - self.g_y(before) + self.g_y(now)
        self.move(g_x, g_y, eta_x, eta_y, 0.0 if self.theta else 1 / (self.t + 2))
        self.j += 1
        if self.j == J - 1:
            self.j, self.k = 0, self.k + 1
            self.passed, self.full_x = np.full(self.n, np.nan), np.zeros_like(self.w)
            if self.k == self.K(self.t) - 1:
                self.w, self.k, self.t = self.x, 0, self.t + 1

    def pass_by(self, batch: Batch) -> None:
        """Lines 5 and 6, batch by batch."""
        self.snapshot_x, self.snapshot_y = self.x, self.y
        inner = self.look(self.x, batch)
        for row, f, jacobian in zip(inner.rows, inner.f, inner.jacobian, strict=True):
            if np.isnan(self.passed[row]):
                self.passed[row] = f
                self.full_x = self.full_x + self.y[row] * jacobian


class _NoOptimizer:
    """The boxes move x themselves."""

    def step(self, w: Array, gradient: Array) -> Array:
        raise NotImplementedError

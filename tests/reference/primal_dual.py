"""ALEXR, ALEXR2 and OOA in NumPy, one class each.

The pair (y, Jacobian) of ALEXR and ALEXR2 comes from one of four choices:

* "halves": the first B // 2 samples update y, the others give the Jacobian.  A row that is only in the second half
  uses the y of its stored row; a row never seen uses its value in the second half, which is not stored.
* "part": ``step(batch, other)``; the second, independent batch ``other`` updates y, ``batch`` gives the Jacobian.
* "old": y from the rows before this step (a row never seen: its new value); then the whole batch updates the rows.
* "reuse": the same batch updates y and gives the Jacobian, which biases G by ``Cov(y_i, Jac g_i)``.

The direct objectives are measured on all samples of ``batch``.  The inclusion probabilities of the parts are those of
the batch that gives the Jacobian.
"""

import numpy as np

from .algorithms import Batch, Method, Optimizer
from .networks import Array, Indices, Point
from .toy import Inner, Problem


class PrimalDual(Method):
    """The dual step shared by ALEXR and ALEXR2.

    u-form (psi = f*): ``u <- (1 - gamma) u + gamma g + gamma theta (g - g_previous)``, ``y = grad f_lam(u - s)``.
    y-form (psi = |.|^2/2): ``y <- argmax_v <v, g~ - s> - f_lam^*(v) - tau/2 |v - y|^2`` from y = 0, with
    ``g~ = g + theta (g - g_previous)``; ``rows`` then holds y.  Give ``gamma`` for the u-form, ``tau`` for the y-form.
    """

    def __init__(
        self,
        problem: Problem,
        w: Array,
        optimizer: Optimizer,
        *,
        gamma: float | None = None,
        tau: float | None = None,
        theta: float = 0.0,
        pair: str = "halves",
    ) -> None:
        super().__init__(problem, w, optimizer)
        if (gamma is None) == (tau is None):
            raise ValueError("give gamma (u-form) or tau (y-form)")
        if pair not in {"halves", "part", "old", "reuse"}:
            raise ValueError(pair)
        self.gamma, self.tau, self.theta, self.pair = gamma, tau, theta, pair

    def _batches(self, batch: Batch, other: Batch | None) -> tuple[Indices, Indices]:
        """The batch that moves y and the one that gives the Jacobian."""
        whole = np.asarray(batch)
        if self.pair == "halves":
            return whole[: len(whole) // 2], whole[len(whole) // 2 :]
        if self.pair == "part":
            if other is None:
                raise ValueError("pair='part' asks for step(batch, other)")
            return np.asarray(other), whole
        return whole, whole

    def _stored_slopes(self, k: int, inner: Inner, w: Array) -> Array:
        """The y that the stored rows stand for at the present s."""
        if self.tau is not None:
            return self.rows[k][inner.rows]
        return self.problem.parts[k].term.slopes(w, self._before(k, inner))

    def _move_rows(self, k: int, batch: Indices, point: Point, previous: Point) -> None:
        term = self.problem.parts[k].term
        inner = term.measure(point, batch)
        change = np.zeros_like(inner.values)
        if self.theta and previous is not point:
            change = self.theta * (inner.values - term.measure(previous, batch).values)
        old = self.rows[k][inner.rows]
        if self.tau is not None:
            new = term.outer.dual_step(term.argument(point.w, inner.values + change), old, self.tau)
        else:
            moved = (1 - self.gamma) * old + self.gamma * (inner.values + change)
            new = term.project(np.where(self.seen[k][inner.rows][:, None], moved, inner.values))
        self._write(k, inner.rows, new)

    def _estimate(self, batch: Batch, other: Batch | None, point: Point, previous: Point) -> None:
        """Move the rows and set ``gradient`` at ``point``."""
        mover, giver = self._batches(batch, other)
        self._start(point, np.asarray(batch))
        for k, part in enumerate(self.problem.parts):
            inner = part.term.measure(point, giver)
            if self.pair == "old":
                y = self._stored_slopes(k, inner, point.w).copy()
                self._move_rows(k, mover, point, previous)
            else:
                self._move_rows(k, mover, point, previous)
                y = self._stored_slopes(k, inner, point.w)
            self._add(part, point.w, inner, y)


class ALEXR(PrimalDual):
    """ALEXR paper, Alg. 1: the dual step, then the optimizer."""

    def __init__(self, problem: Problem, w: Array, optimizer: Optimizer, **options: object) -> None:
        super().__init__(problem, w, optimizer, **options)  # type: ignore[arg-type]
        self.previous = problem.at(self.w)
        self.point = self.previous

    def step(self, batch: Batch, other: Batch | None = None) -> None:
        self._estimate(batch, other, self.point, self.previous)
        self.w = self.optimizer.step(self.w, self.gradient)
        self.previous, self.point = self.point, self.problem.at(self.w)


class ALEXR2(PrimalDual):
    """SONEX paper, Alg. 2: K inner iterations of ALEXR around the centre w, one batch each, then one step of w.

    Inner: ``z <- (nu z + eta w - eta nu G) / (eta + nu)`` from ``z_0 = z_{-1} = w``.  Outer: ``(w - z_K)/nu`` goes to
    the optimizer.  ``w`` is the centre, ``z`` the inner point (equal to w between rounds), ``inner_step`` counts to K,
    ``outer_gradient`` the last ``(w - z_K)/nu``.  Rows stay from round to round.  ``eta``: a number or an array (d,).
    """

    def __init__(
        self,
        problem: Problem,
        w: Array,
        optimizer: Optimizer,
        *,
        inner_steps: int,
        nu: float,
        eta: float | Array,
        **options: object,
    ) -> None:
        super().__init__(problem, w, optimizer, **options)  # type: ignore[arg-type]
        self.inner_steps, self.nu, self.eta = inner_steps, nu, eta
        self.outer_gradient = np.zeros_like(self.w)
        self._new_round()

    def _new_round(self) -> None:
        self.inner_step, self.z = 0, self.w
        self.point = self.previous = self.problem.at(self.w)

    def step(self, batch: Batch, other: Batch | None = None) -> None:
        self._estimate(batch, other, self.point, self.previous)
        nu, eta = self.nu, self.eta
        self.z = (nu * self.z + eta * self.w - eta * nu * self.gradient) / (eta + nu)
        self.previous, self.point = self.point, self.problem.at(self.z)
        self.inner_step += 1
        if self.inner_step == self.inner_steps:
            self.outer_gradient = (self.w - self.z) / nu
            self.w = self.optimizer.step(self.w, self.outer_gradient)
            self._new_round()


def project_capped_kl(p: Array, cap: float) -> Array:
    """KL projection of p > 0 on ``{q >= 0, sum q = 1, q_i <= cap}``: ``q_i = min(cap, c p_i)``.

    With p sorted from the largest, k entries lie at the cap and ``c = (1 - k cap) / (sum of the others)``; the smallest
    k for which no other entry exceeds the cap is right.
    """
    order = np.argsort(-p, kind="stable")
    q = np.full(len(p), cap)
    for k in range(len(p)):
        rest = order[k:]
        scaled = p[rest] * (1 - k * cap) / p[rest].sum()
        if scaled[0] <= cap * (1 + 1e-15):
            q[rest] = scaled
            return q
    return q


class OOA(Method):
    """Group DRO by dual ascent on ``{q: sum q = 1, q_i <= 1/(alpha n)}`` (ALEXR paper sec. 5.1, extended to CVaR).

    ``h_i = R_i(batch)/p_i`` for groups present, 0 for others; ``q <- P_KL(q exp(eta_q h))``; then
    ``G = grad g_0 + sum_present (q_i/p_i) grad R_i`` with the new q.  The one part is a ``GroupRisks`` whose outer
    function and threshold are not used.  ``rows[0]`` is q as (groups, 1).
    """

    def __init__(self, problem: Problem, w: Array, optimizer: Optimizer, alpha: float, eta_q: float) -> None:
        super().__init__(problem, w, optimizer)
        (self.part,) = problem.parts
        n = self.part.term.n_rows
        self.cap, self.eta_q = 1 / (alpha * n), eta_q
        self.q = np.full(n, 1 / n)
        self.rows = [self.q[:, None]]

    def step(self, batch: Batch) -> None:
        batch = np.asarray(batch)
        point = self.problem.at(self.w)
        inner = self.part.term.measure(point, batch)
        chances = self.part.presence[inner.rows]
        ascent = np.zeros_like(self.q)
        ascent[inner.rows] = inner.values[:, 0] / chances
        exponent = self.eta_q * ascent
        self.q = project_capped_kl(self.q * np.exp(exponent - exponent.max()), self.cap)
        self.rows = [self.q[:, None]]
        self.gradient = self.problem.direct_gradient(point, batch)
        self.gradient = self.gradient + (self.q[inner.rows] / chances) @ inner.jacobians[:, 0]
        self.w = self.optimizer.step(self.w, self.gradient)

"""Single-loop algorithms in NumPy, one class each, stepping batch by batch.

Every object takes a :class:`~.toy.Problem`, the start ``w`` (d,) and an optimizer; ``step(batch)`` makes one update,
after which ``w``, ``rows`` (one (rows, k) array per part, zeros where ``seen`` is false) and ``gradient`` (the G of
this step) can be read.  G is

    G = grad g_0(w_t; batch) + sum_parts share * sum_{i present} w_i [Jac g_i(w_t; batch)]^T y_i,   w_i = 1/(rows p_i).

A row is a running value ``u_i`` of g_i; the threshold is not in it, so ``y_i = grad f_lam(u_i - s)`` at the present s.
At the first visit ``u_i = g_i(w_t; batch)``, which a method with stale rows uses in its gradient as well.
"""

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from .networks import Array, Indices, Point
from .toy import Inner, Part, Problem

Batch = Iterable[int] | Indices


class Optimizer(Protocol):
    """How a gradient moves the weights."""

    def step(self, w: Array, gradient: Array) -> Array: ...


class HeavyBall:
    """``v <- (1 - beta) v + beta G``, ``w <- w - lr v``; the first v is G itself."""

    def __init__(self, lr: float, beta: float = 0.1) -> None:
        self.lr, self.beta = lr, beta
        self.v: Array | None = None

    def step(self, w: Array, gradient: Array) -> Array:
        v = gradient if self.v is None else self.v
        self.v = (1 - self.beta) * v + self.beta * gradient
        return w - self.lr * self.v


class Method:
    """State that all methods share: weights, rows, marks of rows that have been seen, the last gradient."""

    def __init__(self, problem: Problem, w: Array, optimizer: Optimizer) -> None:
        self.problem, self.optimizer = problem, optimizer
        self.w: Array = np.array(w, dtype=float)
        self.rows: list[Array] = [np.zeros((part.term.n_rows, part.term.width)) for part in problem.parts]
        self.seen = [np.zeros(part.term.n_rows, dtype=bool) for part in problem.parts]
        self.gradient: Array = np.zeros_like(self.w)

    def step(self, batch: Batch) -> None:
        raise NotImplementedError

    def _before(self, k: int, inner: Inner) -> Array:
        """Rows before this step, the fresh value where a row was never seen."""
        seen = self.seen[k][inner.rows][:, None]
        return np.where(seen, self.rows[k][inner.rows], inner.values)

    def _write(self, k: int, rows: Indices, values: Array) -> None:
        self.rows[k][rows] = values
        self.seen[k][rows] = True

    def _add(self, part: Part, w: Array, inner: Inner, y: Array) -> None:
        self.gradient = self.gradient + part.gradient(w, inner, y)

    def _start(self, point: Point, batch: Indices) -> None:
        self.gradient = self.problem.direct_gradient(point, batch)


class SingleLoop(Method):
    """A template: ``_update`` gives the new rows, ``fresh`` says whether G uses them or those from before."""

    fresh: bool

    def _update(self, k: int, inner: Inner, before: Inner | None) -> Array:
        """New rows of part k from the values at w_t and, with the same batch, at w_{t-1}."""
        raise NotImplementedError

    def _previous(self, k: int, batch: Indices) -> Inner | None:
        return None

    def step(self, batch: Batch) -> None:
        batch = np.asarray(batch)
        point = self.problem.at(self.w)
        self._start(point, batch)
        for k, part in enumerate(self.problem.parts):
            inner = part.term.measure(point, batch)
            stale = self._before(k, inner)
            fresh = self._update(k, inner, self._previous(k, batch))
            self._add(part, self.w, inner, part.term.slopes(self.w, fresh if self.fresh else stale))
            self._write(k, inner.rows, fresh)
        self._move()

    def _move(self) -> None:
        self.w = self.optimizer.step(self.w, self.gradient)


class BSGD(SingleLoop):
    """``y_i = grad f(g_i(w_t; batch))``: nothing is remembered (the rows hold the last value)."""

    fresh = True

    def _update(self, k: int, inner: Inner, before: Inner | None) -> Array:
        return inner.values


class SOX(SingleLoop):
    """``u_i <- (1 - gamma) u_i + gamma g_i``; G uses u_i from before (SOX paper, Alg. 1)."""

    fresh = False

    def __init__(self, problem: Problem, w: Array, optimizer: Optimizer, gamma: float) -> None:
        super().__init__(problem, w, optimizer)
        self.gamma = gamma

    def _update(self, k: int, inner: Inner, before: Inner | None) -> Array:
        return (1 - self.gamma) * self._before(k, inner) + self.gamma * inner.values


class SOAP(SOX):
    """As SOX, but G uses the new u_i."""

    fresh = True


class MOAP(SOX):
    """``u_i <- (1 - gamma) u_i + gamma g_i / p_i`` if present, ``(1 - gamma) u_i`` if not; G uses the new u_i.

    ``1/p_i`` is ``n/B1``.  A row never seen takes g_i itself.
    """

    fresh = True

    def _update(self, k: int, inner: Inner, before: Inner | None) -> Array:
        presence = self.problem.parts[k].presence[inner.rows][:, None]
        seen = self.seen[k][inner.rows][:, None]
        old = self.rows[k][inner.rows]
        new = np.where(seen, (1 - self.gamma) * old + self.gamma * inner.values / presence, inner.values)
        self.rows[k] = (1 - self.gamma) * self.rows[k]  # all rows shrink; those present are written afterwards
        return new


class SONX(SOX):
    """``u_i <- (1 - gamma) u_i + gamma g_i(w_t) + gamma' (g_i(w_t) - g_i(w_{t-1}))``, both values with the same batch.

    G uses u_i from before, or the new ones with ``fresh=True``.  ``correction`` is gamma', a number or "theory".  SONEX
    paper runs SONX with subgradients and plain SGD.
    """

    def __init__(
        self,
        problem: Problem,
        w: Array,
        optimizer: Optimizer,
        gamma: float,
        correction: float | str,
        fresh: bool = False,
    ) -> None:
        super().__init__(problem, w, optimizer, gamma)
        self.correction, self.fresh = correction, fresh
        self.w_previous = self.w

    def _previous(self, k: int, batch: Indices) -> Inner | None:
        if self.w_previous is self.w:
            return None
        return self.problem.parts[k].term.measure(self.problem.at(self.w_previous), batch)

    def _factor(self, k: int, rows: Indices) -> float | Array:
        if isinstance(self.correction, str):
            return theory_correction(self.gamma, self.problem.parts[k].presence[rows])[:, None]
        return self.correction

    def _update(self, k: int, inner: Inner, before: Inner | None) -> Array:
        new = super()._update(k, inner, before)
        if before is not None:
            change = self._factor(k, inner.rows) * (inner.values - before.values)
            new = new + np.where(self.seen[k][inner.rows][:, None], change, 0.0)
        return self.problem.parts[k].term.project(new)

    def _move(self) -> None:
        self.w_previous, self.w = self.w, self.optimizer.step(self.w, self.gradient)


class SONEX(SONX):
    """As SONX, for problems whose outer functions carry ``lam > 0``; SONEX paper runs it with a heavy ball (Alg. 1)."""


class MSVR(SONX):
    """Rows as SONX; ``z_t = G_t(w_t) + (1 - b) (z_{t-1} - G_{t-1}(w_{t-1}))`` with the same batch, ``z_0 = G_0(w_0)``.

    G_t uses the rows from before step t, all of which are copied here; a row that was not seen then stands for the
    value on the batch at the weights of G.  ``gradient`` is z_t.
    """

    def __init__(
        self, problem: Problem, w: Array, optimizer: Optimizer, gamma: float, correction: float | str, b: float
    ) -> None:
        super().__init__(problem, w, optimizer, gamma, correction)
        self.b = b
        self.z: Array | None = None
        self.earlier: Array | None = None
        self.filled: list[Array] = []  # before the previous step, with the values that stood for rows not yet seen
        self.known: list[Array] = []

    def step(self, batch: Batch) -> None:
        batch = np.asarray(batch)
        self.earlier = None if self.z is None else self._gradient_before(batch)
        filled, known = [rows.copy() for rows in self.rows], [seen.copy() for seen in self.seen]
        point = self.problem.at(self.w)
        for k, part in enumerate(self.problem.parts):
            inner = part.term.measure(point, batch)
            filled[k][inner.rows] = self._before(k, inner)
            known[k][inner.rows] = True
        super().step(batch)
        self.filled, self.known = filled, known

    def _move(self) -> None:
        if self.z is not None and self.earlier is not None:
            self.gradient = self.gradient + (1 - self.b) * (self.z - self.earlier)
        self.z = self.gradient
        super()._move()

    def _gradient_before(self, batch: Indices) -> Array:
        """``G_{t-1}(w_{t-1})`` on a batch."""
        point = self.problem.at(self.w_previous)
        total = self.problem.direct_gradient(point, batch)
        for k, part in enumerate(self.problem.parts):
            inner = part.term.measure(point, batch)
            rows = np.where(self.known[k][inner.rows][:, None], self.filled[k][inner.rows], inner.values)
            total = total + part.gradient(self.w_previous, inner, part.term.slopes(self.w_previous, rows))
        return total


def theory_correction(gamma: float, presence: Array) -> Array:
    """``gamma' = (n - B1)/(B1 (1 - gamma)) + 1 - gamma`` with ``p = B1/n``."""
    return (1 - presence) / (presence * (1 - gamma)) + 1 - gamma

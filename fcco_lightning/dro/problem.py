"""The problem of a distributionally robust linear model, its optimality certificate, and the interface of solvers."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from fcco_lightning.ambiguity import AmbiguitySet, DivergencePenalty
from fcco_lightning.dro.dual import DualSteps
from fcco_lightning.dro.losses import Array, ConjugateLoss, Loss
from fcco_lightning.dro.wasserstein import WassersteinBall
from fcco_lightning.errors import ConfigError, NonFiniteError

Need = Literal["a smooth loss", "mu > 0", "nu > 0"]
_BALANCED = 1e-9  # a sum that is smaller than this share of its terms counts as zero
_SAMPLED, _POWERS = 1000, 12  # samples and power iterations of LinearProblem.largest_eigenvalue
_FEW = 64  # number of features up to which it is exact


class Point(NamedTuple):
    """Results of one pass over the data at weights w.

    Attributes:
        value: F(w).
        gradient: gradient of F without the penalty on w, in the shape of w.
        q: the worst weights of the samples, (n,).
        lower: a lower bound of F.
    """

    value: float
    gradient: Array
    q: Array
    lower: float


@dataclass
class LinearProblem:
    r"""``min_w F(w) = max_{q in Q} sum_i q_i l_i(w) - nu D(q, 1/n) + (mu/2) |w|^2`` with ``l_i(w) = phi(x_i w, y_i)``.

    Args:
        x: features, (n, d), dense or sparse by rows, float64.
        y: targets, (n,) or (n, k), float64.
        loss: phi.
        ambiguity: Q.
        penalty: nu D.
        mu: weight of the ridge penalty, >= 0; 0 needs a :class:`ConjugateLoss`, which the hinge loss is not.
        norm: Wasserstein ball of shifts of the samples, which adds a norm of the first ``features`` numbers of w; None
            for no shifts.
        features: number of weights in the norm.

    Raises:
        ConfigError: if mu is 0 and the loss has no conjugate.
    Source: DRAGO paper, eq. (2).
    """

    x: Any
    y: Array
    loss: Loss
    ambiguity: AmbiguitySet
    penalty: DivergencePenalty
    mu: float
    norm: WassersteinBall | None = None
    features: int = 0

    def __post_init__(self) -> None:
        if self.mu == 0 and not isinstance(self.loss, ConjugateLoss):
            raise ConfigError(
                "mu=0 is supported for the squared, the logistic and the multinomial loss only, whose convergence "
                f"is proved, got {type(self.loss).__name__}. Use mu > 0, such as 1e-6."
            )
        self.dual = DualSteps(self.ambiguity, self.penalty, self.n)

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self.y)

    def zeros(self) -> Array:
        """Initial weights 0: (d,), or (d, k) for targets with k columns."""
        return np.zeros((self.x.shape[1], *self.y.shape[1:]))

    def point(self, w: Array, evaluated: tuple[Array, Array] | None = None, q_of_bound: Array | None = None) -> Point:
        r"""Compute value, gradient, worst weights and a lower bound in one pass over the data.

        Args:
            w: weights.
            evaluated: losses and slopes of all samples at w, if a solver has them already.
            q_of_bound: weights in Q for the lower bound, (n,); None for the worst ones.  Without a penalty the worst
                weights jump from one vertex of Q to another, and their bound is weak.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            losses, slopes = evaluated or self.loss(self.x @ w, self.y)
            if not np.isfinite(losses.sum()):
                return Point(np.inf, w, losses, -np.inf)
            worst, q = self.dual.respond(losses)
            gradient = self.x.T @ weigh(q, slopes)
            if q_of_bound is None:
                lower = self.lower_bound(w, q, worst, slopes, gradient)
            else:
                level = float(q_of_bound @ losses) - float(self.penalty.value(torch.from_numpy(q_of_bound)))
                lower = self.lower_bound(w, q_of_bound, level, slopes, self.x.T @ weigh(q_of_bound, slopes))
            return Point(worst + self.ridge(w), gradient, q, lower)

    def lower_bound(self, w: Array, q: Array, level: float, slopes: Array, gradient: Array) -> float:
        r"""A lower bound of F: the value of Fenchel's dual at q and the slopes of the losses.

        With mu > 0 it is the minimum of ``level + <gradient, . - w> + (mu/2) |.|^2``, where level is the value at w
        without the ridge penalty; for the worst q the gap is ``|grad F(w)|^2 / (2 mu)``.  With mu = 0 the slopes must
        first be changed so that the gradient is zero, ``s = slopes - h (x delta)`` with ``sum_i q_i h_i x_i x_i^T delta
        = gradient`` and h the curvatures of the losses, and the bound is ``-sum_i q_i phi*(s_i) - nu D(q, 1/n)``.  For
        the squared loss this is the exact minimum over w for this q.  It is -inf if an s_i is no slope of the loss.
        The system has d unknowns, or k d for k classes: about ``n d^2 + d^3`` operations, or ``k^2 n d^2 + k^3 d^3``.
        """
        if self.mu > 0:
            return self.minimum_of_line(level - inner(gradient, w), gradient)
        assert isinstance(self.loss, ConjugateLoss)  # noqa: S101 - for mypy
        h = self.loss.curvatures(slopes, self.y)
        normal = self._normal(q, h)
        unit = np.sqrt(normal.diagonal())  # scales of the features, which may differ by many orders of magnitude
        unit[unit == 0] = 1.0
        by_class = gradient.reshape(len(gradient), -1).T
        solution = np.linalg.lstsq(normal / np.outer(unit, unit), by_class.ravel() / unit, rcond=None)[0] / unit
        z = self.x @ solution.reshape(by_class.shape).T.reshape(gradient.shape)
        moved = slopes - (h * z if z.ndim == 1 else np.einsum("iab,ib->ia", h, z))
        unbalanced = abs(self.x.T @ weigh(q, moved)) > _BALANCED * (abs(self.x).T @ weigh(q, abs(slopes)))
        if unbalanced.any():
            return -np.inf
        conjugates = np.where(q > 0, self.loss.conjugate(moved, self.y), 0.0)
        return -float(q @ conjugates) - float(self.penalty.value(torch.from_numpy(q)))

    def _normal(self, q: Array, h: Array) -> Array:
        """``sum_i q_i h_i x_i x_i^T``, (d, d); for curvatures (n, k, k) its block matrix (k d, k d), class by class."""

        def block(weights: Array) -> Array:
            product = self.x.T @ (sparse.diags_array(weights) @ self.x)
            return np.asarray(product.toarray() if sparse.issparse(product) else product)

        if h.ndim == 1:
            return block(q * h)
        classes = range(h.shape[1])
        return np.block([[block(q * h[:, a, b]) for b in classes] for a in classes])

    def minimum_of_line(self, level: float, slope: Array) -> float:
        """``min_w level + <slope, w> + (mu/2)|w|^2``, plus the norm if there is one; mu > 0."""
        return level - self.mu / 2 * square(self.minimizer(-slope))

    def ridge(self, w: Array) -> float:
        """``(mu/2) |w|^2``, plus the norm if there is one."""
        norm = 0.0 if self.norm is None else self.norm.value(w[: self.features])
        return self.mu / 2 * square(w) + norm

    def minimizer(self, v: Array, curvature: float = 0.0) -> Array:
        """``argmin_w ridge(w) + (curvature/2) |w|^2 - <v, w>``; mu + curvature > 0."""
        total = self.mu + curvature
        w = v / total
        if self.norm is not None:
            w[: self.features] = self.norm.prox(w[: self.features], 1 / total)
        return w

    def largest_eigenvalue(self) -> float:
        """Largest eigenvalue of the mean of ``x_i x_i^T`` over up to 1000 samples.

        For many or sparse features it is estimated by power iteration.
        """
        rows = self.x[:: -(-self.n // _SAMPLED)]
        if isinstance(rows, np.ndarray) and rows.shape[1] <= _FEW:
            gram = rows.T @ rows
            if np.isfinite(gram).all():
                return max(float(np.linalg.eigvalsh(gram)[-1]), 0.0) / len(rows)
        v = np.asarray(abs(rows).sum(axis=0), dtype=np.float64).ravel()
        value = 0.0
        for _ in range(_POWERS):
            norm = float(np.linalg.norm(v))
            if norm == 0:
                break
            v = rows.T @ (rows @ (v / norm)) / rows.shape[0]
            value = float(np.linalg.norm(v))
        return value


def weigh(q: Array, slopes: Array) -> Array:
    """``q_i slopes_i``: (n,) and (n,) or (n, k)."""
    return q * slopes if slopes.ndim == 1 else q[:, None] * slopes


def inner(a: Array, b: Array) -> float:
    """Scalar product of arrays of the same shape."""
    return float(np.vdot(a, b))


def square(a: Array) -> float:
    """``|a|^2``."""
    return float(np.vdot(a, a))


class Done(Exception):  # noqa: N818 - it is no error
    """Raised to end a solver when the gap is small enough or the passes are used up."""


class Progress:
    """The best weights so far, their gap, and the history of a solver.

    Args:
        problem: the problem to be solved.
        tol: the gap at which to stop.
        max_passes: number of passes over the data after which to stop.
        clock: returns seconds since some moment; ``time.process_time`` excludes the time of other programs.

    Attributes:
        w: the best weights seen.
        value: F there.
        lower: the largest lower bound seen.
        calls: number of evaluations of the loss or gradient of one sample by the solver, without those for the gap.
        history: records with ``oracle_calls``, ``seconds``, ``objective``, ``gap``, one per evaluation of the gap.
    """

    def __init__(
        self,
        problem: LinearProblem,
        tol: float,
        max_passes: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.problem, self.tol, self.max_calls, self.clock = problem, tol, max_passes * problem.n, clock
        self.w = problem.zeros()
        self.value = np.inf
        self.lower = -np.inf
        self.calls = 0
        self.history: list[dict[str, float]] = []
        self._start = clock()

    @property
    def gap(self) -> float:
        """F at the best weights minus the lower bound, at least 0."""
        return max(self.value - self.lower, 0.0)

    def evaluate(
        self, w: Array, evaluated: tuple[Array, Array] | None = None, q_of_bound: Array | None = None
    ) -> Point:
        """Evaluate F at w and record it; ``evaluated`` and ``q_of_bound`` as for :meth:`LinearProblem.point`.

        Raises:
            Done: when the solver should stop.
            NonFiniteError: if F is not finite there.
        """
        point = self.problem.point(w, evaluated, q_of_bound)
        self.record(w, point)
        return point

    def check(self, value: float) -> None:
        """Refuse a value that is not finite.

        Raises:
            NonFiniteError: with advice.
        """
        if not np.isfinite(value):
            raise NonFiniteError(
                f"the objective is not finite after {self.calls} evaluations of a sample: the solver's step is too "
                "large for this data. Standardise the features, take a smaller step, or use solver='lbfgs'."
            )

    def record(self, w: Array, point: Point, lower: float = -np.inf) -> None:
        """Record a point that was evaluated, with a further lower bound; raises like :meth:`evaluate`."""
        self.check(point.value)
        if point.value < self.value:
            self.w, self.value = w.copy(), point.value
        self.lower = max(self.lower, point.lower, lower)
        self.history.append(_record(self.calls, self.seconds, point.value, self.gap))
        if self.gap <= self.tol or self.calls >= self.max_calls:
            raise Done

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return self.clock() - self._start

    def add_records(self, w: Array, value: float, lower: float, calls: int, records: Array, since: float) -> None:
        """Add the results of a compiled loop, which does not call :meth:`evaluate`.

        Args:
            w: the best weights.
            value: F there.
            lower: the largest lower bound.
            calls: number of evaluations of a sample, including those before the loop.
            records: evaluations, objective and gap, (number of records, 3).
            since: ``seconds`` at the loop's beginning; the time since then is divided in proportion to evaluations.
        """
        seconds_per_call = (self.seconds - since) / max(calls - self.calls, 1)
        self.history += [
            _record(int(num_calls), since + seconds_per_call * (num_calls - self.calls), *figures)
            for num_calls, *figures in records.tolist()
        ]
        self.w, self.value, self.lower, self.calls = w, value, lower, calls


def _record(calls: int, seconds: float, objective: float, gap: float) -> dict[str, float]:
    return {"oracle_calls": calls, "seconds": seconds, "objective": objective, "gap": gap}


class Solver(Protocol):
    """Iterates from w = 0 until :class:`Progress` raises :class:`Done`.

    Attributes:
        needs: required properties of a problem, such as a smooth loss.
    """

    needs: ClassVar[frozenset[Need]]

    def solve(self, problem: LinearProblem, progress: Progress, random: np.random.Generator) -> None:
        """Iterate until ``progress`` raises :class:`Done`, or return if no further step is possible."""


def blocks_of(n: int, size: int) -> list[slice]:
    """Divide n samples into consecutive blocks of about ``size`` samples; sizes differ by at most one."""
    return [slice(a, b) for a, b in pairwise(edges_of(n, size).tolist())]


def edges_of(n: int, size: int) -> NDArray[np.int64]:
    """The first samples of the M blocks of :func:`blocks_of`, and n, (M + 1,)."""
    blocks = -(-n // size)
    return (np.arange(blocks + 1) * (n / blocks)).round().astype(np.int64)

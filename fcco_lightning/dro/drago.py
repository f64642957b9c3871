"""DRAGO: block-wise primal-dual steps with coupled variance reduction."""

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from fcco_lightning.ambiguity import KLPenalty
from fcco_lightning.checks import at_least, one_of, positive
from fcco_lightning.dro.compiled import Loop
from fcco_lightning.dro.kernel import Growth, Pace, next_look
from fcco_lightning.dro.losses import Array
from fcco_lightning.dro.paces import Start, default_alpha, expected_passes, paces, regularised, unregularised
from fcco_lightning.dro.problem import LinearProblem, Need, Progress, blocks_of, weigh
from fcco_lightning.errors import ConfigError, NonFiniteError

_DIVERGED = 1e6  # factor on the objective at w = 0 above which the iterates count as diverged
_PATIENCE = 20  # in _PATIENCE / alpha iterations the gap should fall by e^20
_RETRIES = 12
_FAR, _MANY = 2, 1000  # warn if more than twice the allowed passes, and more than 1000, are expected


@dataclass(frozen=True)
class DRAGO:
    r"""DRAGO (DRAGO paper, Alg. 1 and 2); an iteration reads about three blocks of b samples and all n weights q.

    With M = n/b blocks, a sequence a_t with sums A_t, ``r = a_{t-1}/a_t`` and ``beta = A_{t-1}/a_t``, iteration t draws
    blocks I and J and takes K = t mod M:

        v = sum_i qhat_i ghat_i + r M sum_{i in I} (q_i grad l_i(w) - qhat_i ghat_i)   (tables of the previous step)
        w <- argmin <v, w'> + (mu/2) (|w'|^2 + (beta - c (M-1)) |w' - w|^2 + c sum_{s=t-M}^{t-2} |w' - w_s|^2)
        lhat_K <- l_K(w);   v = lhat + r M sum_{j in J} (l_j(w) - lhat_j of before) e_j
        q <- argmax_{p in Q} <p, v> - nu D(p, 1/n) - beta nu Delta(p, q);   (qhat ghat)_K <- (q grad l)_K

    with ``c = 1/(16 alpha (1+alpha) (M-1)^2)``.  The gap decreases like ``(1+alpha)^{-t}`` if alpha is small enough.
    The table of ``qhat_i ghat_i`` stores the scalar ``q_i phi'_i`` (k numbers for k classes), since ``grad l_i = phi'_i
    x_i``.  A block that was evaluated at the same w is not evaluated again; with b = n an iteration is one pass.
    Errata DRAGO-1 to 10 and 21.

    **Small mu.** The number of passes grows like L/mu, where L is the curvature of the losses, whatever the step size
    is: four times the default alpha diverged in most cases tried.  If far more passes are needed than allowed, a fit
    begins with a warning and an estimate (:func:`expected_passes`).  The passes of L-BFGS hardly depend on mu.

    **mu = 0 or nu = 0.** ``|w' - w|^2`` and Delta(p, q) then have other weights, see :func:`unregularised`, and
    the gap of the averaged iterates decreases like 1/t (paper, C.4).  Here the last iterates are kept and certified:
    if one of mu and nu was 0, the gap was 1e-7 after 40 to 400 passes on tables of 42 samples, and between 1e-3 and
    1e-7 after 600 passes on a badly conditioned one of 442.  With mu = 0 a minimum must exist, which is not the case
    for the logistic loss if a hyperplane separates the classes; and the gap is infinite while w is far from it.

    Args:
        block_size: b; None for about n/d, so that q costs as much as the data.  It need not divide n.
        alpha: step size; None for :func:`default_alpha`, which is min(0.1, b/(2n)) unless the problem is badly
            conditioned.  If the objective then grows by a factor of 1e6, the solver restarts from w = 0 with the start
            "steady", and if necessary with alpha / 4; with KL also if the gap is not halved in 20/alpha iterations.
        start: "practice" for ``a_t = (1+alpha)^{t-1}``; "theory" for ``a_1 = 1, a_2 = 4 alpha`` and then the same
            growth, which is slower, but the gap rises less at first if the curvature of the loss is large relative to
            mu; "steady" for ``beta = 1/alpha`` and ``r = 1/(1+alpha)`` from the first step on, the limits of the other
            two: the gap does not rise, and about 1/alpha more iterations are needed.
        compiled: whether numba compiles the iterations and the evaluations of the gap to one loop: the iterates agree
            up to rounding, and it is several times as fast, particularly if iterations are cheap.  It needs the extra
            ``fcco-lightning[compiled]``, dense features, quadratic penalties, :class:`Simplex` or
            :class:`CappedSimplex`, mu > 0 and nu > 0.  The first call compiles for about ten seconds; later processes
            use the cache on the disk.  The ``seconds`` of a record are those of the loop, divided in proportion to
            oracle calls.

    Raises:
        ConfigError: if an argument is out of range, if alpha or start is given for mu = 0 or nu = 0, or if ``compiled``
            is not supported for the problem or numba is not installed.
    """

    block_size: int | None = None
    alpha: float | None = None
    start: Start = "practice"
    compiled: bool = False
    needs: ClassVar[frozenset[Need]] = frozenset({"a smooth loss"})

    def __post_init__(self) -> None:
        if self.block_size is not None:
            at_least("block_size", self.block_size, 1)
        if self.alpha is not None:
            positive("alpha", self.alpha)
        one_of("start", self.start, get_args(Start))

    def solve(self, problem: LinearProblem, progress: Progress, random: np.random.Generator) -> None:
        """Iterate from w = 0, q = 1/n."""
        b = self.block_size or max(1, problem.n // problem.x.shape[1])
        if b > problem.n:
            raise ConfigError(
                f"block_size={b} is larger than the number of samples, {problem.n}. Use None, or a number up to "
                f"{problem.n}."
            )
        loop = Loop(progress, b, self._most_growth) if self.compiled else None
        self._warn_if_slow(problem, progress, b)
        failure: NonFiniteError | None = None
        for attempt in self._attempts(problem, b):
            try:
                if loop is not None and isinstance(attempt, Growth):
                    loop.run(random, attempt)
                else:
                    pace = paces(attempt) if isinstance(attempt, Growth) else attempt
                    self._iterate(problem, progress, random, b, pace, self._patience(problem, attempt))
                failure = None
            except NonFiniteError as error:
                failure = error
        if failure is not None:
            raise failure

    def _warn_if_slow(self, problem: LinearProblem, progress: Progress, b: int) -> None:
        """Warn before the first iteration if many more passes are expected than allowed."""
        if problem.mu == 0 or problem.penalty.nu == 0 or progress.tol <= 0:
            return
        alpha, at_zero = self.alpha or default_alpha(problem, b), problem.point(problem.zeros())
        required_passes = expected_passes(problem, b, alpha, (at_zero.value - at_zero.lower) / progress.tol)
        max_passes = progress.max_calls / problem.n
        if required_passes > max(_FAR * max_passes, _MANY):
            warnings.warn(
                f"DRAGO will need about {float(f'{required_passes:.1g}'):,.0f} passes over the data to reach a gap "
                f"of {progress.tol:.2g}, but max_passes={max_passes:.0f}: the number grows in proportion to the "
                f"curvature of the losses divided by mu={problem.mu:g}. Use solver='lbfgs', which depends little on "
                "mu, or a larger mu.",
                ConvergenceWarning,
                stacklevel=5,
            )

    @property
    def _most_growth(self) -> float:
        """The growth of the objective that counts as divergence; infinite if the user has chosen the step size."""
        return _DIVERGED if self.alpha is None else math.inf

    def _patience(self, problem: LinearProblem, attempt: Growth | Iterator[Pace]) -> float:
        """Number of iterations in which the gap must be halved; else alpha counts as too large.

        It is finite for KL, whose curvature the default alpha knows only at uniform weights; at large weights it is
        smaller.
        """
        settled = self.alpha is not None or not isinstance(problem.penalty, KLPenalty)
        return math.inf if settled or not isinstance(attempt, Growth) else _PATIENCE / attempt.alpha

    def _attempts(self, problem: LinearProblem, b: int) -> Iterator[Growth | Iterator[Pace]]:
        """Paces that are tried one after another while the iterates diverge or the gap does not decrease."""
        mu, nu, count = problem.mu, problem.penalty.nu, -(-problem.n // b)
        if mu == 0 or nu == 0:
            if self.alpha is not None or self.start != "practice":
                raise ConfigError(
                    f"alpha={self.alpha!r} and start={self.start!r} apply only to mu > 0 and nu > 0, got mu={mu!r} "
                    f"and nu={nu!r}; otherwise the step sizes are computed from the data. Leave both out."
                )
            yield from (unregularised(problem, count, 4.0**k) for k in range(_RETRIES))
            return
        alpha = self.alpha or default_alpha(problem, b)
        yield regularised(problem, count, alpha, self.start)
        if self.alpha is None:
            first = alpha / 4 if self.start == "steady" else alpha
            yield from (regularised(problem, count, first / 4**k, "steady") for k in range(_RETRIES))

    def _iterate(
        self,
        problem: LinearProblem,
        progress: Progress,
        random: np.random.Generator,
        b: int,
        paces: Iterable[Pace],
        patience: float,
    ) -> None:
        """Iterate until the solver is done, or the gap is not halved in ``patience`` iterations."""
        w, q = problem.zeros(), np.full(problem.n, 1 / problem.n)
        tables = _Tables(problem, progress, blocks_of(problem.n, b), w, q)
        count = len(tables.blocks)  # M
        window = _Window(w, count)
        at_zero = progress.evaluate(w).value
        bound = self._most_growth * max(1.0, abs(at_zero))

        next_check, first = 0, progress.gap
        least, until = first, patience
        for t, pace in enumerate(paces, 1):
            i, j = random.integers(count, size=2).tolist()
            k = t % count

            v = tables.primal(i, w, q, pace.r * count)
            w = (pace.pull * w - pace.window * window.deviation(k, w) - v) / (pace.pull + problem.mu)
            window.keep(k, w)

            estimate, slopes = tables.dual(j, k, w, pace.r * count)
            progress.check(float(estimate.sum()))
            q = problem.dual.prox(estimate, q, pace.dual)
            tables.renew(k, q, slopes)
            if t >= next_check:
                evaluated = (tables.losses, slopes) if count == 1 else None
                point = progress.evaluate(w, evaluated, q if problem.penalty.nu == 0 else None)
                progress.check(point.value if point.value < bound else math.inf)
                if point.value - point.lower < least / 2:
                    least, until = point.value - point.lower, t + patience
                if t > until:
                    return
                budget = (progress.max_calls - progress.calls) * count / (3 * problem.n)  # 3 blocks in each
                next_check = next_look(t, count, progress.gap, first, progress.tol, budget)


class _Window:
    """The weights of the last M iterations, with their sum."""

    def __init__(self, w: Array, count: int) -> None:
        self.path = np.stack([w] * count)
        self.sum = count * w

    def deviation(self, k: int, w: Array) -> Array:
        """``sum_{s=t-M}^{t-2} (w - w_s)`` at w = w_{t-1}."""
        if k == 0:  # computed anew once in M iterations, against rounding
            self.sum = self.path.sum(axis=0)
        return len(self.path) * w - self.sum

    def keep(self, k: int, w: Array) -> None:
        """Replace the weights of M iterations ago by w."""
        self.sum = self.sum + (w - self.path[k])
        self.path[k] = w


class _Tables:
    """The tables of losses and of q times slope per sample, and the sum of the latter times the features."""

    def __init__(self, problem: LinearProblem, progress: Progress, blocks: list[slice], w: Array, q: Array) -> None:
        self.blocks, self.loss, self.progress = blocks, problem.loss, progress
        self.parts = [(problem.x[block], problem.y[block]) for block in blocks]
        self.losses, slopes = problem.loss(problem.x @ w, problem.y)
        self.weighted = weigh(q, slopes)
        self.total = problem.x.T @ self.weighted
        self.change, self.last = np.zeros_like(w), -1  # last change of the total, and its block
        progress.calls += problem.n

    def evaluate(self, block: int, w: Array) -> tuple[Array, Array]:
        """Losses and slopes of a block."""
        x, y = self.parts[block]
        self.progress.calls += len(y)
        return self.loss(x @ w, y)

    def primal(self, i: int, w: Array, q: Array, scale: float) -> Array:
        """The gradient estimate v at w and q; the last renewed block was evaluated at this w and q already."""
        if i == self.last:
            return np.asarray(self.total + scale * self.change)
        if scale == 0:
            return np.asarray(self.total)
        drift = weigh(q[self.blocks[i]], self.evaluate(i, w)[1]) - self.weighted[self.blocks[i]]
        return np.asarray(self.total + scale * (self.parts[i][0].T @ drift))

    def dual(self, j: int, k: int, w: Array, scale: float) -> tuple[Array, Array]:
        """The estimate v of the losses at w, and the slopes of block k, whose losses are renewed in the table."""
        fresh, slopes = self.evaluate(k, w)
        renewed, block = self.blocks[k], self.blocks[j]
        estimate = self.losses.copy()
        estimate[renewed] = fresh
        if scale > 0:
            current = fresh if j == k else self.evaluate(j, w)[0]
            estimate[block] += scale * (current - self.losses[block])
        self.losses[renewed] = fresh
        return estimate, slopes

    def renew(self, k: int, q: Array, slopes: Array) -> None:
        """Write block k of q times slope."""
        fresh = weigh(q[self.blocks[k]], slopes)
        self.change, self.last = self.parts[k][0].T @ (fresh - self.weighted[self.blocks[k]]), k
        self.total = self.total + self.change
        self.weighted[self.blocks[k]] = fresh

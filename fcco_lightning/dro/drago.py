"""DRAGO: primal-dual steps by blocks, with coupled variance reduction."""

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

_DIVERGED = 1e6  # times the objective at w = 0
_PATIENCE = 20  # over alpha: iterations in which the gap should fall by e^20
_RETRIES = 12
_FAR, _MANY = 2, 1000  # times the passes that are allowed, and passes, beyond which it is said before how many it takes


@dataclass(frozen=True)
class DRAGO:
    r"""One iteration reads about three blocks of b samples and all n weights q (DRAGO paper, Alg. 1 and 2).

    With M blocks and ``r = a_{t-1}/a_t``, ``beta = A_{t-1}/a_t``, iteration t draws blocks I and J, takes K = t mod M,

        v = sum_i qhat_i ghat_i + r M sum_{i in I} (q_i grad l_i(w) - qhat_i ghat_i)   (the tables of one step ago)
        w <- argmin <v, w'> + (mu/2) (|w'|^2 + (beta - c (M-1)) |w' - w|^2 + c sum_{s=t-M}^{t-2} |w' - w_s|^2)
        lhat_K <- l_K(w);   v = lhat + r M sum_{j in J} (l_j(w) - lhat_j of before) e_j
        q <- argmax_{p in Q} <p, v> - nu D(p, 1/n) - beta nu Delta(p, q);   (qhat ghat)_K <- (q grad l)_K

    with ``c = 1/(16 alpha (1+alpha) (M-1)^2)``, and the gap falls like ``(1+alpha)^{-t}`` while alpha is small enough.
    The table of ``qhat_i ghat_i`` holds the scalar ``q_i phi'_i`` (k of them for k classes), since ``grad l_i = phi'_i
    x_i``.  A block that was evaluated at the same w is not evaluated again; with b = n an iteration is one pass.
    Errata DRAGO-1 to 10 and 21.

    **Small mu.** The passes grow like L/mu, with L the curvature of the losses, which no step size changes: four times
    the default alpha diverged in most cases tried.  Where those that are allowed are far from enough, a fit begins with
    a warning that says about how many it would take (:func:`expected_passes`).  Those of L-BFGS hardly depend on mu.

    **mu = 0 or nu = 0.** ``|w' - w|^2`` and Delta(p, q) then have weights of their own, see :func:`unregularised`, and
    the gap of the averaged iterates falls like 1/t (paper, C.4).  What is kept and certified are the last iterates:
    with one of the two 0, 40 to 400 passes took the gap to 1e-7 on tables of 42 samples, and 600 to between 1e-3 and
    1e-7 on one of 442 whose features are badly conditioned.  With mu = 0 there must be a minimum, which the logistic
    loss does not have where a plane separates the classes; and its gap is infinite while w is far from the minimum.

    Args:
        block_size: b; None for about n/d, so that q costs as much as the data.  It need not divide n.
        alpha: step size; None for :func:`default_alpha`, which is min(0.1, b/(2n)) unless the problem is badly
            conditioned.  Where the objective then grows a millionfold, the start "steady" is tried from w = 0, and if
            need be a quarter of alpha; with KL also where the gap has not been halved in 20/alpha iterations.
        start: "practice" for ``a_t = (1+alpha)^{t-1}``, "theory" for ``a_1 = 1, a_2 = 4 alpha``, then growing likewise:
            slower, with a smaller rise of the gap at first where the curvature of the loss is large beside mu; "steady"
            for ``beta = 1/alpha`` and ``r = 1/(1+alpha)`` from the first step on, which is what both tend to: no rise,
            and about 1/alpha iterations more.
        compiled: whether numba carries out the iterations and the looks at the gap as one compiled loop: the same
            iterates up to rounding, several times as fast, most of all where a step is short.  It needs the extra
            ``fcco-lightning[compiled]``, and dense features, quadratic penalties, :class:`Simplex` or
            :class:`CappedSimplex`, mu > 0 and nu > 0.  The first call compiles for some ten seconds, what later
            processes find on the disk.  It reads no clock: the ``seconds`` of a record are the loop's, shared out by
            oracle calls.

    Raises:
        ConfigError: if an argument is out of range, or alpha or start is given for mu = 0 or nu = 0, or if what is
            given cannot be compiled, or numba is not installed.
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
                f"block_size={b} is larger than the {problem.n} samples. Use None, or a number up to {problem.n}."
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
        """Warn before the first iteration where the passes allowed are not half of the many that the step needs."""
        if problem.mu == 0 or problem.penalty.nu == 0 or progress.tol <= 0:
            return
        alpha, at_zero = self.alpha or default_alpha(problem, b), problem.point(problem.zeros())
        required_passes = expected_passes(problem, b, alpha, (at_zero.value - at_zero.lower) / progress.tol)
        max_passes = progress.max_calls / problem.n
        if required_passes > max(_FAR * max_passes, _MANY):
            warnings.warn(
                f"DRAGO will take about {float(f'{required_passes:.1g}'):,.0f} passes over the data to a gap of "
                f"{progress.tol:.2g}, and {max_passes:.0f} are allowed: they grow like the curvature of the losses "
                f"over mu={problem.mu:g}. Use solver='lbfgs', whose passes hardly depend on mu, or a larger mu.",
                ConvergenceWarning,
                stacklevel=5,
            )

    @property
    def _most_growth(self) -> float:
        """Of the objective; a step size that is given is kept."""
        return _DIVERGED if self.alpha is None else math.inf

    def _patience(self, problem: LinearProblem, attempt: Growth | Iterator[Pace]) -> float:
        """Iterations in which the gap must be halved, or else the step is taken for too long.

        The default alpha knows the curvature of KL at uniform weights only; where some become large it is less.
        """
        settled = self.alpha is not None or not isinstance(problem.penalty, KLPenalty)
        return math.inf if settled or not isinstance(attempt, Growth) else _PATIENCE / attempt.alpha

    def _attempts(self, problem: LinearProblem, b: int) -> Iterator[Growth | Iterator[Pace]]:
        """Paces to try one after another, as long as the iterates blow up or the gap does not fall."""
        mu, nu, count = problem.mu, problem.penalty.nu, -(-problem.n // b)
        if mu == 0 or nu == 0:
            if self.alpha is not None or self.start != "practice":
                raise ConfigError(
                    f"alpha={self.alpha!r} and start={self.start!r} are of mu > 0 and nu > 0, got mu={mu!r} "
                    f"and nu={nu!r}, for which the step sizes follow from the data. Leave both out."
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
        """Iterations until the solver is done, or the gap at the present weights is not halved for too long."""
        w, q = problem.zeros(), np.full(problem.n, 1 / problem.n)
        tables = _Tables(problem, progress, blocks_of(problem.n, b), w, q)
        count = len(tables.blocks)  # M
        window = _Window(w, count)
        at_zero = progress.look(w).value
        bound = self._most_growth * max(1.0, abs(at_zero))

        next_check, first = 0, progress.gap
        least, until = first, patience
        for t, pace in enumerate(paces, 1):
            i, j = random.integers(count, size=2).tolist()
            k = t % count

            v = tables.primal(i, w, q, pace.r * count)
            w = (pace.pull * w - pace.window * window.deviation(k, w) - v) / (pace.pull + problem.mu)
            window.keep(k, w)

            ahead, slopes = tables.dual(j, k, w, pace.r * count)
            progress.check(float(ahead.sum()))
            q = problem.dual.prox(ahead, q, pace.dual)
            tables.renew(k, q, slopes)
            if t >= next_check:
                evaluated = (tables.losses, slopes) if count == 1 else None
                point = progress.look(w, evaluated, q if problem.penalty.nu == 0 else None)
                progress.check(point.value if point.value < bound else math.inf)
                if point.value - point.lower < least / 2:
                    least, until = point.value - point.lower, t + patience
                if t > until:
                    return
                budget = (progress.max_calls - progress.calls) * count / (3 * problem.n)  # it evaluates three blocks
                next_check = next_look(t, count, progress.gap, first, progress.tol, budget)


class _Window:
    """The weights of the last M iterations, with their sum."""

    def __init__(self, w: Array, count: int) -> None:
        self.path = np.stack([w] * count)
        self.sum = count * w

    def deviation(self, k: int, w: Array) -> Array:
        """``sum_{s=t-M}^{t-2} (w - w_s)`` at w = w_{t-1}."""
        if k == 0:  # once in M iterations, against rounding
            self.sum = self.path.sum(axis=0)
        return len(self.path) * w - self.sum

    def keep(self, k: int, w: Array) -> None:
        """Let w replace what was there M iterations ago."""
        self.sum = self.sum + (w - self.path[k])
        self.path[k] = w


class _Tables:
    """What is remembered per sample: losses, and q times slope, whose total with the features is maintained."""

    def __init__(self, problem: LinearProblem, progress: Progress, blocks: list[slice], w: Array, q: Array) -> None:
        self.blocks, self.loss, self.progress = blocks, problem.loss, progress
        self.parts = [(problem.x[block], problem.y[block]) for block in blocks]
        self.losses, slopes = problem.loss(problem.x @ w, problem.y)
        self.weighted = weigh(q, slopes)
        self.total = problem.x.T @ self.weighted
        self.change, self.last = np.zeros_like(w), -1  # of the total, and the block that made it
        progress.calls += problem.n

    def evaluate(self, block: int, w: Array) -> tuple[Array, Array]:
        """Losses and slopes of a block."""
        x, y = self.parts[block]
        self.progress.calls += len(y)
        return self.loss(x @ w, y)

    def primal(self, i: int, w: Array, q: Array, scale: float) -> Array:
        """The estimate of the gradient at w and q; the block renewed last was evaluated at this w and q."""
        if i == self.last:
            return np.asarray(self.total + scale * self.change)
        if scale == 0:
            return np.asarray(self.total)
        drift = weigh(q[self.blocks[i]], self.evaluate(i, w)[1]) - self.weighted[self.blocks[i]]
        return np.asarray(self.total + scale * (self.parts[i][0].T @ drift))

    def dual(self, j: int, k: int, w: Array, scale: float) -> tuple[Array, Array]:
        """The estimate of the losses at w, and the slopes of block k, whose losses are renewed."""
        fresh, slopes = self.evaluate(k, w)
        renewed, block = self.blocks[k], self.blocks[j]
        ahead = self.losses.copy()
        ahead[renewed] = fresh
        if scale > 0:
            current = fresh if j == k else self.evaluate(j, w)[0]
            ahead[block] += scale * (current - self.losses[block])
        self.losses[renewed] = fresh
        return ahead, slopes

    def renew(self, k: int, q: Array, slopes: Array) -> None:
        """Write block k of q times slope."""
        fresh = weigh(q[self.blocks[k]], slopes)
        self.change, self.last = self.parts[k][0].T @ (fresh - self.weighted[self.blocks[k]]), k
        self.total = self.total + self.change
        self.weighted[self.blocks[k]] = fresh

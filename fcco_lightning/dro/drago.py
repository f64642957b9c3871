"""DRAGO: primal-dual steps by blocks, with coupled variance reduction."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from fcco_lightning.checks import at_least, one_of, positive
from fcco_lightning.dro.problem import LinearProblem, Progress, weigh
from fcco_lightning.dro.solvers import blocks_of
from fcco_lightning.errors import ConfigError

Start = Literal["practice", "theory"]
_LARGEST = 0.1  # alpha, where blocks are large
_LOOKS = 8  # one look at the gap per so many iterations, when there have been many


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

    Args:
        block_size: b; None for about n/d, so that q costs as much as the data.  It need not divide n.
        alpha: step size; None for min(0.1, b/(2n)).
        start: "practice" for ``a_t = (1+alpha)^{t-1}``, "theory" for ``a_1 = 1, a_2 = 4 alpha``, then growing likewise:
            slower, without the rise of the gap at first where the curvature of the loss is large beside mu.

    Raises:
        ConfigError: if an argument is out of range.
    """

    block_size: int | None = None
    alpha: float | None = None
    start: Start = "practice"
    smooth: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.block_size is not None:
            at_least("block_size", self.block_size, 1)
        if self.alpha is not None:
            positive("alpha", self.alpha)
        one_of("start", self.start, get_args(Start))

    def solve(self, problem: LinearProblem, progress: Progress, random: np.random.Generator) -> None:
        """Iterate from w = 0, q = 1/n."""
        x, y, loss, mu, n = problem.x, problem.y, problem.loss, problem.mu, problem.n
        b = self.block_size or max(1, n // x.shape[1])
        if b > n:
            raise ConfigError(f"block_size={b} is larger than the {n} samples. Use None, or a number up to {n}.")
        alpha = self.alpha or min(_LARGEST, b / (2 * n))
        blocks = blocks_of(n, b)
        count = len(blocks)
        parts = [(x[block], x[block].T, y[block]) for block in blocks]
        last = 1 / (16 * alpha * (1 + alpha) * (count - 1) ** 2) if count > 1 else 0.0

        w, q = problem.zeros(), np.full(n, 1 / n)
        lhat, slopes = loss(x @ w, y)
        table = weigh(q, slopes)
        total = x.T @ table
        progress.calls += n
        path, before = np.stack([w] * count), -1  # w of the last M iterations; the block renewed last
        window = path.sum(axis=0)
        change = np.zeros_like(w)  # of the total, by that block
        progress.look(w)

        t, next_look = 0, 1
        while True:
            t += 1
            r, beta = self._growth(alpha, t)
            draws = random.integers(count, size=2)
            i, j, k = int(draws[0]), int(draws[1]), t % count

            v = total
            if i == before:
                v = total + (r * count) * change
            elif t > 1:
                xi, xt, yi = parts[i]
                drift = weigh(q[blocks[i]], loss(xi @ w, yi)[1]) - table[blocks[i]]
                v = total + (r * count) * (xt @ drift)
                progress.calls += len(yi)
            pull = min(last, beta / (count - 1)) if count > 1 else 0.0
            new = (beta - pull * (count - 1)) * w - v / mu
            if k == 0:
                window = path.sum(axis=0)
            new = (new + pull * (window - w)) / (1 + beta)
            window = window + new - path[k]
            path[k] = w = new

            xk, xt, yk = parts[k]
            fresh, slopes = loss(xk @ w, yk)
            ahead = lhat.copy()
            ahead[blocks[k]] = fresh
            if j == k:
                ahead[blocks[k]] += (r * count) * (fresh - lhat[blocks[k]])
            elif t > 1:
                xj, _, yj = parts[j]
                ahead[blocks[j]] += (r * count) * (loss(xj @ w, yj)[0] - lhat[blocks[j]])
                progress.calls += len(yj)
            lhat[blocks[k]] = fresh
            q = problem.prox(ahead, q, beta)

            renewed = weigh(q[blocks[k]], slopes)
            change = xt @ (renewed - table[blocks[k]])
            total = total + change
            table[blocks[k]] = renewed
            before = k
            progress.calls += len(yk)
            if t >= next_look:
                progress.look(w)
                next_look = t + max(count, t // _LOOKS)

    def _growth(self, alpha: float, t: int) -> tuple[float, float]:
        """``a_{t-1}/a_t`` and ``A_{t-1}/a_t``."""
        if t == 1:
            return 0.0, 0.0
        if self.start == "practice":
            return 1 / (1 + alpha), (1 - (1 + alpha) ** (1 - t)) / alpha
        ratio = 1 / (4 * alpha) if t == 2 else 1 / (1 + alpha)
        return ratio, (1 - 0.75 * (1 + alpha) ** (2 - t)) / alpha

"""DRAGO's published pseudo-code, written down as it stands (DRAGO paper, Alg. 2, with the errata).

For the squared and the multinomial loss, CVaR and the chi-square penalty: a table of gradients (n, d k), and for the
weights of the samples a sort and the pooling of adjacent violators.  All of it is plain NumPy, and compiled by numba
where that is installed (``uv run --with numba``); for the benchmark alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fcco_lightning.dro.kernel import next_look
from fcco_lightning.dro.losses import Squared
from fcco_lightning.dro.paces import default_alpha
from fcco_lightning.dro.problem import LinearProblem, Progress, blocks_of

Array = NDArray[np.float64]


class Code(NamedTuple):
    """The pseudo-code's functions, compiled or not."""

    squared: Callable[..., Any]
    multinomial: Callable[..., Any]
    pool: Callable[..., Any]
    iterate: Callable[..., Any]


def squared(z: Array, y: Array) -> tuple[Array, Array]:
    """Losses (b,) and slopes (b, 1) of scores (b, 1)."""
    slopes = z - y
    return slopes[:, 0] * slopes[:, 0] / 2, slopes


def multinomial(z: Array, y: Array) -> tuple[Array, Array]:
    """Losses (b,) and slopes (b, k) of scores (b, k)."""
    top = z[:, 0].copy()
    for c in range(1, z.shape[1]):
        top = np.maximum(top, z[:, c])
    shares = np.exp(z - top.reshape(-1, 1))
    total = shares.sum(axis=1)
    return np.log(total) + top - (z * y).sum(axis=1), shares / total.reshape(-1, 1) - y


def pool(y: Array) -> Array:
    """Isotonic regression by pooling adjacent violators."""
    means, sizes = [y[0]], [1]
    for value in y[1:]:
        means.append(value)
        sizes.append(1)
        while len(means) > 1 and means[-2] >= means[-1]:
            mean, size = means.pop(), sizes.pop()
            means[-1] = (means[-1] * sizes[-1] + mean * size) / (sizes[-1] + size)
            sizes[-1] += size
    return np.repeat(np.array(means), np.array(sizes))


def iterate(
    x: Array, y: Array, phi: Any, fit: Any, edges: Any, draws: Any, first: int, alpha: float, mu: float, scale: float,
    sigma: Array, w: Array, q: Array, kept: Array, losses: Array, gradients: Array, total: Array, stale: Array,
    path: Array,
) -> Array:  # fmt: skip
    """Iterations first, first + 1, ...; one per row of draws, (number of iterations, 2); returns w, (d k,).

    The features are (n, d), the targets (n, k), the edges of the M blocks (M + 1,), ``scale`` is 2 n nu, and ``sigma``
    are the weights of the losses by rank, (n,).  Everything from q on is changed in place: q, ``kept`` (qhat) and
    ``losses`` (lhat), (n,), ``gradients`` (ghat), (n, d k), ``total``, the sum of qhat_i ghat_i, ``stale``, what the
    block that changed last had in it before, and ``path``, the last M weights, (M, d k).
    """
    d, k, m = x.shape[1], y.shape[1], len(edges) - 1
    pull = 1 / (16 * alpha * (1 + alpha) * (m - 1) ** 2) if m > 1 else 0.0
    for s in range(len(draws)):
        t = first + s
        beta, r = (1 - (1 + alpha) ** (1 - t)) / alpha, (1 / (1 + alpha) if t > 1 else 0.0)
        i, j, last = draws[s, 0], draws[s, 1], (t - 1) % m
        a, b = edges[i], edges[i + 1]
        _, slopes = phi(x[a:b] @ w.reshape(d, k), y[a:b])
        fresh = (x[a:b].reshape(-1, d, 1) * slopes.reshape(-1, 1, k)).reshape(-1, d * k)
        before = stale if i == last else kept[a:b] @ gradients[a:b]  # by the tables of one iteration ago
        v = total + r * m * (q[a:b] @ fresh - before)
        c = min(pull, beta / (m - 1)) if m > 1 else 0.0
        old = path.sum(axis=0) - path[t % m]
        w = ((beta - c * (m - 1)) * w + c * old - v / mu) / (1 + beta)
        path[t % m] = w
        a, b = edges[t % m], edges[t % m + 1]
        fresh_losses, slopes = phi(x[a:b] @ w.reshape(d, k), y[a:b])
        c0, c1 = edges[j], edges[j + 1]
        drawn, _ = phi(x[c0:c1] @ w.reshape(d, k), y[c0:c1])
        gain = r * m * (drawn - losses[c0:c1])
        losses[a:b] = fresh_losses
        ahead = losses.copy()
        ahead[c0:c1] += gain
        mixed = (ahead / scale + beta * q) / (1 + beta)
        order = np.argsort(mixed)
        q[order] = np.maximum(mixed[order] - fit(mixed[order] - sigma), 0.0)
        stale[:] = kept[a:b] @ gradients[a:b]
        total -= stale
        gradients[a:b] = (x[a:b].reshape(-1, d, 1) * slopes.reshape(-1, 1, k)).reshape(-1, d * k)
        kept[a:b] = q[a:b]
        total += kept[a:b] @ gradients[a:b]
    return w


PLAIN = Code(squared, multinomial, pool, iterate)


def compiled() -> Code | None:
    """The same compiled by numba; None where it is not installed."""
    try:
        from numba import njit
    except ImportError:
        return None
    return Code(*(njit(part) for part in PLAIN))


def solve(problem: LinearProblem, progress: Progress, tail: float, block_size: int, code: Code) -> None:
    """Iterate until progress says that it is done, looking at the gap as often as :class:`DRAGO` does."""
    n, d = problem.x.shape
    y = problem.y.reshape(n, -1)
    k = y.shape[1]
    phi = code.squared if isinstance(problem.loss, Squared) else code.multinomial
    edges = np.array([0, *(block.stop for block in blocks_of(n, block_size))])
    m, random = len(edges) - 1, np.random.default_rng(0)
    sigma = np.diff(np.clip(np.arange(n + 1) - (1 - tail) * n, 0, None)) / (tail * n)
    alpha, scale = default_alpha(problem, block_size), problem.penalty.curvature(n)
    w, q = np.zeros(d * k), np.full(n, 1 / n)
    losses, slopes = phi(problem.x @ w.reshape(d, k), y)
    gradients = (problem.x.reshape(n, d, 1) * slopes.reshape(n, 1, k)).reshape(n, d * k)
    state = (q, q.copy(), losses, gradients, q @ gradients, np.zeros(d * k), np.zeros((m, d * k)))
    progress.evaluate(w.reshape(problem.zeros().shape))
    first, t, due = progress.gap, 0, 1
    while True:
        draws = random.integers(m, size=(due - t, 2))
        w = code.iterate(problem.x, y, phi, code.pool, edges, draws, t + 1, alpha, problem.mu, scale, sigma, w, *state)
        progress.calls += len(draws) * 3 * block_size
        t = due
        progress.evaluate(w.reshape(problem.zeros().shape))
        budget = (progress.max_calls - progress.calls) / (3 * block_size)
        due = next_look(t, m, progress.gap, first, progress.tol, budget)

"""X-risks whose inner functions are sums over pairs of samples, in NumPy, with gradients by hand.

All of them are ``F(w) = sum_i c_i f(g_i(w))``, ``g_i = own_i + sum over samples j != i of V_ij phi(d_ij)``, where the
table V of shape (rows, n, k) has the known coefficients of the data.  A batch estimates the sum over j from its
samples; nothing else of an objective depends on how batches are drawn.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, product
from math import comb, prod

import numpy as np

from .networks import Array, Indices


@dataclass(frozen=True)
class Design:
    """Batches of ``drawn`` samples of every stratum, of which blocks of strata ``chosen`` at random are in a batch.

    A stratum that is smaller than what is drawn without replacement gives all its samples, and some again.
    ``copies``: how often every slot comes.
    """

    stratum: Indices  # (n,)
    drawn: Indices  # (strata,)
    block: Indices  # (strata,)
    chosen: int
    replaced: bool = False
    copies: int = 1

    @property
    def sizes(self) -> Indices:
        return np.bincount(self.stratum)

    @property
    def blocks(self) -> int:
        return int(self.block.max()) + 1

    def presence(self) -> Array:
        """Probability (n,) that a batch holds a sample."""
        share = self.drawn / self.sizes
        inside = 1 - (1 - 1 / self.sizes) ** self.drawn if self.replaced else np.minimum(share, 1)
        return (inside * self.chosen / self.blocks)[self.stratum]

    def batches(self) -> Iterator[tuple[Indices, float]]:
        """All batches with their probabilities."""
        for blocks in combinations(range(self.blocks), self.chosen):
            draws = [self._draws(s) for s, block in enumerate(self.block) if block in blocks]
            chance = 1 / comb(self.blocks, self.chosen) / prod(map(len, draws))
            for parts in product(*draws):
                yield np.tile(np.concatenate(parts), self.copies), chance

    def _draws(self, s: int) -> list[Indices]:
        members, drawn = np.flatnonzero(self.stratum == s), int(self.drawn[s])
        if self.replaced:
            return [np.array(one) for one in product(members, repeat=drawn)]
        whole, rest = divmod(drawn, len(members))
        return [np.concatenate([np.tile(members, whole), one]).astype(int) for one in combinations(members, rest)]

    def stands_for(self, batch: Indices) -> Array:
        """For how many samples j != i slot b stands beside slot a, (B, B); 0 for another slot of sample i.

        A stratum's slots, less those that hold i itself, stand for its N - 1 others.  Without replacement their number
        is known.  With it what counts is their mean over the batches that hold i: of m draws those are m / (N p), p the
        probability of i among them.
        """
        stratum = self.stratum[batch]
        other = batch[:, None] != batch[None, :]
        slots = np.array([(stratum == s).sum() for s in stratum])
        size = self.sizes[stratum]
        same = stratum[:, None] == stratum[None, :]
        itself = (~other).sum(1)
        if self.replaced:
            itself = slots / (size * (1 - (1 - 1 / size) ** self.drawn[stratum]))
        inside = (size - 1) / np.where(slots == itself, 1, slots - itself)
        block = self.block[stratum]
        further = (self.blocks - 1) / max(self.chosen - 1, 1)
        across = np.where(block[:, None] == block[None, :], 1.0, further) * (size / slots)[None, :]
        return np.where(same, inside[:, None], across) * other


def one_stratum(n: int, size: int, copies: int = 1) -> Design:
    """``size`` of n samples."""
    return Design(np.zeros(n, dtype=np.int64), np.array([size]), np.array([0]), 1, copies=copies)


def by_stratum(stratum: Indices, drawn: list[int], *, replaced: bool = False) -> Design:
    """Some samples of every stratum."""
    return Design(stratum, np.array(drawn), np.zeros(len(drawn), dtype=np.int64), 1, replaced)


def some_strata(stratum: Indices, chosen: int, drawn: int, *, replaced: bool = False) -> Design:
    """Some samples of some strata."""
    strata = int(stratum.max()) + 1
    return Design(stratum, np.full(strata, drawn), np.arange(strata), chosen, replaced)


@dataclass(frozen=True)
class Pairwise:
    """``sum_i c_i f(own_i + sum_{j != i} V_ij phi(d_ij))``.

    Attributes:
        sample: i of every row, (rows,).
        own: (rows, k).
        table: V, (rows, n, k).
        weight: c, (rows,).
        phi: value and derivative of the pair's term.
        slope: gradient (k,) of f at u (k,), by the number of the row.
        among: whether only pairs with V > 0 are averaged over: a mean over one class, as it is in the batch.
        least: of every inner value, beside own_i.
        distance: whether d_ij is ``|z_i - z_j|^2`` of embeddings, and not the difference of scores.
    """

    sample: Indices
    own: Array
    table: Array
    weight: Array
    phi: Callable[[Array], tuple[Array, Array]]
    slope: Callable[[Array, int], Array]
    among: bool = False
    least: float = 0.0
    distance: bool = False

    def measure(self, z: Array, batch: Indices, design: Design) -> Iterator[tuple[int, Array, Array]]:
        """Every row that the batch speaks of: number, value (k,) and derivative (k, n, e) by the outputs z (n, e)."""
        stands = design.stands_for(batch)
        for row, i in enumerate(self.sample):
            slots = np.flatnonzero(batch == i)
            if not len(slots):
                continue
            weights = stands[slots[0]]
            if self.among:
                held = (self.table[row, batch, 0] > 0) & (batch != i)
                if not held.any():
                    continue
                weights = held * ((self.table[row, :, 0] > 0).sum() / held.sum())
            yield row, *self._row(row, z, batch, weights)

    def _row(self, row: int, z: Array, batch: Indices, weights: Array) -> tuple[Array, Array]:
        i = self.sample[row]
        apart = z[i] - z[batch]  # (B, e)
        value, slope = self.phi((apart**2).sum(1) if self.distance else apart[:, 0])
        toward = 2 * apart if self.distance else np.ones_like(apart)  # derivative of d by z_i
        coefficient = weights[:, None] * self.table[row, batch]  # (B, k)
        moved = (coefficient * slope[:, None])[:, :, None] * toward[:, None, :]  # (B, k, e)
        derivative = np.zeros((coefficient.shape[1], *z.shape))
        np.add.at(derivative.swapaxes(0, 1), batch, -moved)
        derivative[:, i] += moved.sum(0)
        return self.own[row] + coefficient.T @ value, derivative

    def exact(self, z: Array) -> tuple[Array, Array]:
        """All g_i (rows, k), and the gradient of F by the outputs, (n, e)."""
        everything = np.arange(len(z))
        found = list(self.measure(z, everything, one_stratum(len(z), len(z))))
        gradient = sum(self.weight[r] * np.tensordot(self.slope(u, r), jacobian, 1) for r, u, jacobian in found)
        return np.array([u for _, u, _ in found]), gradient

    def chance(self, design: Design) -> Array:
        """Probability (rows,) that a batch speaks of a row."""
        present = design.presence()[self.sample]
        if not self.among or len(design.drawn) > 1:  # several strata: every batch holds all classes
            return present
        n, size = len(design.stratum), int(design.drawn[0])
        against = (self.table[:, :, 0] > 0).sum(1)
        return present * np.array([1 - comb(n - 1 - a, size - 1) / comb(n - 1, size - 1) for a in against])


class SecondSONX:
    """``u_i <- max(own_i, least, (1 - gamma) u_i + gamma g_i(w_t) + gamma' (g_i(w_t) - g_i(w_{t-1})))``.

    Both values are of the same batch; a step is plain descent.  G uses the rows from before, and a row never seen takes
    its first value.  With gamma' = 0 it is SOX; "theory" is ``gamma' = 1 - gamma + (1/p_i - 1) / (1 - gamma)``.
    """

    def __init__(
        self, risk: Pairwise, design: Design, x: Array, w: Array, gamma: float, lr: float, ahead: float | str = 0.0
    ) -> None:
        self.risk, self.design, self.x, self.w, self.gamma, self.lr = risk, design, x, w.copy(), gamma, lr
        self.rows = np.full(risk.own.shape, np.nan)
        chance = risk.chance(design)
        self.weight, self.before = risk.weight / chance, self.w
        theory = 1 - gamma + (1 / chance - 1) / (1 - gamma) if gamma < 1 else np.zeros_like(chance)
        self.ahead = theory if isinstance(ahead, str) else np.full(len(chance), ahead)

    def step(self, batch: Indices) -> Array:
        """One update; returns G, of the shape of W."""
        z, gradient = self.x @ self.w.T, np.zeros((len(self.x), len(self.w)))
        earlier = {row: value for row, value, _ in self.risk.measure(self.x @ self.before.T, batch, self.design)}
        for row, value, jacobian in self.risk.measure(z, batch, self.design):
            seen = not np.isnan(self.rows[row, 0])
            stale = self.rows[row].copy() if seen else value
            moved = self.ahead[row] * (value - earlier[row]) if seen else 0.0
            new = (1 - self.gamma) * stale + self.gamma * value + moved
            self.rows[row] = np.maximum(new, np.maximum(self.risk.own[row], self.risk.least))
            gradient = gradient + self.weight[row] * np.tensordot(self.risk.slope(stale, row), jacobian, 1)
        self.before = self.w
        self.w = self.w - self.lr * gradient.T @ self.x
        return gradient.T @ self.x


def squared_hinge(d: Array) -> tuple[Array, Array]:
    over = np.maximum(1 - d, 0)
    return over**2, -2 * over


def falling(d: Array) -> tuple[Array, Array]:
    value = np.exp(-d)
    return value, -value


def exponential_hinge(lam: float) -> Callable[[Array], tuple[Array, Array]]:
    def phi(d: Array) -> tuple[Array, Array]:
        loss, slope = squared_hinge(d)
        return np.exp(loss / lam), np.exp(loss / lam) * slope / lam

    return phi


def ratio(u: Array, row: int) -> Array:
    """Of ``-u_1 / u_2``."""
    return np.array([-1 / u[1], u[0] / u[1] ** 2])


def average_precision(y: Indices) -> Pairwise:
    """SOX paper, eq. (7) with its erratum: u_1 sums over positives, u_2 over all; the positive itself is in both."""
    n, rows = len(y), np.flatnonzero(y == 1)
    table = np.stack([y == 1, np.ones(n)], axis=-1) / n
    return Pairwise(
        rows, np.full((len(rows), 2), 1 / n), np.tile(table, (len(rows), 1, 1)), share(rows), squared_hinge, ratio
    )


def mean_average_precision(task: Indices, y: Indices) -> Pairwise:
    """The mean over labels of :func:`average_precision`, of samples with one label each that are compared within it."""
    rows, size = np.flatnonzero(y == 1), np.bincount(task)
    among = (task[rows][:, None] == task[None, :]) / size[task[rows]][:, None]
    table = np.stack([among * (y == 1), among], axis=-1)
    own = np.repeat(1 / size[task[rows]][:, None], 2, axis=1)
    weight = 1 / (len(size) * np.bincount(task, y)[task[rows]])
    return Pairwise(rows, own, table, weight, squared_hinge, ratio)


def recall_at(k: int, y: Indices) -> Pairwise:
    """ALEXR paper, App. B with its erratum: ``[rank_i / k - 1]_+``; u_i = rank_i / n."""
    n, rows = len(y), np.flatnonzero(y == 1)
    return Pairwise(
        rows,
        np.full((len(rows), 1), 1 / n),
        np.full((len(rows), n, 1), 1 / n),
        share(rows),
        squared_hinge,
        lambda u, row: n / k * (u > k / n),
    )


def kl_partial_auc(lam: float, y: Indices) -> Pairwise:
    """``lam log mean_j exp(l_ij / lam)`` over negatives j."""
    rows = np.flatnonzero(y == 1)
    table = np.tile((y == 0)[:, None] / (y == 0).sum(), (len(rows), 1, 1))
    own = np.zeros((len(rows), 1))
    return Pairwise(rows, own, table, share(rows), exponential_hinge(lam), lambda u, row: lam / u, True, 1.0)


def p_norm_push(p: float, y: Indices) -> Pairwise:
    """SOX paper, section 4.2 with its erratum: rows of negatives, pushed below the positives; d is s_j - s_i."""
    rows = np.flatnonzero(y == 0)
    table = np.tile((y == 1)[:, None] / (y == 1).sum(), (len(rows), 1, 1))

    def rising(d: Array) -> tuple[Array, Array]:
        return np.exp(d), np.exp(d)

    own = np.zeros((len(rows), 1))
    return Pairwise(rows, own, table, share(rows), rising, lambda u, row: p * u ** (p - 1), among=True)


def cox(time: Array, event: Indices) -> Pairwise:
    """Cox with Efron's ties: of d events at one time the l-th counts all of them by 1 - l/d, the other samples by 1."""
    rows, n = np.flatnonzero(event == 1), len(time)
    table, own = np.zeros((len(rows), n, 1)), np.zeros((len(rows), 1))
    for r, i in enumerate(rows):
        tied = (time == time[i]) & (event == 1)
        rank = np.flatnonzero(tied).tolist().index(i)
        table[r, :, 0] = np.where(tied, 1 - rank / tied.sum(), time >= time[i])
        own[r] = table[r, i]
    return Pairwise(rows, own, table, share(rows), falling, lambda u, row: 1 / u)


def list_net(query: Indices, grade: Array) -> Pairwise:
    """SOX paper, section 5: ``P(y_i) log sum_j exp(h_j - h_i)``, P the softmax of the grades of a list."""
    n, lists = len(query), np.unique(query)
    table = (query[:, None] == query[None, :])[:, :, None].astype(float)
    weight = np.array([np.exp(grade[i]) / np.exp(grade[query == query[i]]).sum() for i in range(n)]) / len(lists)
    return Pairwise(np.arange(n), np.ones((n, 1)), table, weight, falling, lambda u, row: 1 / u)


def ndcg(query: Indices, grade: Array) -> Pairwise:
    """Minus the mean NDCG: gain 2^y - 1, rank ``1 + sum_j l(h_i - h_j)``, over the DCG of the ideal order."""
    rows = np.flatnonzero(grade > 0)
    lists = np.unique(query[rows])
    ideal = {q: np.sort(2.0 ** grade[query == q] - 1)[::-1] for q in lists}
    best = {q: (gains / np.log2(2 + np.arange(len(gains)))).sum() for q, gains in ideal.items()}
    weight = np.array([(2.0 ** grade[i] - 1) / best[query[i]] for i in rows]) / len(lists)
    table = (query[rows][:, None] == query[None, :])[:, :, None].astype(float)
    own = np.ones((len(rows), 1))

    def discount(u: Array, row: int) -> Array:
        """Of ``-1 / log2(1 + u)``."""
        return np.log(2) / ((1 + u) * np.log(1 + u) ** 2)

    return Pairwise(rows, own, table, weight, squared_hinge, discount)


def neighbours(y: Indices) -> Pairwise:
    """SOX paper, eq. (8) with its erratum: no sample is its own neighbour."""
    n = len(y)
    same = y[:, None] == y[None, :]
    table = np.stack([same, np.ones((n, n))], axis=-1) / (n - 1)
    return Pairwise(np.arange(n), np.zeros((n, 2)), table, np.full(n, 1 / n), falling, ratio, distance=True)


def share(rows: Indices) -> Array:
    return np.full(len(rows), 1 / len(rows))

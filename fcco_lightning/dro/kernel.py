"""DRAGO's iterations, and the looks at the gap, as one loop that numba compiles.

The functions here are ordinary Python in the subset that numba knows, and run without it, too, a few hundred times as
slowly.  They do what ``drago``, ``dual``, ``losses`` and ``problem`` do with NumPy, for dense features, the three
smooth losses, and quadratic penalties on a simplex with or without caps: nothing is allocated, and what NumPy does in
one call after another is done in one loop.

Source: DRAGO paper, Alg. 2; the certificate is its eq. (15).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
LOOKS = 8  # one look at the gap per so many iterations, when there have been many
WINDOW = 16  # the iterates of the last M - 1 steps together pull 16 (M-1) times less than the last one
SQUARED, LOGISTIC, MULTINOMIAL = 0, 1, 2
GO_ON, DONE, DIVERGED = 0, 1, 2
NEWTON, HALVINGS = 30, 100  # steps for a threshold
ROUNDING = 1e-13  # of the sum of q
TILE = 1024  # samples whose scores stay in the nearest cache


class Pace(NamedTuple):
    """The constants of one iteration.

    Attributes:
        r: ``a_{t-1}/a_t``, the weight of the corrections.
        pull: of ``|w' - w|^2 / 2`` and what follows together in the step of w.
        window: of ``|w' - w_s|^2 / 2`` for each of the M - 1 iterates w_s before w.
        dual: of ``Delta(p, q)`` in the step of q.
    """

    r: float
    pull: float
    window: float
    dual: float


class Growth(NamedTuple):
    """How a_t grows where mu > 0 and nu > 0: ``A_{t-1}/a_t = (1 - lag (1+alpha)^{-t})/alpha``.

    Attributes:
        alpha: step size.
        lag: 0 for what the other two tend to.
        second: ``a_1/a_2``.
    """

    alpha: float
    lag: float
    second: float


class Data(NamedTuple):
    """A problem.

    Attributes:
        x: features (n, d), one row after another, for BLAS; (0, d) where columns are used.
        columns: features (d, n), one column after another, which for few of them and one score per sample is faster;
            (d, 0) where x is used.
        y: targets (n, k).
        edges: of the M blocks, (M + 1,).
        loss: SQUARED, LOGISTIC or MULTINOMIAL.
        cap: the largest weight of a sample.
        unit: curvature of the penalty at nu = 1.
        nu: weight of the penalty.
        mu: weight of the ridge term.
        most_growth: times the objective at w = 0 the iterates have diverged at; infinite for never.
    """

    x: Array
    columns: Array
    y: Array
    edges: NDArray[np.int64]
    loss: int
    cap: float
    unit: float
    nu: float
    mu: float
    most_growth: float


class Ends(NamedTuple):
    """When to stop.

    Attributes:
        gap: at so small a gap.
        calls: after so many evaluations of a sample.
    """

    gap: float
    calls: float


class Tables(NamedTuple):
    """What an iteration changes in place.

    Attributes:
        w: weights (d k,).
        best: the best weights seen, (d k,).
        total: ``sum_i qhat_i ghat_i``, (d k,).
        change: of total, by the block renewed last, (d k,).
        step: room for a direction, (d k,).
        path: the weights of the last M iterations, (M, d k).
        path_sum: their sum, (d k,).
        q: weights of the samples, (n,).
        losses: lhat, (n,).
        weighted: ``qhat_i phi'_i``, (n, k).
        now: losses at w of the blocks evaluated last, (n,).
        slopes: their slopes, (n, k).
        part: room for slopes times weights, (n, k).
        v: room for the argument of a dual step, (n,).
        worst: the worst weights of the samples at the last look, (n,).
    """

    w: Array
    best: Array
    total: Array
    change: Array
    step: Array
    path: Array
    path_sum: Array
    q: Array
    losses: Array
    weighted: Array
    now: Array
    slopes: Array
    part: Array
    v: Array
    worst: Array


class Marks(NamedTuple):
    """Where an iteration stands.

    Attributes:
        t: number of the next iteration; 0 before the tables are filled.
        next_look: the iteration to look at the gap after.
        last: the block renewed last, or -1.
        calls: evaluations of a sample.
        looks: records written.
        value: the best objective.
        lower: the largest lower bound.
        at_step: threshold of the last dual step, or nan.
        at_response: threshold of the last worst weights, or nan.
        limit: the objective at which the iterates have diverged.
        status: GO_ON, DONE or DIVERGED.
    """

    t: int
    next_look: int
    last: int
    calls: int
    looks: int
    value: float
    lower: float
    at_step: float
    at_response: float
    limit: float
    status: int


def pace(growth: Growth, mu: float, nu: float, blocks: int, t: int) -> Pace:
    """The constants of iteration t = 1, 2, ... for mu > 0 and nu > 0, with M = ``blocks``."""
    alpha, others = growth.alpha, max(blocks - 1, 1)
    r = growth.second if t == 2 else 1 / (1 + alpha)
    beta = (1 - growth.lag * (1 + alpha) ** (-t)) / alpha
    if t == 1 and growth.lag > 0:
        r, beta = 0.0, 0.0
    most = 1 / (WINDOW * alpha * (1 + alpha) * others**2)
    return Pace(r, beta * mu, min(most, beta / others) * mu, beta * nu)


# Loops count from 0 over slices: of indices that might be negative the compiler makes no vectors.


def scores(data: Data, w: Array, first: int, end: int, z: Array) -> None:
    """``x w`` of the samples from first to end - 1 into their rows of z, (n, k)."""
    x = data.x
    if len(x) > 0:
        np.dot(x[first:end], w.reshape(x.shape[1], z.shape[1]), z[first:end])
        return
    flat = z.reshape(-1)
    for start in range(first, end, TILE):
        stop = min(start + TILE, end)
        tile = flat[start:stop]
        tile[:] = 0.0
        for c in range(len(data.columns)):
            column, own = data.columns[c, start:stop], w[c]
            for i in range(len(tile)):
                tile[i] += column[i] * own


def gather(data: Data, weights: Array, first: int, end: int, out: Array) -> None:
    """``x^T weights`` over the samples from first to end - 1 into out, (d k,)."""
    x = data.x
    if len(x) > 0:
        np.dot(x[first:end].T, weights[first:end], out.reshape(x.shape[1], weights.shape[1]))
        return
    flat = weights.reshape(-1)[first:end]
    for c in range(len(data.columns)):
        column, s = data.columns[c, first:end], 0.0
        for i in range(len(flat)):
            s += column[i] * flat[i]
        out[c] = s


def evaluate(data: Data, w: Array, first: int, end: int, losses: Array, slopes: Array) -> None:
    """Losses and slopes at w of the samples from first to end - 1."""
    scores(data, w, first, end, slopes)
    y, z, out = data.y.reshape(-1)[first:end], slopes.reshape(-1)[first:end], losses[first:end]
    if data.loss == SQUARED:
        for i in range(len(out)):
            z[i] -= y[i]
            out[i] = z[i] * z[i] / 2
    elif data.loss == LOGISTIC:
        for i in range(len(out)):
            against = -y[i] * z[i]
            small = math.exp(-abs(against))
            out[i] = max(against, 0.0) + math.log1p(small)
            z[i] = -y[i] * (1.0 if against >= 0 else small) / (1 + small)
    else:
        for i in range(first, end):
            losses[i] = softmax(slopes[i], data.y[i])


def weigh(q: Array, slopes: Array, first: int, end: int, out: Array) -> None:
    """``q_i slopes_i`` of the samples from first to end - 1 into their rows of out, (n, k)."""
    weights, k = q[first:end], slopes.shape[1]
    if k == 1:
        flat, into = slopes.reshape(-1)[first:end], out.reshape(-1)[first:end]
        for i in range(len(weights)):
            into[i] = weights[i] * flat[i]
        return
    rows, into_rows = slopes[first:end], out[first:end]
    for i in range(len(weights)):
        for a in range(k):
            into_rows[i, a] = weights[i] * rows[i, a]


def subtract(out: Array, other: Array, first: int, end: int) -> None:
    """Subtract the rows of other from those of out, (n, k), from first to end - 1."""
    k = out.shape[1]
    flat, less = out.reshape(-1)[first * k : end * k], other.reshape(-1)[first * k : end * k]
    for i in range(len(flat)):
        flat[i] -= less[i]


def largest(v: Array) -> float:
    """The largest number of v, all of which are finite."""
    top = v[0]
    for i in range(1, len(v)):
        top = max(top, v[i])
    return top


def softmax(z: Array, y: Array) -> float:
    """The multinomial loss of one sample with scores z, which its slopes replace."""
    top, total, own = z[0], 0.0, 0.0
    for c in range(1, len(z)):
        top = max(top, z[c])
    for c in range(len(z)):
        own += z[c] * y[c]
        z[c] = math.exp(z[c] - top)
        total += z[c]
    for c in range(len(z)):
        z[c] = z[c] / total - y[c]
    return math.log(total) + top - own


def clip(v: Array, cap: float, t: float, q: Array) -> float:
    """``clip(v - t, 0, cap)`` of sum 1 into q, by Newton's method from t (nan: anywhere); returns its t.

    Where Newton's method does not end, as t has too few digits, the bracket is halved; q is then the mixture of sum 1
    of what its two ends give.
    """
    n = len(v)
    if math.isnan(t):
        t = v.mean() - 1 / n
    low, over, high, under = -np.inf, max(n * cap - 1, 0.0), np.inf, 1.0
    for step in range(NEWTON + HALVINGS):
        total, between = 0.0, 0.0
        for i in range(n):
            a = v[i] - t
            total += min(max(a, 0.0), cap)
            between += 1.0 if 0.0 < a < cap else 0.0
        excess = total - 1
        if abs(excess) <= ROUNDING:
            low, high = t, t
            break
        if excess > 0:
            low, over = t, excess
        else:
            high, under = t, -excess
        t = t + excess / between if between > 0 and step < NEWTON else np.nan
        if not low < t < high:  # outside of the last two numbers all weights are at one bound
            t = (max(low, v.min() - cap) + min(high, v.max())) / 2
    share = under / (over + under)
    for i in range(n):
        a = min(max(v[i] - high, 0.0), cap)
        q[i] = a + share * (min(max(v[i] - low, 0.0), cap) - a)
    return t


def primal(data: Data, tables: Tables, i: int, last: int, scale: float) -> int:
    """The estimate of the gradient into ``tables.step``; returns the samples evaluated."""
    step, calls = tables.step, 0
    if i == last:  # it was evaluated at this w and q
        step[:] = tables.change
    elif scale > 0:
        first, end = data.edges[i], data.edges[i + 1]
        evaluate(data, tables.w, first, end, tables.now, tables.slopes)
        weigh(tables.q, tables.slopes, first, end, tables.part)
        subtract(tables.part, tables.weighted, first, end)
        gather(data, tables.part, first, end, step)
        calls = end - first
    for c in range(len(step)):
        step[c] = tables.total[c] + (scale * step[c] if scale > 0 else 0.0)
    return calls


def move(data: Data, tables: Tables, k: int, at: Pace) -> None:
    """The step of w along ``tables.step``, and its place among the last M iterates."""
    w, path, path_sum = tables.w, tables.path, tables.path_sum
    if k == 0:  # once in M iterations, against rounding
        path_sum[:] = 0.0
        for s in range(len(path)):
            for c in range(len(w)):
                path_sum[c] += path[s, c]
    for c in range(len(w)):
        apart = len(path) * w[c] - path_sum[c]
        w[c] = (at.pull * w[c] - at.window * apart - tables.step[c]) / (at.pull + data.mu)
        path_sum[c] += w[c] - path[k, c]
        path[k, c] = w[c]


def dual(data: Data, tables: Tables, j: int, k: int, scale: float, at_step: float, pull: float) -> tuple[int, float]:
    """The step of q, and the losses of block k; returns the samples evaluated, and the step's t (nan: diverged)."""
    now, losses, v, q = tables.now, tables.losses, tables.v, tables.q
    first, end = data.edges[k], data.edges[k + 1]
    evaluate(data, tables.w, first, end, now, tables.slopes)
    calls = end - first
    v[:] = losses
    v[first:end] = now[first:end]
    if scale > 0:
        a, b = data.edges[j], data.edges[j + 1]
        if j != k:
            evaluate(data, tables.w, a, b, now, tables.slopes)
            calls += b - a
        ahead, fresh, stale = v[a:b], now[a:b], losses[a:b]
        for i in range(len(ahead)):
            ahead[i] += scale * (fresh[i] - stale[i])
    losses[first:end] = now[first:end]
    total = 0.0
    for i in range(len(v)):
        total += v[i]
    if not math.isfinite(total):
        return calls, np.nan
    top = largest(v)
    by, kept = 1 / (data.unit * (data.nu + pull)), pull / (data.nu + pull)
    for i in range(len(v)):
        v[i] = (v[i] - top) * by + kept * q[i]
    return calls, clip(v, data.cap, at_step, q)


def renew(data: Data, tables: Tables, k: int) -> None:
    """Write block k of q times slope, and what it changes in the total."""
    first, end = data.edges[k], data.edges[k + 1]
    weigh(tables.q, tables.slopes, first, end, tables.part)
    subtract(tables.weighted, tables.part, first, end)
    gather(data, tables.weighted, first, end, tables.change)
    tables.weighted[first:end] = tables.part[first:end]
    for c in range(len(tables.total)):
        tables.change[c] *= -1
        tables.total[c] += tables.change[c]


def look(data: Data, tables: Tables, known: bool, at_response: float) -> tuple[float, float, float]:
    """Objective at w, lower bound, and threshold of the worst weights; infinite where the losses are not finite."""
    n, q, now, v = len(tables.q), tables.worst, tables.now, tables.v
    if not known:
        evaluate(data, tables.w, 0, n, now, tables.slopes)
    total = 0.0
    for i in range(n):
        total += now[i]
    if not math.isfinite(total):
        return np.inf, -np.inf, at_response
    top = largest(now)
    curvature = data.unit * data.nu
    for i in range(n):
        v[i] = (now[i] - top) * (1 / curvature)
    at_response = clip(v, data.cap, at_response, q)
    worst, square = 0.0, 0.0
    for i in range(n):
        worst += q[i] * now[i]
        square += q[i] * q[i]
    worst -= curvature / 2 * (square - 1 / n)  # |q - 1/n|^2
    weigh(q, tables.slopes, 0, n, tables.part)
    gather(data, tables.part, 0, n, tables.step)
    size, along, steep = 0.0, 0.0, 0.0
    for c in range(len(tables.w)):
        size += tables.w[c] * tables.w[c]
        along += tables.step[c] * tables.w[c]
        steep += tables.step[c] * tables.step[c]
    return worst + data.mu / 2 * size, worst - along - steep / (2 * data.mu), at_response


def record(data: Data, ends: Ends, tables: Tables, marks: Marks, known: bool, records: Array) -> Marks:
    """Look at the gap and write a record of evaluations, objective and gap."""
    value, lower, at_response = look(data, tables, known, marks.at_response)
    best, bound, looks, status = marks.value, max(marks.lower, lower), marks.looks, DIVERGED
    if math.isfinite(value):
        if value < best:
            best = value
            tables.best[:] = tables.w
        gap = max(best - bound, 0.0)
        records[looks, 0], records[looks, 1], records[looks, 2] = marks.calls, value, gap
        looks += 1
        if gap <= ends.gap or marks.calls >= ends.calls:
            status = DONE
        elif value < marks.limit:
            status = GO_ON
    t, calls, at_step, limit = marks.t, marks.calls, marks.at_step, marks.limit
    following = t + max(len(data.edges) - 1, t // LOOKS)
    if t == 0:
        following, limit = 0, data.most_growth * max(1.0, abs(value))
    return Marks(t, following, marks.last, calls, looks, best, bound, at_step, at_response, limit, status)


def begin(data: Data, ends: Ends, tables: Tables, marks: Marks, records: Array) -> Marks:
    """Fill the tables at w = 0 and q = 1/n, and look at the gap there."""
    n = len(tables.q)
    evaluate(data, tables.w, 0, n, tables.now, tables.slopes)
    tables.losses[:] = tables.now
    weigh(tables.q, tables.slopes, 0, n, tables.weighted)
    gather(data, tables.weighted, 0, n, tables.total)
    m = marks
    at_zero = Marks(0, 0, -1, m.calls + n, m.looks, m.value, m.lower, m.at_step, m.at_response, np.inf, GO_ON)
    return record(data, ends, tables, at_zero, True, records)


def iterate(
    data: Data, ends: Ends, tables: Tables, growth: Growth, draws: NDArray[np.int64], marks: Marks, records: Array
) -> Marks:
    """Iterations until the gap is small, the evaluations are used up, the draws are, or the iterates diverge.

    Args:
        data: the problem.
        ends: when to stop.
        tables: w = 0, q = 1/n and ``path`` = 0 at first; changed in place.
        growth: the paces.
        draws: blocks I and J, one pair per iteration, (number of iterations, 2).
        marks: where to go on.
        records: room for a record per look, (looks, 3), from row ``marks.looks`` on.
    """
    m, blocks = marks, len(data.edges) - 1
    if m.t == 0:
        m = begin(data, ends, tables, m, records)
    for s in range(len(draws)):
        if m.status != GO_ON:
            break
        t = m.t + 1
        at, k = pace(growth, data.mu, data.nu, blocks, t), t % blocks
        calls = m.calls + primal(data, tables, draws[s, 0], m.last, at.r * blocks)
        move(data, tables, k, at)
        evaluated, at_step = dual(data, tables, draws[s, 1], k, at.r * blocks, m.at_step, at.dual)
        calls += evaluated
        status = DIVERGED if math.isnan(at_step) else GO_ON
        m = Marks(t, m.next_look, k, calls, m.looks, m.value, m.lower, at_step, m.at_response, m.limit, status)
        if status == GO_ON:
            renew(data, tables, k)
            if t >= m.next_look:
                m = record(data, ends, tables, m, blocks == 1, records)
    return m


PARTS = (
    pace,
    scores,
    gather,
    softmax,
    evaluate,
    weigh,
    subtract,
    clip,
    primal,
    move,
    dual,
    renew,
    look,
    record,
    begin,
    iterate,
)
FINITE = (largest,)  # parts that meet finite numbers alone

"""DRAGO's iterations, and the looks at the gap, as one loop that numba compiles.

The functions here are ordinary Python in the subset that numba knows, and run without it, too, a few hundred times as
slowly.  They do what ``drago``, ``dual``, ``losses`` and ``problem`` do with NumPy, for dense features, the three
smooth losses, and quadratic penalties on a simplex with or without caps: nothing is allocated, and what NumPy does in
one call after another is done in one loop.

Source: DRAGO paper, Alg. 2; the certificate is its eq. (15).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
LOOKS = 8  # one look at the gap per so many iterations, when there have been many
WINDOW = 16  # the iterates of the last M - 1 steps together pull 16 (M-1) times less than the last one
SQUARED, LOGISTIC, MULTINOMIAL = 0, 1, 2
GO_ON, DONE, DIVERGED = 0, 1, 2
NEWTON, HALVINGS = 30, 100  # steps for a threshold
ROUNDING = 1e-13  # of the sum of q
TILE = 128  # samples whose scores stay in the nearest cache; BLAS has code of its own for products so small
LOG2E = 1 / math.log(2)
LOG2_HIGH, LOG2_LOW = 6.93145751953125e-1, 1.42860682030941723212e-6  # of log 2, the first with zeros at its end
SERIES = tuple(1 / math.factorial(c) for c in range(13, -1, -1))  # of exp
SHIFT, SHIFT_BITS = 1.5 * 2.0**52, 0x4338000000000000  # what, added to a whole number, leaves it in the last bits


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
        x: features (n, d).
        columns: the same (d, n), for few features and one score per sample, where loops over columns are faster than
            BLAS; else (0, n).
        y: targets (k, n).
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

    Numbers per sample and class stand block by block, and within a block class by class: (n k,).  The scores of a block
    are then one product of matrices, and a loop over them meets neighbours.

    Attributes:
        w: weights (k d,).
        best: the best weights seen, (k d,).
        total: ``sum_i qhat_i ghat_i``, (k d,).
        change: of total, by the block renewed last, (k d,).
        step: room for a direction, (k d,).
        path: the weights of the last M iterations, (M, k d).
        path_sum: their sum, (k d,).
        q: weights of the samples, (n,).
        losses: lhat, (n,).
        weighted: ``qhat_i phi'_i``, (n k,).
        now: losses at w of the blocks evaluated last, (n,).
        slopes: their slopes, (n k,).
        part: room for slopes times weights, (n k,).
        v: room for the argument of a dual step, (n,).
        room: for the scores of a tile of samples, (k TILE,).
        sums: room for what is summed over classes, (3, TILE).
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
    room: Array
    sums: Array
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
    """``x w`` of the samples from first to end - 1 into z, (b,), for targets of one column."""
    if len(data.columns) == 0:
        np.dot(data.x[first:end], w, z)
        return
    for start in range(first, end, TILE):
        stop = min(start + TILE, end)
        tile = z[start - first : stop - first]
        tile[:] = 0.0
        for c in range(len(data.columns)):
            column, own = data.columns[c, start:stop], w[c]
            for i in range(len(tile)):
                tile[i] += column[i] * own


def gather(data: Data, weights: Array, first: int, end: int, out: Array) -> None:
    """``x^T weights`` over the samples from first to end - 1, with the weights of a block, into out, (k d,)."""
    x, k = data.x[first:end], len(data.y)
    if len(data.columns) == 0:
        if k == 1:
            np.dot(weights, x, out)
        else:
            np.dot(weights.reshape(k, len(x)), x, out.reshape(k, x.shape[1]))
        return
    for c in range(len(data.columns)):
        column, s = data.columns[c, first:end], 0.0
        for i in range(len(weights)):
            s += column[i] * weights[i]
        out[c] = s


def evaluate(data: Data, tables: Tables, first: int, end: int) -> None:
    """Losses and slopes at w of the samples from first to end - 1 into ``tables.now`` and, as a block, the slopes."""
    k, out = len(data.y), tables.now[first:end]
    z = tables.slopes[first * k : end * k]
    if data.loss == MULTINOMIAL:
        for start in range(first, end, TILE):
            stop = min(start + TILE, end)
            softmax(data, tables, start, stop, z.reshape(k, end - first)[:, start - first : stop - first])
        return
    scores(data, tables.w, first, end, z)
    y = data.y[0, first:end]
    if data.loss == SQUARED:
        for i in range(len(out)):
            z[i] -= y[i]
            out[i] = z[i] * z[i] / 2
    else:
        for i in range(len(out)):
            against = -y[i] * z[i]
            small = math.exp(-abs(against))
            out[i] = max(against, 0.0) + math.log1p(small)
            z[i] = -y[i] * (1.0 if against >= 0 else small) / (1 + small)


def softmax(data: Data, tables: Tables, start: int, stop: int, slopes: Array) -> None:
    """Multinomial losses and slopes, (k, stop - start), at w of a tile of samples."""
    x, y, losses, k = data.x[start:stop], data.y, tables.now[start:stop], len(data.y)
    n, d = x.shape
    z = tables.room[: k * n].reshape(k, n)
    np.dot(tables.w.reshape(k, d), x.T, z)
    powers, total, own = tables.sums[0], tables.sums[1, :n], tables.sums[2, :n]
    total[:] = 0.0
    own[:] = 0.0
    losses[:] = z[0]
    for a in range(1, k):
        for i in range(n):
            losses[i] = max(losses[i], z[a, i])
    for a in range(k):
        row, label = z[a], y[a, start:stop]
        for i in range(n):
            own[i] += row[i] * label[i]
            row[i] -= losses[i]
        exponential(row, powers)
        for i in range(n):
            total[i] += row[i]
    for i in range(n):
        losses[i] += math.log(total[i]) - own[i]
        total[i] = 1 / total[i]
    for a in range(k):
        row, label, slope = z[a], y[a, start:stop], slopes[a]
        for i in range(n):
            slope[i] = row[i] * total[i] - label[i]


def exponential(z: Array, powers: Array) -> None:
    """``exp(z)`` in place of numbers z <= 0, to the last digit or two, in loops of which the compiler makes vectors.

    It is ``2^m exp(s)`` with ``|s| <= log(2)/2``, of which Taylor's series has 14 terms; powers is room for 2^m.
    """
    for i in range(len(z)):
        x = max(z[i], -708.0)  # below are no normal numbers
        m = np.rint(x * LOG2E)
        s = (x - m * LOG2_HIGH) - m * LOG2_LOW
        e = SERIES[0]
        for c in range(1, 14):
            e = e * s + SERIES[c]
        z[i] = e
        powers[i] = m + SHIFT
    bits = powers.view(np.int64)
    for i in range(len(z)):
        bits[i] = (bits[i] - SHIFT_BITS + 1023) << 52
    for i in range(len(z)):
        z[i] *= powers[i]


def weigh(q: Array, slopes: Array, first: int, end: int, out: Array) -> None:
    """``q_i slopes_i`` of the samples from first to end - 1, a block, into out."""
    weights, b, k = q[first:end], end - first, len(slopes) // len(q)
    for at in range(first * k, end * k, b):
        row, into = slopes[at : at + b], out[at : at + b]
        for i in range(b):
            into[i] = weights[i] * row[i]


def subtract(out: Array, other: Array) -> None:
    """Out - other into out."""
    for i in range(len(out)):
        out[i] -= other[i]


def largest(v: Array) -> float:
    """The largest number of v, all of which are finite."""
    top = v[0]
    for i in range(1, len(v)):
        top = max(top, v[i])
    return top


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
    step, k, calls = tables.step, len(data.y), 0
    if i == last:  # it was evaluated at this w and q
        step[:] = tables.change
    elif scale > 0:
        first, end = data.edges[i], data.edges[i + 1]
        evaluate(data, tables, first, end)
        weigh(tables.q, tables.slopes, first, end, tables.part)
        part = tables.part[first * k : end * k]
        subtract(part, tables.weighted[first * k : end * k])
        gather(data, part, first, end, step)
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
    evaluate(data, tables, first, end)
    calls = end - first
    v[:] = losses
    v[first:end] = now[first:end]
    if scale > 0:
        a, b = data.edges[j], data.edges[j + 1]
        if j != k:
            evaluate(data, tables, a, b)
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
    first, end, c = data.edges[k], data.edges[k + 1], len(data.y)
    weigh(tables.q, tables.slopes, first, end, tables.part)
    fresh, stale = tables.part[first * c : end * c], tables.weighted[first * c : end * c]
    subtract(stale, fresh)
    gather(data, stale, first, end, tables.change)
    stale[:] = fresh
    for c in range(len(tables.total)):
        tables.change[c] *= -1
        tables.total[c] += tables.change[c]


def look(data: Data, tables: Tables, known: bool, at_response: float) -> tuple[float, float, float]:
    """Objective at w, lower bound, and threshold of the worst weights; infinite where the losses are not finite."""
    n, q, now, v = len(tables.q), tables.worst, tables.now, tables.v
    if not known:
        evaluate(data, tables, 0, n)
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
    for k in range(len(data.edges) - 1):
        evaluate(data, tables, data.edges[k], data.edges[k + 1])
        renew(data, tables, k)  # from tables of zeros
    tables.losses[:] = tables.now
    m = marks
    at_zero = Marks(
        0, 0, -1, m.calls + len(tables.q), m.looks, m.value, m.lower, m.at_step, m.at_response, np.inf, GO_ON
    )
    return record(data, ends, tables, at_zero, len(data.edges) == 2, records)


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


# What the compiler may do: sum in any order, as NumPy and BLAS do; infinities and nan stay what they are.  It is said
# here as numba compiles anew what it has on the disk when this file has changed.
_SUMS = {"reassoc", "contract", "nsz"}
PARTS: dict[Callable[..., Any], set[str]] = {  # those that others call come first
    **dict.fromkeys([pace, scores, gather], _SUMS),
    exponential: {"contract"},
    **dict.fromkeys([softmax, evaluate, weigh, subtract], _SUMS),
    largest: {"nnan", "nsz"},
    **dict.fromkeys([clip, primal, move, dual, renew, look, record, begin, iterate], _SUMS),
}

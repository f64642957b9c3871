"""Passes over samples, in the subset of Python that numba compiles: scores, losses, and weights of sum 1.

Loops count from 0 over slices: of indices that might be negative the compiler makes no vectors.
"""

import math

import numpy as np

from fcco_lightning.dro.kernel_data import MULTINOMIAL, SLAB, SQUARED, TILE, Array, Data, Tables

NEWTON, HALVINGS = 30, 100  # steps for a threshold
ROUNDING = 1e-13  # of the sum of q
LOG2E = 1 / math.log(2)
LOG2_HIGH, LOG2_LOW = 6.93145751953125e-1, 1.42860682030941723212e-6  # of log 2, the first with zeros at its end
SERIES = tuple(1 / math.factorial(c) for c in range(13, -1, -1))  # of exp
SHIFT, SHIFT_BITS = 1.5 * 2.0**52, 0x4338000000000000  # what, added to a whole number, leaves it in the last bits


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
            rows, into = weights.reshape(k, len(x)), out.reshape(k, x.shape[1])
            into[:] = 0.0
            for start in range(0, len(x), SLAB):
                slab = x[start : start + SLAB]
                into += np.dot(np.ascontiguousarray(rows[:, start : start + SLAB]), slab)
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
    top: float = v[0]
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
        t = float(v.mean()) - 1 / n
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
            t = (max(low, float(v.min()) - cap) + min(high, float(v.max()))) / 2
    share = under / (over + under)
    for i in range(n):
        a = min(max(v[i] - high, 0.0), cap)
        q[i] = a + share * (min(max(v[i] - low, 0.0), cap) - a)
    return t

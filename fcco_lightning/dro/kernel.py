"""DRAGO's iterations and the evaluations of the gap as one loop that numba compiles.

The functions are ordinary Python in the subset that numba supports; without numba they run a few hundred times more
slowly.  They compute the same as ``drago``, ``dual``, ``losses`` and ``problem`` do with NumPy, for dense features, the
three smooth losses, and quadratic penalties on a simplex with or without caps.  Nothing of the size of the data is
allocated, and successive calls of NumPy are fused to one loop.  All functions are in this file, since numba recompiles
a cached function if its own file has changed, but not if the file of a function that it calls has.

Loops count from 0 over slices, since the compiler does not vectorise indices that might be negative.

Source: DRAGO paper, Alg. 2; the certificate is its eq. (15).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SQUARED, LOGISTIC, MULTINOMIAL = 0, 1, 2
GO_ON, DONE, DIVERGED = 0, 1, 2
TILE = 128  # samples whose scores fit into the L1 cache; BLAS has special code for such small products
SLAB = 2048  # samples whose features, and weights for every class, fit into the L2 cache
LOOKS = 8  # smallest number of iterations between evaluations of the gap, after many iterations
WINDOW = 16  # the M - 1 earlier iterates together have a weight 16 (M-1) times smaller than that of the last one
NEWTON, HALVINGS = 30, 100  # largest numbers of steps for a threshold
ROUNDING = 1e-13  # tolerance of the sum of q
LOG2E = 1 / math.log(2)
LOG2_HIGH, LOG2_LOW = 6.93145751953125e-1, 1.42860682030941723212e-6  # of log 2, the first with zero bits at its end
SERIES = tuple(1 / math.factorial(c) for c in range(13, -1, -1))  # Taylor coefficients of exp
SHIFT, SHIFT_BITS = 1.5 * 2.0**52, 0x4338000000000000  # adding SHIFT moves a whole number to the last bits


class Pace(NamedTuple):
    """The constants of one iteration.

    Attributes:
        r: ``a_{t-1}/a_t``, the weight of the corrections.
        pull: total weight of the quadratic terms ``|w' - w|^2 / 2`` and ``|w' - w_s|^2 / 2`` in the step of w.
        window: weight of ``|w' - w_s|^2 / 2`` for each of the M - 1 iterates w_s before w.
        dual: weight of ``Delta(p, q)`` in the step of q.
    """

    r: float
    pull: float
    window: float
    dual: float


class Growth(NamedTuple):
    """The growth of a_t for mu > 0 and nu > 0: ``A_{t-1}/a_t = (1 - lag (1+alpha)^{-t})/alpha``.

    Attributes:
        mu: weight of the ridge term.
        nu: weight of the penalty.
        blocks: M.
        alpha: step size.
        lag: constant of the start; 0 for "steady", the limit of the other two.
        second: ``a_1/a_2``.
    """

    mu: float
    nu: float
    blocks: int
    alpha: float
    lag: float
    second: float


class Data(NamedTuple):
    """A problem with its stopping criteria.

    Attributes:
        x: features (n, d).
        columns: the transpose of x, (d, n), for few features and one score per sample, for which loops over columns are
            faster than BLAS; else (0, n).
        y: targets (k, n).
        edges: first samples of the M blocks, and n, (M + 1,).
        loss: SQUARED, LOGISTIC or MULTINOMIAL.
        cap: the largest weight of a sample.
        unit: curvature of the penalty at nu = 1.
        nu: weight of the penalty.
        mu: weight of the ridge term.
        most_growth: factor on the objective at w = 0 above which the iterates count as diverged; may be infinite.
        tol: the gap at which to stop.
        max_calls: number of evaluations of a sample after which to stop.
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
    tol: float
    max_calls: float


class Tables(NamedTuple):
    """Arrays that an iteration changes in place.

    Numbers per sample and class, (n k,), are stored block by block, and within a block class by class.  The scores of a
    block are then one matrix product, and loops over them access contiguous memory.

    Attributes:
        w: weights (k d,).
        best: the best weights seen, (k d,).
        total: ``sum_i qhat_i ghat_i``, (k d,).
        change: change of total by the last renewed block, (k d,).
        step: workspace for a direction, (k d,).
        path: the weights of the last M iterations, (M, k d).
        path_sum: their sum, (k d,).
        q: weights of the samples, (n,).
        losses: lhat, (n,).
        weighted: ``qhat_i phi'_i``, (n k,).
        now: losses at w of the blocks evaluated last, (n,).
        slopes: their slopes, (n k,).
        part: workspace for slopes times weights, (n k,).
        v: workspace for the argument of a dual step, (n,).
        room: workspace for the scores of a tile of samples, (k TILE,).
        sums: workspace for sums over classes, (3, TILE).
        worst: the worst weights of the samples at the last evaluation of the gap, (n,).
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


@dataclass
class Marks:
    """The state of the iterations; the compiled code changes one in a NumPy array of :data:`PLACE`.

    Attributes:
        t: number of finished iterations.
        due: the iteration after which the gap is evaluated next.
        calls: number of evaluations of a sample.
        looks: number of written records.
        status: GO_ON, DONE or DIVERGED.
        first: the gap at w = 0.
        value: the best objective.
        lower: the largest lower bound.
        limit: the objective above which the iterates count as diverged.
        at_step: threshold of the last dual step, or nan.
        at_response: threshold of the last worst weights, or nan.
    """

    t: int = 0
    due: int = 0
    calls: int = 0
    looks: int = 0
    status: int = GO_ON
    first: float = np.inf
    value: float = np.inf
    lower: float = -np.inf
    limit: float = np.inf
    at_step: float = np.nan
    at_response: float = np.nan


PLACE = np.dtype([(mark.name, type(mark.default)) for mark in fields(Marks)])


def scores(data: Data, w: Array, first: int, end: int, z: Array) -> None:
    """Write ``x w`` of the samples first to end - 1 into z, (b,), for targets with one column."""
    if len(data.columns) == 0:
        np.dot(data.x[first:end], w, z)
        return
    for start in range(first, end, TILE):
        stop = min(start + TILE, end)
        tile = z[start - first : stop - first]
        tile[:] = 0.0
        for c in range(len(data.columns)):
            column, weight = data.columns[c, start:stop], w[c]
            for i in range(len(tile)):
                tile[i] += column[i] * weight


def gather(data: Data, weights: Array, first: int, end: int, out: Array) -> None:
    """Write ``x^T weights`` over the samples first to end - 1, with the weights of a block, into out, (k d,)."""
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
    """Write losses at w of the samples first to end - 1, a block, into ``tables.now``, and their slopes likewise."""
    k, block_losses = len(data.y), tables.now[first:end]
    z = tables.slopes[first * k : end * k]
    if data.loss == MULTINOMIAL:
        for start in range(first, end, TILE):
            stop = min(start + TILE, end)
            softmax(data, tables, start, stop, z.reshape(k, end - first)[:, start - first : stop - first])
        return
    scores(data, tables.w, first, end, z)
    y = data.y[0, first:end]
    if data.loss == SQUARED:
        for i in range(len(block_losses)):
            z[i] -= y[i]
            block_losses[i] = z[i] * z[i] / 2
    else:
        for i in range(len(block_losses)):
            negative_margin = -y[i] * z[i]
            small = math.exp(-abs(negative_margin))
            block_losses[i] = max(negative_margin, 0.0) + math.log1p(small)
            z[i] = -y[i] * (1.0 if negative_margin >= 0 else small) / (1 + small)


def softmax(data: Data, tables: Tables, start: int, stop: int, slopes: Array) -> None:
    """Write multinomial losses and slopes, (k, stop - start), at w of a tile of samples."""
    x = data.x[start:stop]
    y = data.y
    losses = tables.now[start:stop]
    k = len(data.y)
    n, d = x.shape
    z = tables.room[: k * n].reshape(k, n)
    np.dot(tables.w.reshape(k, d), x.T, z)
    powers, row_sums, labelled = tables.sums[0], tables.sums[1, :n], tables.sums[2, :n]
    row_sums[:] = 0.0
    labelled[:] = 0.0
    losses[:] = z[0]
    for a in range(1, k):
        for i in range(n):
            losses[i] = max(losses[i], z[a, i])
    for a in range(k):
        row, label = z[a], y[a, start:stop]
        for i in range(n):
            labelled[i] += row[i] * label[i]
            row[i] -= losses[i]
        exponential(row, powers)
        for i in range(n):
            row_sums[i] += row[i]
    for i in range(n):
        losses[i] += math.log(row_sums[i]) - labelled[i]
        row_sums[i] = 1 / row_sums[i]
    for a in range(k):
        row, label, slope = z[a], y[a, start:stop], slopes[a]
        for i in range(n):
            slope[i] = row[i] * row_sums[i] - label[i]


def exponential(z: Array, powers: Array) -> None:
    """Replace numbers z <= 0 by ``exp(z)``, accurate up to one or two digits, in loops that the compiler vectorises.

    It is ``2^m exp(s)`` with ``|s| <= log(2)/2`` and 14 terms of Taylor's series; powers is workspace for 2^m.
    """
    for i in range(len(z)):
        x = max(z[i], -708.0)  # exp is subnormal below
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
    """Write ``q_i slopes_i`` of the samples first to end - 1, a block, into out."""
    weights = q[first:end]
    b = end - first
    k = len(slopes) // len(q)
    for start in range(first * k, end * k, b):
        row, into = slopes[start : start + b], out[start : start + b]
        for i in range(b):
            into[i] = weights[i] * row[i]


def subtract(out: Array, other: Array) -> None:
    """Write out - other into out."""
    for i in range(len(out)):
        out[i] -= other[i]


def largest(v: Array) -> float:
    """The largest number of v, which must be finite."""
    top: float = v[0]
    for i in range(1, len(v)):
        top = max(top, v[i])
    return top


def total(v: Array) -> float:
    """The sum of v."""
    s = 0.0
    for i in range(len(v)):
        s += v[i]
    return s


def inner(a: Array, b: Array) -> float:
    """The sum of the products of a and b."""
    s = 0.0
    for i in range(len(a)):
        s += a[i] * b[i]
    return s


def clip(v: Array, cap: float, t: float, q: Array) -> float:
    """Write ``clip(v - t, 0, cap)`` with sum 1 into q, by Newton's method from t (nan: no start); return the final t.

    If Newton's method does not converge, because t has too few digits, the bracket is bisected; q is then the convex
    combination with sum 1 of the results for its two ends.
    """
    n = len(v)
    if math.isnan(t):
        t = float(v.mean()) - 1 / n
    low = -np.inf
    excess_low = max(n * cap - 1, 0.0)
    high = np.inf
    excess_high = 1.0
    for step in range(NEWTON + HALVINGS):
        mass, num_inside = 0.0, 0.0
        for i in range(n):
            a = v[i] - t
            mass += min(max(a, 0.0), cap)
            num_inside += 1.0 if 0.0 < a < cap else 0.0
        excess = mass - 1
        if abs(excess) <= ROUNDING:
            low, high = t, t
            break
        if excess > 0:
            low, excess_low = t, excess
        else:
            high, excess_high = t, -excess
        t = t + excess / num_inside if num_inside > 0 and step < NEWTON else np.nan
        if not low < t < high:  # outside of (low, high) all weights are at one bound
            t = (max(low, float(v.min()) - cap) + min(high, float(v.max()))) / 2
    share = excess_high / (excess_low + excess_high)
    for i in range(n):
        a = min(max(v[i] - high, 0.0), cap)
        q[i] = a + share * (min(max(v[i] - low, 0.0), cap) - a)
    return t


def pace(growth: Growth, t: int) -> Pace:
    """The constants of iteration t = 1, 2, ..."""
    alpha = growth.alpha
    mu = growth.mu
    others = max(growth.blocks - 1, 1)
    r = growth.second if t == 2 else 1 / (1 + alpha)
    beta = (1 - growth.lag * (1 + alpha) ** (-t)) / alpha
    if t == 1 and growth.lag > 0:
        r, beta = 0.0, 0.0
    largest_window = 1 / (WINDOW * alpha * (1 + alpha) * others**2)
    return Pace(r, beta * mu, min(largest_window, beta / others) * mu, beta * growth.nu)


def next_look(t: int, blocks: int, gap: float, first: float, tol: float, budget: float) -> int:
    """The iteration after which the gap is evaluated next: halfway to the expected end, at the mean rate so far.

    At most the number of iterations doubles.

    Args:
        t: the iteration after which the gap was evaluated now.
        blocks: M.
        gap: the gap now.
        first: the gap at w = 0.
        tol: the gap at which to stop.
        budget: number of remaining iterations.
    """
    ahead = max(blocks, t // LOOKS)
    if t > 0 and 0 < tol < gap < first < math.inf:
        halfway = t * math.log(gap / tol) / math.log(first / gap) / 2
        ahead = max(ahead, int(min(halfway, t, budget)))
    return t + ahead


def primal(data: Data, tables: Tables, i: int, last: int, scale: float) -> int:
    """Write the gradient estimate into ``tables.step``; return the number of evaluated samples."""
    step = tables.step
    k = len(data.y)
    calls = 0
    if i == last:  # evaluated at this w and q already
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


def move(data: Data, tables: Tables, k: int, constants: Pace) -> None:
    """Make the step of w along ``tables.step``, and store it among the last M iterates."""
    w, path, path_sum = tables.w, tables.path, tables.path_sum
    if k == 0:  # once in M iterations, against rounding
        path_sum[:] = 0.0
        for s in range(len(path)):
            for c in range(len(w)):
                path_sum[c] += path[s, c]
    for c in range(len(w)):
        deviation = len(path) * w[c] - path_sum[c]
        w[c] = (constants.pull * w[c] - constants.window * deviation - tables.step[c]) / (constants.pull + data.mu)
        path_sum[c] += w[c] - path[k, c]
        path[k, c] = w[c]


def dual(data: Data, tables: Tables, j: int, k: int, scale: float, pull: float, marks: Marks) -> None:
    """Make the step of q, and renew the losses of block k."""
    new_losses, losses, v, q = tables.now, tables.losses, tables.v, tables.q
    first, end = data.edges[k], data.edges[k + 1]
    evaluate(data, tables, first, end)
    marks.calls += end - first
    v[:] = losses
    v[first:end] = new_losses[first:end]
    if scale > 0:
        a, b = data.edges[j], data.edges[j + 1]
        if j != k:
            evaluate(data, tables, a, b)
            marks.calls += b - a
        ahead, fresh, stale = v[a:b], new_losses[a:b], losses[a:b]
        for i in range(len(ahead)):
            ahead[i] += scale * (fresh[i] - stale[i])
    losses[first:end] = new_losses[first:end]
    if not math.isfinite(total(v)):
        marks.status = DIVERGED
        return
    top = largest(v)
    step, retained = 1 / (data.unit * (data.nu + pull)), pull / (data.nu + pull)
    for i in range(len(v)):
        v[i] = (v[i] - top) * step + retained * q[i]
    marks.at_step = clip(v, data.cap, marks.at_step, q)


def renew(data: Data, tables: Tables, k: int) -> None:
    """Renew block k of q times slope, and the total."""
    first = data.edges[k]
    end = data.edges[k + 1]
    c = len(data.y)
    weigh(tables.q, tables.slopes, first, end, tables.part)
    fresh, stale = tables.part[first * c : end * c], tables.weighted[first * c : end * c]
    subtract(stale, fresh)
    gather(data, stale, first, end, tables.change)
    stale[:] = fresh
    for c in range(len(tables.total)):
        tables.change[c] *= -1
        tables.total[c] += tables.change[c]


def look(data: Data, tables: Tables, evaluated: bool, marks: Marks) -> tuple[float, float]:
    """The objective at w and a lower bound; infinite if the losses are not finite."""
    n = len(tables.q)
    q = tables.worst
    block_losses = tables.now
    v = tables.v
    first, end = data.edges[0], data.edges[len(data.edges) - 1]  # 0 and n, with the type of the edges
    if not evaluated:
        evaluate(data, tables, first, end)
    if not math.isfinite(total(block_losses)):
        return np.inf, -np.inf
    top, curvature = largest(block_losses), data.unit * data.nu
    for i in range(n):
        v[i] = (block_losses[i] - top) * (1 / curvature)
    marks.at_response = clip(v, data.cap, marks.at_response, q)
    for i in range(n):
        v[i] = q[i] - 1 / n
    worst = inner(q, block_losses) - curvature / 2 * inner(v, v)
    weigh(q, tables.slopes, first, end, tables.part)
    gather(data, tables.part, first, end, tables.step)
    tangent = worst - inner(tables.step, tables.w) - inner(tables.step, tables.step) / (2 * data.mu)
    return worst + data.mu / 2 * inner(tables.w, tables.w), tangent


def record(data: Data, tables: Tables, evaluated: bool, marks: Marks, records: Array) -> None:
    """Evaluate the gap, write a record of evaluations, objective and gap, and schedule the next one."""
    value, lower = look(data, tables, evaluated, marks)
    if not value < marks.limit:
        marks.status = DIVERGED
    if not math.isfinite(value):
        return
    if value < marks.value:
        marks.value = value
        tables.best[:] = tables.w
    marks.lower = max(marks.lower, lower)
    gap, entry = max(marks.value - marks.lower, 0.0), records[marks.looks]
    entry[0], entry[1], entry[2] = marks.calls, value, gap
    marks.looks += 1
    if gap <= data.tol or marks.calls >= data.max_calls:
        marks.status = DONE
    if marks.t == 0:
        marks.first, marks.limit = gap, data.most_growth * max(1.0, abs(value))
        return
    blocks = len(data.edges) - 1
    budget = (
        (data.max_calls - marks.calls) * blocks / (3 * len(tables.q))
    )  # an iteration evaluates at most three blocks
    marks.due = next_look(marks.t, blocks, gap, marks.first, data.tol, budget)


def begin(data: Data, tables: Tables, marks: Marks, records: Array) -> None:
    """Fill the tables at w = 0 and q = 1/n, and evaluate the gap there."""
    for k in range(len(data.edges) - 1):
        evaluate(data, tables, data.edges[k], data.edges[k + 1])
        renew(data, tables, k)  # from tables of zeros
    tables.losses[:] = tables.now
    marks.calls += len(tables.q)
    record(data, tables, len(data.edges) == 2, marks, records)


def iterate(
    data: Data, tables: Tables, growth: Growth, draws: NDArray[np.int64], place: Sequence[Marks], records: Array
) -> None:
    """Iterate until the gap is small, the evaluations or the draws are used up, or the iterates diverge.

    Args:
        data: the problem.
        tables: arrays with w = 0, q = 1/n and ``path`` = 0 at first; changed in place.
        growth: the growth of a_t.
        draws: blocks I and J, one pair per iteration, (number of iterations, 2).
        place: the state of the iterations, shape (1,); changed in place.
        records: workspace for records, (number, 3), which are written from row ``looks`` on.
    """
    marks = place[0]
    blocks = len(data.edges) - 1
    if marks.t == 0:
        begin(data, tables, marks, records)
    for s in range(len(draws)):
        if marks.status != GO_ON:
            break
        last = marks.t % blocks if marks.t > 0 else -1
        marks.t += 1
        constants, k = pace(growth, marks.t), marks.t % blocks
        marks.calls += primal(data, tables, draws[s, 0], last, constants.r * blocks)
        move(data, tables, k, constants)
        dual(data, tables, draws[s, 1], k, constants.r * blocks, constants.dual, marks)
        if marks.status == GO_ON:
            renew(data, tables, k)
            if marks.t >= marks.due:
                record(data, tables, blocks == 1, marks, records)


# The compiler may reorder sums, as NumPy and BLAS do; infinities and nan keep their meaning.
_SUMS = {"reassoc", "contract", "nsz"}
PARTS: dict[Callable[..., Any], set[str]] = {
    **dict.fromkeys([pace, next_look, scores, gather, softmax, evaluate, weigh, subtract, inner, total, clip], _SUMS),
    exponential: {"contract"},
    largest: {"nnan", "nsz"},
    **dict.fromkeys([primal, move, dual, renew, look, record, begin, iterate], _SUMS),
}

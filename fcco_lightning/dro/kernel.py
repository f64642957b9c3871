"""DRAGO's iterations, and the looks at the gap, as one loop that numba compiles.

The functions here and in ``kernel_samples`` are ordinary Python in the subset that numba knows, and run without it,
too, a few hundred times as slowly.  They do what ``drago``, ``dual``, ``losses`` and ``problem`` do with NumPy, for
dense features, the three smooth losses, and quadratic penalties on a simplex with or without caps: nothing of
the size of the data is allocated, and what NumPy does in one call after another is done in one loop.

Source: DRAGO paper, Alg. 2; the certificate is its eq. (15).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcco_lightning.dro.kernel_data import DIVERGED, DONE, GO_ON, Array, Data, Ends, Growth, Marks, Pace, Tables
from fcco_lightning.dro.kernel_samples import (
    clip,
    evaluate,
    exponential,
    gather,
    largest,
    scores,
    softmax,
    subtract,
    weigh,
)

LOOKS = 8  # one look at the gap per so many iterations, when there have been many
WINDOW = 16  # the iterates of the last M - 1 steps together pull 16 (M-1) times less than the last one


def pace(growth: Growth, mu: float, nu: float, blocks: int, t: int) -> Pace:
    """The constants of iteration t = 1, 2, ... for mu > 0 and nu > 0, with M = ``blocks``."""
    alpha, others = growth.alpha, max(blocks - 1, 1)
    r = growth.second if t == 2 else 1 / (1 + alpha)
    beta = (1 - growth.lag * (1 + alpha) ** (-t)) / alpha
    if t == 1 and growth.lag > 0:
        r, beta = 0.0, 0.0
    most = 1 / (WINDOW * alpha * (1 + alpha) * others**2)
    return Pace(r, beta * mu, min(most, beta / others) * mu, beta * nu)


def next_look(t: int, blocks: int, gap: float, first: float, tol: float, budget: float) -> int:
    """The iteration after which to look at the gap next: halfway to where it is small enough at the mean rate so far.

    That is at most as many iterations ahead as there have been.

    Args:
        t: the iteration after which it was looked at now.
        blocks: M.
        gap: what it was.
        first: what it was at w = 0.
        tol: how small it shall be.
        budget: iterations that are left.
    """
    ahead = max(blocks, t // LOOKS)
    if t > 0 and 0 < tol < gap < first < math.inf:
        halfway = t * math.log(gap / tol) / math.log(first / gap) / 2
        ahead = max(ahead, int(min(halfway, t, budget)))
    return t + ahead


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
    first, end = data.edges[0], data.edges[len(data.edges) - 1]  # 0 and n, in numbers of one type with the others
    if not known:
        evaluate(data, tables, first, end)
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
    weigh(q, tables.slopes, first, end, tables.part)
    gather(data, tables.part, first, end, tables.step)
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
    gap = np.inf
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
    blocks = len(data.edges) - 1
    budget = (ends.calls - calls) * blocks / (3 * len(tables.q))  # as an iteration evaluates at most three blocks
    first = gap if t == 0 else marks.first_gap
    following = next_look(t, blocks, gap, first, ends.gap, budget)
    if t == 0:
        following, limit = 0, data.most_growth * max(1.0, abs(value))
    return Marks(t, following, first, marks.last, calls, looks, best, bound, at_step, at_response, limit, status)


def begin(data: Data, ends: Ends, tables: Tables, marks: Marks, records: Array) -> Marks:
    """Fill the tables at w = 0 and q = 1/n, and look at the gap there."""
    for k in range(len(data.edges) - 1):
        evaluate(data, tables, data.edges[k], data.edges[k + 1])
        renew(data, tables, k)  # from tables of zeros
    tables.losses[:] = tables.now
    m = marks
    at_zero = Marks(
        0, 0, np.inf, -1, m.calls + len(tables.q), m.looks, m.value, m.lower, m.at_step, m.at_response, np.inf, GO_ON
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
        m = Marks(
            t=t,
            next_look=m.next_look,
            first_gap=m.first_gap,
            last=k,
            calls=calls,
            looks=m.looks,
            value=m.value,
            lower=m.lower,
            at_step=at_step,
            at_response=m.at_response,
            limit=m.limit,
            status=status,
        )
        if status == GO_ON:
            renew(data, tables, k)
            if t >= m.next_look:
                m = record(data, ends, tables, m, blocks == 1, records)
    return m


# What the compiler may do: sum in any order, as NumPy and BLAS do; infinities and nan stay what they are.
_SUMS = {"reassoc", "contract", "nsz"}
PARTS: dict[Callable[..., Any], set[str]] = {  # those that others call come first
    **dict.fromkeys([pace, next_look, scores, gather], _SUMS),
    exponential: {"contract"},
    **dict.fromkeys([softmax, evaluate, weigh, subtract], _SUMS),
    largest: {"nnan", "nsz"},
    **dict.fromkeys([clip, primal, move, dual, renew, look, record, begin, iterate], _SUMS),
}

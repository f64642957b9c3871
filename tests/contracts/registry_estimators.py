"""The registry of estimators: how each is made, its update in NumPy, and its values on a quadratic function."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcco_lightning.estimators import (
    Average,
    DualProx,
    EntropicMirror,
    Estimator,
    Minibatch,
    ScaledAverage,
    moved,
    trusted,
)
from fcco_lightning.outer import OuterFunction

Array = NDArray[np.float64]
N, BATCH = 7, 3  # rows of the term, rows in a batch
RHO, LAM = 2.0, 0.3  # parameters of the smoothed hinge, the outer function of all formulas


def slope(u: Array) -> Array:
    """Gradient of the Moreau envelope of the hinge ``rho [u]_+`` with lam."""
    return np.clip(u / LAM, 0, RHO)


class Step(NamedTuple):
    """Rows (b, k) of a batch after a step, the outer gradients (b, k), and the factor on all other rows."""

    rows: Array
    y: Array
    others: float = 1.0


class Followed(NamedTuple):
    """New rows (b, k), the values f (b,), and the outer gradients y (b, k) that weight the inner values of a batch."""

    rows: Tensor
    value: Tensor
    y: Tensor


def first(estimator: Estimator, inner: Tensor) -> Tensor:
    """The row that is assumed for an index that was never visited."""
    return inner if estimator.follows_values else torch.zeros_like(inner)


def follow(
    estimator: Estimator,
    rows: Tensor,
    inner: Tensor,
    previous: Tensor | None,
    outer: OuterFunction,
    *drawn: Any,
    growth: float | None = None,
) -> Followed:
    """Take a step as algorithms do; for ``drawn`` see ``moved``."""
    new, g = moved(estimator, rows, inner, previous, outer, *drawn), inner.clone().requires_grad_()
    value = estimator.estimate(outer, trusted(new if estimator.fresh else rows, inner, growth), g, inner)
    return Followed(new, value.detach(), torch.autograd.grad(value.sum(), g)[0])


Marks = NDArray[np.bool_]
Formula = Callable[[Array, Array, Array, Marks, Array], Step]
"""Its arguments: the rows, g_i(w_t), g_i(w_{t-1}), all (b, k); whether a row was visited before (b,); 1/p_i (b, 1)."""


class Member(NamedTuple):
    """An estimator.

    Attributes:
        make: makes the estimator.
        formula: its update for the smoothed hinge.
        gamma: for ``f(u) = u^2/2`` and all rows in every batch, its rows are running averages with this weight.
        averages: whether its rows are averages of inner values, and so stay in their range.
        fresh: whether the outer gradient is taken at the new row.
        constant: whether gamma is the same for all rows; otherwise ``gamma`` is that at the row 1.
    """

    make: Callable[[], Estimator]
    formula: Formula
    gamma: float
    averages: bool = True
    fresh: bool = False
    constant: bool = True


def average(gamma: float, correction: float | None = 0.0, fresh: bool = False) -> Formula:
    """Corrected running average; with ``correction`` None by the factor of Thm 4.7 of the SONEX paper."""

    def step(rows: Array, now: Array, before: Array, seen: Marks, inverse: Array) -> Step:
        amount = 1 - gamma + (inverse - 1) / (1 - gamma) if correction is None else correction
        moved = (1 - gamma) * rows + gamma * now + amount * (now - before)
        new, old = np.where(seen[:, None], moved, now), np.where(seen[:, None], rows, now)
        return Step(new, slope(new if fresh else old))

    return step


def scaled(gamma: float) -> Formula:
    def step(rows: Array, now: Array, before: Array, seen: Marks, inverse: Array) -> Step:
        new = np.where(seen[:, None], (1 - gamma) * rows + gamma * inverse * now, now)
        return Step(new, slope(new), 1 - gamma)

    return step


def proximal(tau: float, theta: float) -> Formula:
    """``argmax_y y g~ - lam/2 y^2 - tau/2 (y - y_t)^2`` over [0, rho], from y_t = 0 at the first visit."""

    def step(rows: Array, now: Array, before: Array, seen: Marks, inverse: Array) -> Step:
        ahead = now + theta * (now - before)
        y = np.clip((ahead + tau * np.where(seen[:, None], rows, 0)) / (LAM + tau), 0, RHO)
        return Step(y, y)

    return step


def minibatch(rows: Array, now: Array, before: Array, seen: Marks, inverse: Array) -> Step:
    return Step(now, slope(now))


def entropic(alpha: float, fresh: bool = False) -> Formula:
    """The entropic step in nu = log u; a row that is not positive does not change."""

    def step(rows: Array, now: Array, before: Array, seen: Marks, inverse: Array) -> Step:
        u = np.where(seen[:, None], rows, now)
        nu = np.log(np.where(u > 0, u, 1))
        moved = (alpha * now + 1) / (alpha + np.exp(-nu))
        new = np.where(seen[:, None], np.where(u > 0, moved, u), now)
        return Step(new, slope(new if fresh else u))

    return step


ESTIMATORS: dict[str, Member] = {
    "Minibatch": Member(Minibatch, minibatch, 1.0, fresh=True),
    "Average": Member(lambda: Average(0.3), average(0.3), 0.3),
    "Average fresh": Member(lambda: Average(0.3, fresh=True), average(0.3, fresh=True), 0.3, fresh=True),
    "Average gamma 1": Member(lambda: Average(1.0, fresh=True), average(1.0, fresh=True), 1.0, fresh=True),
    "ScaledAverage": Member(lambda: ScaledAverage(0.3), scaled(0.3), 0.3, averages=False, fresh=True),
    "Average corrected": Member(lambda: Average(0.3, 0.1), average(0.3, 0.1), 0.3),
    "Average corrected, fresh": Member(
        lambda: Average(0.3, 0.1, fresh=True), average(0.3, 0.1, fresh=True), 0.3, fresh=True
    ),
    "Average theory": Member(lambda: Average(0.3, "theory"), average(0.3, None), 0.3),
    "Average as a dual step": Member(
        lambda: Average(0.3, 0.1, fresh=True, convex_only=True), average(0.3, 0.1, fresh=True), 0.3, fresh=True
    ),
    "EntropicMirror": Member(lambda: EntropicMirror(3 / 7, fresh=False), entropic(3 / 7), 0.3, constant=False),
    "EntropicMirror fresh": Member(
        lambda: EntropicMirror(3 / 7, fresh=True), entropic(3 / 7, fresh=True), 0.3, fresh=True, constant=False
    ),
    "DualProx": Member(lambda: DualProx(2.0, 0.5), proximal(2.0, 0.5), 1 / 3, averages=False, fresh=True),
    "DualProx theta 0": Member(lambda: DualProx(0.4, 0.0), proximal(0.4, 0.0), 1 / 1.4, averages=False, fresh=True),
}

"""Constraints enforced by multipliers, in NumPy: rows u_i of means over subsets, and multipliers that follow them.

``min g_0(w)`` subject to ``h_i = u_i - kappa_i <= 0``, or ``|u_i1 - u_i2| <= kappa_i``, which has two sides
``s - kappa`` and ``-s - kappa``.  A step of SOX: ``G = grad g_0 + sum over rows present of (1/p_i) Jac^T y_i`` with y_i
at the previous row and multiplier; then the row is updated, and then the multiplier at the new row.  Violations are
measured in the unit of |g_0| at the first batch, which therefore uses no multipliers: its G is grad g_0 alone.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from .networks import Array, Data, Indices, Point
from .outer import Outer
from .toy import Inner, Problem, RateGap


class Rule(Protocol):
    """Of the sides of a row: what is remembered (values, sides) at first, the slope y, and what is remembered next."""

    def start(self, unit: float) -> Array: ...
    def slope(self, memory: Array, h: Array, unit: float) -> Array: ...
    def moved(self, memory: Array, h: Array, unit: float) -> Array: ...


@dataclass(frozen=True)
class Adaptive:
    """``y = nu (1 + clip(h / width, -1, 1))``, ``nu <- nu exp(rate clip(h / width, -1, 1))``, at least some nu."""

    rate: float = 0.007
    width: float = 0.02
    first: float = 0.66
    least: float = 3e-4

    def start(self, unit: float) -> Array:
        return np.array([self.first * unit])

    def slope(self, memory: Array, h: Array, unit: float) -> Array:
        return memory[0] * (1 + np.clip(h / self.width, -1, 1))

    def moved(self, memory: Array, h: Array, unit: float) -> Array:
        nu = memory[0] * np.exp(self.rate * np.clip(h / self.width, -1, 1))
        return np.maximum(nu, self.least * unit)[None]


@dataclass(frozen=True)
class Controller:
    """Sohrabi et al. (2024), Algorithm 1, with ``xi_0 = (1 - smoothing) h``: memory (nu, xi)."""

    rate: float = 0.01
    proportional: float = 0.7
    smoothing: float = 0.0

    def start(self, unit: float) -> Array:
        return np.zeros(2)

    def slope(self, memory: Array, h: Array, unit: float) -> Array:
        return memory[0]

    def moved(self, memory: Array, h: Array, unit: float) -> Array:
        nu, before = memory
        xi = self.smoothing * before + (1 - self.smoothing) * h
        nu = nu + unit * (self.rate * h + self.proportional * (xi - before))
        return np.stack([np.maximum(nu, 0), xi])


@dataclass(frozen=True)
class Augmented:
    """``y = [nu + c h]_+``, ``nu <- nu + rate (y - nu)``."""

    curvature: float = 1.0
    rate: float = 0.01

    def start(self, unit: float) -> Array:
        return np.zeros(1)

    def slope(self, memory: Array, h: Array, unit: float) -> Array:
        return np.maximum(memory[0] + self.curvature * unit * h, 0)

    def moved(self, memory: Array, h: Array, unit: float) -> Array:
        return memory + self.rate * (self.slope(memory, h, unit) - memory[0])


@dataclass
class Constrained:
    """SOX with plain descent on a problem whose parts are constraints of one row each."""

    problem: Problem
    kappa: list[float]
    rule: Rule
    w: Array
    gamma: float
    lr: float
    unit: float = 0.0
    rows: list[Array | None] = field(default_factory=list)
    memory: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = [None] * len(self.kappa)

    def excess(self, i: int, u: Array) -> Array:
        """h of every side."""
        s = u[0] - u[1] if len(u) == 2 else u[0]
        return np.array([s - self.kappa[i], -s - self.kappa[i]] if len(u) == 2 else [s - self.kappa[i]])

    def slopes(self, i: int, u: Array) -> Array:
        return self.rule.slope(self.memory[i], self.excess(i, u), self.unit)

    def values(self) -> Array:
        """All rows in a line, NaN where no batch has spoken of one."""
        widths = [part.term.width for part in self.problem.parts]
        return np.concatenate([np.full(k, np.nan) if u is None else u for k, u in zip(widths, self.rows, strict=True)])

    def multipliers(self) -> list[float]:
        """What multiplies grad h_i at the present rows; of two sides the difference; at h = 0 where there is no row."""
        found = []
        for i, (u, memory) in enumerate(zip(self.rows, self.memory, strict=True)):
            y = self.rule.slope(memory, np.zeros(memory.shape[1]), self.unit) if u is None else self.slopes(i, u)
            found.append(float(abs(y[0] - y[1:].sum())))
        return found

    def step(self, batch: Indices) -> int:
        """One update; returns of how many rows the batch spoke."""
        spoken, point = 0, self.problem.at(self.w)
        first = not self.memory
        if first:
            self.unit = abs(sum(direct.value(point, batch) for direct, _ in self.problem.direct))
            sides = [part.term.width for part in self.problem.parts]
            self.memory = [np.tile(self.rule.start(self.unit)[:, None], count) for count in sides]
        gradient = self.problem.direct_gradient(point, batch)
        for i, part in enumerate(self.problem.parts):
            inner = part.term.measure(point, batch)
            if not len(inner.rows):
                continue
            spoken += 1
            u, jacobian = inner.values[0], inner.jacobians[0]
            before = self.rows[i]
            before = u if before is None else before
            y = self.slopes(i, before)
            along = jacobian[0] if len(y) == 1 else jacobian[0] - jacobian[1]
            gradient = gradient + (not first) * (y[0] - y[1:].sum()) / part.presence[0] * along
            self.rows[i] = now = (1 - self.gamma) * before + self.gamma * u
            self.memory[i] = self.rule.moved(self.memory[i], self.excess(i, now), self.unit)
        self.w = self.w - self.lr * gradient
        return spoken


class LevelGap(RateGap):
    """The gap between the rates of two subsets at a level in (0, 1) among all scores of the batch.

    A score's level is linear between the batch's quantiles at 0, 1/(knots - 1), .., 1, which move with the scores.  The
    derivative by every score is a complex step, ``Im rate(s + i h e_j) / h``, which loses no digits.
    """

    def __init__(
        self, data: Data, first: Indices, second: Indices, outer: Outer, level: float, temperature: float, knots: int
    ) -> None:
        super().__init__(data, first, second, outer, level, temperature)
        self.knots = knots

    def measure(self, point: Point, batch: Indices) -> Inner:
        inside = [member[batch] for member in self.members]
        if not all(member.any() for member in inside):
            return super().measure(point, batch)
        scores = point.scores[batch]
        steps = 1e-30j * np.eye(len(batch))
        moved = np.array([self._rates(scores + step, inside) for step in steps])  # (B, 2)
        jacobian = moved.imag.T / 1e-30 @ point.jacobian[batch]
        return Inner(np.zeros(1, dtype=np.int64), self._rates(scores + 0j, inside).real[None], jacobian[None])

    def _rates(self, scores: Array, inside: list[Array]) -> Array:
        """Mean soft rates (2,) of the subsets, complex."""
        order = np.argsort(scores.real)
        at = np.linspace(0, len(scores) - 1, self.knots)
        low = np.minimum(at.astype(int), len(scores) - 2)
        ranked = scores[order]
        quantile = ranked[low] + (at - low) * (ranked[low + 1] - ranked[low])
        k = np.clip(np.searchsorted(quantile.real, scores.real, side="right") - 1, 0, self.knots - 2)
        level = (k + (scores - quantile[k]) / (quantile[k + 1] - quantile[k])) / (self.knots - 1)
        rate = 1 / (1 + np.exp(-(level - self.level) / self.temperature))
        return np.array([rate[member].mean() for member in inside])

"""The data of one case of an outer function, its reference with 60 digits, and brute-force minimisation.

A reference is written from the definition of the function; the package's arithmetic is compared with it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import torch
from mpmath import mp, mpf
from torch import Tensor

from fcco_lightning.outer import OuterFunction

mp.dps = 60
Row = list[mpf]
HALVINGS = 130  # a bracket of 1e12 down to 1e-27


@dataclass(frozen=True)
class Case:
    """An instance of an outer function, its declared properties, and the range of its rows."""

    outer: OuterFunction
    width: int = 1
    low: float = -3.0  # rows are drawn from [low, high]
    high: float = 3.0
    kinks: tuple[tuple[float, ...], ...] = ((0.0,),)  # points where a non-smooth f is not differentiable
    dual: tuple[float, float] = (-np.inf, np.inf)  # dom f* of a function of one variable
    convex: bool = True
    envelope: bool = True  # whether f has a closed form of its envelope
    given: "Reference | None" = None  # replaces the reference of the class

    @property
    def exact(self) -> "Reference":
        """The reference of the function."""
        return self.given or reference(self.outer)

    def rows(self, count: int, seed: int = 0) -> Tensor:
        """Random rows and the kinks."""
        generator = torch.Generator().manual_seed(seed)
        u = torch.rand(count, self.width, generator=generator, dtype=torch.float64)
        u = self.low + (self.high - self.low) * u
        return torch.cat([u, torch.tensor(self.kinks, dtype=torch.float64)])


def case_name(case: object) -> str | None:
    return f"{case.outer!r}-{case.width}" if isinstance(case, Case) else None


class Reference:
    """A function of a row; subclasses define its value, slope and proximal map.

    The gradient of the envelope is ``(u - prox) / lam``, which has no cancellation error in 60 digits.
    """

    def value(self, u: Row) -> mpf:
        raise NotImplementedError

    def subgradient(self, u: Row) -> Row:
        raise NotImplementedError

    def prox(self, u: Row, lam: mpf) -> Row:
        raise NotImplementedError

    def envelope_gradient(self, u: Row, lam: mpf) -> Row:
        return [(a - b) / lam for a, b in zip(u, self.prox(u, lam), strict=True)]

    def envelope(self, u: Row, lam: mpf) -> mpf:
        v = self.prox(u, lam)
        return self.value(v) + lam / 2 * sum(a**2 for a in self.envelope_gradient(u, lam))


class Separable(Reference):
    """A sum over the coordinates of a function of one variable."""

    def __init__(self, value, slope, prox=None, low=lambda u, lam: u, high=lambda u, lam: u) -> None:
        self.one_value, self.slope, self.one_prox, self.low, self.high = value, slope, prox, low, high

    def value(self, u: Row) -> mpf:
        return sum(map(self.one_value, u))

    def subgradient(self, u: Row) -> Row:
        return list(map(self.slope, u))

    def prox(self, u: Row, lam: mpf) -> Row:
        return [self.one_prox(a, lam) if self.one_prox else self.root(a, lam) for a in u]

    def envelope_gradient(self, u: Row, lam: mpf) -> Row:
        return super().envelope_gradient(u, lam) if self.one_prox else self.subgradient(self.prox(u, lam))

    @cache  # noqa: B019 - a reference lives as long as its test
    def root(self, u: mpf, lam: mpf) -> mpf:
        low, high = self.low(u, lam), self.high(u, lam)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if middle + lam * self.slope(middle) < u:
                low = middle
            else:
                high = middle
        return (low + high) / 2


def positive_part(x: mpf) -> mpf:
    return max(x, mpf(0))


REFERENCES: dict[type[OuterFunction], Callable[..., Reference]] = {}  # filled by the modules of the folder `cases`


def reference(outer: OuterFunction) -> Reference:
    """The reference of an outer function."""
    return REFERENCES[type(outer)](outer)


def minimum(objective: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Minimisers and minima (m,) of m functions with one valley each, given for points (m, c), over ever finer grids.

    Args:
        objective: value of every function at its points, (m, c) -> (m, c).
        low: where the grids begin, (m,).
        high: where they end, (m,).
    """
    steps = torch.linspace(0, 1, 101, dtype=torch.float64)
    for _ in range(8):  # each takes two cells of a hundred
        grid = low.unsqueeze(1) + (high - low).unsqueeze(1) * steps
        values, best = objective(grid).min(dim=1, keepdim=True)
        low, high = (grid.gather(1, (best + side).clamp(0, 100)).squeeze(1) for side in (-1, 1))
    return grid.gather(1, best).squeeze(1), values.squeeze(1)


def cloud(centres: Tensor, scales: tuple[float, ...] = (1e-5, 1e-3, 0.03, 0.3, 1.0, 4.0)) -> Tensor:
    """Points (m, c, k) around rows (m, k): random ones and, along every ridge of the functions above, {-1, 0, 1}^k."""
    k = centres.shape[1]
    generator = torch.Generator().manual_seed(1)
    random = torch.randn(60, k, generator=generator, dtype=torch.float64)
    ridges = torch.tensor([d for d in product((-1.0, 0.0, 1.0), repeat=k) if any(d)], dtype=torch.float64)
    return centres.unsqueeze(1) + torch.cat([s * torch.cat([random, ridges]) for s in scales])


def at_points(f: OuterFunction, points: Tensor) -> Tensor:
    """f at points (m, c, k): (m, c)."""
    return f(points.flatten(0, 1)).view(points.shape[:2])

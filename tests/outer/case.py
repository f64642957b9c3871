"""What a case of an outer function is, its reference in 60 digits, and brute-force minimisation.

The reference is written from the definition of the function; it is what the package's arithmetic is measured against.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import torch
from mpmath import mp, mpf
from scipy.optimize import minimize_scalar
from torch import Tensor

from fcco_lightning.outer import OuterFunction

mp.dps = 60
Row = list[mpf]
HALVINGS = 130  # a bracket of 1e12 down to 1e-27


def everywhere(u: Tensor, lam: float) -> Tensor:
    return torch.ones(len(u), dtype=torch.bool)


@dataclass(frozen=True)
class Case:
    """An instance of an outer function, what must hold of it, and where its rows live."""

    outer: OuterFunction
    width: int = 1
    low: float = -3.0  # rows are drawn from [low, high]
    high: float = 3.0
    kinks: tuple[tuple[float, ...], ...] = ((0.0,),)  # points where a non-smooth f is not differentiable
    dual: tuple[float, float] = (-np.inf, np.inf)  # dom f* of a function of one variable
    convex: bool = True
    prox: bool = True  # f has a closed form of it
    conjugate: bool = True  # if f is convex, the same
    proximal: Callable[[Tensor, float], Tensor] = everywhere  # mask of the rows that have a prox of this lam

    def rows(self, count: int, seed: int = 0) -> Tensor:
        """Random rows and the kinks."""
        generator = torch.Generator().manual_seed(seed)
        u = torch.rand(count, self.width, generator=generator, dtype=torch.float64)
        u = self.low + (self.high - self.low) * u
        return torch.cat([u, torch.tensor(self.kinks, dtype=torch.float64)])


def case_name(case: object) -> str | None:
    return f"{case.outer!r}-{case.width}" if isinstance(case, Case) else None


class Reference:
    """A function of a row; a subclass states value, slope and prox.

    The gradient of the envelope and the prox of the conjugate follow by ``(u - prox) / lam`` and Moreau's identity,
    which cost nothing in 60 digits.
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

    def conjugate_prox(self, y: Row, tau: mpf) -> Row:
        return self.envelope_gradient([a / tau for a in y], 1 / tau)


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


def minimum(objective: Callable[[Tensor], Tensor], low: float, high: float, count: int = 1001) -> tuple[float, float]:
    """Global minimiser and minimum of a function of one variable: dense grid, then scipy inside its best cell."""
    grid = torch.linspace(low, high, count, dtype=torch.float64)
    values = objective(grid.unsqueeze(1))
    best = int(values.argmin())
    a, b = grid[max(best - 1, 0)].item(), grid[min(best + 1, count - 1)].item()

    def scalar(v: float) -> float:
        return objective(torch.tensor([[v]], dtype=torch.float64)).item()

    polished = minimize_scalar(scalar, bounds=(a, b), method="bounded", options={"xatol": 1e-12})
    if polished.fun < values[best]:
        return polished.x, polished.fun
    return grid[best].item(), values[best].item()


def cloud(centre: Tensor, scales: tuple[float, ...] = (1e-5, 1e-3, 0.03, 0.3, 1.0, 4.0)) -> Tensor:
    """Points around one row (k,): random ones and, along every ridge of the functions above, {-1, 0, 1}^k."""
    k = centre.numel()
    generator = torch.Generator().manual_seed(1)
    random = torch.randn(60, k, generator=generator, dtype=torch.float64)
    ridges = torch.tensor([d for d in product((-1.0, 0.0, 1.0), repeat=k) if any(d)], dtype=torch.float64)
    directions = torch.cat([random, ridges])
    return torch.cat([centre + s * directions for s in scales])

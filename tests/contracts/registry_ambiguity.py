"""The registry of ambiguity sets: how each is made, its membership test, and a second form of its support function."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from fcco_lightning.ambiguity import (
    AmbiguitySet,
    CappedSimplex,
    ChiSquareBall,
    ChiSquarePenalty,
    EuclideanPenalty,
    KLBall,
    KLPenalty,
    Simplex,
    SpectralRisk,
)

Array = NDArray[np.float64]


class Member(NamedTuple):
    """An ambiguity set Q.

    Attributes:
        make: makes the set.
        excess: the violation of the set's constraint by weights q >= 0 of sum 1; at most 0 for q in Q.
        support: ``max_{q in Q} <q, g>`` for losses g of order one, by a dual in one variable.
    """

    make: Callable[[], AmbiguitySet]
    excess: Callable[[Array], float]
    support: Callable[[Array], float]


def least(f: Callable[[float], float], low: float, high: float) -> float:
    """Minimum of a convex function on an interval, by a grid search and then a bounded search."""
    grid = np.linspace(low, high, 41)
    k = int(np.argmin([f(t) for t in grid]))
    inside = (grid[max(k - 1, 0)], grid[min(k + 1, 40)])
    found = minimize_scalar(f, bounds=inside, method="bounded", options={"xatol": 1e-13})
    return min(float(found.fun), *(f(t) for t in inside))


def capped(alpha: float) -> Member:
    def support(g: Array) -> float:  # as a minimum over thresholds, which are losses
        return (
            float(min(t + np.mean(np.maximum(g - t, 0)) / alpha for t in g)) if alpha * len(g) > 1 else float(g.max())
        )

    return Member(lambda: CappedSimplex(alpha), lambda q: q.max() - min(1, 1 / (alpha * len(q))), support)


def chi_square(rho: float) -> Member:
    def support(g: Array) -> float:
        if rho == 0:
            return float(g.mean())
        far = (np.ptp(g) + 1e-9) * (2 + len(g))
        return least(lambda t: t + np.sqrt((1 + rho) * np.mean(np.maximum(g - t, 0) ** 2)), g.min() - far, g.max())

    return Member(lambda: ChiSquareBall(rho), lambda q: np.mean((len(q) * q - 1) ** 2) - rho, support)


def kl(rho: float) -> Member:
    def support(g: Array) -> float:
        top = g.max()

        def dual(log_lam: float) -> float:
            lam = np.exp(log_lam)
            return top + lam * (rho + np.log(np.mean(np.exp((g - top) / lam))))

        return least(dual, -30, 15)

    def excess(q: Array) -> float:
        return float(np.sum(q * np.log(np.maximum(len(q) * q, 1e-300))) - rho)

    return Member(lambda: KLBall(rho), excess, support)


def spectral(kind: str, r: float, sigma: Callable[[Array], Array]) -> Member:
    def weights(n: int) -> Array:
        return np.diff(sigma(np.arange(n + 1) / n))

    def excess(q: Array) -> float:  # q is majorised by sigma
        largest = np.sort(q)[::-1].cumsum() - np.sort(weights(len(q)))[::-1].cumsum()
        return float(largest.max())

    return Member(lambda: SpectralRisk(kind, r), excess, lambda g: float(np.sort(g) @ weights(len(g))))


MEMBERS = {
    "simplex": Member(Simplex, lambda q: 0.0, lambda g: float(g.max())),
    "capped simplex": capped(0.3),
    "capped simplex, mean": capped(1.0),
    "chi-square ball": chi_square(0.7),
    "chi-square ball, large": chi_square(4.0),
    "chi-square ball, mean": chi_square(0.0),
    "KL ball": kl(0.3),
    "KL ball, large": kl(1.6),
    "extremile": spectral("extremile", 2.5, lambda u: u**2.5),
    "ESRM": spectral("esrm", 3.0, lambda u: np.expm1(3 * u) / np.expm1(3)),
    "spectral CVaR": spectral("cvar", 0.45, lambda u: np.maximum(0, (u - 0.55) / 0.45)),
}
PENALTIES = {"chi-square": ChiSquarePenalty, "euclidean": EuclideanPenalty, "kl": KLPenalty}

"""Intervals of rates in NumPy: exact binomial ones by the beta distribution, of differences by Newcombe's rule."""

import numpy as np
from scipy.stats import beta

from .networks import Array, Indices


def clopper_pearson(q: Array, level: float = 0.95) -> tuple[float, float]:
    """For the mean p of values in [0, 1]; their number is ``p (1 - p) / Var p`` of q with one more 0 and one more 1."""
    p, n = q.mean(), len(q)
    n = max(n, p * (1 - p) / (np.var([*q, 0, 1]) / n))
    tail = (1 - level) / 2
    low = beta.ppf(tail, p * n, n - p * n + 1) if p > 0 else 0.0
    return float(low), float(beta.ppf(1 - tail, p * n + 1, n - p * n) if p < 1 else 1.0)


def newcombe(q: Array, group: Indices, level: float = 0.95) -> tuple[float, float]:
    """For the difference of the means of group 1 and group 0."""
    (one, other), (a, b) = (
        [clopper_pearson(q[group == g], level) for g in (1, 0)],
        [q[group == g].mean() for g in (1, 0)],
    )
    return float(a - b - np.hypot(a - one[0], other[1] - b)), float(a - b + np.hypot(one[1] - a, b - other[0]))


def noise_floor(q: Array, group: Indices) -> float:
    """1.96 standard deviations of the difference when the groups are shuffled, those of q being the same."""
    counts = np.bincount(group)
    return float(1.96 * q.std() * np.sqrt((1 / counts).sum()))

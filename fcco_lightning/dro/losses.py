"""Losses of linear models, as functions of the scores z = x w."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Loss(Protocol):
    """A convex loss per sample.

    Attributes:
        curvature: the largest second derivative in z; infinite where the loss has kinks.
    """

    curvature: ClassVar[float]

    def __call__(self, z: Array, y: Array) -> tuple[Array, Array]:
        """Losses (n,) and their slopes in z: z is (n,) or (n, k), the slopes are like it."""


@dataclass(frozen=True)
class Squared:
    """``(z - y)^2 / 2`` (half the square, as in the DRAGO paper)."""

    curvature: ClassVar[float] = 1.0

    def __call__(self, z: Array, y: Array) -> tuple[Array, Array]:
        slope = z - y
        return slope * slope / 2, slope


@dataclass(frozen=True)
class Logistic:
    """``log(1 + exp(-y z))`` for labels y of -1 and 1."""

    curvature: ClassVar[float] = 0.25

    def __call__(self, z: Array, y: Array) -> tuple[Array, Array]:
        against = -y * z
        small = np.exp(-np.abs(against))
        slope = -y * np.where(against >= 0, 1.0, small) / (1 + small)
        return np.maximum(against, 0) + np.log1p(small), slope


@dataclass(frozen=True)
class Multinomial:
    """``log sum_k exp(z_k) - z_y`` for scores (n, k) and y (n, k) with a one in the column of the class."""

    curvature: ClassVar[float] = 0.5

    def __call__(self, z: Array, y: Array) -> tuple[Array, Array]:
        ones = np.ones(z.shape[1])  # NumPy's own sums and maxima over a few columns are many times slower
        top = np.ascontiguousarray(z.T).max(axis=0)
        shares = np.exp(z - top[:, None])
        total = shares @ ones
        losses = np.log(total) + top - (z * y) @ ones
        return losses, shares / total[:, None] - y


@dataclass(frozen=True)
class Hinge:
    """``max(0, 1 - y z)`` for labels y of -1 and 1; the slope at the kink is 0."""

    curvature: ClassVar[float] = np.inf

    def __call__(self, z: Array, y: Array) -> tuple[Array, Array]:
        short = 1 - y * z
        return np.maximum(short, 0), np.where(short > 0, -y, 0.0)

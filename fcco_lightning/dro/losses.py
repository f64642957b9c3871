"""Losses of linear models, as functions of the scores z = x w."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlog1py, xlogy

Array = NDArray[np.float64]
_ROUNDING = 1e-12  # tolerance of the sum of probabilities


class Loss(Protocol):
    """A convex loss per sample.

    Attributes:
        curvature: the largest second derivative in z; infinite if the loss is not smooth.
    """

    curvature: ClassVar[float]

    def __call__(self, z: Array, y: Array) -> tuple[Array, Array]:
        """Losses (n,) and their derivatives in z (slopes), in the shape of z, (n,) or (n, k)."""


@runtime_checkable
class ConjugateLoss(Loss, Protocol):
    """A smooth loss phi with a known conjugate, which a lower bound for mu = 0 needs."""

    def conjugate(self, slopes: Array, y: Array) -> Array:
        """``phi*(s) = max_z <s, z> - phi(z)`` for slopes s, (n,); infinite if s is no slope of the loss."""

    def curvatures(self, slopes: Array, y: Array) -> Array:
        """Second derivatives in z as a function of the slopes: (n,), or (n, k, k) for slopes (n, k)."""


@dataclass(frozen=True)
class Squared:
    """``(z - y)^2 / 2`` (half the square, as in the DRAGO paper)."""

    curvature: ClassVar[float] = 1.0

    def __call__(self, z: Array, y: Array) -> tuple[Array, Array]:
        slope = z - y
        return slope * slope / 2, slope

    def conjugate(self, slopes: Array, y: Array) -> Array:
        """``s^2/2 + s y``."""
        return slopes * slopes / 2 + slopes * y

    def curvatures(self, slopes: Array, y: Array) -> Array:  # noqa: ARG002
        """1."""
        return np.ones_like(slopes)


@dataclass(frozen=True)
class Logistic:
    """``log(1 + exp(-y z))`` for labels y in {-1, 1}."""

    curvature: ClassVar[float] = 0.25

    def __call__(self, z: Array, y: Array) -> tuple[Array, Array]:
        negative_margin = -y * z
        small = np.exp(-np.abs(negative_margin))
        slope = -y * np.where(negative_margin >= 0, 1.0, small) / (1 + small)
        return np.maximum(negative_margin, 0) + np.log1p(small), slope

    def conjugate(self, slopes: Array, y: Array) -> Array:
        """``p log p + (1-p) log(1-p)`` for ``p = -s y`` in [0, 1], else infinite."""
        p = -slopes * y
        inside = (p >= 0) & (p <= 1)
        p = np.where(inside, p, 0.0)
        return np.asarray(np.where(inside, xlogy(p, p) + xlog1py(1 - p, -p), np.inf))

    def curvatures(self, slopes: Array, y: Array) -> Array:  # noqa: ARG002
        """``p (1 - p)`` for ``p = |s|``."""
        return np.abs(slopes) * (1.0 - np.abs(slopes))


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

    def conjugate(self, slopes: Array, y: Array) -> Array:
        """``sum_k p_k log p_k`` for probabilities ``p = s + y``, else infinite."""
        p = slopes + y
        inside = (p >= 0).all(axis=1) & (abs(p.sum(axis=1) - 1) <= _ROUNDING)
        return np.where(inside, xlogy(p, np.maximum(p, 0)).sum(axis=1), np.inf)

    def curvatures(self, slopes: Array, y: Array) -> Array:
        """``diag(p) - p p^T`` for ``p = s + y``."""
        p = slopes + y
        return np.asarray(p[:, :, None] * (np.eye(p.shape[1]) - p[:, None, :]))


@dataclass(frozen=True)
class Hinge:
    """``max(0, 1 - y z)`` for labels y in {-1, 1}; the slope at the kink is 0."""

    curvature: ClassVar[float] = np.inf

    def __call__(self, z: Array, y: Array) -> tuple[Array, Array]:
        short = 1 - y * z
        return np.maximum(short, 0), np.where(short > 0, -y, 0.0)

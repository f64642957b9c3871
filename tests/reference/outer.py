"""Outer functions f of the terms: values, gradients, their Moreau envelopes and the dual steps (NumPy, float64).

Arguments ``u`` are (rows, k).  ``value`` is (rows,), ``gradient`` (rows, k).  With ``lam > 0`` both are those of the
Moreau envelope ``f_lam(u) = min_v f(v) + |u - v|^2 / (2 lam)``; at a kink of f itself the subgradient is the smallest.
``dual_step(g, y, tau)`` is ``argmax_v <v, g> - f_lam^*(v) - tau/2 |v - y|^2`` with ``f_lam^* = f^* + lam/2 |.|^2``.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .networks import Array


class Outer(Protocol):
    """What the terms ask of an outer function."""

    def value(self, u: Array) -> Array: ...

    def gradient(self, u: Array) -> Array: ...

    def dual_step(self, g: Array, y: Array, tau: float) -> Array: ...


@dataclass(frozen=True)
class Hinge:
    """``f(u) = rho [u - kappa]_+``; CVaR is ``rho = 1/alpha``, ``kappa = 0`` at ``u = R_i - s``."""

    rho: float
    kappa: float = 0.0
    lam: float = 0.0

    def value(self, u: Array) -> Array:
        over = np.maximum(u[:, 0] - self.kappa, 0.0)
        if self.lam == 0.0:
            return self.rho * over
        linear = self.rho * over - self.lam * self.rho**2 / 2
        return np.where(over <= self.lam * self.rho, over**2 / (2 * self.lam), linear)

    def gradient(self, u: Array) -> Array:
        if self.lam == 0.0:
            return self.rho * (u > self.kappa)
        return np.clip((u - self.kappa) / self.lam, 0.0, self.rho)

    def dual_step(self, g: Array, y: Array, tau: float) -> Array:
        return np.clip((g - self.kappa + tau * y) / (self.lam + tau), 0.0, self.rho)


@dataclass(frozen=True)
class GapHinge:
    """``f(u_1, u_2) = rho [|u_1 - u_2| - kappa]_+`` with its envelope in the plane.

    The gradient is ``a (1, -1)``, ``a = sign(d) min(rho, [|d| - kappa]_+ / (2 lam))``, ``d = u_1 - u_2``; the conjugate
    is ``kappa |a|`` on the line ``y = (a, -a)``, ``|a| <= rho``, so the dual step solves a soft threshold in a.
    """

    rho: float
    kappa: float
    lam: float = 0.0

    def value(self, u: Array) -> Array:
        over = np.maximum(np.abs(u[:, 0] - u[:, 1]) - self.kappa, 0.0)
        if self.lam == 0.0:
            return self.rho * over
        linear = self.rho * over - self.lam * self.rho**2
        return np.where(over <= 2 * self.lam * self.rho, over**2 / (4 * self.lam), linear)

    def gradient(self, u: Array) -> Array:
        d = u[:, 0] - u[:, 1]
        over = np.abs(d) - self.kappa
        size = self.rho * (over > 0) if self.lam == 0.0 else np.clip(over / (2 * self.lam), 0.0, self.rho)
        a = np.sign(d) * size
        return np.stack([a, -a], axis=1)

    def dual_step(self, g: Array, y: Array, tau: float) -> Array:
        d = g[:, 0] - g[:, 1] + 2 * tau * (y[:, 0] - y[:, 1]) / 2
        soft = np.sign(d) * np.maximum(np.abs(d) - self.kappa, 0.0)
        a = np.clip(soft / (2 * (self.lam + tau)), -self.rho, self.rho)
        return np.stack([a, -a], axis=1)


@dataclass(frozen=True)
class Log:
    """``f(u) = tau sum_k log u_k``: concave, so there is no dual step."""

    temperature: float

    def value(self, u: Array) -> Array:
        return self.temperature * np.log(u).sum(axis=1)

    def gradient(self, u: Array) -> Array:
        return self.temperature / u

    def dual_step(self, g: Array, y: Array, tau: float) -> Array:
        raise NotImplementedError("Log is not convex")

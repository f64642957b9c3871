"""Outer functions of one variable made of pieces of degree one and two, summed over the k coordinates."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.checks import finite, positive
from fcco_lightning.outer.base import DUAL_ROUNDING, OuterFunction, infinite_outside


@dataclass(frozen=True)
class Square(OuterFunction):
    r"""``f(u) = c sum_j u_j^2`` (Bellman residual, ALEXR paper, App. B).

    Args:
        c: weight, > 0.
    """

    c: float = 1.0
    smooth = True
    above_zero = ("c",)

    def value(self, u: Tensor) -> Tensor:
        return self.c * u.square().sum(-1)

    def subgradient(self, u: Tensor) -> Tensor:
        return 2 * self.c * u

    def prox(self, u: Tensor, lam: float) -> Tensor:
        return u / (1 + 2 * lam * self.c)

    def conjugate(self, y: Tensor) -> Tensor:
        return y.square().sum(-1) / (4 * self.c)


@dataclass(frozen=True)
class _AboveKappa(OuterFunction):
    """A penalty of what exceeds a tolerance."""

    rho: float = 1.0
    kappa: float = 0.0
    monotone = True
    above_zero = ("rho",)

    def __post_init__(self) -> None:
        super().__post_init__()
        finite("kappa", self.kappa)


class Hinge(_AboveKappa):
    r"""``f(u) = rho sum_j [u_j - kappa]_+``: the exact penalty of ``u <= kappa`` (SONEX paper, eq. (8)).

    With ``rho = 1/r`` it is the CVaR outer function (ALEXR paper, F.1; SONEX paper, eq. (10)).  Its Moreau envelope is
    the smoothed hinge of eq. (9) of the SONEX paper.  The subgradient at the kink is 0.

    Args:
        rho: penalty weight, > 0; also the largest dual value.
        kappa: tolerance.
    """

    @property
    def lipschitz(self) -> float:
        """C_f = rho, per coordinate."""
        return self.rho

    def value(self, u: Tensor) -> Tensor:
        return self.rho * (u - self.kappa).clamp(min=0).sum(-1)

    def subgradient(self, u: Tensor) -> Tensor:
        return (u > self.kappa).to(u.dtype) * self.rho

    def prox(self, u: Tensor, lam: float) -> Tensor:
        z = u - self.kappa
        return u - torch.clamp(z, min=0.0, max=lam * self.rho)

    def envelope_gradient(self, u: Tensor, lam: float) -> Tensor:
        return ((u - self.kappa) / lam).clamp(min=0.0, max=self.rho)

    def average(self, u: Tensor, sigma: float) -> Tensor:
        r"""``rho sigma sum_j (z_j Phi(z_j) + phi(z_j))`` with ``z = (u - kappa) / sigma``, phi the normal density."""
        z = (u - self.kappa) / sigma
        density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
        return self.rho * sigma * (z * _below(z) + density).sum(-1)

    def average_gradient(self, u: Tensor, sigma: float) -> Tensor:
        return self.rho * _below((u - self.kappa) / sigma)

    def conjugate(self, y: Tensor) -> Tensor:
        return infinite_outside(self.kappa * y, (y >= 0) & (y <= self.rho * (1 + DUAL_ROUNDING))).sum(-1)

    def conjugate_prox(self, y: Tensor, tau: float) -> Tensor:
        return (y - tau * self.kappa).clamp(min=0.0, max=self.rho)


def _below(z: Tensor) -> Tensor:
    """Phi(z), the probability that a standard normal number is below z."""
    return torch.erfc(z * -math.sqrt(0.5)) / 2


def cvar(r: float) -> Hinge:
    r"""Outer function of the conditional value at risk, ``f(u) = (1/r) [u]_+`` with u = loss - threshold.

    Args:
        r: tail share, in (0, 1].
    """
    return Hinge(rho=1 / positive("r", r))


class SquaredHinge(_AboveKappa):
    r"""``f(u) = (rho/2) sum_j [u_j - kappa]_+^2``, so that ``f'(u) = rho [u - kappa]_+``.

    The penalty that SOX minimises in the baseline of section 6 of the SONEX paper; the papers do not print whether the
    factor 1/2 is there, this project has it.

    Args:
        rho: penalty weight, > 0.
        kappa: tolerance.
    """

    smooth = True

    def value(self, u: Tensor) -> Tensor:
        return self.rho / 2 * (u - self.kappa).clamp(min=0).square().sum(-1)

    def subgradient(self, u: Tensor) -> Tensor:
        return self.rho * (u - self.kappa).clamp(min=0)

    def prox(self, u: Tensor, lam: float) -> Tensor:
        z = (u - self.kappa).clamp(min=0)
        return u - z * (lam * self.rho / (1 + lam * self.rho))

    def envelope_gradient(self, u: Tensor, lam: float) -> Tensor:
        return self.rho / (1 + lam * self.rho) * (u - self.kappa).clamp(min=0)

    def conjugate(self, y: Tensor) -> Tensor:
        return infinite_outside(self.kappa * y + y.square() / (2 * self.rho), y >= 0).sum(-1)

"""Piecewise linear and quadratic outer functions of one variable, summed over the k coordinates."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fcco_lightning.checks import finite, positive
from fcco_lightning.outer.base import OuterFunction


@dataclass(frozen=True)
class Square(OuterFunction):
    r"""``f(u) = c sum_j u_j^2`` (Bellman residual, ALEXR paper, App. B).

    Args:
        c: weight, > 0.
    """

    c: float = 1.0
    convex = True
    smooth = True
    above_zero = ("c",)

    def __call__(self, u: Tensor) -> Tensor:
        return self.c * u.square().sum(-1)

    def smoothed(self, lam: float) -> "Square":
        return Square(self.c / (1 + 2 * positive("lam", lam) * self.c))


@dataclass(frozen=True)
class _AboveKappa(OuterFunction):
    """A penalty on the excess over a tolerance kappa."""

    rho: float = 1.0
    kappa: float = 0.0
    convex = True
    above_zero: ClassVar[tuple[str, ...]] = ("rho",)

    def __post_init__(self) -> None:
        super().__post_init__()
        finite("kappa", self.kappa)

    @property
    def lipschitz(self) -> float:
        """C_f = rho, per coordinate: the slope far above the tolerance, which is the largest."""
        return self.rho


class Hinge(_AboveKappa):
    r"""``f(u) = rho sum_j [u_j - kappa]_+``: the exact penalty of ``u <= kappa`` (SONEX paper, eq. (8)).

    With ``rho = 1/r`` it is the outer function of the conditional value at risk of tail share r, with u = loss -
    threshold (ALEXR paper, F.1; SONEX paper, eq. (10)).  The slope at the kink is 0.

    Args:
        rho: penalty weight, > 0; also the largest dual value.
        kappa: tolerance.
    """

    def __call__(self, u: Tensor) -> Tensor:
        return self.rho * (u - self.kappa).relu().sum(-1)

    def smoothed(self, lam: float) -> "SmoothedHinge":
        return SmoothedHinge(self.rho, self.kappa, lam)

    def averaged(self, sigma: float) -> "AveragedHinge":
        return AveragedHinge(self.rho, self.kappa, sigma)


@dataclass(frozen=True)
class SmoothedHinge(_AboveKappa):
    r"""The Moreau envelope of :class:`Hinge`: ``max over 0 <= y <= rho of sum_j y_j (u_j - kappa) - lam y_j^2 / 2``.

    It is the smoothed hinge of eq. (9) of the SONEX paper, quadratic from kappa to ``kappa + lam rho`` and linear with
    the slope rho above.

    Args:
        rho: penalty weight, > 0.
        kappa: tolerance.
        lam: smoothing, > 0.
    """

    lam: float = 1.0
    smooth = True
    above_zero = ("rho", "lam")

    def __call__(self, u: Tensor) -> Tensor:
        above = u - self.kappa
        y = (above.detach() / self.lam).clamp(0.0, self.rho)
        return (y * torch.sub(above, y, alpha=self.lam / 2)).sum(-1)

    def smoothed(self, lam: float) -> "SmoothedHinge":
        return SmoothedHinge(self.rho, self.kappa, self.lam + positive("lam", lam))


@dataclass(frozen=True)
class AveragedHinge(_AboveKappa):
    r"""``E rho sum_j [u_j + sigma z_j - kappa]_+``: :class:`Hinge` under Gaussian noise.

    In closed form ``rho sigma sum_j (x_j Phi(x_j) + phi(x_j))`` with ``x = (u - kappa) / sigma``, phi the density and
    Phi the distribution function of a standard normal number.

    Args:
        rho: penalty weight, > 0.
        kappa: tolerance.
        sigma: standard deviation of the noise, > 0, in units of u.
    """

    sigma: float = 1.0
    smooth = True
    above_zero = ("rho", "sigma")

    def __call__(self, u: Tensor) -> Tensor:
        x = (u - self.kappa) / self.sigma
        density = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
        below = torch.erfc(x * -math.sqrt(0.5)) / 2
        return self.rho * self.sigma * (x * below + density).sum(-1)


class SquaredHinge(_AboveKappa):
    r"""``f(u) = (rho/2) sum_j [u_j - kappa]_+^2``, so that ``f'(u) = rho [u - kappa]_+``.

    The penalty that SOX minimises in the baseline of section 6 of the SONEX paper.  The papers do not say whether there
    is a factor 1/2; here it is included.

    Args:
        rho: penalty weight, > 0.
        kappa: tolerance.
    """

    smooth = True
    lipschitz = math.inf

    def __call__(self, u: Tensor) -> Tensor:
        above = u - self.kappa
        over = above.detach().relu()  # cheaper to differentiate than a square
        return (self.rho * over * torch.sub(above, over, alpha=0.5)).sum(-1)

    def smoothed(self, lam: float) -> "SquaredHinge":
        return SquaredHinge(self.rho / (1 + positive("lam", lam) * self.rho), self.kappa)

"""Outer functions of one variable made of pieces of degree one and two, summed over the k coordinates."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.checks import finite, positive
from fcco_lightning.errors import ConfigError
from fcco_lightning.outer.base import DUAL_ROUNDING, OuterFunction, infinite_outside


@dataclass(frozen=True)
class Square(OuterFunction):
    r"""``f(u) = c sum_j u_j^2`` (Bellman residual, ALEXR paper, App. B).

    Args:
        c: weight, > 0.
    """

    c: float = 1.0
    smooth = True

    def __post_init__(self) -> None:
        positive("c", self.c)

    def value(self, u: Tensor) -> Tensor:
        return self.c * u.square().sum(-1)

    def subgradient(self, u: Tensor) -> Tensor:
        return 2 * self.c * u

    def prox(self, u: Tensor, lam: float) -> Tensor:
        return u / (1 + 2 * lam * self.c)

    def envelope_gradient(self, u: Tensor, lam: float) -> Tensor:
        return 2 * self.c * u / (1 + 2 * positive("lam", lam) * self.c)

    def conjugate(self, y: Tensor) -> Tensor:
        return y.square().sum(-1) / (4 * self.c)

    def conjugate_prox(self, y: Tensor, tau: float) -> Tensor:
        return y / (1 + positive("tau", tau) / (2 * self.c))


@dataclass(frozen=True)
class Hinge(OuterFunction):
    r"""``f(u) = rho sum_j [u_j - kappa]_+``: the exact penalty of ``u <= kappa`` (SONEX paper, eq. (8)).

    With ``rho = 1/r`` it is the CVaR outer function (ALEXR paper, F.1; SONEX paper, eq. (10)).  Its Moreau envelope is
    the smoothed hinge of eq. (9) of the SONEX paper.  The subgradient at the kink is 0.

    Args:
        rho: penalty weight, > 0; also the largest dual value.
        kappa: tolerance.
    """

    rho: float = 1.0
    kappa: float = 0.0
    monotone = True

    def __post_init__(self) -> None:
        positive("rho", self.rho)
        finite("kappa", self.kappa)

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
        return ((u - self.kappa) / positive("lam", lam)).clamp(min=0.0, max=self.rho)

    def conjugate(self, y: Tensor) -> Tensor:
        return infinite_outside(self.kappa * y, (y >= 0) & (y <= self.rho * (1 + DUAL_ROUNDING))).sum(-1)

    def conjugate_prox(self, y: Tensor, tau: float) -> Tensor:
        return (y - positive("tau", tau) * self.kappa).clamp(min=0.0, max=self.rho)


def cvar(r: float) -> Hinge:
    r"""Outer function of the conditional value at risk, ``f(u) = (1/r) [u]_+`` with u = loss - threshold.

    Args:
        r: tail share, in (0, 1].
    """
    return Hinge(rho=1 / positive("r", r))


@dataclass(frozen=True)
class SquaredHinge(OuterFunction):
    r"""``f(u) = (rho/2) sum_j [u_j - kappa]_+^2``, so that ``f'(u) = rho [u - kappa]_+``.

    The penalty that SOX minimises in the baseline of section 6 of the SONEX paper; the papers do not print whether the
    factor 1/2 is there, this project has it.

    Args:
        rho: penalty weight, > 0.
        kappa: tolerance.
    """

    rho: float = 1.0
    kappa: float = 0.0
    monotone = True
    smooth = True

    def __post_init__(self) -> None:
        positive("rho", self.rho)
        finite("kappa", self.kappa)

    def value(self, u: Tensor) -> Tensor:
        return self.rho / 2 * (u - self.kappa).clamp(min=0).square().sum(-1)

    def subgradient(self, u: Tensor) -> Tensor:
        return self.rho * (u - self.kappa).clamp(min=0)

    def prox(self, u: Tensor, lam: float) -> Tensor:
        z = (u - self.kappa).clamp(min=0)
        return u - z * (lam * self.rho / (1 + lam * self.rho))

    def envelope_gradient(self, u: Tensor, lam: float) -> Tensor:
        return self.rho / (1 + positive("lam", lam) * self.rho) * (u - self.kappa).clamp(min=0)

    def conjugate(self, y: Tensor) -> Tensor:
        return infinite_outside(self.kappa * y + y.square() / (2 * self.rho), y >= 0).sum(-1)

    def conjugate_prox(self, y: Tensor, tau: float) -> Tensor:
        return ((y - positive("tau", tau) * self.kappa) / (1 + tau / self.rho)).clamp(min=0)


@dataclass(frozen=True)
class AbsoluteDifference(OuterFunction):
    r"""``f(u) = phi(|u_1 - u_2|)`` for rows of width 2: penalises two rates that differ (SONEX paper, F.2).

    With ``phi = Hinge(rho, kappa)`` it is the fairness function ``rho [|u_1 - u_2| - kappa]_+``.  Convex because phi
    is convex and has slope 0 at 0, hence does not fall after it; not monotone.  With d = u_1 - u_2 all maps reduce to
    one variable: ``prox_{lam f}(u) = u + (e - d)/2 (1, -1)`` where ``e = prox_{2 lam phi(|.|)}(d)``.

    Args:
        phi: convex function of one variable with slope 0 at 0.
    """

    phi: OuterFunction

    def __post_init__(self) -> None:
        self.phi.require_convex("AbsoluteDifference")
        known = self.phi.parameters()
        rows = max((len(p) for p in known if p.dim()), default=1)
        zero = torch.zeros(rows, 1, device=known[0].device if known else None)
        slope = self.phi.subgradient(zero).abs().max().item()
        if slope != 0:
            raise ConfigError(
                f"AbsoluteDifference needs a convex phi with slope 0 at 0, {self.phi!r} has slope {slope:g} there. "
                "Use a hinge or a squared hinge with kappa >= 0."
            )

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        """As smooth as phi, whose slope is 0 at 0."""
        return self.phi.smooth

    @property
    def lipschitz(self) -> float:
        """C_f = sqrt(2) C_phi."""
        return 2**0.5 * self.phi.lipschitz

    def parameters(self) -> tuple[Tensor, ...]:
        return self.phi.parameters()

    def take(self, positions: Tensor) -> OuterFunction:
        phi = self.phi.take(positions)
        return self if phi is self.phi else AbsoluteDifference(phi)

    def value(self, u: Tensor) -> Tensor:
        return self.phi.value(self._difference(u).abs())

    def subgradient(self, u: Tensor) -> Tensor:
        d = self._difference(u)
        return _opposite(d.sign() * self.phi.subgradient(d.abs()))

    def prox(self, u: Tensor, lam: float) -> Tensor:
        d = self._difference(u)
        e = d.sign() * self.phi.prox(d.abs(), 2 * lam)
        return u + _opposite((e - d) / 2)

    def envelope(self, u: Tensor, lam: float) -> Tensor:
        return self.phi.envelope(self._difference(u).abs(), 2 * positive("lam", lam))

    def envelope_gradient(self, u: Tensor, lam: float) -> Tensor:
        d = self._difference(u)
        return _opposite(d.sign() * self.phi.envelope_gradient(d.abs(), 2 * positive("lam", lam)))

    def conjugate(self, y: Tensor) -> Tensor:
        on_line = (y[..., :1] == -y[..., 1:]).all(-1)
        return infinite_outside(self.phi.conjugate(y[..., :1].abs()), on_line)

    @staticmethod
    def _difference(u: Tensor) -> Tensor:
        return u[..., :1] - u[..., 1:]


def _opposite(a: Tensor) -> Tensor:
    return torch.cat([a, -a], dim=-1)

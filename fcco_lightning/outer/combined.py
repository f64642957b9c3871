"""Outer functions of several means that act through one number: a weighted sum, a distance, a difference of ratios."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.checks import finite, positive
from fcco_lightning.errors import ConfigError
from fcco_lightning.outer.base import DUAL_ROUNDING, Composed, OuterFunction, infinite_outside


class _OfSum(Composed):
    r"""``f(u) = psi(d)`` of a weighted sum ``d = <c, u>``; all maps are those of psi, along c.

    ``prox_{lam f}(u) = u + (e - d) c / |c|^2`` where ``e = prox_{|c|^2 lam psi}(d)``.

    Attributes:
        weights: c.
        psi: the function of one variable.
    """

    weights: tuple[float, ...]
    psi: OuterFunction

    @property
    def lipschitz(self) -> float:
        """C_f = |c| C_phi."""
        return math.sqrt(self._square) * self.phi.lipschitz

    def value(self, u: Tensor) -> Tensor:
        return self.psi.value(self._sum(u))

    def subgradient(self, u: Tensor) -> Tensor:
        return self._along(self.psi.subgradient(self._sum(u)))

    def prox(self, u: Tensor, lam: float) -> Tensor:
        d = self._sum(u)
        return u + self._along(self.psi.prox(d, self._square * lam) - d) / self._square

    def envelope(self, u: Tensor, lam: float) -> Tensor:
        return self.psi.envelope(self._sum(u), self._square * positive("lam", lam))

    def envelope_gradient(self, u: Tensor, lam: float) -> Tensor:
        return self._along(self.psi.envelope_gradient(self._sum(u), self._square * positive("lam", lam)))

    def conjugate(self, y: Tensor) -> Tensor:
        along = self._sum(y) / self._square
        on_line = torch.isclose(self._along(along), y, rtol=DUAL_ROUNDING, atol=DUAL_ROUNDING).all(-1)
        return infinite_outside(self.psi.conjugate(along), on_line)

    @property
    def _square(self) -> float:
        return sum(weight * weight for weight in self.weights)

    def _sum(self, u: Tensor) -> Tensor:
        if self.weights == (1.0, -1.0):
            return u[..., :1] - u[..., 1:]
        return sum(c * u[..., j : j + 1] for j, c in enumerate(self.weights[1:], 1)) + self.weights[0] * u[..., :1]

    def _along(self, a: Tensor) -> Tensor:
        return torch.cat([a if c == 1 else c * a for c in self.weights], dim=-1)


@dataclass(frozen=True)
class Linear(_OfSum):
    r"""``f(u) = phi(sum_j c_j u_j)`` for rows of width k: a loss of a weighted sum of means.

    Convex if phi is; monotone if phi is and no weight is negative; smooth if phi is.

    Args:
        phi: function of one variable.
        weights: c, k finite numbers that are not all 0.

    Raises:
        ConfigError: if the weights are not such numbers.
    """

    phi: OuterFunction
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        for weight in self.weights:
            finite("weights", weight)
        if not any(self.weights):
            raise ConfigError(f"weights must not all be 0, got {self.weights!r}: f would be constant.")

    @property
    def psi(self) -> OuterFunction:  # type: ignore[override]
        return self.phi

    @property
    def monotone(self) -> bool:  # type: ignore[override]
        return self.phi.monotone and min(self.weights) >= 0


@dataclass(frozen=True)
class AbsoluteDifference(_OfSum):
    r"""``f(u) = phi(|u_1 - u_2|)`` for rows of width 2: penalises two rates that differ (SONEX paper, F.2).

    With ``phi = Hinge(rho, kappa)`` it is the fairness function ``rho [|u_1 - u_2| - kappa]_+``.  Convex because phi
    is convex and has slope 0 at 0, hence does not fall after it; not monotone; as smooth as phi.  With d = u_1 - u_2
    all maps reduce to one variable: ``prox_{lam f}(u) = u + (e - d)/2 (1, -1)`` where
    ``e = prox_{2 lam phi(|.|)}(d)``.

    Args:
        phi: convex function of one variable with slope 0 at 0.

    Raises:
        ConfigError: if phi is not such a function.
    """

    phi: OuterFunction
    monotone = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", (1.0, -1.0))
        object.__setattr__(self, "psi", AbsoluteDistance(self.phi))


@dataclass(frozen=True)
class AbsoluteDistance(Composed):
    r"""``f(u) = phi(|u - centre|)`` for rows of width 1: penalises a mean that is not near a number.

    Convex because phi is convex and has slope 0 at 0, hence does not fall after it; not monotone; as smooth as phi.
    With d = u - centre, ``prox_{lam f}(u) = centre + sign(d) prox_{lam phi}(|d|)``.

    Args:
        phi: convex function of one variable with slope 0 at 0.
        centre: in units of u.

    Raises:
        ConfigError: if phi is not such a function, or the centre not a finite number.
    """

    phi: OuterFunction
    centre: float = 0.0
    monotone = False

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
        finite("centre", self.centre)

    def value(self, u: Tensor) -> Tensor:
        return self.phi.value(self._distance(u).abs())

    def subgradient(self, u: Tensor) -> Tensor:
        d = self._distance(u)
        return d.sign() * self.phi.subgradient(d.abs())

    def prox(self, u: Tensor, lam: float) -> Tensor:
        d = self._distance(u)
        return self.centre + d.sign() * self.phi.prox(d.abs(), lam)

    def envelope(self, u: Tensor, lam: float) -> Tensor:
        return self.phi.envelope(self._distance(u).abs(), positive("lam", lam))

    def envelope_gradient(self, u: Tensor, lam: float) -> Tensor:
        d = self._distance(u)
        return d.sign() * self.phi.envelope_gradient(d.abs(), positive("lam", lam))

    def conjugate(self, y: Tensor) -> Tensor:
        return self.phi.conjugate(y.abs()) + self.centre * y.sum(-1)

    def _distance(self, u: Tensor) -> Tensor:
        return u - self.centre if self.centre else u


@dataclass(frozen=True)
class RatioDifference(Composed):
    r"""``f(u) = phi(u_1 / u_2 - u_3 / u_4)`` for rows of width 4: a function of the difference of two ratios of means.

    With u = (mean of q y, mean of q) on two sides it compares precisions (predictive parity); ``AbsoluteDistance`` as
    phi penalises ratios that differ.  Denominators below ``floor`` count as ``floor``.  Neither convex nor monotone,
    and smooth only if phi is; its prox has no closed form, so algorithms that smooth need a smooth phi (a smoothed or
    squared hinge); SONX takes the subgradient of any.

    Args:
        phi: function of one variable.
        floor: smallest denominator, > 0.

    Raises:
        ConfigError: if the floor is not a number > 0.
    """

    phi: OuterFunction
    floor: float = 1e-6
    convex = False
    monotone = False
    lipschitz = math.inf
    above_zero = ("floor",)

    def value(self, u: Tensor) -> Tensor:
        return self.phi.value(ratio_difference(u, self.floor))

    def subgradient(self, u: Tensor) -> Tensor:
        slope, below = self.phi.subgradient(ratio_difference(u, self.floor)), u[..., 1::2].clamp(min=self.floor)
        of_denominators = -u[..., ::2] / below.square() * (u[..., 1::2] > self.floor)
        slopes = torch.stack([1 / below, of_denominators], dim=-1)  # (B, side, numerator and denominator)
        return slope * torch.cat([slopes[..., 0, :], -slopes[..., 1, :]], dim=-1)

    def prox(self, u: Tensor, lam: float) -> Tensor:  # noqa: ARG002
        """Refuse: see the class.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{self!r} has no closed-form prox, which smoothing needs. Use a smooth penalty "
            "(--model.penalty SquaredHingePenalty or SmoothedHingePenalty), or SONX."
        )


def ratio_difference(u: Tensor, floor: float = 1e-6) -> Tensor:
    """``u_1 / u_2 - u_3 / u_4`` of every row, denominators below ``floor`` counting as ``floor``: (B, 4) -> (B, 1)."""
    ratios = u[..., ::2] / u[..., 1::2].clamp(min=floor)
    return ratios[..., :1] - ratios[..., 1:]

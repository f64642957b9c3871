"""Outer functions of several means that act through one number: a weighted sum, a distance, a difference of ratios."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.checks import finite, positive
from fcco_lightning.errors import ConfigError
from fcco_lightning.outer.base import DUAL_ROUNDING, OuterFunction, infinite_outside
from fcco_lightning.outer.elementary import AbsoluteDifference


@dataclass(frozen=True)
class Linear(OuterFunction):
    r"""``f(u) = phi(sum_j c_j u_j)`` for rows of width k: a loss of a weighted sum of means.

    Convex if phi is; monotone if phi is and no weight is negative.  With d = <c, u> all maps reduce to one variable:
    ``prox_{lam f}(u) = u + (e - d) c / |c|^2`` where ``e = prox_{|c|^2 lam phi}(d)``.

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
    def convex(self) -> bool:  # type: ignore[override]
        """As phi."""
        return self.phi.convex

    @property
    def monotone(self) -> bool:  # type: ignore[override]
        """As phi, if no weight is negative."""
        return self.phi.monotone and min(self.weights) >= 0

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        """As phi."""
        return self.phi.smooth

    @property
    def lipschitz(self) -> float:
        """C_f = |c| C_phi."""
        return math.sqrt(self._square) * self.phi.lipschitz

    def parameters(self) -> tuple[Tensor, ...]:
        return self.phi.parameters()

    def take(self, positions: Tensor) -> OuterFunction:
        phi = self.phi.take(positions)
        return self if phi is self.phi else Linear(phi, self.weights)

    def value(self, u: Tensor) -> Tensor:
        return self.phi.value(self._sum(u))

    def subgradient(self, u: Tensor) -> Tensor:
        return self._along(self.phi.subgradient(self._sum(u)))

    def prox(self, u: Tensor, lam: float) -> Tensor:
        d = self._sum(u)
        return u + self._along(self.phi.prox(d, self._square * lam) - d) / self._square

    def envelope(self, u: Tensor, lam: float) -> Tensor:
        return self.phi.envelope(self._sum(u), self._square * positive("lam", lam))

    def envelope_gradient(self, u: Tensor, lam: float) -> Tensor:
        return self._along(self.phi.envelope_gradient(self._sum(u), self._square * positive("lam", lam)))

    def conjugate(self, y: Tensor) -> Tensor:
        along = self._sum(y) / self._square
        on_line = torch.isclose(self._along(along), y, rtol=DUAL_ROUNDING, atol=DUAL_ROUNDING).all(-1)
        return infinite_outside(self.phi.conjugate(along), on_line)

    @property
    def _square(self) -> float:
        return sum(weight * weight for weight in self.weights)

    def _sum(self, u: Tensor) -> Tensor:
        return sum(c * u[..., j : j + 1] for j, c in enumerate(self.weights[1:], 1)) + self.weights[0] * u[..., :1]

    def _along(self, a: Tensor) -> Tensor:
        return torch.cat([c * a for c in self.weights], dim=-1)


@dataclass(frozen=True)
class AbsoluteDistance(OuterFunction):
    r"""``f(u) = phi(|u - centre|)`` for rows of width 1: penalises a mean that is not near a number.

    Convex because phi is convex and has slope 0 at 0, hence does not fall after it; not monotone.  With d = u - centre,
    ``prox_{lam f}(u) = centre + sign(d) prox_{lam phi}(|d|)``.

    Args:
        phi: convex function of one variable with slope 0 at 0.
        centre: in units of u.

    Raises:
        ConfigError: if phi is not such a function, or the centre not a finite number.
    """

    phi: OuterFunction
    centre: float = 0.0

    def __post_init__(self) -> None:
        AbsoluteDifference(self.phi)  # has the same conditions on phi
        finite("centre", self.centre)

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        """As smooth as phi, whose slope is 0 at 0."""
        return self.phi.smooth

    @property
    def lipschitz(self) -> float:
        """C_f = C_phi."""
        return self.phi.lipschitz

    def parameters(self) -> tuple[Tensor, ...]:
        return self.phi.parameters()

    def take(self, positions: Tensor) -> OuterFunction:
        phi = self.phi.take(positions)
        return self if phi is self.phi else AbsoluteDistance(phi, self.centre)

    def value(self, u: Tensor) -> Tensor:
        return self.phi.value((u - self.centre).abs())

    def subgradient(self, u: Tensor) -> Tensor:
        d = u - self.centre
        return d.sign() * self.phi.subgradient(d.abs())

    def prox(self, u: Tensor, lam: float) -> Tensor:
        d = u - self.centre
        return self.centre + d.sign() * self.phi.prox(d.abs(), lam)

    def envelope(self, u: Tensor, lam: float) -> Tensor:
        return self.phi.envelope((u - self.centre).abs(), positive("lam", lam))

    def envelope_gradient(self, u: Tensor, lam: float) -> Tensor:
        d = u - self.centre
        return d.sign() * self.phi.envelope_gradient(d.abs(), positive("lam", lam))

    def conjugate(self, y: Tensor) -> Tensor:
        return self.phi.conjugate(y.abs()) + self.centre * y.sum(-1)


@dataclass(frozen=True)
class RatioDifference(OuterFunction):
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

    def __post_init__(self) -> None:
        positive("floor", self.floor)

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        """As smooth as phi, as the denominators are bounded away from 0."""
        return self.phi.smooth

    def parameters(self) -> tuple[Tensor, ...]:
        return self.phi.parameters()

    def take(self, positions: Tensor) -> OuterFunction:
        phi = self.phi.take(positions)
        return self if phi is self.phi else RatioDifference(phi, self.floor)

    def value(self, u: Tensor) -> Tensor:
        return self.phi.value(self.difference(u))

    def subgradient(self, u: Tensor) -> Tensor:
        outer, below = self.phi.subgradient(self.difference(u)), u[..., 1::2].clamp(min=self.floor)
        of_denominators = -u[..., ::2] / below.square() * (u[..., 1::2] > self.floor)
        slopes = torch.stack([1 / below, of_denominators], dim=-1)  # (B, side, numerator and denominator)
        return outer * torch.cat([slopes[..., 0, :], -slopes[..., 1, :]], dim=-1)

    def prox(self, u: Tensor, lam: float) -> Tensor:  # noqa: ARG002
        """Refuse: see the class.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{self!r} has no closed-form prox, which smoothing needs. Use a smooth penalty "
            "(--model.penalty SquaredHingePenalty or SmoothedHingePenalty), or SONX."
        )

    def difference(self, u: Tensor) -> Tensor:
        """See :func:`ratio_difference`."""
        return ratio_difference(u, self.floor)


def ratio_difference(u: Tensor, floor: float = 1e-6) -> Tensor:
    """``u_1 / u_2 - u_3 / u_4`` of every row, denominators below ``floor`` counting as ``floor``: (B, 4) -> (B, 1)."""
    ratios = u[..., ::2] / u[..., 1::2].clamp(min=floor)
    return ratios[..., :1] - ratios[..., 1:]

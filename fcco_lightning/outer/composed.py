"""Outer functions of an argument made of the inner values: moved, summed with weights, a distance, ratios."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fcco_lightning.checks import finite
from fcco_lightning.errors import ConfigError
from fcco_lightning.outer.base import DUAL_ROUNDING, Composed, OuterFunction, infinite_outside, known_at, sloped


class OfArgument(Composed):
    r"""``f(u) = psi(z(u))``: values and slopes are those of psi at z, carried back to u.

    For a z with ``dz/du (dz/du)^T = c`` times the identity, ``f_lam(u) = psi_{c lam}(z)`` and
    ``prox_{lam f}(u) = u + (dz/du)^T (prox_{c lam psi}(z) - z) / c``; and if z is affine, noise in u of deviation sigma
    is noise in z of deviation ``sqrt(c) sigma``.

    :meth:`value`, :meth:`envelope` and :meth:`average` have the slope in u, and in the known parameters of z, that
    :meth:`subgradient`, :meth:`envelope_gradient` and :meth:`average_gradient` return, also at a kink.  The maps that
    return rows are constants.
    """

    @property
    def square(self) -> float:
        """The number c."""
        return 1.0

    @abstractmethod
    def argument(self, u: Tensor) -> Tensor:
        """Z of every row, with graph: (B, k) -> (B, j)."""

    @abstractmethod
    def back(self, u: Tensor, slope: Tensor) -> Tensor:
        """``(dz/du)^T slope``, without graph: (B, j) -> (B, k)."""

    def value(self, u: Tensor) -> Tensor:
        return sloped(self.inside.value, self.inside.subgradient, self.argument(u))

    def subgradient(self, u: Tensor) -> Tensor:
        z = self.argument(u)
        return self.back(u, self.inside.subgradient(z.detach() if z.requires_grad else z))

    def prox(self, u: Tensor, lam: float) -> Tensor:
        z = self.argument(u).detach()
        return u + self.back(u, self.inside.prox(z, self.square * lam) - z) / self.square

    def envelope(self, u: Tensor, lam: float) -> Tensor:
        inner, psi = self.square * lam, self.inside
        return sloped(lambda z: psi.envelope(z, inner), lambda z: psi.envelope_gradient(z, inner), self.argument(u))

    def envelope_gradient(self, u: Tensor, lam: float) -> Tensor:
        inner, z = self.square * lam, self.argument(u)
        return self.back(u, self.inside.envelope_gradient(z.detach() if z.requires_grad else z, inner))

    def average(self, u: Tensor, sigma: float) -> Tensor:
        inner, psi = math.sqrt(self.square) * sigma, self.inside
        return sloped(lambda z: psi.average(z, inner), lambda z: psi.average_gradient(z, inner), self.argument(u))

    def average_gradient(self, u: Tensor, sigma: float) -> Tensor:
        z = self.argument(u).detach()
        return self.back(u, self.inside.average_gradient(z, math.sqrt(self.square) * sigma))


@dataclass(frozen=True)
class Linear(OfArgument):
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
    def monotone(self) -> bool:  # type: ignore[override]
        return self.phi.monotone and min(self.weights) >= 0

    @property
    def lipschitz(self) -> float:
        """C_f = |c| C_phi."""
        return math.sqrt(self.square) * self.phi.lipschitz

    @cached_property
    def square(self) -> float:
        return sum(weight * weight for weight in self.weights)

    def argument(self, u: Tensor) -> Tensor:
        if self.weights == (1.0, -1.0):
            return u[..., :1] - u[..., 1:]
        return sum(c * u[..., j : j + 1] for j, c in enumerate(self.weights[1:], 1)) + self.weights[0] * u[..., :1]

    def back(self, u: Tensor, slope: Tensor) -> Tensor:  # noqa: ARG002
        return torch.cat([slope if c == 1 else c * slope for c in self.weights], dim=-1)

    def conjugate(self, y: Tensor) -> Tensor:
        along = self.argument(y) / self.square
        on_line = torch.isclose(self.back(y, along), y, rtol=DUAL_ROUNDING, atol=DUAL_ROUNDING).all(-1)
        return infinite_outside(self.phi.conjugate(along), on_line)


@dataclass(frozen=True)
class AbsoluteDistance(OfArgument):
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

    def argument(self, u: Tensor) -> Tensor:
        return self._away(u).abs()

    def back(self, u: Tensor, slope: Tensor) -> Tensor:
        return self._away(u).sign() * slope

    def average(self, u: Tensor, sigma: float) -> Tensor:
        """``E phi(|d|) = E phi(d) + E phi(-d) - phi(0)``, because phi is constant below 0."""
        self._require_flat()
        d = self._away(u)
        return self.phi.average(d, sigma) + self.phi.average(-d, sigma) - self.phi.value(torch.zeros_like(d))

    def average_gradient(self, u: Tensor, sigma: float) -> Tensor:
        self._require_flat()
        d = self._away(u)
        return self.phi.average_gradient(d, sigma) - self.phi.average_gradient(-d, sigma)

    def conjugate(self, y: Tensor) -> Tensor:
        return self.phi.conjugate(y.abs()) + self.centre * y.sum(-1)

    def _away(self, u: Tensor) -> Tensor:
        return u - self.centre if self.centre else u

    def _require_flat(self) -> None:
        if not self.phi.monotone:  # convex, monotone and flat at 0 is constant below it
            raise ConfigError(
                f"{self!r} has no closed form of its average under Gaussian noise, as {self.phi!r} falls somewhere. "
                "Use MoreauSmoothing, or a hinge."
            )


class AbsoluteDifference(Linear):
    r"""``f(u) = phi(|u_1 - u_2|)`` for rows of width 2: penalises two rates that differ (SONEX paper, F.2).

    With ``phi = Hinge(rho, kappa)`` it is the fairness function ``rho [|u_1 - u_2| - kappa]_+``.  It is
    :class:`AbsoluteDistance` of the difference: ``prox_{lam f}(u) = u + (e - d)/2 (1, -1)`` with d = u_1 - u_2 and
    ``e = prox_{2 lam phi(|.|)}(d)``.

    Args:
        phi: convex function of one variable with slope 0 at 0.

    Raises:
        ConfigError: if phi is not such a function.
    """

    def __init__(self, phi: OuterFunction) -> None:
        super().__init__(AbsoluteDistance(phi), (1.0, -1.0))


@dataclass(frozen=True)
class RatioDifference(OfArgument):
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

    @property
    def square(self) -> float:
        """Refuse: see the class.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{self!r} has no closed-form prox, which smoothing needs. Use a smooth penalty "
            "(--model.penalty SquaredHingePenalty or SmoothedHingePenalty), or SONX."
        )

    def argument(self, u: Tensor) -> Tensor:
        ratios = u[..., ::2] / u[..., 1::2].clamp(min=self.floor)
        return ratios[..., :1] - ratios[..., 1:]

    def back(self, u: Tensor, slope: Tensor) -> Tensor:
        below = u[..., 1::2].clamp(min=self.floor)
        of_denominators = -u[..., ::2] / below.square() * (u[..., 1::2] > self.floor)
        slopes = torch.stack([1 / below, of_denominators], dim=-1)  # (B, side, numerator and denominator)
        return slope * torch.cat([slopes[..., 0, :], -slopes[..., 1, :]], dim=-1)


@dataclass(frozen=True, eq=False, repr=False)
class Shifted(OfArgument):
    r"""``f(u) = h((u - s) / c)`` for an outer function h, a known parameter s and a positive number c.

    What is sampled (a loss u) is remembered in the rows; what is known (the threshold s) is applied at its present
    value, here.  With ``h = cvar(r)`` it is the outer function of the conditional value at risk of threshold s, with
    ``h = ChiSquare(lam0)`` or ``KullbackLeibler(lam0)`` and ``c = lam0`` the dual of a divergence.  Convex, monotone
    and smooth as h.

    :meth:`value`, :meth:`envelope` and :meth:`conjugate` can be differentiated with respect to s, see
    :class:`OfArgument`; the maps that return rows are constants.

    Args:
        outer: the function h.
        shift: the parameter s, a scalar tensor or rows of shape (B, k), which may require a gradient; in units of u.
        scale: the number c, > 0, in units of u.

    Raises:
        ConfigError: if ``shift`` is not such a tensor or ``scale`` is not a positive number.
    """

    outer: OuterFunction
    shift: Tensor
    scale: float = 1.0
    above_zero = ("scale",)
    known_at_present = ("shift",)

    @property
    def inside(self) -> OuterFunction:
        return self.outer

    @property
    def lipschitz(self) -> float:
        """C_f = C_h / c."""
        return self.outer.lipschitz / self.scale

    def known(self, u: Tensor, y: Tensor) -> Tensor:
        return self.value(u) if self.outer.parameters() else (-y * self.shift).sum(-1)

    @property
    def square(self) -> float:
        return 1 / self.scale**2

    def argument(self, u: Tensor) -> Tensor:
        away = u - known_at(self.shift, u)
        return away if self.scale == 1 else away / self.scale

    def back(self, u: Tensor, slope: Tensor) -> Tensor:  # noqa: ARG002
        return slope if self.scale == 1 else slope / self.scale

    def conjugate(self, y: Tensor) -> Tensor:
        """``h*(c y) + <y, s>``."""
        return self.outer.conjugate(self.scale * y) + (y * known_at(self.shift, y)).sum(-1)

"""Outer functions of an argument made of the inner values: moved, summed with weights, a distance, ratios."""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fcco_lightning.checks import finite
from fcco_lightning.errors import ConfigError
from fcco_lightning.outer.base import Composed, OuterFunction, known_at, slopes


class OfArgument(Composed):
    r"""``f(u) = psi(z(u))``.

    Where ``dz/du (dz/du)^T = c`` times the identity, smoothing passes on to psi: ``f_lam(u) = psi_{c lam}(z(u))``; and
    if z is affine, noise in u of deviation sigma is noise in z of deviation ``sqrt(c) sigma``.
    """

    @property
    def square(self) -> float:
        """The number c."""
        return 1.0

    @abstractmethod
    def argument(self, u: Tensor) -> Tensor:
        """Z of every row, with graph: (B, k) -> (B, j)."""

    @abstractmethod
    def of(self, psi: OuterFunction) -> OuterFunction:
        """The same with another function of the argument."""

    def __call__(self, u: Tensor) -> Tensor:
        return self.inside(self.argument(u))

    def smoothed(self, lam: float) -> OuterFunction:
        return self.of(self.inside.smoothed(self.square * lam))

    def averaged(self, sigma: float) -> OuterFunction:
        return self.of(self.inside.averaged(math.sqrt(self.square) * sigma))


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
        (first, *others), (weight, *weights) = u.unbind(-1), self.weights
        total = first if weight == 1 else weight * first
        for other, c in zip(others, weights, strict=True):
            total = torch.add(total, other, alpha=c)
        return total.unsqueeze(-1)

    def of(self, psi: OuterFunction) -> OuterFunction:
        return Linear(psi, self.weights)

    def paired(self, y: Tensor, u: Tensor) -> Tensor:
        return self.phi.paired(self.argument(y) / self.square, self.argument(u))


@dataclass(frozen=True)
class AbsoluteDistance(OfArgument):
    r"""``f(u) = phi(|u - centre|)`` for rows of width 1: penalises a mean that is not near a number.

    Convex because phi is convex and has slope 0 at 0, hence does not fall after it; not monotone; as smooth as phi.

    Args:
        phi: convex function of one variable with slope 0 at 0.
        centre: in units of u.
        known: whether phi is known to be such a function, as a smoothed one of such is.

    Raises:
        ConfigError: if phi is not such a function, or the centre not a finite number.
    """

    phi: OuterFunction
    centre: float = 0.0
    known: bool = field(default=False, repr=False, compare=False)
    monotone = False

    def __post_init__(self) -> None:
        finite("centre", self.centre)
        if not self.known:
            _require_flat(self.phi)

    def argument(self, u: Tensor) -> Tensor:
        return (u - self.centre if self.centre else u).abs()

    def of(self, psi: OuterFunction) -> OuterFunction:
        return AbsoluteDistance(psi, self.centre, known=True)

    def paired(self, y: Tensor, u: Tensor) -> Tensor:
        return self.phi.paired(y.abs(), y.sign() * u)

    def averaged(self, sigma: float) -> OuterFunction:
        if not self.phi.monotone:  # a hinge that is flat at 0 is 0 below it
            raise ConfigError(
                f"{self!r} has no closed form of its average under Gaussian noise, as {self.phi!r} falls somewhere. "
                "Use MoreauSmoothing, or a hinge."
            )
        return _BothSides(self.phi.averaged(sigma), self.centre)


@dataclass(frozen=True)
class _BothSides(Composed):
    """``E phi(|d|) = E phi(d) + E phi(-d)`` of ``d = u - centre + noise``, as phi is 0 below 0.

    Args:
        phi: the average of phi under the noise.
        centre: in units of u.
    """

    phi: OuterFunction
    centre: float
    monotone = False

    def __call__(self, u: Tensor) -> Tensor:
        d = u - self.centre
        return self.phi(d) + self.phi(-d)


@dataclass(frozen=True)
class AbsoluteDifference(OfArgument):
    r"""``f(u) = phi(|u_1 - u_2|)`` for rows of width 2: penalises two rates that differ (SONEX paper, F.2).

    With ``phi = Hinge(rho, kappa)`` it is the fairness function ``rho [|u_1 - u_2| - kappa]_+``.  Its envelope is
    ``phi_{2 lam}(|u_1 - u_2|)``.

    Args:
        phi: convex function of one variable with slope 0 at 0.
        known: whether phi is known to be such a function, as a smoothed one of such is.

    Raises:
        ConfigError: if phi is not such a function.
    """

    phi: OuterFunction
    known: bool = field(default=False, repr=False, compare=False)
    monotone = False
    square = 2.0

    def __post_init__(self) -> None:
        if not self.known:
            _require_flat(self.phi)

    @property
    def lipschitz(self) -> float:
        """C_f = sqrt(2) C_phi."""
        return math.sqrt(2) * self.phi.lipschitz

    def argument(self, u: Tensor) -> Tensor:
        return torch.sub(*u.unbind(-1)).abs().unsqueeze(-1)

    def of(self, psi: OuterFunction) -> OuterFunction:
        return AbsoluteDifference(psi, known=True)

    def paired(self, y: Tensor, u: Tensor) -> Tensor:
        return AbsoluteDistance(self.phi, known=True).paired(y[..., :1], torch.sub(*u.unbind(-1)).unsqueeze(-1))

    def averaged(self, sigma: float) -> OuterFunction:
        return Linear(AbsoluteDistance(self.phi, known=True), (1.0, -1.0)).averaged(sigma)


def _require_flat(phi: OuterFunction) -> None:
    """Refuse a function of one variable that is not convex, or has another slope than 0 at 0."""
    phi.require_convex("AbsoluteDifference")
    known = phi.parameters()
    rows = max((len(p) for p in known if p.dim()), default=1)
    slope = slopes(phi, torch.zeros(rows, 1, device=known[0].device if known else None)).abs().max().item()
    if slope != 0:
        raise ConfigError(
            f"AbsoluteDifference needs a convex phi with slope 0 at 0, {phi!r} has slope {slope:g} there. "
            "Use a hinge or a squared hinge with kappa >= 0."
        )


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

    def argument(self, u: Tensor) -> Tensor:
        ratios = u[..., ::2] / u[..., 1::2].clamp(min=self.floor)
        return ratios[..., :1] - ratios[..., 1:]

    def of(self, psi: OuterFunction) -> OuterFunction:  # noqa: ARG002
        """Refuse: see the class.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{self!r} has no closed-form prox, which smoothing needs. Use a smooth penalty "
            "(--model.penalty SquaredHingePenalty or SmoothedHingePenalty), or SONX."
        )


@dataclass(frozen=True, eq=False, repr=False)
class Shifted(OfArgument):
    r"""``f(u) = h((u - s) / c)`` for an outer function h, a known parameter s and a positive number c.

    What is sampled (a loss u) is remembered in the rows; what is known (the threshold s) is applied at its present
    value, here.  With ``h = cvar(r)`` it is the outer function of the conditional value at risk of threshold s, with
    ``h = ChiSquare(lam0)`` or ``KullbackLeibler(lam0)`` and ``c = lam0`` the dual of a divergence.  Convex, monotone
    and smooth as h.

    It can be differentiated with respect to s.

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

    @property
    def square(self) -> float:
        return 1 / self.scale**2

    def argument(self, u: Tensor) -> Tensor:
        away = u - known_at(self.shift, u)
        return away if self.scale == 1 else away / self.scale

    def of(self, psi: OuterFunction) -> OuterFunction:
        return Shifted(psi, self.shift, self.scale)

    def paired(self, y: Tensor, u: Tensor) -> Tensor:
        return self.outer.paired(self.scale * y, self.argument(u))

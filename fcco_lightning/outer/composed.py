"""Outer functions ``phi(z(u))`` where z is a weighted sum, an absolute value, a shift, or ratios of inner values.

If ``dz/du (dz/du)^T = c`` times the identity, smoothing passes on to phi: ``f_lam(u) = phi_{c lam}(z(u))``; and if z
is affine, noise in u of standard deviation sigma is noise in z of standard deviation ``sqrt(c) sigma``.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fcco_lightning.errors import ConfigError
from fcco_lightning.outer.base import Composed, OuterFunction, known_at, slopes
from fcco_lightning.outer.elementary import Hinge


def require_weights(weights: tuple[float, ...]) -> None:
    """Refuse the weights of a sum that are not finite, or all 0.

    Raises:
        ConfigError: naming them.
    """
    if not any(weights) or not all(map(math.isfinite, weights)):
        raise ConfigError(f"weights must be finite numbers that are not all 0, got {weights!r}.")


@dataclass(frozen=True)
class Linear(Composed):
    r"""``f(u) = phi(sum_j c_j u_j)`` for rows of width k: a loss of a weighted sum of means.

    Convex if phi is, and smooth if phi is.

    Args:
        phi: function of one variable.
        weights: c, k finite numbers that are not all 0.

    Raises:
        ConfigError: if the weights are not such numbers.
    """

    phi: OuterFunction
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        require_weights(self.weights)

    @property
    def lipschitz(self) -> float:
        """C_f = |c| C_phi."""
        return math.sqrt(self._square) * self.phi.lipschitz

    @cached_property
    def _square(self) -> float:
        return sum(weight * weight for weight in self.weights)

    def _sum(self, u: Tensor) -> Tensor:
        (first, *others), (weight, *weights) = u.unbind(-1), self.weights
        total = first if weight == 1 else weight * first
        for other, c in zip(others, weights, strict=True):
            total = torch.add(total, other, alpha=c)
        return total.unsqueeze(-1)

    def __call__(self, u: Tensor) -> Tensor:
        return self.phi(self._sum(u))

    def smoothed(self, lam: float) -> OuterFunction:
        return Linear(self.phi.smoothed(self._square * lam), self.weights)

    def averaged(self, sigma: float) -> OuterFunction:
        return Linear(self.phi.averaged(math.sqrt(self._square) * sigma), self.weights)

    def paired(self, y: Tensor, u: Tensor) -> Tensor:
        return self.phi.paired(self._sum(y) / self._square, self._sum(u))


@dataclass(frozen=True)
class Absolute(Composed):
    r"""``f(u) = phi(|u|)`` for rows of width 1: penalises numbers of either sign.

    ``Linear(Absolute(Hinge(rho, kappa)), (1, -1))`` is the fairness function ``rho [|u_1 - u_2| - kappa]_+`` of two
    rates (SONEX paper, F.2), whose envelope is ``phi_{2 lam}(|u_1 - u_2|)``.  Convex, because phi is convex with slope
    0 at 0 and thus increasing for positive arguments; as smooth as phi.

    Args:
        phi: convex function of one variable with slope 0 at 0.
        known: whether phi is known to be such a function, as after smoothing one.

    Raises:
        ConfigError: if phi is not such a function.
    """

    phi: OuterFunction
    known: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.known:
            _require_flat(self.phi)

    def __call__(self, u: Tensor) -> Tensor:
        return self.phi(u.abs())

    def smoothed(self, lam: float) -> OuterFunction:
        return Absolute(self.phi.smoothed(lam), known=True)

    def averaged(self, sigma: float) -> OuterFunction:
        hinge = self.phi
        while isinstance(hinge, Shifted) or (isinstance(hinge, Linear) and min(hinge.weights) >= 0):
            hinge = hinge.phi
        if not isinstance(hinge, Hinge):  # a hinge with slope 0 at 0 is 0 below 0
            raise ConfigError(
                f"{self!r} has no closed form of its average under Gaussian noise, as {self.phi!r} is no hinge. "
                "Use MoreauSmoothing, or a hinge."
            )
        return _BothSides(self.phi.averaged(sigma))

    def paired(self, y: Tensor, u: Tensor) -> Tensor:
        return self.phi.paired(y.abs(), y.sign() * u)


def _require_flat(phi: OuterFunction) -> None:
    """Refuse a function of one variable that is not convex, or whose slope at 0 is not 0."""
    phi.require_convex("Absolute")
    known = phi.parameters()
    rows = max((len(p) for p in known if p.dim()), default=1)
    slope = slopes(phi, torch.zeros(rows, 1, device=known[0].device if known else None)).abs().max().item()
    if slope != 0:
        raise ConfigError(
            f"Absolute needs a convex phi with slope 0 at 0, {phi!r} has slope {slope:g} there. "
            "Use a hinge or a squared hinge with kappa >= 0."
        )


@dataclass(frozen=True)
class _BothSides(Composed):
    """``E phi(|u + noise|) = E phi(u + noise) + E phi(-u + noise)``, as phi is 0 below 0.

    Args:
        phi: the average of phi under the noise.
    """

    phi: OuterFunction

    def __call__(self, u: Tensor) -> Tensor:
        return self.phi(u) + self.phi(-u)


@dataclass(frozen=True)
class RatioDifference(Composed):
    r"""``f(u) = phi(u_1 / u_2 - u_3 / u_4)`` for rows of width 4: a function of the difference of two ratios of means.

    With u = (mean of q y, mean of q) on two sides, q being the decisions and y the labels, it compares precisions
    (predictive parity); ``Absolute`` as phi penalises differences of the ratios.  Denominators below ``floor`` are
    replaced by ``floor``.  Neither convex nor monotone, and smooth only if phi is; its prox has no closed form, so
    algorithms that smooth need a smooth phi (a smoothed or squared hinge); SONX takes a subgradient for any phi.

    Args:
        phi: function of one variable.
        floor: smallest denominator, > 0.

    Raises:
        ConfigError: if the floor is not a number > 0.
    """

    phi: OuterFunction
    floor: float = 1e-6
    convex = False
    lipschitz = math.inf
    above_zero = ("floor",)

    def __call__(self, u: Tensor) -> Tensor:
        ratios = u[..., ::2] / u[..., 1::2].clamp(min=self.floor)
        return self.phi(ratios[..., :1] - ratios[..., 1:])

    def smoothed(self, lam: float) -> OuterFunction:  # noqa: ARG002
        """Refuse: see the class.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"{self!r} has no closed-form prox, which smoothing needs. Use a smooth penalty "
            "(--model.penalty SquaredHingePenalty or SmoothedHingePenalty), or SONX."
        )

    def averaged(self, sigma: float) -> OuterFunction:
        """Refuse, as :meth:`smoothed`."""
        return self.smoothed(sigma)


@dataclass(frozen=True, eq=False, repr=False)
class Shifted(Composed):
    r"""``f(u) = phi((u - s) / c)`` for an outer function phi, a parameter s and a positive number c.

    Rows remember sampled values (a loss u) only, while the threshold s is applied at its present value: a trained
    parameter is referenced, not copied, so that one such function serves for all steps.  With ``phi = Hinge(1/r)`` it
    is the outer function of the conditional value at risk of threshold s, with ``phi = ChiSquare(lam0)`` or
    ``KullbackLeibler(lam0)`` and ``c = lam0`` the dual of a divergence.  Convex and smooth as phi.

    It can be differentiated with respect to s.

    Args:
        phi: an outer function.
        shift: the parameter s, a scalar tensor or rows of shape (B, k), which may require a gradient; in units of u.
        scale: the number c, > 0, in units of u.

    Raises:
        ConfigError: if ``shift`` is not such a tensor or ``scale`` is not a positive number.
    """

    phi: OuterFunction
    shift: Tensor
    scale: float = 1.0
    above_zero = ("scale",)
    known_at_present = ("shift",)

    @property
    def lipschitz(self) -> float:
        """C_f = C_phi / c."""
        return self.phi.lipschitz / self.scale

    def _away(self, u: Tensor) -> Tensor:
        away = u - known_at(self.shift, u)
        return away if self.scale == 1 else away / self.scale

    def __call__(self, u: Tensor) -> Tensor:
        return self.phi(self._away(u))

    def smoothed(self, lam: float) -> OuterFunction:
        return Shifted(self.phi.smoothed(lam / self.scale**2), self.shift, self.scale)

    def averaged(self, sigma: float) -> OuterFunction:
        return Shifted(self.phi.averaged(sigma / self.scale), self.shift, self.scale)

    def paired(self, y: Tensor, u: Tensor) -> Tensor:
        return self.phi.paired(self.scale * y, self._away(u))

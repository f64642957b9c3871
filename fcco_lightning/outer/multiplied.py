"""The outer function of a constraint with a multiplier: plain or augmented Lagrangian, with or without a cap."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.checks import finite, non_negative
from fcco_lightning.errors import ConfigError
from fcco_lightning.outer.base import OuterFunction, known_at


@dataclass(frozen=True, eq=False, repr=False)
class Multiplied(OuterFunction):
    r"""``f(t) = max over 0 <= y <= rho of y x - (y - nu)^2 / (2 c)`` of the excess ``x = t - kappa`` of a constraint.

    Its slope is the multiplier ``y = clamp(nu + c x, 0, rho)``.  At c = 0 it is the Lagrangian's ``nu x``; with c > 0
    and without a cap rho it is the augmented Lagrangian ``([nu + c x]_+^2 - nu^2) / (2 c)``; with nu = 0 and a cap it
    is the Moreau envelope of the exact penalty ``rho [x]_+`` for lam = 1/c.

    Two columns of nu are for ``|t| <= kappa``, which is two constraints: f is the sum of two such functions, of ``x_1 =
    t - kappa`` and of ``x_2 = -t - kappa``.  It has no kink at t = 0, so that noise around t = 0 averages out.

    Args:
        multiplier: nu, shape (b, s) with one value per row and side, or (1, s) for all rows; s is 1 or 2; in units of f
            per unit of t.
        kappa: tolerance, in units of t; a number, a scalar tensor, or a tensor of shape (b, 1).
        curvature: c, >= 0, a number or as ``multiplier``.
        cap: rho, as ``multiplier``; None for no cap.

    Raises:
        ConfigError: if an argument is out of range.
    """

    multiplier: Tensor
    kappa: Tensor | float = 0.0
    curvature: Tensor | float = 0.0
    cap: Tensor | None = None
    convex = True
    smooth = True

    def __post_init__(self) -> None:
        if not isinstance(self.kappa, Tensor):
            finite("kappa", self.kappa)
        if not isinstance(self.curvature, Tensor):
            non_negative("curvature", self.curvature)
        if self.multiplier.dim() != 2 or self.multiplier.shape[1] not in (1, 2):
            raise ConfigError(
                f"multiplier must have shape (b, 1) or (b, 2), got {tuple(self.multiplier.shape)}: one column for "
                "t <= kappa, two for |t| <= kappa."
            )

    def __call__(self, u: Tensor) -> Tensor:
        x = self._excess(u)
        nu = known_at(self.multiplier, u)
        c = self._curvature(u)
        y = self._bounded(nu + c * x.detach())
        tiny = torch.finfo(u.dtype).tiny  # at c = 0 y = nu, so the quotient is 0
        return (y * x - (y - nu).square() / (2 * c).clamp(min=tiny)).sum(-1)

    def pressure(self, u: Tensor) -> Tensor:
        """The multipliers ``y = clamp(nu + c x, 0, rho)`` of all sides, the weights of gradients: (b, 1) -> (b, s).

        Args:
            u: t, shape (b, 1).
        """
        return self._bounded(known_at(self.multiplier, u) + self._curvature(u) * self._excess(u))

    def _bounded(self, y: Tensor) -> Tensor:
        """The multipliers clamped to [0, rho]."""
        y = y.clamp(min=0)
        return y if self.cap is None else torch.minimum(y, known_at(self.cap, y))

    def _curvature(self, u: Tensor) -> Tensor:
        c = self.curvature
        return known_at(c, u) if isinstance(c, Tensor) else u.new_full((), c)

    def _excess(self, u: Tensor) -> Tensor:
        return excess(u, self.kappa, self.multiplier.shape[1])


def excess(t: Tensor, kappa: Tensor | float, sides: int) -> Tensor:
    """``t - kappa``, and for two sides also ``-t - kappa``; a constraint requires both <= 0: (b, 1) -> (b, sides)."""
    kappa = known_at(kappa, t) if isinstance(kappa, Tensor) else kappa
    return t - kappa if sides == 1 else torch.cat([t - kappa, -t - kappa], dim=-1)

"""An outer function moved by a known parameter: the threshold of CVaR, the c of a divergence's dual."""

from dataclasses import dataclass

from torch import Tensor

from fcco_lightning.checks import positive
from fcco_lightning.outer.base import Composed, OuterFunction, known_at, require_known, with_slope


@dataclass(frozen=True, eq=False, repr=False)
class Shifted(Composed):
    r"""``f(u) = h((u - s) / c)`` for an outer function h, a known parameter s and a positive number c.

    What is sampled (a loss u) is remembered in the rows; what is known (the threshold s) is applied at its present
    value, here.  With ``h = cvar(r)`` it is the outer function of the conditional value at risk of threshold s, with
    ``h = ChiSquare(lam0)`` or ``KullbackLeibler(lam0)`` and ``c = lam0`` the dual of a divergence.  Convex, monotone
    and smooth as h.

    :meth:`value`, :meth:`envelope` and :meth:`conjugate` can be differentiated with respect to s, and the slope that
    they have in s is the one that :meth:`subgradient` (:meth:`envelope_gradient`) returns, also at a kink.  The maps
    that return rows are constants: they carry no graph to s.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("shift", self.shift)

    def __repr__(self) -> str:
        return f"Shifted({self.outer!r}, shift of shape {tuple(self.shift.shape)}, scale={self.scale!r})"

    @property
    def inside(self) -> OuterFunction:
        return self.outer

    @property
    def lipschitz(self) -> float:
        """C_f = C_h / c."""
        return self.outer.lipschitz / self.scale

    def parameters(self) -> tuple[Tensor, ...]:
        return (self.shift, *self.outer.parameters())

    def known(self, u: Tensor, y: Tensor) -> Tensor:
        return self.value(u) if self.outer.parameters() else -(y * self.shift).sum(-1)

    def value(self, u: Tensor) -> Tensor:
        z = self._argument(u)
        return with_slope(self.outer.value(z.detach()), self.outer.subgradient(z.detach()), z)

    def subgradient(self, u: Tensor) -> Tensor:
        return self.outer.subgradient(self._argument(u).detach()) / self.scale

    def prox(self, u: Tensor, lam: float) -> Tensor:
        r"""``s + c prox_{lam h / c^2}((u - s) / c)``."""
        moved = self.outer.prox(self._argument(u).detach(), lam / self.scale**2)
        return known_at(self.shift, u).detach() + self.scale * moved

    def envelope(self, u: Tensor, lam: float) -> Tensor:
        z, inner = self._argument(u), positive("lam", lam) / self.scale**2
        slope = self.outer.envelope_gradient(z.detach(), inner)
        return with_slope(self.outer.envelope(z.detach(), inner), slope, z)

    def envelope_gradient(self, u: Tensor, lam: float) -> Tensor:
        inner = positive("lam", lam) / self.scale**2
        return self.outer.envelope_gradient(self._argument(u).detach(), inner) / self.scale

    def conjugate(self, y: Tensor) -> Tensor:
        """``h*(c y) + <y, s>``."""
        return self.outer.conjugate(self.scale * y) + (y * known_at(self.shift, y)).sum(-1)

    def _argument(self, u: Tensor) -> Tensor:
        return (u - known_at(self.shift, u)) / self.scale

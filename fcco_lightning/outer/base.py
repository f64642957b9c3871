"""The interface of outer functions f, which are formulas that autograd differentiates."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.checks import positive
from fcco_lightning.errors import ConfigError
from fcco_lightning.numerics import widest


class Range(NamedTuple):
    """An interval that is known to contain every coordinate of a row; None where it has no bound."""

    least: float | None = None
    most: float | None = None

    def project(self, rows: Tensor) -> Tensor:
        """The nearest rows in the interval."""
        if self.least is None and self.most is None:
            return rows
        return rows.clamp(min=self.least, max=self.most)


class OuterFunction(ABC):
    r"""An outer function f: R^k -> R, applied to every row of a (B, k) tensor.

    A subclass writes the formula, and autograd computes the gradient, also at a kink: ``relu`` and ``abs`` have the
    slope 0 there.  A minimum or maximum inside f is evaluated at its detached optimum, which gives the correct gradient
    by Danskin's theorem.  Rows are inner values u, in the unit of the inner function, and in float64, since differences
    such as ``u - kappa`` lose digits in float32.

    A subclass also states the properties of f that hold, so that an algorithm can refuse an f without the properties it
    needs; the default is False.

    Attributes:
        convex: f is convex, as dual steps need.
        smooth: f has a Lipschitz gradient where it is used, so it needs no smoothing.
        coupled: f acts on all n rows together, so only primal-dual methods
            (:class:`~fcco_lightning.algorithms.MaxForm`) can use it.
        above_zero: names of the arguments that must be finite numbers > 0.
        known_at_present: names of the arguments that are parameters of f, tensors used at their present value.
    """

    convex: ClassVar[bool] = False
    smooth: ClassVar[bool] = False
    coupled: ClassVar[bool] = False
    above_zero: ClassVar[tuple[str, ...]] = ()
    known_at_present: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in self.above_zero:
            positive(name, getattr(self, name))
        for name in self.known_at_present:
            require_known(name, getattr(self, name))

    def __repr__(self) -> str:
        shown = [
            f"{name} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{name}={value!r}"
            for name, value in vars(self).items()
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def lipschitz(self) -> float:
        """C_f, the Lipschitz constant of f (per coordinate, if f is a sum over coordinates); ``inf`` without one."""
        return float("inf")

    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters of f, with respect to which it can be differentiated, too; most functions have none."""
        return tuple(getattr(self, name) for name in self.known_at_present)

    @abstractmethod
    def __call__(self, u: Tensor) -> Tensor:
        """f(u) for every row, with graph: (B, k) -> (B,)."""

    def smoothed(self, lam: float) -> "OuterFunction":
        r"""The Moreau envelope ``f_lam(u) = min_v f(v) + |v - u|^2 / (2 lam)``.

        Its slope is ``(u - prox_{lam f}(u)) / lam`` (SONEX paper, eq. (2)).  By Moreau's identity the proximal step of
        a dual variable, ``argmin_y f*(y) + tau/2 |y - v/tau|^2``, is the slope of ``f_tau`` at v.

        Args:
            lam: smoothing, > 0, in squared units of u per unit of f.

        Raises:
            ConfigError: if f has no closed form of it.
        """
        return MoreauEnvelope(self, lam)

    def averaged(self, sigma: float) -> "OuterFunction":  # noqa: ARG002 - overridden where f has one
        r"""The average ``E f(u + sigma z)`` over a vector z of independent standard normal numbers.

        Args:
            sigma: standard deviation of the noise, > 0, in units of u.

        Raises:
            ConfigError: if f has no closed form of it.
        """
        raise ConfigError(
            f"{self!r} has no closed form of its average under Gaussian noise. Use MoreauSmoothing for it, or "
            "NoSmoothing where it is smooth."
        )

    def prox(self, u: Tensor, lam: float) -> tuple[Tensor, Tensor]:  # noqa: ARG002 - overridden where f has one
        r"""``v = argmin_v f(v) + |v - u|^2 / (2 lam)`` for every row, and ``(u - v) / lam``, without graph.

        :class:`MoreauEnvelope` needs it; a function that passes its smoothing on to another function does not.  ``(u -
        v) / lam`` is best computed as the gradient of f at v, where there is one: the same number without cancellation.

        Args:
            u: rows, shape (B, k).
            lam: > 0.

        Returns: both of shape (B, k).

        Raises:
            ConfigError: if f has no closed form of it.
        """
        raise ConfigError(
            f"{self!r} has no closed-form prox. Use it without smoothing (SOX, SOAP), or with a u-form dual step "
            "(ALEXR2, or ALEXR with mirror=True). (A class of your own says `smooth = True` if its gradient is "
            "Lipschitz, and is then left as it is; else write its `smoothed` or `prox`.)"
        )

    def paired(self, y: Tensor, u: Tensor) -> Tensor:
        r"""``<y, u> - f*(y)`` up to a constant: (B, k), (B, k) -> (B,).

        Its gradient with respect to u is y; with respect to the parameters of f it is that of f at a point with slope
        y.

        Args:
            y: dual variables, shape (B, k), without graph.
            u: rows, shape (B, k).
        """
        return (y * u).sum(-1)

    def require_convex(self, needed_by: str) -> None:
        """Raise :class:`ConfigError` naming ``needed_by`` if f is not convex."""
        if not self.convex:
            raise ConfigError(
                f"{needed_by} needs a convex outer function, and {self!r} is not convex. Use SOX, SONX or SONEX for "
                "it, or, where it is the objective's own, ALEXR2 with objective_gamma. (A class of your own that is "
                "convex says so: `convex = True`.)"
            )


class Composed(OuterFunction):
    """A function composed of another one, phi, whose properties it has by default."""

    phi: OuterFunction

    @property
    def convex(self) -> bool:  # type: ignore[override]
        return self.phi.convex

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        return self.phi.smooth

    @property
    def lipschitz(self) -> float:
        return self.phi.lipschitz

    def parameters(self) -> tuple[Tensor, ...]:
        return (*super().parameters(), *self.phi.parameters())


@dataclass(frozen=True)
class MoreauEnvelope(Composed):
    r"""``f_lam(u) = min_v f(v) + |v - u|^2 / (2 lam)``, itself an outer function.

    ``f_lam <= f <= f_lam + lam C_f^2 / 2`` for convex f (SONEX paper, Prop. A.2), its gradient is ``1/lam``-Lipschitz,
    and ``(f_lam)* = f* + lam |.|^2 / 2``.

    Args:
        phi: the function to smooth; needs a prox.
        lam: smoothing, > 0, in squared units of u per unit of f.  Theory: ``lam = eps / C_f``.
    """

    phi: OuterFunction
    lam: float
    smooth = True
    above_zero = ("lam",)

    def __call__(self, u: Tensor) -> Tensor:
        fixed = u.detach()
        v, y = self.phi.prox(fixed, self.lam)
        return self.phi(v) + (y * (self.lam / 2 * y + (u - fixed))).sum(-1)

    def paired(self, y: Tensor, u: Tensor) -> Tensor:
        return self.phi.paired(y, u)

    def smoothed(self, lam: float) -> OuterFunction:
        """``f_{lam + self.lam}``: smoothing twice is smoothing once with the sum."""
        return self.phi.smoothed(positive("lam", lam) + self.lam)


def slopes(f: OuterFunction, u: Tensor) -> Tensor:
    """The gradient of f at rows, one element of the subdifferential at a kink: (B, k) -> (B, k), without graph."""
    with torch.inference_mode(False), torch.enable_grad():
        point = u.detach().to(widest(u), copy=True).requires_grad_()  # inference tensors have no gradients
        (gradient,) = torch.autograd.grad(
            f(point).sum(), point, retain_graph=True
        )  # the caller owns the graph of f's parameters
    return gradient.to(u.dtype)


def exp_minus_one(x: Tensor) -> Tensor:
    """``exp(x) - 1``, accurate in its value near 0, and in its slope for very negative x."""
    fixed = x.detach()
    return fixed.expm1() + fixed.exp() * (x - fixed)


def not_below(u: Tensor, floor: float) -> Tensor:
    """``max(u, floor)`` with the slope of u everywhere, so that a row below the floor still has a gradient."""
    fixed = u.detach()
    return u + (fixed.clamp(min=floor) - fixed)


def require_known(name: str, value: Tensor) -> None:
    """Raise :class:`ConfigError` unless ``value`` is a floating-point scalar tensor or rows of shape (B, k)."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() not in (0, 2):
        got = f"shape {tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else repr(value)
        raise ConfigError(
            f"{name} must be a floating-point tensor without dimensions, or one of shape (B, k), got {got}. Use "
            f"torch.tensor(number), or unsqueeze(1) for one value per row."
        )


def known_at(known: Tensor, u: Tensor) -> Tensor:
    """A parameter of f in the dtype of the rows u, with which it broadcasts.

    Raises:
        ConfigError: if the parameter has one value per row, for another number of rows.
    """
    if known.dim() and len(known) not in (1, len(u)):
        raise ConfigError(
            f"a known parameter of {len(known)} rows does not belong to {len(u)} rows of inner values. Give it one row "
            "for each of them, or one for all."
        )
    return known.to(u, non_blocking=known.device.type == "cpu")  # a few numbers, copied without waiting

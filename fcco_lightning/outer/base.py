"""What every outer function f offers: value, subgradient, prox, Moreau envelope, conjugate and its prox."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.checks import positive
from fcco_lightning.errors import ConfigError

DUAL_ROUNDING = 16 * 1.2e-7  # relative: a dual row on the boundary of dom f* may have been rounded to float32
_MAPS = (
    "value",
    "subgradient",
    "prox",
    "envelope",
    "envelope_gradient",
    "average",
    "average_gradient",
    "conjugate",
    "conjugate_prox",
)


def in_float64(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The method with its rows taken to float64 and its result back to the dtype of the rows.

    What follows the rows is the size of a step or of a smoothing, which must be a finite number > 0.
    """
    name = "tau" if method.__name__ == "conjugate_prox" else "lam"

    @wraps(method)
    def computed(self: Any, rows: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args and not 0 < args[0] < math.inf:
            positive(name, args[0])
        if rows.dtype == torch.float64 or rows.device.type == "mps":  # Apple's GPUs have no float64
            return method(self, rows, *args, **kwargs)
        return method(self, rows.double(), *args, **kwargs).to(rows.dtype)

    return computed


class Range(NamedTuple):
    """The interval in which every coordinate of a row is known to lie; None where there is no bound."""

    least: float | None = None
    most: float | None = None

    def project(self, rows: Tensor) -> Tensor:
        """The nearest rows in the interval."""
        if self.least is None and self.most is None:
            return rows
        return rows.clamp(min=self.least, max=self.most)


class OuterFunction(ABC):
    r"""An outer function f: R^k -> R, applied to every row of a (B, k) tensor.

    Rows are inner values u (unit: of the inner function) or dual values y (unit: of f per unit of u).  A class states
    what holds of f, so that an algorithm that needs more can refuse it by name.

    Every map is computed in float64 and returned in the dtype of its rows, whatever that is: ``u - kappa`` and
    ``(u - prox) / lam`` of float32 rows keep few of their digits where lam is small.  A subclass writes plain formulas
    without differences of nearly equal numbers; the change of dtype is added where the class is made.

    Attributes:
        convex: f is convex, hence has a conjugate and dual steps.
        monotone: f is non-decreasing in every coordinate.
        smooth: f has a Lipschitz gradient where it is used, so it needs no smoothing.
        coupled: f acts on all n rows together, so only an estimator that keeps all of them (``dense``) can use it.
        above_zero: names of the arguments that must be finite numbers > 0.
        known_at_present: names of the arguments that are known parameters, tensors at their present value.
    """

    convex: ClassVar[bool] = True
    monotone: ClassVar[bool] = False
    smooth: ClassVar[bool] = False
    coupled: ClassVar[bool] = False
    above_zero: ClassVar[tuple[str, ...]] = ()
    known_at_present: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in _MAPS:
            if name in vars(cls):
                setattr(cls, name, in_float64(vars(cls)[name]))

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
        """C_f, the Lipschitz constant of f; ``inf`` where it has none.  For a sum over coordinates: of one of them."""
        return float("inf")

    def parameters(self) -> tuple[Tensor, ...]:
        """The known parameters of f, with respect to which :meth:`value` can be differentiated; most have none."""
        return tuple(getattr(self, name) for name in self.known_at_present)

    def known(self, u: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002 - some functions need only the slopes
        """Numbers with the gradient of f(u) with respect to the known parameters, for every row: (B, k) -> (B,).

        Args:
            u: rows, shape (B, k), without graph.
            y: slopes of f there, shape (B, k), without graph.
        """
        return self.value(u)

    @abstractmethod
    def value(self, u: Tensor) -> Tensor:
        """f(u) for every row: (B, k) -> (B,)."""

    @abstractmethod
    def subgradient(self, u: Tensor) -> Tensor:
        """One element of the subdifferential (the gradient where f is smooth): (B, k) -> (B, k)."""

    def prox(self, u: Tensor, lam: float) -> Tensor:  # noqa: ARG002 - overridden where f has one
        r"""``argmin_v f(v) + |v - u|^2 / (2 lam)`` for every row: (B, k) -> (B, k).

        Raises:
            ConfigError: if f has no closed form of it.
        """
        raise ConfigError(
            f"{self!r} has no closed-form prox. It is smooth, so use it without smoothing (SOX, SOAP) "
            "or with a u-form dual step (ALEXR2, or ALEXR with form `mirror`)."
        )

    @in_float64
    def envelope(self, u: Tensor, lam: float) -> Tensor:
        r"""Moreau envelope ``f_lam(u) = min_v f(v) + |v - u|^2 / (2 lam)``: (B, k) -> (B,)."""
        fixed = u.detach()
        v, y = self.prox(fixed, lam), self.envelope_gradient(fixed, lam)
        return with_slope(self.value(v) + lam / 2 * y.square().sum(-1), y, u)

    @in_float64
    def envelope_gradient(self, u: Tensor, lam: float) -> Tensor:
        r"""``grad f_lam(u) = (u - prox_{lam f}(u)) / lam``: (B, k) -> (B, k).  Source: SONEX paper, eq. (2).

        For smooth f it is the gradient of f at the prox, which is the same number without the cancellation.
        """
        v = self.prox(u, lam)
        return self.subgradient(v) if self.smooth else (u - v) / lam

    def average(self, u: Tensor, sigma: float) -> Tensor:  # noqa: ARG002 - overridden where f has one
        r"""``E f(u + sigma z)`` over z of independent standard normal numbers: (B, k) -> (B,).

        Raises:
            ConfigError: if f has no closed form of it.
        """
        raise ConfigError(
            f"{self!r} has no closed form of its average under Gaussian noise. Use MoreauSmoothing for it, or "
            "NoSmoothing where it is smooth."
        )

    def average_gradient(self, u: Tensor, sigma: float) -> Tensor:
        """Gradient of :meth:`average` in u: (B, k) -> (B, k).  Raises as it does."""
        return self.average(u, sigma)

    def conjugate(self, y: Tensor) -> Tensor:  # noqa: ARG002 - overridden where f has one
        r"""``f*(y) = sup_u <y, u> - f(u)``, ``inf`` outside its domain: (B, k) -> (B,).

        Raises:
            ConfigError: if f is not convex (then f is not the conjugate of f*).
        """
        raise ConfigError(f"{self!r} offers no conjugate{'' if self.convex else ': it is not convex'}.")

    @in_float64
    def conjugate_prox(self, y: Tensor, tau: float) -> Tensor:
        r"""``argmin_v f*(v) + |v - y|^2 / (2 tau)`` by Moreau's identity: (B, k) -> (B, k), inside dom f*.

        ``y - tau prox_{f/tau}(y/tau)`` is the gradient of ``f_{1/tau}`` at ``y/tau``, which lies in dom f*.

        Args:
            y: dual rows, shape (B, k).
            tau: step size, > 0.

        Raises:
            ConfigError: if f is not convex or has no prox.
        Source: Parikh and Boyd, Proximal Algorithms (2014), section 2.5.
        """
        self.require_convex("a dual step")
        return self.envelope_gradient(y / tau, 1 / tau)

    def require_convex(self, needed_by: str) -> None:
        """Raise :class:`ConfigError` naming ``needed_by`` if f is not convex."""
        if not self.convex:
            raise ConfigError(
                f"{needed_by} needs a convex outer function, and {self!r} is not convex. Use SOX, SONX or SONEX for "
                "it, or, where it is the objective's own, ALEXR2 with objective_gamma."
            )


class Composed(OuterFunction):
    """A function made of another one, whose properties it has unless it says otherwise."""

    phi: OuterFunction

    @property
    def inside(self) -> OuterFunction:
        """The other function."""
        return self.phi

    @property
    def convex(self) -> bool:  # type: ignore[override]
        return self.inside.convex

    @property
    def monotone(self) -> bool:  # type: ignore[override]
        return self.inside.monotone

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        return self.inside.smooth

    @property
    def lipschitz(self) -> float:
        return self.inside.lipschitz

    def parameters(self) -> tuple[Tensor, ...]:
        return (*super().parameters(), *self.inside.parameters())


class _WithSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, slope: Tensor, z: Tensor) -> Tensor:  # noqa: ARG004
        ctx.save_for_backward(slope)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor]:
        (slope,) = ctx.saved_tensors
        return gradients[0], None, gradients[0].unsqueeze(-1) * slope


def with_slope(value: Tensor, slope: Tensor, z: Tensor) -> Tensor:
    """``value``, shape (B,), with the gradient ``slope`` in z in place of a graph through roots and kinks."""
    if not z.requires_grad:
        return value
    result: Tensor = _WithSlope.apply(value, slope.detach(), z)
    return result


def sloped(value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """``value(z)``, with the gradient ``slope(z)`` in z where that is asked for."""
    return with_slope(value(z.detach()), slope(z.detach()), z) if z.requires_grad else value(z)


def require_known(name: str, value: Tensor) -> None:
    """Raise :class:`ConfigError` unless ``value`` is a floating-point scalar tensor or rows of shape (B, k)."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() not in (0, 2):
        got = f"shape {tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else repr(value)
        raise ConfigError(
            f"{name} must be a floating-point tensor without dimensions, or one of shape (B, k), got {got}. Use "
            f"torch.tensor(number), or unsqueeze(1) for one value per row."
        )


def known_at(known: Tensor, u: Tensor) -> Tensor:
    """A known parameter in the dtype of the rows u, to which it broadcasts.

    Raises:
        ConfigError: if the parameter has one value per row, for another number of rows.
    """
    if known.dim() and len(known) not in (1, len(u)):
        raise ConfigError(
            f"a known parameter of {len(known)} rows does not belong to {len(u)} rows of inner values. Give it one row "
            "for each of them, or one for all."
        )
    return known.to(u, non_blocking=known.device.type == "cpu")  # few numbers, for which nothing has to wait


def infinite_outside(value: Tensor, inside: Tensor) -> Tensor:
    """``value`` where ``inside`` holds and +inf elsewhere (indicator of a domain)."""
    return torch.where(inside, value, torch.inf)

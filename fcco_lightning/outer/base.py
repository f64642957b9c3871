"""What an outer function f is: a formula, which autograd differentiates."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.checks import positive
from fcco_lightning.errors import ConfigError


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

    A class writes the formula, and autograd finds the slope, that of a kink included: ``relu`` and ``abs`` have the
    slope 0 there.  A minimum or a maximum inside f is written at its detached optimum; by Danskin's theorem the slope
    is then right.  Rows are inner values u, in the unit of the inner function, and in float64: differences such as
    ``u - kappa`` would keep few of the digits of float32.

    A class also states what holds of f, so that an algorithm that needs more can refuse it by name; what it does not
    state counts as false.

    Attributes:
        convex: f is convex, as dual steps need.
        smooth: f has a Lipschitz gradient where it is used, so it needs no smoothing.
        coupled: f acts on all n rows together, so only an estimator that keeps all of them (``dense``) can use it.
        above_zero: names of the arguments that must be finite numbers > 0.
        known_at_present: names of the arguments that are known parameters, tensors at their present value.
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
        """C_f, the Lipschitz constant of f; ``inf`` where it has none.  For a sum over coordinates: of one of them."""
        return float("inf")

    def parameters(self) -> tuple[Tensor, ...]:
        """The known parameters of f, with respect to which it can be differentiated, too; most have none."""
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
        r"""The average ``E f(u + sigma z)`` over z of independent standard normal numbers.

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

        It is what :class:`MoreauEnvelope` asks for; a function that passes its smoothing on to another one needs none.
        Where f has a gradient the second is that at v, which is the same number without the cancellation.

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
        r"""``<y, u> - f*(y)``, but for a constant: (B, k), (B, k) -> (B,).

        It has the slope y in u, and in the known parameters of f that of f where its slope is y.

        Args:
            y: dual variables, without graph.
            u: rows.
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
    """A function made of another one, phi, whose properties it has unless it says otherwise."""

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
        """``f_{lam + self.lam}``: two smoothings are one of their sum."""
        return self.phi.smoothed(positive("lam", lam) + self.lam)


def slopes(f: OuterFunction, u: Tensor) -> Tensor:
    """The gradient of f at rows, one element of the subdifferential at a kink: (B, k) -> (B, k), without graph."""
    with torch.inference_mode(False), torch.enable_grad():
        point = u.detach().to(widest(u), copy=True).requires_grad_()  # what inference gave has no derivatives
        (gradient,) = torch.autograd.grad(
            f(point).sum(), point, retain_graph=True
        )  # that of parameters of f is the caller's
    return gradient.to(u.dtype)


def widest(u: Tensor) -> torch.dtype:
    """The dtype in which outer functions are computed: float64, which Apple's GPUs have not."""
    return u.dtype if u.device.type == "mps" else torch.float64


def exp_minus_one(x: Tensor) -> Tensor:
    """``exp(x) - 1``, with all digits of the value near 0, and of the slope where x is very negative."""
    fixed = x.detach()
    return fixed.expm1() + fixed.exp() * (x - fixed)


def not_below(u: Tensor, floor: float) -> Tensor:
    """``max(u, floor)`` with the slope of u everywhere, so that a row below the floor is not forgotten."""
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

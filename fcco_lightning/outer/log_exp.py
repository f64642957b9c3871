"""Outer functions built from logarithms, exponentials, powers and ratios."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.checks import finite
from fcco_lightning.errors import ConfigError
from fcco_lightning.numerics import increasing_root
from fcco_lightning.outer.base import DUAL_ROUNDING, OuterFunction, infinite_outside, known_at

_NEWTON_STEPS = 50  # the roots below are simple and start close; float64 is reached in fewer than 10
_MOST_EXPONENT = 500.0  # of an exponential in float64, which overflows at 709
_ROOT = 1e-4  # relative residual of a root that float32 reaches with room to spare


@dataclass(frozen=True)
class _OfLog(OuterFunction):
    """A function of logarithms of inner values, with a weight tau."""

    tau: float = 1.0
    floor: float = 1e-12
    smooth = True
    above_zero = ("tau", "floor")


class Log(_OfLog):
    r"""``f(u) = tau sum_j log u_j`` for u > 0: global contrastive loss, ListNet, Cox, softmax.

    Source: SOX paper; SONEX paper, F.3.

    Concave and ``tau / u_min^2``-weakly convex; the inner values are bounded below by ``floor``, where the function
    counts as smooth.

    Args:
        tau: weight (the temperature of a contrastive loss), > 0.
        floor: inner values below it count as ``floor``, > 0.
    """

    convex = False
    monotone = True

    @property
    def lipschitz(self) -> float:
        """C_f = tau / floor."""
        return self.tau / self.floor

    def value(self, u: Tensor) -> Tensor:
        return self.tau * u.clamp(min=self.floor).log().sum(-1)

    def subgradient(self, u: Tensor) -> Tensor:
        return self.tau / u.clamp(min=self.floor)

    def prox(self, u: Tensor, lam: float) -> Tensor:
        r"""Local minimiser ``(u + sqrt(u^2 - 4 lam tau)) / 2``; it exists for ``u >= 2 sqrt(lam tau)``.

        Raises:
            ConfigError: where it does not exist; in compiled code it is NaN there.
        """
        discriminant = u.square() - 4 * lam * self.tau
        exists = (discriminant >= 0) & (u >= 0)
        if not torch.compiler.is_compiling() and not bool(exists.all()):
            raise ConfigError(
                f"prox of {self!r} with lam={lam!r} exists only for u >= {2 * (lam * self.tau) ** 0.5:.3g}, got "
                f"{u.min().item():.3g}. Use a smaller lam, or no smoothing: f is smooth on bounded inner values."
            )
        return torch.where(exists, (u + discriminant.sqrt()) / 2, torch.nan)


@dataclass(frozen=True, eq=False, repr=False)
class LogWithTemperature(OuterFunction):
    r"""``f(u) = sum_j tau_j (log u_j + rho)`` for u > 0: a contrastive loss whose temperature tau is learnt.

    Concave; smooth for u above ``floor``.  :meth:`value` can be differentiated with respect to tau, at its present
    value: the slope is ``log u_j + rho``.  The subgradient in u is a constant, without a graph to tau.

    Args:
        tau: the temperature, > 0, a scalar tensor or rows of shape (B, k); it may require a gradient.
        rho: margin, > 0: minimised over tau_j it bounds the KL divergence of the negatives' weights.
        floor: inner values below it count as ``floor``, > 0.

    Raises:
        ConfigError: if ``tau`` is not such a tensor, or ``rho`` or ``floor`` is not a positive number.
    """

    tau: Tensor
    rho: float = 6.5
    floor: float = 1e-12
    convex = False
    monotone = True
    smooth = True
    above_zero = ("rho", "floor")
    known_at_present = ("tau",)

    @property
    def lipschitz(self) -> float:
        """C_f = max tau / floor, at the present temperature."""
        return self.tau.detach().max().item() / self.floor

    def value(self, u: Tensor) -> Tensor:
        return (known_at(self.tau, u) * (u.clamp(min=self.floor).log() + self.rho)).sum(-1)

    def subgradient(self, u: Tensor) -> Tensor:
        return known_at(self.tau, u).detach() / u.clamp(min=self.floor)


@dataclass(frozen=True, eq=False, repr=False)
class KullbackLeiblerOfLog(OuterFunction):
    r"""``f(u) = tau (exp((lam log u - c) / tau) - 1) = tau (u^(lam/tau) exp(-c/tau) - 1)``, summed over coordinates.

    With u_i = mean_j exp(l_ij / lam) the minimum over c of ``c + mean_i f(u_i)`` is ``tau log mean_i exp(L_i / tau)``
    with L_i = lam log u_i: a worst case over i of worst cases over j, both softened by a KL divergence.

    :meth:`value` can be differentiated with respect to c, at its present value.  Convex for lam >= tau only, so it
    counts as not convex; smooth for u above ``floor``.  Exponents above 500 are continued by a tangent.

    Args:
        lam: weight of the divergence within the logarithm, > 0.
        tau: weight of the outer divergence, > 0.
        c: the parameter of the dual form, a scalar tensor or rows of shape (B, k); it may require a gradient.
        floor: inner values below it count as ``floor``, > 0.

    Raises:
        ConfigError: if ``c`` is not such a tensor, or another argument is not a positive number.
    """

    lam: float
    tau: float
    c: Tensor
    floor: float = 1e-12
    convex = False
    monotone = True
    smooth = True
    above_zero = ("lam", "tau", "floor")
    known_at_present = ("c",)

    def value(self, u: Tensor) -> Tensor:
        x = self._exponent(u, known_at(self.c, u))
        small = x.clamp(max=_MOST_EXPONENT)  # expm1 keeps the digits of values near 0
        return self.tau * (small.expm1() + (x - small) * small.exp()).sum(-1)

    def subgradient(self, u: Tensor) -> Tensor:
        x = self._exponent(u, known_at(self.c, u).detach())
        return self.lam / u.clamp(min=self.floor) * x.clamp(max=_MOST_EXPONENT).exp()

    def _exponent(self, u: Tensor, c: Tensor) -> Tensor:
        return (self.lam * u.clamp(min=self.floor).log() - c) / self.tau


class NegativeLog(_OfLog):
    r"""``f(u) = -tau sum_j log u_j`` for u > 0, ``inf`` elsewhere: convex and decreasing.

    Source: latent variable models, SOX paper.

    Args:
        tau: weight, > 0.
        floor: gradients are taken at ``max(u, floor)``, > 0.
    """

    def value(self, u: Tensor) -> Tensor:
        return infinite_outside(-self.tau * u.clamp(min=self.floor).log(), u > 0).sum(-1)

    def subgradient(self, u: Tensor) -> Tensor:
        return -self.tau / u.clamp(min=self.floor)

    def prox(self, u: Tensor, lam: float) -> Tensor:
        root = (u.square() + 4 * lam * self.tau).sqrt()
        # for u < 0 the sum cancels: multiply by the conjugate expression instead
        return torch.where(u >= 0, (u + root) / 2, 2 * lam * self.tau / (root - u.clamp(max=0)))

    def envelope_gradient(self, u: Tensor, lam: float) -> Tensor:
        return -self.tau / self.prox(u, lam)  # also below the floor

    def conjugate(self, y: Tensor) -> Tensor:
        inside = y < 0
        size = torch.where(inside, -y, 1.0)
        return infinite_outside(-self.tau + self.tau * (self.tau / size).log(), inside).sum(-1)


class LogRatio(_OfLog):
    r"""``f(u) = tau (log u_2 - log u_1)`` for rows of width 2 with u > 0: the loss of a latent variable model.

    Source: SOX paper, section 1.  It is :class:`NegativeLog` of the first coordinate plus :class:`Log` of the second,
    hence neither convex nor monotone; smooth where both are bounded away from 0.

    Args:
        tau: weight, > 0.
        floor: inner values below it count as ``floor``, > 0.
    """

    convex = False

    @property
    def lipschitz(self) -> float:
        """C_f = sqrt(2) tau / floor."""
        return 2**0.5 * self.tau / self.floor

    def value(self, u: Tensor) -> Tensor:
        logs = u.clamp(min=self.floor).log()
        return self.tau * (logs[..., 1] - logs[..., 0])

    def subgradient(self, u: Tensor) -> Tensor:
        slopes = self.tau / u.clamp(min=self.floor)
        return torch.stack([-slopes[..., 0], slopes[..., 1]], dim=-1)

    def prox(self, u: Tensor, lam: float) -> Tensor:
        r"""Coordinate by coordinate: the minimiser of the first, the local minimiser of :class:`Log` for the second."""
        first = NegativeLog(self.tau, self.floor).prox(u[..., :1], lam)
        return torch.cat([first, Log(self.tau, self.floor).prox(u[..., 1:], lam)], dim=-1)


@dataclass(frozen=True)
class Power(OuterFunction):
    r"""``f(u) = sum_j [u_j]_+^p`` with p > 1: the p-norm push (ALEXR paper, App. B; SOX paper, section 4.2).

    Args:
        p: exponent, > 1.
    """

    p: float = 4.0
    monotone = True

    def __post_init__(self) -> None:
        if not 1 < self.p < float("inf"):
            raise ConfigError(f"p must be finite and > 1 (use Hinge for p = 1), got {self.p!r}.")

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        """For p >= 2 on bounded inner values."""
        return self.p >= 2

    def value(self, u: Tensor) -> Tensor:
        return u.clamp(min=0).pow(self.p).sum(-1)

    def subgradient(self, u: Tensor) -> Tensor:
        return self.p * u.clamp(min=0).pow(self.p - 1)

    def prox(self, u: Tensor, lam: float) -> Tensor:
        high = u.clamp(min=0)

        def residual(v: Tensor) -> Tensor:
            return v + lam * self.p * v.pow(self.p - 1) - high

        return torch.where(u > 0, increasing_root(residual, torch.zeros_like(u), high), u)

    def envelope_gradient(self, u: Tensor, lam: float) -> Tensor:
        return self.subgradient(self.prox(u, lam))  # f has a gradient also where p < 2

    def conjugate(self, y: Tensor) -> Tensor:
        inside = y >= 0
        size = y.clamp(min=0) / self.p
        return infinite_outside((self.p - 1) * size.pow(self.p / (self.p - 1)), inside).sum(-1)


@dataclass(frozen=True)
class Softplus(OuterFunction):
    r"""``f(u) = sum_j log(1 + exp(b u_j))``: robust logistic regression (ALEXR paper, App. B).

    Args:
        b: slope, not 0; its sign is minus the label.  Non-decreasing only for b > 0.
    """

    b: float = 1.0
    smooth = True

    def __post_init__(self) -> None:
        if finite("b", self.b) == 0:
            raise ConfigError("b must not be 0: f would be constant.")

    @property
    def monotone(self) -> bool:  # type: ignore[override]
        """Non-decreasing for b > 0."""
        return self.b > 0

    @property
    def lipschitz(self) -> float:
        """C_f = |b|, per coordinate."""
        return abs(self.b)

    def value(self, u: Tensor) -> Tensor:
        return torch.nn.functional.softplus(self.b * u, threshold=50.0).sum(-1)

    def subgradient(self, u: Tensor) -> Tensor:
        return self.b * torch.sigmoid(self.b * u)

    def prox(self, u: Tensor, lam: float) -> Tensor:
        reach = lam * abs(self.b)
        return increasing_root(lambda v: v - u + lam * self.subgradient(v), u - reach, u + reach)

    def conjugate(self, y: Tensor) -> Tensor:
        p = y / self.b
        inside = (p >= 0) & (p <= 1 + DUAL_ROUNDING)
        p = p.clamp(0, 1)
        return infinite_outside(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p), inside).sum(-1)


@dataclass(frozen=True)
class Ratio(OuterFunction):
    r"""``f(u) = -u_1 / u_2`` for rows of width 2 with u_2 > 0: average precision and NCA (SOX paper, (7), (8)).

    Not convex; smooth where u_2 is bounded away from 0.

    Args:
        floor: denominators below it count as ``floor``, > 0.
    """

    floor: float = 1e-12
    convex = False
    smooth = True
    above_zero = ("floor",)

    def value(self, u: Tensor) -> Tensor:
        return -u[..., 0] / u[..., 1].clamp(min=self.floor)

    def subgradient(self, u: Tensor) -> Tensor:
        inverse = u[..., 1].clamp(min=self.floor).reciprocal()
        return torch.stack([-inverse, u[..., 0] * inverse * inverse], dim=-1)

    def prox(self, u: Tensor, lam: float) -> Tensor:
        r"""The stationary point near u (f is not convex, so lam must be small against u_2).

        ``v_1 = u_1 + lam / v_2`` and v_2 solves ``u_1/v_2^2 + lam/v_2^3 + (v_2 - u_2)/lam = 0``, by Newton from u_2.

        Raises:
            ConfigError: where it is not found; in compiled code it is NaN there.
        """
        top, bottom = u[..., 0], u[..., 1].clamp(min=self.floor)
        v = bottom
        for _ in range(_NEWTON_STEPS):
            value = top / v**2 + lam / v**3 + (v - bottom) / lam
            slope = -2 * top / v**3 - 3 * lam / v**4 + 1 / lam
            v = v - value / slope
        residual = lam * (top / v**2 + lam / v**3) + (v - bottom)
        found = (v > 0) & (slope > 0) & (residual.abs() <= _ROOT * bottom)
        if not torch.compiler.is_compiling() and not bool(found.all()):
            raise ConfigError(
                f"prox of {self!r} with lam={lam!r} has no stationary point near u. Use a smaller lam, "
                "or no smoothing: f is smooth where u_2 is bounded away from 0."
            )
        v = torch.where(found, v, torch.nan)
        return torch.stack([top + lam / v, v], dim=-1)


@dataclass(frozen=True)
class LogSumExp(OuterFunction):
    r"""``f(u) = theta log( c sum_j exp(u_j / theta) )``: soft maximum over the k coordinates of a row.

    With ``mean=False`` (c = 1) it is the multi-task objective of App. B of the ALEXR paper; with ``mean=True`` (c =
    1/k) it is the value of KL-regularised DRO, ``max_q <q, u> - theta KL(q, 1/k)`` (PG-SMD paper, section 2).

    Args:
        theta: temperature, > 0.
        mean: divide the sum by k.
    """

    theta: float = 1.0
    mean: bool = False
    monotone = True
    smooth = True
    lipschitz = 1.0  # the gradient lies on the simplex
    above_zero = ("theta",)

    def value(self, u: Tensor) -> Tensor:
        scaled = torch.logsumexp(u / self.theta, dim=-1)
        return self.theta * (scaled - self._log_count(u))

    def subgradient(self, u: Tensor) -> Tensor:
        return torch.softmax(u / self.theta, dim=-1)

    def conjugate(self, y: Tensor) -> Tensor:
        tolerance = DUAL_ROUNDING * y.shape[-1]
        inside = (y >= 0).all(-1) & ((y.sum(-1) - 1).abs() <= tolerance)
        entropy = torch.xlogy(y, y.clamp(min=0)).sum(-1)
        return infinite_outside(self.theta * (entropy + self._log_count(y)), inside)

    def _log_count(self, rows: Tensor) -> Tensor:
        return torch.log(rows.new_tensor(float(rows.shape[-1] if self.mean else 1)))

"""Outer functions built from logarithms, exponentials, powers and ratios."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.checks import finite, greater
from fcco_lightning.errors import ConfigError
from fcco_lightning.numerics import increasing_root
from fcco_lightning.outer.base import OuterFunction, exp_minus_one, known_at, not_below

_MOST_EXPONENT = 500.0  # float64 overflows at exp(709)


@dataclass(frozen=True)
class _OfLog(OuterFunction):
    """A function of logarithms of inner values with a weight tau."""

    tau: float = 1.0
    floor: float = 1e-12
    smooth = True
    above_zero = ("tau", "floor")


class Log(_OfLog):
    r"""``f(u) = tau sum_j log u_j`` for u > 0: global contrastive loss, ListNet, Cox, softmax.

    Source: SOX paper; SONEX paper, F.3.

    Concave and ``tau / u_min^2``-weakly convex for u >= u_min; smooth for u above ``floor``.

    Args:
        tau: weight (the temperature of a contrastive loss), > 0.
        floor: inner values below it count as ``floor``, > 0.
    """

    @property
    def lipschitz(self) -> float:
        """C_f = tau / floor."""
        return self.tau / self.floor

    def __call__(self, u: Tensor) -> Tensor:
        return self.tau * not_below(u, self.floor).log().sum(-1)


@dataclass(frozen=True, eq=False, repr=False)
class LogWithTemperature(OuterFunction):
    r"""``f(u) = sum_j tau_j (log u_j + rho)`` for u > 0: a contrastive loss with a learnt temperature tau.

    Concave; smooth for u above ``floor``.  It can be differentiated with respect to tau, at its present value: the
    slope is ``log u_j + rho``.

    Args:
        tau: the temperature, > 0, a scalar tensor or rows of shape (B, k); it may require a gradient.
        rho: margin, > 0; minimising over tau_j bounds the KL divergence of the negatives' weights by rho.
        floor: inner values below it count as ``floor``, > 0.

    Raises:
        ConfigError: if ``tau`` is not such a tensor, or ``rho`` or ``floor`` is not a positive number.
    """

    tau: Tensor
    rho: float = 6.5
    floor: float = 1e-12
    smooth = True
    above_zero = ("rho", "floor")
    known_at_present = ("tau",)

    @property
    def lipschitz(self) -> float:
        """C_f = max tau / floor, at the present temperature."""
        return self.tau.detach().max().item() / self.floor

    def __call__(self, u: Tensor) -> Tensor:
        return (known_at(self.tau, u) * (not_below(u, self.floor).log() + self.rho)).sum(-1)


@dataclass(frozen=True, eq=False, repr=False)
class KullbackLeiblerOfLog(OuterFunction):
    r"""``f(u) = tau (exp((lam log u - c) / tau) - 1) = tau (u^(lam/tau) exp(-c/tau) - 1)``, summed over coordinates.

    With u_i = mean_j exp(l_ij / lam) the minimum over c of ``c + mean_i f(u_i)`` is ``tau log mean_i exp(L_i / tau)``
    with L_i = lam log u_i: a worst case over i of worst cases over j, both softened by a KL divergence.

    It can be differentiated with respect to c, at its present value.  Convex for lam >= tau only, so that it is
    declared as not convex; smooth for u above ``floor``.  Above the exponent 500 the exponential is continued by its
    tangent.

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
    smooth = True
    above_zero = ("lam", "tau", "floor")
    known_at_present = ("c",)

    def __call__(self, u: Tensor) -> Tensor:
        x = (self.lam * not_below(u, self.floor).log() - known_at(self.c, u)) / self.tau
        small = x.clamp(max=_MOST_EXPONENT)
        return self.tau * (exp_minus_one(small) + (x - small) * small.exp()).sum(-1)


class NegativeLog(_OfLog):
    r"""``f(u) = -tau sum_j log u_j`` for u > 0, ``inf`` elsewhere: convex and decreasing.

    Source: latent variable models, SOX paper.

    Args:
        tau: weight, > 0.
        floor: gradients are taken at ``max(u, floor)``, > 0.
    """

    convex = True

    def __call__(self, u: Tensor) -> Tensor:
        outside = torch.where(u.detach() > 0, 0.0, torch.inf)  # added to keep the slope at the floor
        return (outside - self.tau * not_below(u, self.floor).log()).sum(-1)

    def prox(self, u: Tensor, lam: float) -> tuple[Tensor, Tensor]:
        root = (u.square() + 4 * lam * self.tau).sqrt()
        # for u < 0 the sum cancels: multiply by the conjugate expression instead
        v = torch.where(u >= 0, (u + root) / 2, 2 * lam * self.tau / (root - u.clamp(max=0)))
        return v, -self.tau / v


class LogRatio(_OfLog):
    r"""``f(u) = tau (log u_2 - log u_1)`` for rows of width 2 with u > 0: the loss of a latent variable model.

    Source: SOX paper, section 1.  It is :class:`NegativeLog` of the first coordinate plus :class:`Log` of the second,
    hence neither convex nor monotone; smooth where both are bounded away from 0.

    Args:
        tau: weight, > 0.
        floor: inner values below it count as ``floor``, > 0.
    """

    @property
    def lipschitz(self) -> float:
        """C_f = sqrt(2) tau / floor."""
        return 2**0.5 * self.tau / self.floor

    def __call__(self, u: Tensor) -> Tensor:
        first, second = not_below(u, self.floor).log().unbind(-1)
        return self.tau * (second - first)


@dataclass(frozen=True)
class Power(OuterFunction):
    r"""``f(u) = sum_j [u_j]_+^p`` with p > 1: the p-norm push (ALEXR paper, App. B; SOX paper, section 4.2).

    Args:
        p: exponent, > 1.
    """

    p: float = 4.0
    convex = True

    def __post_init__(self) -> None:
        greater("p", self.p, 1)

    @property
    def smooth(self) -> bool:  # type: ignore[override]
        """True for p >= 2, where f is smooth on bounded inner values."""
        return self.p >= 2

    def __call__(self, u: Tensor) -> Tensor:
        return u.relu().pow(self.p).sum(-1)

    def prox(self, u: Tensor, lam: float) -> tuple[Tensor, Tensor]:
        high = u.clamp(min=0)

        def residual(v: Tensor) -> Tensor:
            return v + lam * self.p * v.pow(self.p - 1) - high

        v = torch.where(u > 0, increasing_root(residual, torch.zeros_like(u), high), u)
        return v, self.p * v.relu().pow(self.p - 1)


@dataclass(frozen=True)
class Softplus(OuterFunction):
    r"""``f(u) = sum_j log(1 + exp(b u_j))``: robust logistic regression (ALEXR paper, App. B).

    Args:
        b: slope, not 0; its sign is minus the label.
    """

    b: float = 1.0
    convex = True
    smooth = True

    def __post_init__(self) -> None:
        if finite("b", self.b) == 0:
            raise ConfigError("b must not be 0: f would be constant.")

    @property
    def lipschitz(self) -> float:
        """C_f = |b|, per coordinate."""
        return abs(self.b)

    def __call__(self, u: Tensor) -> Tensor:
        return torch.nn.functional.softplus(self.b * u, threshold=50.0).sum(-1)

    def prox(self, u: Tensor, lam: float) -> tuple[Tensor, Tensor]:
        reach = lam * abs(self.b)

        def slope(v: Tensor) -> Tensor:
            return self.b * torch.sigmoid(self.b * v)

        v = increasing_root(lambda v: v - u + lam * slope(v), u - reach, u + reach)
        return v, slope(v)


@dataclass(frozen=True)
class Ratio(OuterFunction):
    r"""``f(u) = -u_1 / u_2`` for rows of width 2 with u_2 > 0: average precision and NCA (SOX paper, (7), (8)).

    Not convex; smooth where u_2 is bounded away from 0.

    Args:
        floor: denominators below it count as ``floor``, > 0.
    """

    floor: float = 1e-12
    smooth = True
    above_zero = ("floor",)

    def __call__(self, u: Tensor) -> Tensor:
        first, second = u.unbind(-1)
        return -first / not_below(second, self.floor)


@dataclass(frozen=True)
class LogSumExp(OuterFunction):
    r"""``f(u) = theta log sum_j exp(u_j / theta)``: soft maximum over the k coordinates of a row.

    It is the multi-task objective of App. B of the ALEXR paper, and, up to the constant ``theta log k``, the value of
    KL-regularised DRO, ``max_q <q, u> - theta KL(q, 1/k)`` (PG-SMD paper, section 2).

    Args:
        theta: temperature, > 0.
    """

    theta: float = 1.0
    convex = True
    smooth = True
    lipschitz = 1.0  # the gradient lies on the simplex
    above_zero = ("theta",)

    def __call__(self, u: Tensor) -> Tensor:
        return self.theta * torch.logsumexp(u / self.theta, dim=-1)

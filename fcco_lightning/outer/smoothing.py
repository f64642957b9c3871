"""Smoothing as a map from outer function to outer function."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from fcco_lightning.checks import positive
from fcco_lightning.outer.base import Composed, OuterFunction


@dataclass(frozen=True)
class MoreauEnvelope(Composed):
    r"""``f_lam(u) = min_v f(v) + |v - u|^2 / (2 lam)``, itself an outer function.

    ``f_lam <= f <= f_lam + lam C_f^2 / 2`` for convex f (SONEX paper, Prop. A.2), its gradient is ``1/lam``-Lipschitz,
    and
    ``(f_lam)* = f* + lam |.|^2 / 2``.

    Args:
        outer: the function to smooth; needs a prox.
        lam: smoothing, > 0, in squared units of u per unit of f.  Theory: ``lam = eps / C_f``.
    """

    outer: OuterFunction
    lam: float
    smooth = True
    above_zero = ("lam",)

    @property
    def inside(self) -> OuterFunction:
        return self.outer

    def value(self, u: Tensor) -> Tensor:
        return self.outer.envelope(u, self.lam)

    def subgradient(self, u: Tensor) -> Tensor:
        return self.outer.envelope_gradient(u, self.lam)

    def prox(self, u: Tensor, lam: float) -> Tensor:
        total = lam + self.lam
        return u + lam / total * (self.outer.prox(u, total) - u)

    def envelope(self, u: Tensor, lam: float) -> Tensor:
        """``f_{lam + self.lam}(u)``: two smoothings are one of their sum."""
        return self.outer.envelope(u, lam + self.lam)

    def envelope_gradient(self, u: Tensor, lam: float) -> Tensor:
        return self.outer.envelope_gradient(u, lam + self.lam)

    def conjugate(self, y: Tensor) -> Tensor:
        return self.outer.conjugate(y) + self.lam / 2 * y.square().sum(-1)


@dataclass(frozen=True)
class GaussianAverage(Composed):
    r"""``f_sigma(u) = E f(u + sigma z)``, z of k independent standard normal numbers: an outer function without kinks.

    For convex f with Lipschitz constant C_f, ``f <= f_sigma <= f + C_f sigma sqrt(k)``, and the gradient is
    ``C_f/sigma``-Lipschitz.  Unlike the Moreau envelope it lies above f, and its slope is nowhere 0 or C_f exactly: a
    constraint that holds is pushed a little, too.  It has a closed form for hinges of a value, a weighted sum, a
    distance or a difference, moved or not.  It has no prox and no conjugate in closed form, so that algorithms which
    need them refuse it.

    Args:
        outer: the function to smooth.
        sigma: standard deviation of the noise, > 0, in units of u.

    Source: Duchi, Bartlett and Wainwright, Randomized smoothing for stochastic optimization (2012); it is named in
        section 2 of the SONEX paper.
    """

    outer: OuterFunction
    sigma: float
    smooth = True
    above_zero = ("sigma",)

    @property
    def inside(self) -> OuterFunction:
        return self.outer

    def value(self, u: Tensor) -> Tensor:
        return self.outer.average(u, self.sigma)

    def subgradient(self, u: Tensor) -> Tensor:
        return self.outer.average_gradient(u, self.sigma)


class Smoothing(ABC):
    """A map from outer function to outer function.

    A new smoothing (a schedule of lam, another kernel) is a subclass.
    """

    @abstractmethod
    def __call__(self, outer: OuterFunction) -> OuterFunction:
        """Return the smoothed function; a function that is smooth already passes unchanged."""


@dataclass(frozen=True)
class MoreauSmoothing(Smoothing):
    """Replace a non-smooth f by its Moreau envelope.

    Args:
        lam: smoothing, > 0 (SONEX paper, F.1: 1, .1, .01; F.2: 2e-2, 2e-3, 2e-4).
    """

    lam: float

    def __post_init__(self) -> None:
        positive("lam", self.lam)

    def __call__(self, outer: OuterFunction) -> OuterFunction:
        return outer if outer.smooth else MoreauEnvelope(outer, self.lam)


@dataclass(frozen=True)
class RandomizedSmoothing(Smoothing):
    """Replace a non-smooth f by its average under Gaussian noise.

    Args:
        sigma: standard deviation of the noise, > 0, in units of u.
    """

    sigma: float

    def __post_init__(self) -> None:
        positive("sigma", self.sigma)

    def __call__(self, outer: OuterFunction) -> OuterFunction:
        return outer if outer.smooth else GaussianAverage(outer, self.sigma)


@dataclass(frozen=True)
class NoSmoothing(Smoothing):
    """Leave f as it is; a non-smooth f is then used through a subgradient."""

    def __call__(self, outer: OuterFunction) -> OuterFunction:
        return outer

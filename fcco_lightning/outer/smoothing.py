"""Smoothings of outer functions."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from fcco_lightning.checks import positive
from fcco_lightning.outer.base import OuterFunction


class Smoothing(ABC):
    """A map from outer function to outer function.

    A new smoothing (a schedule of lam, another kernel) is a subclass.
    """

    @abstractmethod
    def __call__(self, outer: OuterFunction) -> OuterFunction:
        """Return the smoothed function; a smooth function is returned unchanged."""


@dataclass(frozen=True)
class MoreauSmoothing(Smoothing):
    """Replace a non-smooth f by its Moreau envelope, see :meth:`OuterFunction.smoothed`.

    Args:
        lam: smoothing, > 0 (SONEX paper, F.1: 1, .1, .01; F.2: 2e-2, 2e-3, 2e-4).
    """

    lam: float

    def __post_init__(self) -> None:
        positive("lam", self.lam)

    def __call__(self, outer: OuterFunction) -> OuterFunction:
        return outer if outer.smooth else outer.smoothed(self.lam)


@dataclass(frozen=True)
class RandomizedSmoothing(Smoothing):
    r"""Replace a non-smooth f by its average under Gaussian noise, ``E f(u + sigma z)``.

    For convex f with Lipschitz constant C_f, ``f <= f_sigma <= f + C_f sigma sqrt(k)``, and the gradient is
    ``C_f/sigma``-Lipschitz.  Unlike the Moreau envelope it lies above f, and its slope is never exactly 0 or C_f: a
    constraint that holds also has a small gradient.  There is a closed form for (shifted) hinges of a value, a weighted
    sum, or an absolute value or difference.  The result has no Moreau envelope, so that algorithms which need one
    refuse it.

    Args:
        sigma: standard deviation of the noise, > 0, in units of u.

    Source: Duchi, Bartlett and Wainwright, Randomized smoothing for stochastic optimization (2012); it is named in
        section 2 of the SONEX paper.
    """

    sigma: float

    def __post_init__(self) -> None:
        positive("sigma", self.sigma)

    def __call__(self, outer: OuterFunction) -> OuterFunction:
        return outer if outer.smooth else outer.averaged(self.sigma)


@dataclass(frozen=True)
class NoSmoothing(Smoothing):
    """Leave f as it is; a non-smooth f is then used through a subgradient."""

    def __call__(self, outer: OuterFunction) -> OuterFunction:
        return outer

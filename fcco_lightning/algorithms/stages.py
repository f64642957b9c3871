"""Lengths and step sizes of the stages of PG-SMD."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from fcco_lightning.checks import at_least, positive
from fcco_lightning.errors import ConfigError


class Stage(NamedTuple):
    """The length and the step sizes of one stage.

    Attributes:
        length: J; after J - 1 inner steps the centre moves to the mean of the J points.
        eta: step size in w, > 0.
        eta_dual: step size in q, > 0.
    """

    length: int
    eta: float
    eta_dual: float


class Stages(ABC):
    """The stages t = 0, 1, ... of :class:`PGSMD`.

    Attributes:
        best_start: whether q starts every stage at the best response to the losses at the centre, which takes a pass
            over the data, instead of at uniform weights.
    """

    best_start: bool = False

    @abstractmethod
    def __call__(self, t: int, gamma: float, mu: float) -> Stage:
        """Stage t, for the proximal parameter gamma and a penalty on q that is mu-strongly convex; 0 for none.

        Raises:
            ConfigError: if the stages need a penalty, and mu is 0.
        """


@dataclass(frozen=True)
class EqualStages(Stages):
    """Stages of equal length with constant step sizes: a practical variant of the cases D1 and D2.

    Args:
        length: J >= 2.
        eta: step size in w, > 0.
        eta_dual: step size in q, > 0.
        best_start: whether q starts at the best response, as in case D2.
    """

    length: int = 100
    eta: float = 0.1
    eta_dual: float = 0.1
    best_start: bool = False

    def __post_init__(self) -> None:
        at_least("length", self.length, 2)
        positive("eta", self.eta)
        positive("eta_dual", self.eta_dual)

    def __call__(self, t: int, gamma: float, mu: float) -> Stage:  # noqa: ARG002
        return Stage(self.length, self.eta, self.eta_dual)


@dataclass(frozen=True)
class ConcaveStages(Stages):
    r"""Case D1, for any concave max form: ``J = (t + 3)^2``, step sizes ``eta / sqrt(J)`` and ``eta_dual / sqrt(J)``.

    Args:
        eta: D_x / M_x, > 0: the diameter of the set of weights over the norm of a gradient.
        eta_dual: D_y / M_y, > 0: the diameter of the set of q over the norm of the losses.
    Source: PG-SMD paper, Alg. 2 line 4; both ratios are tuned there.
    """

    eta: float = 0.1
    eta_dual: float = 0.1

    def __post_init__(self) -> None:
        positive("eta", self.eta)
        positive("eta_dual", self.eta_dual)

    def __call__(self, t: int, gamma: float, mu: float) -> Stage:  # noqa: ARG002
        length = (t + 3) ** 2
        return Stage(length, self.eta / sqrt(length), self.eta_dual / sqrt(length))


@dataclass(frozen=True)
class StronglyConcaveStages(Stages):
    r"""Case D2, with a penalty on q: ``J = t + 32``, step sizes ``60 gamma / (J - 30)`` and ``8 M^2 gamma / (mu^2 J)``.

    mu is the strong convexity of the penalty. q starts every stage at the best response to the losses at the centre,
    which takes a pass over the data.

    Args:
        lipschitz: M, > 0: the losses of all samples differ by at most ``M |w - w'|`` between w and w'.
    Source: PG-SMD paper, Alg. 2 lines 3 and 4.
    """

    lipschitz: float = 1.0
    best_start = True

    def __post_init__(self) -> None:
        positive("lipschitz", self.lipschitz)

    def __call__(self, t: int, gamma: float, mu: float) -> Stage:
        if mu == 0:
            raise ConfigError(
                "StronglyConcaveStages needs an objective with a penalty on q, such as KLGroupDRO, or SampleDRO with "
                "KLPenalty. Add one, or use ConcaveStages."
            )
        length = t + 32
        return Stage(length, 60 * gamma / (length - 30), 8 * self.lipschitz**2 * gamma / (mu**2 * length))

"""Penalties: convex functions of a constraint's excess, with a weight rho that may follow a schedule."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from fcco_lightning.checks import at_least, non_negative, positive
from fcco_lightning.outer import Hinge, OuterFunction, SmoothedHinge, SquaredHinge


class RhoSchedule(ABC):
    """A factor on rho, by epoch."""

    @abstractmethod
    def __call__(self, epoch: int) -> float:
        """Factor in (0, inf) for ``epoch`` = 0, 1, ..."""


@dataclass(frozen=True)
class GeometricRho(RhoSchedule):
    r"""``rho_e = rho * start^(1 - e/epochs)``, constant from ``epochs`` on.

    Args:
        start: factor at epoch 0, > 0 (with a value < 1 the objective dominates at first).
        epochs: number of epochs until the factor is 1, >= 1.
    """

    start: float = 0.1
    epochs: int = 10

    def __post_init__(self) -> None:
        positive("start", self.start)
        at_least("epochs", self.epochs, 1)

    def __call__(self, epoch: int) -> float:
        return float(self.start ** max(0.0, 1 - epoch / self.epochs))


class Penalty(ABC):
    r"""``phi_rho(t)``, 0 for t <= kappa; the problem becomes ``g_0 + (1/m) sum_i phi_rho(h_i + kappa)``.

    Args:
        rho: weight, >= 0; with 0 the constraints are only measured.
        schedule: factor on rho by epoch; None for a constant rho.

    Attributes:
        acts: whether constraints enter the minimised function; otherwise they are only measured.
    """

    def __init__(self, rho: float = 10.0, schedule: RhoSchedule | None = None) -> None:
        self.rho = non_negative("rho", rho)
        self.schedule, self.acts = schedule, self.rho > 0

    def weight(self, epoch: int) -> float:
        """Rho at ``epoch``."""
        return self.rho if self.schedule is None else self.rho * self.schedule(epoch)

    @abstractmethod
    def outer(self, rho: float, kappa: float) -> OuterFunction:
        """phi_rho as an outer function of one variable, convex and non-decreasing."""


class HingePenalty(Penalty):
    r"""``rho [t - kappa]_+``: the exact penalty; SONX uses its subgradient, SONEX and ALEXR2 smooth it.

    Source: SONEX paper, eq. (8).
    """

    def outer(self, rho: float, kappa: float) -> OuterFunction:
        return Hinge(rho=rho, kappa=kappa)


class SmoothedHingePenalty(Penalty):
    r"""The Moreau envelope of the hinge (SONEX paper, eq. (9)), for algorithms that do not smooth themselves.

    Args:
        rho: weight, >= 0.
        lam: smoothing, > 0.
        schedule: factor on rho by epoch; None for a constant rho.
    """

    def __init__(self, rho: float = 10.0, lam: float = 0.01, schedule: RhoSchedule | None = None) -> None:
        super().__init__(rho, schedule)
        self.lam = positive("lam", lam)

    def outer(self, rho: float, kappa: float) -> OuterFunction:
        return SmoothedHinge(rho, kappa, self.lam)


class SquaredHingePenalty(Penalty):
    r"""``(rho/2) [t - kappa]_+^2``: the penalty of the SOX baseline (SONEX paper, section 6)."""

    def outer(self, rho: float, kappa: float) -> OuterFunction:
        return SquaredHinge(rho=rho, kappa=kappa)

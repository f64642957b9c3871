"""Penalties: convex functions of a constraint's excess, with a weight rho."""

from abc import ABC, abstractmethod

from fcco_lightning.checks import non_negative, positive
from fcco_lightning.outer import Hinge, OuterFunction, SmoothedHinge, SquaredHinge


class Penalty(ABC):
    r"""``phi_rho(t)``, 0 for t <= kappa; the problem becomes ``g_0 + (1/m) sum_i phi_rho(h_i + kappa)``.

    Args:
        rho: weight, >= 0; with 0 the constraints are only measured.

    Attributes:
        acts: whether constraints enter the minimised function; otherwise they are only measured.
    """

    def __init__(self, rho: float = 10.0) -> None:
        self.rho = non_negative("rho", rho)
        self.acts = self.rho > 0

    @abstractmethod
    def outer(self, kappa: float) -> OuterFunction:
        """phi_rho as an outer function of one variable, convex and non-decreasing."""


class HingePenalty(Penalty):
    r"""``rho [t - kappa]_+``: the exact penalty; SONX uses its subgradient, SONEX and ALEXR2 smooth it.

    Source: SONEX paper, eq. (8).
    """

    def outer(self, kappa: float) -> OuterFunction:
        return Hinge(self.rho, kappa)


class SmoothedHingePenalty(Penalty):
    r"""The Moreau envelope of the hinge (SONEX paper, eq. (9)), for algorithms that do not smooth themselves.

    Args:
        rho: weight, >= 0.
        lam: smoothing, > 0.
    """

    def __init__(self, rho: float = 10.0, lam: float = 0.01) -> None:
        super().__init__(rho)
        self.lam = positive("lam", lam)

    def outer(self, kappa: float) -> OuterFunction:
        return SmoothedHinge(self.rho, kappa, self.lam)


class SquaredHingePenalty(Penalty):
    r"""``(rho/2) [t - kappa]_+^2``: the penalty of the SOX baseline (SONEX paper, section 6)."""

    def outer(self, kappa: float) -> OuterFunction:
        return SquaredHinge(self.rho, kappa)

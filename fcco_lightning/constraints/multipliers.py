r"""Multipliers: how much each constraint matters is found while training, so that there is no rho to guess.

The problem ``min F(w) subject to h_i(w) <= 0`` becomes ``F(w) + sum_i L_i(h_i(w))``.  The sum is not divided by the
number of constraints, so that another constraint does not weaken the others, and the slope nu_i of L_i is the
multiplier of the constraint as it stands: at a solution ``grad F + sum_i nu_i grad h_i = 0``.

The rows u_i say what the constraints' values h_i are.  When a batch speaks of row i, the gradient is taken with the
multiplier from before, and the multiplier then follows ``h_i`` at the new u_i.  Rows of which the batch does not speak
do not move.  A constraint ``|s| <= kappa`` is two constraints, ``s - kappa <= 0`` and ``-s - kappa <= 0``, with a
multiplier each, so that noise which changes the sign of s averages out.
"""

from abc import ABC, abstractmethod
from typing import TypeAlias

import torch
from torch import Tensor

from fcco_lightning.checks import fraction, non_negative, positive
from fcco_lightning.constraints.penalty import Penalty
from fcco_lightning.errors import ConfigError
from fcco_lightning.outer import Multiplied


class Multipliers(ABC):
    r"""A rule by which the multipliers of constraints are found.

    What the rule remembers of a side of a constraint are a few numbers, the first of which is enough to say how much
    the side matters.  A row has one side, or two where it is ``|s| <= kappa``.

    Attributes:
        start: what is remembered of a side of which no batch has spoken yet.
        acts: whether constraints enter what is minimised, which they do.
    """

    acts = True
    start: tuple[float, ...] = (0.0,)

    @abstractmethod
    def outer(self, memory: Tensor, kappa: float) -> Multiplied:
        """L_i as an outer function of ``t = h + kappa``, or of s for two sides.

        Args:
            memory: what is remembered of b rows, shape (b, values, sides).
            kappa: tolerance of the constraint.
        """

    @abstractmethod
    def moved(self, memory: Tensor, excess: Tensor) -> Tensor:
        """What is remembered next.

        Args:
            memory: of b rows, shape (b, values, sides).
            excess: ``h``, or ``(s - kappa, -s - kappa)`` of two sides, at the new u_i, shape (b, sides).
        """


class Lagrangian(Multipliers):
    r"""``L_i = nu_i h_i`` with projected dual ascent, ``nu_i <- [nu_i + rate h_i]_+``.

    Without damping the multipliers swing around their values where the weights follow slowly; :class:`NuPI` and
    :class:`AugmentedLagrangian` damp that.

    Args:
        rate: dual step size, > 0, in units of the objective per squared unit of h.
    """

    def __init__(self, rate: float = 0.01) -> None:
        self.rate = positive("rate", rate)

    def outer(self, memory: Tensor, kappa: float) -> Multiplied:
        return Multiplied(memory[:, 0], kappa)

    def moved(self, memory: Tensor, excess: Tensor) -> Tensor:
        return (memory + self.rate * excess.unsqueeze(1)).clamp(min=0)


class NuPI(Multipliers):
    r"""Dual ascent by a controller with a proportional part, which damps swings of the multipliers.

    ``xi_i <- smoothing xi_i + (1 - smoothing) h_i`` and
    ``nu_i <- [nu_i + rate h_i + proportional (xi_i - xi_i before)]_+``: the last part answers to the change of h_i and
    so foresees where it goes.  At ``proportional = 0`` it is the :class:`Lagrangian`.

    Args:
        rate: of the integral part (the source's kappa_i), > 0, in units of the objective per squared unit of h.
        proportional: of the proportional part (the source's kappa_p), >= 0, in the same units.
        smoothing: of h in the proportional part (the source's nu), in [0, 1).  The u_i are averages already.
    Source: Sohrabi et al., On PI controllers for updating Lagrange multipliers in constrained optimization (2024),
    Algorithm 1.
    """

    start = (0.0, 0.0)

    def __init__(self, rate: float = 0.01, proportional: float = 1.0, smoothing: float = 0.0) -> None:
        self.rate, self.proportional = positive("rate", rate), non_negative("proportional", proportional)
        if not 0 <= smoothing < 1:
            raise ConfigError(f"smoothing must lie in [0, 1), got {smoothing!r}: 0 takes h as it is.")
        self.smoothing = float(smoothing)

    def outer(self, memory: Tensor, kappa: float) -> Multiplied:
        return Multiplied(memory[:, 0], kappa)

    def moved(self, memory: Tensor, excess: Tensor) -> Tensor:
        nu, before = memory.unbind(1)
        smoothed = torch.lerp(excess, before, self.smoothing)
        ahead = self.rate * excess + self.proportional * (smoothed - before)
        return torch.stack([(nu + ahead).clamp(min=0), smoothed], dim=1)


class AugmentedLagrangian(Multipliers):
    r"""``L_i = ([nu_i + c h_i]_+^2 - nu_i^2) / (2 c)``, whose slope ``y_i = [nu_i + c h_i]_+`` answers to h_i at once.

    ``nu_i <- nu_i + rate (y_i - nu_i)``: the multiplier follows the slope.  That is dual ascent with the step rate c,
    with ``rate = 1`` the method of multipliers after every batch.

    Args:
        curvature: c, > 0, in units of the objective per squared unit of h.
        rate: of the multiplier, in (0, 1].
    Source: Rockafellar, Augmented Lagrange multiplier functions and duality in nonconvex programming (1974).
    """

    def __init__(self, curvature: float = 1.0, rate: float = 0.01) -> None:
        self.curvature, self.rate = positive("curvature", curvature), fraction("rate", rate)

    def outer(self, memory: Tensor, kappa: float) -> Multiplied:
        return Multiplied(memory[:, 0], kappa, self.curvature)

    def moved(self, memory: Tensor, excess: Tensor) -> Tensor:
        pressure = (memory + self.curvature * excess.unsqueeze(1)).clamp(min=0)
        return torch.lerp(memory, pressure, self.rate)


class AdaptivePenalty(Multipliers):
    r"""The exact penalty ``rho_i [h_i]_+``, smoothed, with a weight rho_i of every row that finds itself.

    ``L_i`` is the Moreau envelope of the penalty for lam (SONEX paper, eq. (9)), with the slope
    ``y_i = clamp(h_i / lam, 0, rho_i)``.  ``rho_i <- rho_i exp(growth (2 y_i / rho_i - 1))``: it grows where y_i comes
    close to it, falls where the constraint is slack, and stays where it is twice the y_i that the solution asks for.
    The rule knows no unit of the objective; at a solution the constraint is exceeded by ``lam y_i``.

    Args:
        growth: relative change of rho in a step, > 0.
        lam: smoothing, > 0, in squared units of h per unit of the objective.
        rho: where each rho_i starts, > 0.
        least: factor on ``rho`` below which no rho_i falls, so that it can grow again, in (0, 1].
    """

    def __init__(self, growth: float = 0.01, lam: float = 0.01, rho: float = 0.1, least: float = 0.01) -> None:
        self.growth, self.lam = positive("growth", growth), positive("lam", lam)
        self.rho, self.least = positive("rho", rho), fraction("least", least)
        self.start = (self.rho,)

    def outer(self, memory: Tensor, kappa: float) -> Multiplied:
        return Multiplied(torch.zeros_like(memory[:, 0]), kappa, 1 / self.lam, memory[:, 0])

    def moved(self, memory: Tensor, excess: Tensor) -> Tensor:
        saturation = (excess.unsqueeze(1) / (self.lam * memory)).clamp(0, 1)
        return (memory * (self.growth * (2 * saturation - 1)).exp()).clamp(min=self.least * self.rho)


Enforcement: TypeAlias = Penalty | Multipliers
"""How constraints enter what is minimised: by a fixed penalty, or by multipliers that are found."""

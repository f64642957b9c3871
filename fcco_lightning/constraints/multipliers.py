r"""Multipliers: the weight of each constraint is found during training, so that no penalty weight has to be chosen.

The problem ``min F(w) subject to h_i(w) <= 0`` becomes ``F(w) + sum_i L_i(h_i(w))``.  The sum is not divided by the
number of constraints, so that adding a constraint does not weaken the others, and the slope nu_i of L_i is the usual
Lagrange multiplier: at a solution ``grad F + sum_i nu_i grad h_i = 0``.

h_i is evaluated at the running averages u_i.  When a batch measures row i, the gradient uses the old multiplier, and
the multiplier is then updated with ``h_i`` at the new u_i.  Rows that the batch does not measure do not change.  A
constraint ``|s| <= kappa`` is treated as two constraints, ``s - kappa <= 0`` and ``-s - kappa <= 0``, with a multiplier
each, so that noise around s = 0 averages out.

Multipliers are in units of the objective per unit of h.  To make the hyperparameters independent of the scale of the
objective, all arguments and stored values of a rule are in units of the objective's absolute value at the first batch:
a ``curvature`` of 1 for an objective that starts at 0.5 is a curvature of 0.5.  The first batch gives the unit, and
updates the weights with the objective alone.  Reported multipliers are in the original unit.  Constraints should be of
order one, as rates and mean losses are.  Dual step sizes are multiplied by the present learning rate over its largest
value so far, so that the multipliers converge together with the weights.
"""

from abc import ABC, abstractmethod
from typing import TypeAlias

import torch
from torch import Tensor

from fcco_lightning.checks import below_one, fraction, non_negative, positive
from fcco_lightning.constraints.penalty import Penalty
from fcco_lightning.outer import Multiplied


class Multipliers(ABC):
    r"""An update rule for the multipliers of constraints.

    A rule stores a few numbers for every side of a row, the first of which is its multiplier.  A row has one side, or
    two if it is ``|s| <= kappa``.

    If a constraint smooths a rate of decisions, the multipliers can follow the rate of decisions itself: a running
    average of its difference from the smooth rate, on the same samples, is stored and added to the u_i.  The outer
    gradient is then taken at the sum and multiplied by the gradient of the smooth rate, so that the constraint holds
    for the decisions (proxy constraints: Cotter, Jiang and Sridharan, Two-player games for efficient non-convex
    constrained optimization, 2019, section 3).

    Attributes:
        acts: whether constraints enter the minimised function; always True.
        decisions: whether multipliers follow decisions if these are smoothed; otherwise they follow the smooth values.
    """

    acts = True
    decisions: bool = False

    def begin(self, together: int) -> tuple[float, ...]:  # noqa: ARG002
        """The initial numbers of a side of a row.

        Args:
            together: number of rows of the constraint, see :attr:`Constraint.together`.
        """
        return (0.0,)

    def outer(self, memory: Tensor, kappa: Tensor | float, unit: Tensor) -> Multiplied:
        """L_i as an outer function of ``t = h + kappa``, or of s for two sides; by default ``nu_i h_i``.

        Args:
            memory: the stored numbers of b rows, shape (b, values, sides).
            kappa: tolerance of the constraint, or of each row, shape (b, 1).
            unit: the unit of multipliers, curvature and cap, in units of the objective, >= 0; a scalar.
        """
        return Multiplied(unit * memory[:, 0], kappa)

    @abstractmethod
    def moved(self, memory: Tensor, excess: Tensor, pace: Tensor | float) -> Tensor:
        """The updated numbers.

        Args:
            memory: the stored numbers of b rows, shape (b, values, sides).
            excess: ``h``, or ``(s - kappa, -s - kappa)`` for two sides, at the new u_i, shape (b, sides).
            pace: factor on the dual step size: the present learning rate of the weights over its largest value so far;
                a number or a scalar tensor.
        """


class Lagrangian(Multipliers):
    r"""``L_i = nu_i h_i`` with projected dual ascent, ``nu_i <- [nu_i + rate h_i]_+``.

    Without damping the multipliers oscillate if the weights adapt slowly; :class:`NuPI` and
    :class:`AugmentedLagrangian` damp this.  For short trainings use a larger rate: at 0.01 and ``h_i = 0.1`` a
    multiplier takes a thousand steps to become as large as the initial objective.

    Args:
        rate: dual step size, > 0, in units of the objective's first value per squared unit of h.
        decisions: whether multipliers follow decisions, see :class:`Multipliers`.
    """

    def __init__(self, rate: float = 0.01, decisions: bool = False) -> None:
        self.rate, self.decisions = positive("rate", rate), decisions

    def moved(self, memory: Tensor, excess: Tensor, pace: Tensor | float) -> Tensor:
        return (memory + self.rate * (pace * excess.unsqueeze(1))).clamp(min=0)


class NuPI(Multipliers):
    r"""Dual ascent by a PI controller, whose proportional part damps oscillations of the multipliers.

    ``xi_i <- smoothing xi_i + (1 - smoothing) h_i`` and
    ``nu_i <- [nu_i + rate h_i + proportional (xi_i - xi_i before)]_+``: the last part reacts to the change of h_i.
    With ``proportional = 0`` it is the :class:`Lagrangian`.

    Args:
        rate: step size of the integral part (the source's kappa_i), > 0, in units of the objective's first value per
            squared unit of h.
        proportional: step size of the proportional part (the source's kappa_p), >= 0, in the same units.
        smoothing: averaging of h in the proportional part (the source's nu), in [0, 1), besides that of the u_i.
        decisions: whether multipliers follow decisions, see :class:`Multipliers`.
    Source: Sohrabi et al., On PI controllers for updating Lagrange multipliers in constrained optimization (2024),
    Algorithm 1.
    """

    def __init__(
        self, rate: float = 0.01, proportional: float = 0.7, smoothing: float = 0.0, decisions: bool = False
    ) -> None:
        self.rate, self.proportional = positive("rate", rate), non_negative("proportional", proportional)
        self.decisions = decisions
        self.smoothing = float(below_one("smoothing", smoothing))

    def begin(self, together: int) -> tuple[float, ...]:  # noqa: ARG002
        return (0.0, 0.0)

    def moved(self, memory: Tensor, excess: Tensor, pace: Tensor | float) -> Tensor:
        nu, before = memory.unbind(1)
        smoothed = torch.lerp(excess, before, self.smoothing)
        ahead = self.rate * (pace * excess) + self.proportional * (smoothed - before)
        return torch.stack([(nu + ahead).clamp(min=0), smoothed], dim=1)


class AugmentedLagrangian(Multipliers):
    r"""``L_i = ([nu_i + c h_i]_+^2 - nu_i^2) / (2 c)``, whose slope ``y_i = [nu_i + c h_i]_+`` reacts to h_i at once.

    ``nu_i <- nu_i + rate (y_i - nu_i)``: the multiplier follows the slope.  This is dual ascent with the step size
    ``rate c``; with ``rate = 1`` it is the method of multipliers with an update after every batch.

    Args:
        curvature: c, > 0, in units of the objective's first value per squared unit of h.
        rate: averaging weight of the multiplier's update, in (0, 1].
        decisions: whether multipliers follow decisions, see :class:`Multipliers`.
    Source: Rockafellar, Augmented Lagrange multiplier functions and duality in nonconvex programming (1974).
    """

    def __init__(self, curvature: float = 1.0, rate: float = 0.01, decisions: bool = False) -> None:
        self.curvature, self.rate = positive("curvature", curvature), fraction("rate", rate)
        self.decisions = decisions

    def outer(self, memory: Tensor, kappa: Tensor | float, unit: Tensor) -> Multiplied:
        return Multiplied(unit * memory[:, 0], kappa, unit * self.curvature)

    def moved(self, memory: Tensor, excess: Tensor, pace: Tensor | float) -> Tensor:
        pressure = (memory + self.curvature * excess.unsqueeze(1)).clamp(min=0)
        return memory + self.rate * pace * (pressure - memory)  # a scalar tensor on the CPU needs no copy


class AdaptivePenalty(Multipliers):
    r"""A smoothed exact penalty whose weight rho_i = 2 nu_i is adapted for every row.

    The slope of ``L_i`` is ``y_i = nu_i (1 + clamp(h_i / width, -1, 1))``, from 0 for ``h_i <= -width`` to rho_i for
    ``h_i >= width``.  ``nu_i <- nu_i exp(rate clamp(h_i / width, -1, 1))``: rho_i grows where the constraint is
    violated, decreases where it is slack, and is stationary at ``h_i = 0``, so that an active constraint holds exactly
    at a solution.  As the exponent is bounded, a few large values of h have little influence.

    This is the exponentiated gradient method, started at ``nu_i = start / m`` for the m rows of a constraint.  So a
    constraint has initially about the same weight as the objective, whether it is one rate or dozens of points of two
    ROC curves.

    Args:
        rate: relative change of rho_i in a step with ``|h_i| >= width``, > 0.
        width: half the width of the smoothing, > 0, in units of h; .01 to .02 for rates and mean losses.
        start: sum of the initial nu_i of a constraint, > 0, in units of the objective's first value per unit of h.
        least: lower bound of nu_i, from which it can grow again, > 0, in the same units.
        decisions: whether multipliers follow decisions, see :class:`Multipliers`.
    Source: Kivinen and Warmuth, Exponentiated gradient versus gradient descent for linear predictors (1997), for the
        multiplicative step.
    """

    def __init__(
        self,
        rate: float = 0.007,
        width: float = 0.02,
        start: float = 0.66,
        least: float = 3e-4,
        decisions: bool = False,
    ) -> None:
        self.rate, self.width = positive("rate", rate), positive("width", width)
        self.start, self.least = positive("start", start), positive("least", least)
        self.decisions = decisions

    def begin(self, together: int) -> tuple[float, ...]:
        return (self.start / together,)

    def outer(self, memory: Tensor, kappa: Tensor | float, unit: Tensor) -> Multiplied:
        nu = unit * memory[:, 0]
        return Multiplied(nu, kappa, nu / self.width, 2 * nu)

    def moved(self, memory: Tensor, excess: Tensor, pace: Tensor | float) -> Tensor:
        exponent = (excess.unsqueeze(1) / self.width).clamp(-1, 1)
        return (memory * (self.rate * (pace * exponent)).exp()).clamp(min=self.least)


Enforcement: TypeAlias = Penalty | Multipliers
"""How constraints are enforced: by a fixed penalty, or by multipliers."""


def follows_decisions(enforcement: Enforcement | None) -> bool:
    """Whether constraints are enforced on decisions where these are smoothed, and so are judged by them."""
    return isinstance(enforcement, Multipliers) and enforcement.decisions

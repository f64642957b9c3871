r"""Multipliers: how much each constraint matters is found while training, so that there is no rho to guess.

The problem ``min F(w) subject to h_i(w) <= 0`` becomes ``F(w) + sum_i L_i(h_i(w))``.  The sum is not divided by the
number of constraints, so that another constraint does not weaken the others, and the slope nu_i of L_i is the
multiplier of the constraint as it stands: at a solution ``grad F + sum_i nu_i grad h_i = 0``.

The constraints' values h_i are those at the rows u_i.  When a batch measures row i, the gradient is taken with the
multiplier from before, and the multiplier then follows ``h_i`` at the new u_i.  Rows that the batch does not measure
do not move.  A constraint ``|s| <= kappa`` is two constraints, ``s - kappa <= 0`` and ``-s - kappa <= 0``, with a
multiplier each, so that noise which changes the sign of s averages out.

Multipliers are in units of the objective per unit of h.  So that no rate has to be chosen anew for an objective in
another unit, all that a rule is told and remembers is in units of the objective's absolute value at the first batch: a
``curvature`` of 1 on an objective that starts at 0.5 is a curvature of 0.5.  The first batch gives the unit, and moves
the weights by the objective alone.  What is reported is the multiplier itself.  Constraints should be of order one, as
rates and mean losses are.  The dual steps follow the schedule of the learning rate, as shares of its largest value so
far, so that the multipliers come to rest with the weights.
"""

from abc import ABC, abstractmethod
from typing import TypeAlias

import torch
from torch import Tensor

from fcco_lightning.checks import below_one, fraction, non_negative, positive
from fcco_lightning.constraints.penalty import Penalty
from fcco_lightning.outer import Multiplied


class Multipliers(ABC):
    r"""A rule by which the multipliers of constraints are found.

    What the rule remembers of a side of a constraint are a few numbers, the first of which is enough to say how much
    the side matters.  A row has one side, or two where it is ``|s| <= kappa``.

    Where a constraint smooths a rate of decisions, the multipliers can follow the rate of decisions itself: a running
    mean of how far it is from the smooth rate, on the same samples, is remembered and added to the u_i.  The outer
    gradient is then taken at the sum and multiplies the gradient of the smooth rate, so that what is enforced is what
    is decided (proxy constraints: Cotter, Jiang and Sridharan, Two-player games for efficient non-convex constrained
    optimization, 2019, section 3).

    Attributes:
        acts: whether constraints enter what is minimised, which they do.
        decisions: whether multipliers follow decisions, where these are smoothed; else they follow the smooth values.
    """

    acts = True
    decisions: bool = False

    def begin(self, together: int) -> tuple[float, ...]:  # noqa: ARG002
        """What is remembered of a side of a row of which no batch has spoken yet.

        Args:
            together: number of rows of the constraint, see :attr:`Constraint.together`.
        """
        return (0.0,)

    def outer(self, memory: Tensor, kappa: Tensor | float, unit: Tensor) -> Multiplied:
        """L_i as an outer function of ``t = h + kappa``, or of s for two sides; ``nu_i h_i`` unless a rule has another.

        Args:
            memory: what is remembered of b rows, shape (b, values, sides).
            kappa: tolerance of the constraint, or of each of the rows, shape (b, 1).
            unit: of the objective, >= 0, in which multipliers, curvature and cap are measured; without dimensions.
        """
        return Multiplied(unit * memory[:, 0], kappa)

    @abstractmethod
    def moved(self, memory: Tensor, excess: Tensor, pace: Tensor | float) -> Tensor:
        """What is remembered next.

        Args:
            memory: of b rows, shape (b, values, sides).
            excess: ``h``, or ``(s - kappa, -s - kappa)`` of two sides, at the new u_i, shape (b, sides).
            pace: learning rate of the weights as a share of its largest value so far, on which the dual step depends; a
                number, or a tensor without dimensions.
        """


class Lagrangian(Multipliers):
    r"""``L_i = nu_i h_i`` with projected dual ascent, ``nu_i <- [nu_i + rate h_i]_+``.

    Without damping the multipliers swing around their values where the weights follow slowly; :class:`NuPI` and
    :class:`AugmentedLagrangian` damp that.  Where steps are few, raise the rate: at 0.01 a multiplier takes a thousand
    steps with ``h_i = 0.1`` to become as large as the objective was at first.

    Args:
        rate: dual step size, > 0, in units of the objective's first value per squared unit of h.
        decisions: whether multipliers follow decisions, see :class:`Multipliers`.
    """

    def __init__(self, rate: float = 0.01, decisions: bool = False) -> None:
        self.rate, self.decisions = positive("rate", rate), decisions

    def moved(self, memory: Tensor, excess: Tensor, pace: Tensor | float) -> Tensor:
        return (memory + self.rate * (pace * excess.unsqueeze(1))).clamp(min=0)


class NuPI(Multipliers):
    r"""Dual ascent by a controller with a proportional part, which damps swings of the multipliers.

    ``xi_i <- smoothing xi_i + (1 - smoothing) h_i`` and
    ``nu_i <- [nu_i + rate h_i + proportional (xi_i - xi_i before)]_+``: the last part answers to the change of h_i and
    so foresees where it goes.  At ``proportional = 0`` it is the :class:`Lagrangian`.

    Args:
        rate: of the integral part (the source's kappa_i), > 0, in units of the objective's first value per squared unit
            of h.
        proportional: of the proportional part (the source's kappa_p), >= 0, in the same units.
        smoothing: of h in the proportional part (the source's nu), in [0, 1).  The u_i are averages already.
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
    r"""``L_i = ([nu_i + c h_i]_+^2 - nu_i^2) / (2 c)``, whose slope ``y_i = [nu_i + c h_i]_+`` answers to h_i at once.

    ``nu_i <- nu_i + rate (y_i - nu_i)``: the multiplier follows the slope.  That is dual ascent with the step rate c,
    with ``rate = 1`` the method of multipliers after every batch.

    Args:
        curvature: c, > 0, in units of the objective's first value per squared unit of h.
        rate: of the multiplier, in (0, 1].
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
        return memory + self.rate * pace * (pressure - memory)  # a pace on the host needs no copy


class AdaptivePenalty(Multipliers):
    r"""An exact penalty, smoothed over a width of h, with a weight rho_i = 2 nu_i of every row that finds itself.

    The slope of ``L_i`` is ``y_i = nu_i (1 + clamp(h_i / width, -1, 1))``, from 0 where the constraint is slack to
    rho_i where it is exceeded by a width.  ``nu_i <- nu_i exp(rate clamp(h_i / width, -1, 1))``: rho_i grows where y_i
    saturates at it, falls where the constraint is slack, and stays where ``h_i = 0``, so that the constraint holds
    exactly at a solution.  Because the exponent is bounded, a few large values of h do not matter.

    This is the exponentiated gradient method, which starts with the weight that all rows of a constraint have together,
    in equal parts: ``nu_i = start / m``.  A constraint begins about as heavy as the objective, be it one rate or
    dozens of points of two ROC curves, and no growth is lost to the number of its rows.

    Args:
        rate: relative change of rho_i in a step where h_i is a width or more above 0, or below, > 0.
        width: what counts as clearly exceeded, > 0, in units of h; for rates and mean losses a hundredth or two.
        start: sum of the nu_i of a constraint before the first batch, > 0, in units of the objective's first value per
            unit of h.
        least: below which no nu_i falls, so that it can grow again, > 0, in the same units.
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
"""How constraints enter what is minimised: by a fixed penalty, or by multipliers that are found."""


def follows_decisions(enforcement: Enforcement | None) -> bool:
    """Whether constraints are enforced on decisions where these are smoothed, and so are judged by them."""
    return isinstance(enforcement, Multipliers) and enforcement.decisions

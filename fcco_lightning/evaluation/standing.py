"""Which weights are better under constraints: one order for all that choose among validations, runs and trials."""

import math
from typing import NamedTuple


def is_feasible(violation: float | None, vacuous: object = False) -> bool:
    """Whether weights meet the constraints on a split, and these are not vacuous there.

    Args:
        violation: the largest constraint value; None without constraints.
        vacuous: whether they hold whatever the scores are, see :meth:`Constraint.vacuous`.
    """
    return violation is None or (violation <= 0 and not vacuous)  # NaN does not hold


class Standing(NamedTuple):
    """Where weights stand among others: those that are larger, as a tuple, are better.

    Attributes:
        level: 2 of weights that are feasible, 0 where constraints are vacuous, 1 of all others.
        value: what decides within a level, -inf for NaN.
    """

    level: int
    value: float


def standing(value: float, violation: float | None, vacuous: object = False) -> Standing:
    """Feasible weights by their figure, below them others by their violation, and vacuous ones, again by the figure.

    Decisions that are nearly all alike meet most constraints without effort, so that they must not win over any others.

    Args:
        value: a figure, the larger, the better.
        violation: the largest constraint value; None without constraints.
        vacuous: whether constraints are vacuous.

    Example:
        >>> standing(0.8, -0.01) > standing(0.7, 0.0) > standing(0.9, 0.01) > standing(0.9, -0.1, vacuous=True)
        True
    """
    level = 2 if is_feasible(violation, vacuous) else 0 if vacuous else 1
    decides = -violation if level == 1 and violation is not None else value
    return Standing(level, -math.inf if math.isnan(decides) else decides)

"""The order of weights under constraints, by which validations, runs and trials are compared."""

import math
from typing import NamedTuple


def is_feasible(violation: float | None, vacuous: object = False) -> bool:
    """Whether weights satisfy the constraints on a split, and these are not vacuous there.

    Args:
        violation: the largest constraint value; None without constraints.
        vacuous: whether the constraints hold whatever the order of the scores, see :meth:`Constraint.vacuous`.
    """
    return violation is None or (violation <= 0 and not vacuous)  # NaN is infeasible


class Standing(NamedTuple):
    """The rank of weights: a larger tuple is better.

    Attributes:
        level: 2 if the weights are feasible, 0 if constraints are vacuous, 1 otherwise.
        value: the value by which weights of one level are compared, -inf for NaN.
    """

    level: int
    value: float


def standing(value: float, violation: float | None, vacuous: object = False) -> Standing:
    """Rank feasible weights by their figure, below them others by their violation, and last vacuous ones by the figure.

    Decisions that are nearly all equal satisfy most constraints trivially, so that they must rank below all others.

    Args:
        value: a figure that is better if it is larger.
        violation: the largest constraint value; None without constraints.
        vacuous: whether constraints are vacuous.

    Example:
        >>> standing(0.8, -0.01) > standing(0.7, 0.0) > standing(0.9, 0.01) > standing(0.9, -0.1, vacuous=True)
        True
    """
    level = 2 if is_feasible(violation, vacuous) else 0 if vacuous else 1
    decides = -violation if level == 1 and violation is not None else value
    return Standing(level, -math.inf if math.isnan(decides) else decides)

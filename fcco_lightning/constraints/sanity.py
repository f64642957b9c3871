"""Checks of constraints before training."""

from collections.abc import Mapping, Sequence

from fcco_lightning.constraints.base import Constraint
from fcco_lightning.constraints.means import MeanAtMost, MeanNear
from fcco_lightning.errors import ConfigError, DataError, FCCOError
from fcco_lightning.models.batch import Columns


def require_compatible(constraints: Sequence[Constraint]) -> None:
    """Refuse constraints that cannot all be met.

    Only constraints on the mean of the same quantity over the same subset are compared; other contradictions show only
    in constraints that remain violated.

    Raises:
        ConfigError: naming two constraints that contradict each other.
    """
    means = [(c, *c.allowed) for c in constraints if isinstance(c, MeanAtMost | MeanNear)]
    for i, (c, least, most) in enumerate(means):
        for other, other_least, other_most in means[:i]:
            if least <= other_most and other_least <= most:
                continue
            low, high = max(least, other_least), min(most, other_most)
            if (c.mean.quantity, c.where.where, c.part) == (other.mean.quantity, other.where.where, other.part):
                raise ConfigError(
                    f"the constraints {other.names[0]!r} and {c.names[0]!r} contradict each other: they ask that the "
                    f"mean of {c.mean.quantity!r} where {c.where} be at least {low:g} and at most {high:g}. Change "
                    "one of them."
                )


def require_columns(constraints: Sequence[Constraint], train: Columns, splits: Mapping[str, Columns]) -> None:
    """Refuse splits that lack a column of the training split that a constraint needs.

    Args:
        constraints: the constraints of the run; those on another part of the batches are skipped.
        train: columns of the training split.
        splits: columns of the splits on which constraints are evaluated, by name.

    Raises:
        DataError: naming the split, the constraint and the columns.
    """
    for split, columns in splits.items():
        lacking = sorted(train.keys() - columns.keys())
        common = {name: column for name, column in train.items() if name in columns}
        for constraint in constraints if lacking else ():
            if constraint.part is not None:
                continue
            try:
                constraint.subsets(common)
            except FCCOError as error:
                raise DataError(
                    f"the {split} split lacks a column of the training split (it has no {', '.join(lacking)}) that the "
                    f"constraint {constraint.names[0]!r} needs: {error} Add it to the {split} table: constraints are "
                    "evaluated there, too."
                ) from error

"""The exact inner functions of a group objective on a whole split, and their gradients."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from fcco_lightning.checks import positive
from fcco_lightning.engine import InnerFunctions
from fcco_lightning.errors import ConfigError
from fcco_lightning.objectives import GroupObjective

MAX_VALUES = 2e9
"""The default for the largest number of values of a Jacobian, or of a Gram matrix: 8 GB in float32."""
_BLOCK = 2**24  # values of the Jacobian that are converted to float64 at a time


class Jacobian(NamedTuple):
    """The exact inner functions of a group objective on a split, and their gradients.

    Attributes:
        values: The inner values g_i(w), shape (n, k), float64.
        rows: The gradients of their entries, shape (n k, d), float32 or wider; the network's parameters come first.
        direct: The value g_0(w), 0 where the objective has no direct part.
        direct_gradient: The gradient of g_0, shape (d,), float64.
        num_network: How many of the d parameters belong to the network.
    """

    values: Tensor
    rows: Tensor
    direct: float
    direct_gradient: Tensor
    num_network: int


def column_blocks(rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Iterate over the columns of a (m, d) matrix in float64, some at a time: ``(columns, rows[:, columns])``."""
    size = max(1, _BLOCK // max(1, len(rows)))
    for start in range(0, rows.shape[1], size):
        yield slice(start, start + size), rows[:, start : start + size].double()


def required_size(functions: InnerFunctions, max_values: float = MAX_VALUES) -> tuple[int, int, int]:
    """Return ``(n, k, d)``: the number of rows, their width, and the number of trained parameters.

    Args:
        functions: The network and the objective.
        max_values: The largest number of values that the Jacobian (n k d) and the Gram matrix (n k)^2 may have, > 0.

    Raises:
        ConfigError: if the objective is not made of groups' risks, nothing is trained, or there are too many values.
    """
    objective, name = functions.objective, type(functions.objective).__name__
    if not isinstance(objective, GroupObjective):
        raise ConfigError(
            f"diagnostics need inner functions that are means over a group's samples, the objective is {name}. Use a "
            "group objective such as CVaRGroupDRO, or switch diagnostics off."
        )
    n, k = objective.row_domain(0, None).num_rows, objective.width
    d = sum(p.numel() for p in functions.trainable().values())
    if d == 0:
        raise ConfigError("diagnostics need parameters that are trained, all of them are frozen. Unfreeze some.")
    values = max(n * k * d, (n * k) ** 2)
    if values > positive("max_values", max_values):
        raise ConfigError(
            f"the Jacobian of {n * k:,} inner values by {d:,} parameters, or its Gram matrix, has {values:,} values, "
            f"max_values is {max_values:,.0f}. Raise max_values if the memory is there, freeze layers, or use fewer "
            "groups."
        )
    return n, k, d

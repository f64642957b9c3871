"""What an objective measures: a direct part g_0(w) and/or inner functions g_i(w) under an outer function."""

from abc import ABC
from typing import Any

from torch import Tensor, nn

from fcco_lightning.errors import DataError
from fcco_lightning.outer import OuterFunction
from fcco_lightning.records import Batch, Inner


class Objective(nn.Module, ABC):
    r"""``F(w) = g_0(w) + (1/n) sum_i f_i(g_i(w))``; a subclass offers either part or both.

    An objective is a module, so it may own parameters that are trained with the network (a temperature, a CVaR
    threshold).  It never sees the dual state.  ``outputs`` is what the network returned for the batch.

    Attributes:
        outer: f, or None where there is no compositional part.
        width: k, the number of inner values per index.
        distinct: the indices of one batch are all different by construction (groups, constraints), so that duplicates
            need not be looked for.
    """

    outer: OuterFunction | None = None
    width: int = 1
    distinct: bool = False

    def num_rows(self, num_samples: int) -> int:
        """n, the rows that the compositional part needs for a training split of ``num_samples``."""
        return num_samples

    def direct(self, outputs: Any, batch: Batch) -> Tensor | None:  # noqa: ARG002
        """Mini-batch estimate of g_0(w): a scalar with graph, or None."""
        return None

    def inner(self, outputs: Any, batch: Batch) -> Inner | None:  # noqa: ARG002
        """Mini-batch estimates of g_i(w) with graph, or None."""
        return None


def binary_scores(outputs: Tensor) -> Tensor:
    """Network outputs of shape (B,) or (B, 1) as scores of shape (B,).

    Raises:
        DataError: for any other shape.
    """
    if outputs.dim() == 2 and outputs.shape[1] == 1:
        return outputs.squeeze(1)
    if outputs.dim() != 1:
        raise DataError(
            f"a binary objective needs one score per sample, shape (B,) or (B, 1), got {tuple(outputs.shape)}. "
            "Give the network a single output."
        )
    return outputs

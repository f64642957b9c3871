"""What an objective measures: a direct part g_0(w) and/or inner functions g_i(w) under an outer function."""

from abc import ABC
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.outer import OuterFunction
from fcco_lightning.records import Batch, Inner


class SampleParameters(NamedTuple):
    """Parameters of which every sample has its own, trained beside the network (temperatures of pairs).

    Attributes:
        name: of the column (b, k) in which a batch brings them to the objective.
        width: k, parameters of a sample.
        start: where they begin.
        least: lower bound.
        most: upper bound.
        lr: step size of their projected gradient descent, > 0.
    """

    name: str
    width: int
    start: float
    least: float
    most: float
    lr: float


class Objective(nn.Module, ABC):
    r"""``F(w) = g_0(w) + (1/n) sum_i f_i(g_i(w))``; a subclass offers either part or both.

    An objective is a module, so it may own parameters that are trained with the network (a temperature, a CVaR
    threshold).  It never sees the dual state.  ``outputs`` is what the network returned for the batch.

    Attributes:
        outer: f, or None where there is no compositional part.
        width: k, the number of inner values per index.
        distinct: the indices of one batch are all different by construction (groups, constraints), so that duplicates
            need not be looked for.
        dtype: of the rows, unless a wider one is asked for.
        sample_parameters: what every sample has of its own, or None.
    """

    outer: OuterFunction | None = None
    width: int = 1
    distinct: bool = False
    dtype: torch.dtype = torch.float32
    sample_parameters: SampleParameters | None = None

    def num_rows(self, num_samples: int) -> int:
        """n, the rows that the compositional part needs for a training split of ``num_samples``."""
        return num_samples

    def adapt(self, datamodule: Any) -> None:
        """Take from the datamodule (or None) what must be known of the data before the first batch."""

    def max_form(self) -> "Objective":
        """The same objective as a maximum over weights q, for algorithms that keep q (OOA, SMD).

        Raises:
            ConfigError: if it has none.
        """
        raise ConfigError(
            f"{type(self).__name__} is not a maximum over weights of groups, as OOA and SMD need. Use CVaRGroupDRO or "
            "WorstGroupDRO, or another algorithm, such as SONEX."
        )

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

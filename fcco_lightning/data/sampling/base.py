"""What every way of drawing training batches offers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.plans import BatchPlan
from fcco_lightning.data.table import LabelTable, TensorTable
from fcco_lightning.errors import ConfigError

Prevalence = Literal["data", "batch"]


class Sampling(ABC):
    """A way of drawing training batches, which becomes a :class:`BatchPlan` once the table is known."""

    @abstractmethod
    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return the union batches of ``world_size`` processes.

        Args:
            columns: columns of the training table with ``index``, each with first dimension n.
            seed: seed of the batches, a whole number >= 0.
            world_size: number of processes P.

        Raises:
            ConfigError: if the table has no column that these batches are drawn by, or less than they choose from.
            DataError: if it does not have enough rows, or the column holds something else.
        """

    def in_parts(self, parts: int) -> tuple["Sampling", int]:
        """Return batches of ``parts`` times as many samples, and the number of samples of a part of one process.

        An epoch has as many samples as before.

        Raises:
            ConfigError: if the batches are not of a given number of samples.
        """
        raise ConfigError(
            f"{type(self).__name__} draws no given number of samples, of which {parts} parts could be made. Raise its "
            "own numbers, and set --model.execution.micro_batch to the number of samples that fit into memory."
        )

    def table(self, table: TensorTable) -> TensorTable | LabelTable:
        """Return the table whose rows are drawn: that of the training split, unless another view of it is needed."""
        return table


def required_column(columns: Mapping[str, Tensor], name: str, what: str) -> Tensor:
    """Return the column ``name`` of whole numbers, by which rows are drawn; :class:`ConfigError` if there is none."""
    if name not in columns or columns[name].is_floating_point():
        raise ConfigError(
            f"These batches are drawn by {what}, but the training table has no whole numbers in a column {name!r} (its "
            f"columns: {sorted(columns)}). Name what defines them, or draw with UniformSampling."
        )
    return columns[name]


def require_counts(sampling: Sampling, *arguments: str, or_none: Sequence[str] = ()) -> None:
    """Raise :class:`ConfigError` unless ``arguments`` are whole numbers >= 1, and those of ``or_none`` that or None."""
    for name in (*arguments, *or_none):
        count = getattr(sampling, name)
        if count is not None or name not in or_none:
            at_least(name, count, 1)

"""Draws of single rows: uniform ones, and those with a fixed number of every class."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fcco_lightning.checks import at_least, fraction, one_of
from fcco_lightning.data.columns import listed_in_order
from fcco_lightning.data.plans import StratifiedBatches, UniformBatches
from fcco_lightning.data.plans.base import enough_rows
from fcco_lightning.data.plans.stratified import Telling, Weighting, all_of_them
from fcco_lightning.data.sampling.base import Prevalence, Sampling, require_counts, required_column
from fcco_lightning.errors import ConfigError, DataError


@dataclass(frozen=True)
class UniformSampling(Sampling):
    """Every epoch is a permutation of the rows, cut into batches: :class:`UniformBatches`.

    Args:
        batch_size: number of rows in a training batch of one process.
        drop_last: whether an epoch's last batch is left out if it is short.
        num_batches: number of batches of an epoch; None for one permutation of the rows.

    Raises:
        ConfigError: if a number is out of range.
    """

    batch_size: int = 128
    drop_last: bool = True
    num_batches: int | None = None

    def __post_init__(self) -> None:
        require_counts(self, "batch_size", or_none=["num_batches"])

    def in_parts(self, parts: int) -> tuple["UniformSampling", int]:
        """Return larger batches, as many fewer."""
        fewer = None if self.num_batches is None else -(-self.num_batches // parts)
        return replace(self, batch_size=parts * self.batch_size, num_batches=fewer), self.batch_size

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> UniformBatches:
        """Return uniform union batches of ``batch_size`` rows of each process."""
        size, rows = self.batch_size * world_size, len(columns["index"])
        return UniformBatches(rows, size, seed, drop_last=self.drop_last, num_batches=self.num_batches)


@dataclass(frozen=True)
class BalancedSampling(Sampling):
    """Every batch holds the same number of positives, by the column ``y``, as losses over pairs of both classes need.

    Each class is gone through in a random order and shuffled anew when exhausted, so within an epoch the counts of any
    two rows of a class differ by one at most.  An epoch of n rows has n // B batches of B.  Positives are spread evenly
    over the positions of a batch, so that contiguous parts of it (one per process) are balanced too.

    Args:
        batch_size: number of rows in a training batch of one process.
        positive_fraction: share of positives in every batch, in (0, 1); rounded to whole rows.
        allow_repeats: whether a row may occur twice in a batch that asks for more rows of a class than there are.
        prevalence: "data" gives batches a column ``weight``, N_s B / (n B_s) for a class of N_s rows of which a batch
            holds B_s, with which means over batches estimate means over the data without bias; "batch" gives none, and
            means over batches are those of a population with this share of positives, in which the classes are as in
            the data: a mean over one class, or over pairs of both, is the same.

    Raises:
        ConfigError: if a number is out of range.
    """

    batch_size: int = 128
    positive_fraction: float = 0.5
    allow_repeats: bool = False
    prevalence: Prevalence = "data"

    def __post_init__(self) -> None:
        require_counts(self, "batch_size")
        fraction("positive_fraction", self.positive_fraction)
        one_of("prevalence", self.prevalence, ("data", "batch"))

    def in_parts(self, parts: int) -> tuple["BalancedSampling", int]:
        return replace(self, batch_size=parts * self.batch_size), self.batch_size

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> StratifiedBatches:
        """Return balanced union batches of ``batch_size`` rows of each process; negatives are the first stratum."""
        size = self.batch_size * world_size
        positives = self._positives(size)
        return _of_two_classes(
            columns,
            "y",
            (size - positives, positives),
            seed,
            allow_repeats=self.allow_repeats,
            weights="never" if self.prevalence == "batch" else "if they differ",
            tells="nothing" if self.prevalence == "batch" else "if needed",
        )

    def _positives(self, size: int) -> int:
        """Return the number of positives among ``size`` rows."""
        count = round(self.positive_fraction * size)
        if not 1 <= count <= size - 1:
            raise ConfigError(
                f"positive_fraction={self.positive_fraction!r} of batch_size={size} is {count} positives and "
                f"{size - count} negatives; both must be >= 1. Raise batch_size or move positive_fraction to 0.5."
            )
        return count


@dataclass(frozen=True)
class CellSampling(Sampling):
    """Every batch holds equally many samples of every combination of some columns, such as class and group.

    That is for constraints on the rates of a class in groups of which one is small: of 1 positive in 400 samples a
    uniform batch of 128 holds one in every third batch.  Rows are weighted, so that means over batches estimate means
    over the data.  Each combination is gone through in a random order and shuffled anew when exhausted; of one with
    fewer samples than a batch asks for, all are there and some occur twice or more.  An epoch has as many batches as
    hold n samples.

    Args:
        batch_size: number of rows in a training batch of one process, of which every combination has the same part,
            rounded down, and at least one row.
        columns: whose combinations are meant: of the batches, of whole numbers, or any others of the table, of which
            an empty cell is a value, too; those that neither has are left out.

    Raises:
        ConfigError: if a number is out of range, or the table has none of the columns.

    Example:
        >>> table = {"y": torch.tensor([0, 0, 0, 0, 1, 0, 1, 0]), "index": torch.arange(8)}
        >>> batch = next(CellSampling(4).plan(table).batches(epoch=0))
        >>> sorted(table["y"][batch].tolist())
        [0, 0, 1, 1]
    """

    batch_size: int = 512
    columns: tuple[str, ...] = ("y", "group")

    def __post_init__(self) -> None:
        require_counts(self, "batch_size")

    def in_parts(self, parts: int) -> tuple["CellSampling", int]:
        return replace(self, batch_size=parts * self.batch_size), self.batch_size

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> StratifiedBatches:
        """Return union batches of ``batch_size`` rows of each process."""
        named = [name for name in self.columns if name in columns] or list(self.columns[:1])
        found = torch.stack([required_column(columns, name, "cells").reshape(-1) for name in named])
        number, cells = torch.unique(found, dim=1, return_inverse=True)
        count = number.shape[1]
        drawn = max(1, self.batch_size // count) * world_size
        return StratifiedBatches(
            cells,
            torch.arange(count).unsqueeze(1),
            torch.full((count,), drawn),
            [(torch.arange(count), count)],
            choose=all_of_them,
            num_batches=max(1, len(cells) // (count * drawn)),
            seed=seed,
            weights="if they differ",
            tells="strata",
        )


@dataclass(frozen=True)
class EventSampling(Sampling):
    """Every batch holds the same number of events and of censored samples, for survival times.

    They are balanced batches by the event: rows are weighted, and the strata (censored, event) come along, so that sums
    over a risk set can be estimated from the samples of a batch.  An epoch of n rows has n // B batches of B.

    Args:
        events_per_batch: number of rows with an event in a training batch of one process.
        censored_per_batch: number of censored rows in it.
        allow_repeats: whether a row may occur twice in a batch that asks for more rows of a kind than there are.
        column: column of the events, 1 for an event and 0 for a censored sample.

    Raises:
        ConfigError: if a number is out of range.
    """

    events_per_batch: int = 32
    censored_per_batch: int = 96
    allow_repeats: bool = False
    column: str = "event"

    def __post_init__(self) -> None:
        at_least("events_per_batch", self.events_per_batch, 2)
        at_least("censored_per_batch", self.censored_per_batch, 2)

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> StratifiedBatches:
        """Return union batches with the rows of each process; censored samples are the first stratum."""
        drawn = self.censored_per_batch * world_size, self.events_per_batch * world_size
        return _of_two_classes(
            columns,
            self.column,
            drawn,
            seed,
            allow_repeats=self.allow_repeats,
            weights="if they differ",
            tells="strata",
        )


def _of_two_classes(
    columns: Mapping[str, Tensor],
    column: str,
    drawn: tuple[int, int],
    seed: int,
    *,
    allow_repeats: bool,
    weights: Weighting,
    tells: Telling,
) -> StratifiedBatches:
    """Return batches that hold so many rows with 0 and with 1 in a column; an epoch has as many as hold n rows."""
    labels, size = required_column(columns, column, "classes"), sum(drawn)
    if labels.ndim != 1 or not bool(((labels == 0) | (labels == 1)).all()):
        raise DataError(
            f"Batches with so many rows of two classes need one label per row, 0 or 1, but the column {column!r} has "
            f"shape {tuple(labels.shape)} and {listed_in_order(sorted(set(labels.flatten().tolist())))}. Use "
            "LabelSampling for several labels, else uniform or grouped batches."
        )
    num_batches = enough_rows(len(labels), size) // size
    for label in (1, 0):
        rows = int((labels == label).sum())
        if rows == 0:
            raise DataError(
                f"The column {column!r} must hold both 0 and 1, but none of its {len(labels)} rows is {label}. Use "
                "UniformSampling, or check the column."
            )
        if rows < drawn[label] and not allow_repeats:
            raise DataError(
                f"A batch of {size} asks for {drawn[label]} rows of class {label}, which has {rows}. "
                "Lower batch_size, change positive_fraction, or set allow_repeats=True."
            )
    return StratifiedBatches(
        (labels == 1).long(),
        torch.tensor([[1, 0]]),  # positives are drawn first
        torch.tensor(drawn),
        [(torch.tensor([0]), 1)],
        choose=all_of_them,
        num_batches=num_batches,
        seed=seed,
        positive=torch.tensor([False, True]),
        weights=weights,
        tells=tells,
    )

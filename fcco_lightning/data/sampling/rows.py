"""Draws of single rows: uniform ones, and those with a fixed number of every class."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from fcco_lightning.checks import at_least, fraction
from fcco_lightning.data.plans import BalancedBatches, EventBatches, UniformBatches
from fcco_lightning.data.sampling.base import Sampling, at_least_or_none, required_column


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
        at_least("batch_size", self.batch_size, 1)
        at_least_or_none("num_batches", self.num_batches)

    def in_parts(self, parts: int) -> tuple["UniformSampling", int]:
        """Return larger batches, as many fewer."""
        fewer = None if self.num_batches is None else -(-self.num_batches // parts)
        return replace(self, batch_size=parts * self.batch_size, num_batches=fewer), self.batch_size

    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> UniformBatches:
        """Return uniform union batches of ``batch_size`` rows of each process."""
        options = {"drop_last": self.drop_last, "num_batches": self.num_batches}
        return UniformBatches(len(columns["index"]), self.batch_size * world_size, seed, **options)  # type: ignore[arg-type]


@dataclass(frozen=True)
class BalancedSampling(Sampling):
    """Every batch holds the same number of positives: :class:`BalancedBatches`, by the column ``y``.

    Args:
        batch_size: number of rows in a training batch of one process.
        positive_fraction: share of positives in every batch, in (0, 1).
        allow_repeats: whether a row may occur twice in a batch that asks for more rows of a class than there are.
        prevalence: "data" gives batches a column ``weight`` with which means over them estimate means over the data;
            "batch" gives none.

    Raises:
        ConfigError: if a number is out of range.
    """

    batch_size: int = 128
    positive_fraction: float = 0.5
    allow_repeats: bool = False
    prevalence: Literal["data", "batch"] = "data"

    def __post_init__(self) -> None:
        at_least("batch_size", self.batch_size, 1)
        fraction("positive_fraction", self.positive_fraction)

    def in_parts(self, parts: int) -> tuple["BalancedSampling", int]:
        """Return larger batches."""
        return replace(self, batch_size=parts * self.batch_size), self.batch_size

    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> BalancedBatches:
        """Return balanced union batches of ``batch_size`` rows of each process."""
        return BalancedBatches(
            required_column(columns, "y", "classes"),
            self.batch_size * world_size,
            seed,
            positive_fraction=self.positive_fraction,
            allow_repeats=self.allow_repeats,
            prevalence=self.prevalence,
        )


@dataclass(frozen=True)
class EventSampling(Sampling):
    """Every batch holds the same number of events and of censored samples: :class:`EventBatches`.

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

    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> EventBatches:
        """Return union batches with the rows of each process."""
        return EventBatches(
            required_column(columns, self.column, "events"),
            self.events_per_batch * world_size,
            self.censored_per_batch * world_size,
            seed,
            allow_repeats=self.allow_repeats,
        )

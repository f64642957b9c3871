"""How training batches are drawn: the ``batches`` of a datamodule."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fcco_lightning.checks import at_least, fraction
from fcco_lightning.data.plans import (
    BagBatches,
    BalancedBatches,
    BatchPlan,
    EventBatches,
    GroupBatches,
    LabelBatches,
    OwnerBatches,
    QueryBatches,
    RepeatedBatches,
    UniformBatches,
)
from fcco_lightning.data.table import LabelTable, TensorTable
from fcco_lightning.errors import ConfigError


class Sampling(ABC):
    """A way of drawing training batches, which becomes a :class:`BatchPlan` once the table is known."""

    @abstractmethod
    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> BatchPlan:
        """Return the union batches of ``world_size`` processes.

        Args:
            columns: columns of the training table with ``index``, each with first dimension n.
            seed: seed of the batches.
            world_size: number of processes P.

        Raises:
            ConfigError: if the table has no column that these batches are drawn by.
            DataError: if it does not have enough rows.
        """

    @property
    def draws(self) -> int:
        """Number of independent draws in a batch."""
        return 1

    def table(self, table: TensorTable) -> TensorTable | LabelTable:
        """Return the table whose rows are drawn: that of the training split, unless another view of it is needed."""
        return table

    def row_order(self, size: int) -> Tensor | None:  # noqa: ARG002
        """Return the order in which the ``size`` rows of the training table are to lie, (size,); None for any."""
        return None


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
        _at_least_or_none("num_batches", self.num_batches)

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

    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> BalancedBatches:
        """Return balanced union batches of ``batch_size`` rows of each process."""
        return BalancedBatches(
            _required(columns, "y", "classes"),
            self.batch_size * world_size,
            seed,
            positive_fraction=self.positive_fraction,
            allow_repeats=self.allow_repeats,
            prevalence=self.prevalence,
        )


@dataclass(frozen=True)
class GroupSampling(Sampling):
    """Every batch holds equally many samples of a few groups: :class:`GroupBatches`, by the column ``group``.

    Args:
        groups_per_batch: number of groups in a training batch (B1), the same groups on all processes; None for all.
        samples_per_group: number of samples of each of them in a training batch of one process (B2).
        replacement: whether the samples of a group are drawn with replacement.
        num_batches: number of batches of an epoch; None for as many as hold n samples.
        prevalence: "batch" gives batches no weights; "data" gives them a column ``weight`` with which means over them
            estimate means over the data.
        column: column of the groups.

    Raises:
        ConfigError: if a number is out of range.
    """

    groups_per_batch: int | None = 8
    samples_per_group: int = 8
    replacement: bool = False
    num_batches: int | None = None
    prevalence: Literal["data", "batch"] = "batch"
    column: str = "group"

    def __post_init__(self) -> None:
        _at_least_or_none("groups_per_batch", self.groups_per_batch)
        at_least("samples_per_group", self.samples_per_group, 1)
        _at_least_or_none("num_batches", self.num_batches)

    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> GroupBatches:
        """Return union batches of ``groups_per_batch`` groups with ``samples_per_group`` rows of each process."""
        groups = _required(columns, self.column, "groups")
        return GroupBatches(
            groups,
            int(groups.max()) + 1 if self.groups_per_batch is None else self.groups_per_batch,
            self.samples_per_group * world_size,
            seed,
            replacement=self.replacement,
            num_batches=self.num_batches,
            prevalence=self.prevalence,
        )


@dataclass(frozen=True)
class LabelSampling(Sampling):
    """Every batch holds positives and negatives of a few of several labels: :class:`LabelBatches`, by ``y`` (n, T).

    Training batches then have one label of every sample: ``task`` (B,) names it, ``y`` (B,) is its value.

    Args:
        labels_per_batch: number of labels in a training batch, the same labels on all processes; None for all.
        positives_per_label: number of positives of each of them in a training batch of one process; mean average
            precision needs two or more over all processes.
        negatives_per_label: number of negatives of each of them in a training batch of one process.
        num_batches: number of batches of an epoch; None for as many as hold, on average, every positive once.
        missing: value of ``y`` for labels that are not known, such as -1; None if all are.

    Raises:
        ConfigError: if a number is out of range.
    """

    labels_per_batch: int | None = 4
    positives_per_label: int = 4
    negatives_per_label: int = 12
    num_batches: int | None = None
    missing: float | None = None

    def __post_init__(self) -> None:
        _at_least_or_none("labels_per_batch", self.labels_per_batch)
        at_least("positives_per_label", self.positives_per_label, 1)
        at_least("negatives_per_label", self.negatives_per_label, 1)
        _at_least_or_none("num_batches", self.num_batches)

    def table(self, table: TensorTable) -> LabelTable:
        """Return one row for every sample and label."""
        return LabelTable(table, self.missing)

    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> LabelBatches:
        """Return union batches of ``labels_per_batch`` labels with as many rows of each process."""
        task = _required(columns, "task", "labels")
        return LabelBatches(
            task,
            _required(columns, "y", "labels"),
            int(task.max()) + 1 if self.labels_per_batch is None else self.labels_per_batch,
            self.positives_per_label * world_size,
            self.negatives_per_label * world_size,
            seed,
            num_batches=self.num_batches,
        )


@dataclass(frozen=True)
class QuerySampling(Sampling):
    """Every batch holds some relevant and irrelevant items of a few queries: :class:`QueryBatches`.

    Queries are those of the column ``query``, and items with ``y`` > 0 are relevant.

    Args:
        queries_per_batch: number of queries in a training batch, the same queries on all processes.
        positives_per_query: number of relevant items of each of them in a training batch of one process.
        negatives_per_query: number of other items of each of them, likewise.
        num_batches: number of batches of an epoch; None for as many as go through all queries once.

    Raises:
        ConfigError: if a number is out of range.
    """

    queries_per_batch: int = 8
    positives_per_query: int = 4
    negatives_per_query: int = 12
    num_batches: int | None = None

    def __post_init__(self) -> None:
        at_least("queries_per_batch", self.queries_per_batch, 1)
        at_least("positives_per_query", self.positives_per_query, 1)
        at_least("negatives_per_query", self.negatives_per_query, 1)
        _at_least_or_none("num_batches", self.num_batches)

    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> QueryBatches:
        """Return union batches of ``queries_per_batch`` queries with items of each process."""
        queries = _required(columns, "query", "queries")
        if "y" not in columns:
            raise ConfigError(f"Batches of queries need the grades `y`, the training table has {sorted(columns)}.")
        return QueryBatches(
            queries,
            columns["y"] > 0,
            self.queries_per_batch,
            self.positives_per_query * world_size,
            self.negatives_per_query * world_size,
            seed,
            num_batches=self.num_batches,
        )


@dataclass(frozen=True)
class BagSampling(Sampling):
    """Every batch holds some instances of a few positive and a few negative bags: :class:`BagBatches`.

    Bags are those of the column ``bag``, and a bag is positive if its instances have ``y`` = 1.

    Args:
        positive_bags: number of positive bags in a training batch, the same bags on all processes.
        negative_bags: number of negative bags in it, likewise.
        instances_per_bag: number of instances of each of them in a training batch of one process.
        num_batches: number of batches of an epoch; None for as many as go through all bags once.

    Raises:
        ConfigError: if a number is out of range.
    """

    positive_bags: int = 8
    negative_bags: int = 8
    instances_per_bag: int = 4
    num_batches: int | None = None

    def __post_init__(self) -> None:
        at_least("positive_bags", self.positive_bags, 1)
        at_least("negative_bags", self.negative_bags, 1)
        at_least("instances_per_bag", self.instances_per_bag, 1)
        _at_least_or_none("num_batches", self.num_batches)

    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> BagBatches:
        """Return union batches of these numbers of bags with instances of each process."""
        return BagBatches(
            _required(columns, "bag", "bags"),
            _required(columns, "y", "labels of bags"),
            self.positive_bags,
            self.negative_bags,
            self.instances_per_bag * world_size,
            seed,
            num_batches=self.num_batches,
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
            _required(columns, self.column, "events"),
            self.events_per_batch * world_size,
            self.censored_per_batch * world_size,
            seed,
            allow_repeats=self.allow_repeats,
        )


@dataclass(frozen=True)
class OwnerSampling(Sampling):
    """Every process is handed only samples whose rows of a sharded dual state it holds: :class:`OwnerBatches`.

    That spares the exchange of rows; the batches then depend on the number of processes.

    Args:
        batch_size: number of rows in a training batch of one process.
        shuffle_rows: whether the rows of the training table are permuted once at set-up.  Shards are contiguous blocks
            of rows: without the permutation those of a table ordered by class, group or time differ in content.
        shuffle_seed: seed of that permutation, which decides what row i of the dual state means.

    Raises:
        ConfigError: if a number is out of range.
    """

    batch_size: int = 128
    shuffle_rows: bool = True
    shuffle_seed: int = 0

    def __post_init__(self) -> None:
        at_least("batch_size", self.batch_size, 1)
        at_least("shuffle_seed", self.shuffle_seed, 0)

    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> OwnerBatches:
        """Return union batches of ``batch_size`` rows of each process, all of its own shard."""
        return OwnerBatches(len(columns["index"]), self.batch_size * world_size, seed, world_size=world_size)

    def row_order(self, size: int) -> Tensor | None:
        """Return a permutation that depends on ``shuffle_seed`` only, shape (size,), if rows are to be permuted."""
        if not self.shuffle_rows:
            return None
        return torch.randperm(size, generator=torch.Generator().manual_seed(self.shuffle_seed))


@dataclass(frozen=True)
class RepeatedSampling(Sampling):
    """Every sample of a batch comes several times, to be perturbed anew each time: :class:`RepeatedBatches`.

    Args:
        batches: how the samples are drawn; its ``batch_size`` counts each of them once.
        copies: how often a sample comes in its batch, >= 2.

    Raises:
        ConfigError: if ``copies`` is out of range, or ``batches`` are not single draws.
    """

    batches: Sampling
    copies: int = 4

    def __post_init__(self) -> None:
        at_least("copies", self.copies, 2)
        if self.batches.draws != 1:
            raise ConfigError("RepeatedSampling takes single draws as batches, got TwoDraws. Put it inside TwoDraws.")

    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> RepeatedBatches:
        """Return the union batches of ``batches``, repeated."""
        return RepeatedBatches(self.batches.plan(columns, seed, world_size), self.copies)

    def row_order(self, size: int) -> Tensor | None:
        """Return what the batches ask for."""
        return self.batches.row_order(size)


@dataclass(frozen=True)
class TwoDraws(Sampling):
    """Two independent draws in every batch, as methods need that move dual and primal variables by different samples.

    Training batches then have the parts "target" and "dual".  Both have the same composition: as many rows of every
    class, and the same groups in the same order.

    Args:
        batches: how each of them is drawn.

    Raises:
        ConfigError: if ``batches`` is itself a pair of draws.
    """

    batches: Sampling

    def __post_init__(self) -> None:
        if self.batches.draws != 1:
            raise ConfigError("TwoDraws takes single draws as batches, got TwoDraws. Leave one of the two out.")

    @property
    def draws(self) -> int:
        """Two."""
        return 2

    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> BatchPlan:
        """Return the first draw; the other one is its :meth:`~BatchPlan.second_draw`."""
        return self.batches.plan(columns, seed, world_size)

    def table(self, table: TensorTable) -> TensorTable | LabelTable:
        """Return what the single draws are drawn from."""
        return self.batches.table(table)

    def row_order(self, size: int) -> Tensor | None:
        """Return what the single draws ask for."""
        return self.batches.row_order(size)


def with_num_batches(sampling: Sampling, num_batches: int) -> Sampling:
    """Return ``sampling`` with epochs of ``num_batches`` batches, so that it keeps pace with another part.

    Raises:
        ConfigError: if it is of a kind whose epochs have a length of their own, or was given another length.
    """
    if isinstance(sampling, TwoDraws):
        return TwoDraws(with_num_batches(sampling.batches, num_batches))
    if not isinstance(sampling, UniformSampling | GroupSampling | QuerySampling | BagSampling):
        raise ConfigError(f"{type(sampling).__name__} has epochs of a fixed length. Use GroupSampling here.")
    if sampling.num_batches not in (None, num_batches):
        raise ConfigError(
            f"num_batches={sampling.num_batches} is not the {num_batches} of the target's batches. Leave it out."
        )
    return replace(sampling, num_batches=num_batches)


def _required(columns: Mapping[str, Tensor], name: str, what: str) -> Tensor:
    if name not in columns or columns[name].is_floating_point():
        raise ConfigError(
            f"These batches are drawn by {what}, but the training table has no whole numbers in a column {name!r} (its "
            f"columns: {sorted(columns)}). Name what defines them, or draw with UniformSampling."
        )
    return columns[name]


def _at_least_or_none(name: str, value: int | None) -> None:
    if value is not None:
        at_least(name, value, 1)

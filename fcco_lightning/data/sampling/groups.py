"""Draws of a few groups, labels, queries or bags, with some rows of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.plans import BagBatches, GroupBatches, LabelBatches, QueryBatches
from fcco_lightning.data.sampling.base import Sampling, at_least_or_none, required_column
from fcco_lightning.data.table import LabelTable, TensorTable
from fcco_lightning.errors import ConfigError


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
        at_least_or_none("groups_per_batch", self.groups_per_batch)
        at_least("samples_per_group", self.samples_per_group, 1)
        at_least_or_none("num_batches", self.num_batches)

    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> GroupBatches:
        """Return union batches of ``groups_per_batch`` groups with ``samples_per_group`` rows of each process."""
        groups = required_column(columns, self.column, "groups")
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
        at_least_or_none("labels_per_batch", self.labels_per_batch)
        at_least("positives_per_label", self.positives_per_label, 1)
        at_least("negatives_per_label", self.negatives_per_label, 1)
        at_least_or_none("num_batches", self.num_batches)

    def table(self, table: TensorTable) -> LabelTable:
        """Return one row for every sample and label."""
        return LabelTable(table, self.missing)

    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> LabelBatches:
        """Return union batches of ``labels_per_batch`` labels with as many rows of each process."""
        task = required_column(columns, "task", "labels")
        return LabelBatches(
            task,
            required_column(columns, "y", "labels"),
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
        at_least_or_none("num_batches", self.num_batches)

    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> QueryBatches:
        """Return union batches of ``queries_per_batch`` queries with items of each process."""
        queries = required_column(columns, "query", "queries")
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
        at_least_or_none("num_batches", self.num_batches)

    def plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> BagBatches:
        """Return union batches of these numbers of bags with instances of each process."""
        return BagBatches(
            required_column(columns, "bag", "bags"),
            required_column(columns, "y", "labels of bags"),
            self.positive_bags,
            self.negative_bags,
            self.instances_per_bag * world_size,
            seed,
            num_batches=self.num_batches,
        )

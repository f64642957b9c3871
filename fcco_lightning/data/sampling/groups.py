"""Draws of a few groups, labels, queries or bags, with some rows of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fcco_lightning.checks import one_of
from fcco_lightning.data.plans import StratifiedBatches
from fcco_lightning.data.plans.draws import cycle
from fcco_lightning.data.plans.stratified import Weighting, at_random
from fcco_lightning.data.sampling.base import Prevalence, Sampling, require_counts, required_column
from fcco_lightning.data.table import LabelTable, TensorTable
from fcco_lightning.errors import ConfigError, DataError

_FEW_GROUPS = 8  # of a batch, if nothing else is said


@dataclass(frozen=True)
class GroupSampling(Sampling):
    """Every batch holds equally many samples of a few groups, by the column ``group``, as group-wise estimates need.

    A batch is different groups, drawn uniformly, with as many samples of each, laid out sample by sample.  For an even
    number of samples its two contiguous halves are therefore two draws per group, of the same groups.  With replacement
    they are independent; without, the covariance of means over them is that of samples without replacement, O(1 / N_g)
    for a group of N_g rows.

    Args:
        groups_per_batch: number of groups in a training batch (B1), the same groups on all processes; None for all,
            "auto" for 8, or all where there are fewer.
        samples_per_group: number of samples of each of them in a training batch of one process (B2).
        replacement: whether the samples of a group are drawn with replacement; otherwise each group is gone through in
            a random order and shuffled anew when exhausted, and no sample occurs twice in a batch.
        num_batches: number of batches of an epoch; None for as many as hold n samples.
        prevalence: "batch" gives batches no weights, as objectives over groups need none, and means over batches are
            those of a population of equally large groups; "data" gives rows of a group of N_g of n rows the ``weight``
            N_g G / n, with which means over batches estimate means over the data.
        column: column of the groups.

    Raises:
        ConfigError: if a number is out of range.

    Example:
        >>> group = torch.tensor([0, 1, 1, 0, 2, 2])
        >>> batch = next(GroupSampling(2, samples_per_group=2).plan({"group": group}, seed=1).batches(epoch=0))
        >>> group[batch].tolist()  # sample by sample
        [2, 1, 2, 1]
    """

    groups_per_batch: int | Literal["auto"] | None = "auto"
    samples_per_group: int = 8
    replacement: bool = False
    num_batches: int | None = None
    prevalence: Prevalence = "batch"
    column: str = "group"

    def __post_init__(self) -> None:
        counted = [] if self.groups_per_batch == "auto" else ["groups_per_batch"]
        require_counts(self, "samples_per_group", or_none=[*counted, "num_batches"])
        one_of("prevalence", self.prevalence, ("data", "batch"))

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> StratifiedBatches:
        """Return union batches of ``groups_per_batch`` groups with ``samples_per_group`` rows of each process."""
        groups = required_column(columns, self.column, "groups")
        sizes, drawn = _group_sizes(groups), self.samples_per_group * world_size
        chosen = self.chosen(len(sizes))
        self._check(sizes, chosen, drawn)
        weighted: Weighting = "always" if self.replacement else "if they differ"
        return StratifiedBatches(
            groups,
            torch.arange(len(sizes)).unsqueeze(1),
            torch.full_like(sizes, drawn),
            [(torch.arange(len(sizes)), chosen)],
            choose=at_random,
            ahead=False,
            num_batches=self.num_batches or max(1, len(groups) // (chosen * drawn)),
            seed=seed,
            replacement=self.replacement,
            weights="never" if self.prevalence == "batch" else weighted,
            tells="nothing" if self.prevalence == "batch" else "choice",
        )

    def chosen(self, groups: int) -> int:
        """Return how many of so many groups a batch is to hold."""
        if self.groups_per_batch == "auto":
            return min(groups, _FEW_GROUPS)
        return groups if self.groups_per_batch is None else self.groups_per_batch

    def _check(self, sizes: Tensor, chosen: int, drawn: int) -> None:
        if chosen > len(sizes):
            raise ConfigError(f"groups_per_batch={chosen} exceeds the {len(sizes)} groups. Lower it.")
        size, group = (int(part) for part in sizes.min(dim=0))
        if size < drawn and not self.replacement:
            raise DataError(
                f"A batch takes samples_per_group={drawn} rows of a group (with several processes it counts those of "
                f"all of them), but group {group} has {size}. Set replacement=True, lower samples_per_group, or raise "
                "min_size so that small groups are left out."
            )


@dataclass(frozen=True)
class LabelSampling(Sampling):
    """Every batch holds positives and negatives of a few of several labels, by ``y`` (n, T), as means over labels need.

    Training batches then have one label of every sample: ``task`` (B,) names it, ``y`` (B,) is its value.  Labels are
    drawn uniformly; both classes of each are gone through in a random order and shuffled anew when exhausted, so that
    no row occurs twice in a batch.  Rows are weighted so that means over batches estimate means over all rows.

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
        require_counts(self, "positives_per_label", "negatives_per_label", or_none=["labels_per_batch", "num_batches"])

    def table(self, table: TensorTable) -> LabelTable:
        """Return one row for every sample and label."""
        return LabelTable(table, self.missing)

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> StratifiedBatches:
        """Return union batches of ``labels_per_batch`` labels with as many rows of each process.

        Strata are ``2 t + y`` of the rows of a :class:`~fcco_lightning.data.table.LabelTable`.
        """
        task, y = (required_column(columns, name, "labels") for name in ("task", "y"))
        _check_labels(task, y)
        labels = int(task.max()) + 1
        chosen = labels if self.labels_per_batch is None else self.labels_per_batch
        strata = 2 * task + (y == 1)
        sizes = torch.bincount(strata, minlength=2 * labels)
        drawn = torch.tensor([self.negatives_per_label, self.positives_per_label]).repeat(labels) * world_size
        self._check_sizes(sizes, drawn, chosen)
        return StratifiedBatches(
            strata,
            torch.arange(2 * labels).view(-1, 2),
            drawn,
            [(torch.arange(labels), chosen)],
            choose=at_random,
            num_batches=self.num_batches or max(1, int(sizes[1::2].sum()) // (chosen * int(drawn[1]))),
            seed=seed,
            positive=torch.tensor([False, True]).repeat(labels),
            weights="if they differ",
            tells="nothing",
        )

    def _check_sizes(self, sizes: Tensor, drawn: Tensor, chosen: int) -> None:
        if chosen > len(sizes) // 2:
            raise ConfigError(f"labels_per_batch={chosen} exceeds the {len(sizes) // 2} labels. Lower it.")
        short = (sizes < drawn).nonzero().flatten().tolist()
        if short:
            label, value = divmod(short[0], 2)
            name = ("negatives_per_label", "positives_per_label")[value]
            raise DataError(
                f"A batch takes {name}={int(drawn[value])} rows of a label (with several processes it counts those of "
                f"all of them), but label {label} has {int(sizes[short[0]])}. Lower {name}, or leave out labels "
                f"that are too rare ({len(short)} classes are too small)."
            )


@dataclass(frozen=True)
class QuerySampling(Sampling):
    """Every batch holds a few queries with the same number of relevant and irrelevant items of each.

    Queries are those of the column ``query``, and items with ``y`` > 0 are relevant.  The queries are gone through in a
    random order.  Where one has fewer items of a kind than asked for, all are there and some occur twice or more; where
    it has none, items of the other kind take their places.  So all batches are of one size.

    Rows are weighted so that means over batches estimate means over all rows, and the strata (relevant and irrelevant
    items of every query) come along, so that sums over the items of a query can be estimated from those of a batch.

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
        counts = "queries_per_batch", "positives_per_query", "negatives_per_query"
        require_counts(self, *counts, or_none=["num_batches"])

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> StratifiedBatches:
        """Return union batches of ``queries_per_batch`` queries with items of each process.

        Raises:
            ConfigError: as of every sampling, or if there are fewer queries.
            DataError: also if one item of a kind is drawn of queries that have several: a batch would then never hold
                two of them, and could not say how they compare.
        """
        queries = required_column(columns, "query", "queries")
        if "y" not in columns:
            raise ConfigError(f"Batches of queries need the grades `y`, the training table has {sorted(columns)}.")
        relevant = columns["y"] > 0
        _require_keyed(queries, relevant, "queries", "relevant")
        query = torch.unique(queries, return_inverse=True)[1]
        every = int(query.max()) + 1
        if self.queries_per_batch > every:
            raise ConfigError(f"queries_per_batch={self.queries_per_batch} exceeds the {every} queries. Lower it.")
        # Stratum 2 q + 1 would be the relevant items of query q; those that have rows are numbered anew.
        present, strata = torch.unique(2 * query + relevant.long(), return_inverse=True)
        of_query, positive = present // 2, present % 2 == 1
        alone = torch.bincount(of_query)[of_query] == 1
        apart = torch.tensor([self.negatives_per_query, self.positives_per_query]) * world_size
        drawn = torch.where(alone, apart.sum(), apart[positive.long()])
        self._refuse_single_draws(drawn, torch.bincount(strata), positive)
        units = torch.full((every, 2), -1)
        units[of_query, (positive & ~alone).long()] = torch.arange(len(present))
        return StratifiedBatches(
            strata,
            units,
            drawn,
            [(torch.arange(every), self.queries_per_batch)],
            choose=cycle,
            num_batches=self.num_batches or -(-every // self.queries_per_batch),
            seed=seed,
            positive=positive | alone,
        )

    def _refuse_single_draws(self, drawn: Tensor, sizes: Tensor, positive: Tensor) -> None:
        for kind, name in ((positive, "positives_per_query"), (~positive, "negatives_per_query")):
            several = kind & (drawn == 1) & (sizes > 1)
            if bool(several.any()):
                raise DataError(
                    f"{name}=1, but {int(several.sum())} queries have several such items: no batch would hold two of "
                    "them, so that nothing could be said of how they compare. Use 2 or more."
                )


@dataclass(frozen=True)
class BagSampling(Sampling):
    """Every batch holds the same number of positive and of negative bags, with as many instances of each.

    Bags are those of the column ``bag``, and a bag is positive if one of its instances has ``y`` = 1.  The bags of each
    class are gone through in a random order and shuffled anew when exhausted, and so are the instances of every bag.
    Where a bag has fewer instances than asked for, all are there and some occur twice or more.

    Rows are weighted so that means over batches estimate means over all rows, and the strata (the bags) come along.

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
        require_counts(self, "positive_bags", "negative_bags", "instances_per_bag", or_none=["num_batches"])

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> StratifiedBatches:
        """Return union batches of these numbers of bags, the positive ones first, with instances of each process."""
        bags = required_column(columns, "bag", "bags")
        labels = required_column(columns, "y", "labels of bags")
        _require_keyed(bags, labels, "bags", "labels")
        bag = torch.unique(bags, return_inverse=True)[1]
        every = int(bag.max()) + 1
        positive = torch.bincount(bag[labels == 1], minlength=every) > 0
        choices = self._choices(positive)
        return StratifiedBatches(
            bag,
            torch.arange(every).unsqueeze(1),
            torch.full((every,), self.instances_per_bag * world_size),
            choices,
            choose=cycle,
            num_batches=self.num_batches or max(-(-len(members) // chosen) for members, chosen in choices),
            seed=seed,
        )

    def _choices(self, positive: Tensor) -> list[tuple[Tensor, int]]:
        """The positive and the negative bags, each with how many of them are chosen."""
        kinds = (("positive", positive, self.positive_bags), ("negative", ~positive, self.negative_bags))
        for kind, members, chosen in kinds:
            if int(members.sum()) < chosen:
                raise DataError(
                    f"{kind}_bags={chosen} exceeds the {int(members.sum())} {kind} bags among {len(members)}. Lower "
                    "it, or check the columns `bag` and `y`."
                )
        return [(members.nonzero().flatten(), chosen) for _, members, chosen in kinds]


def _group_sizes(groups: Tensor) -> Tensor:
    """Return the number of rows of every group 0..G-1, shape (G,)."""
    if groups.ndim != 1 or groups.dtype != torch.int64 or len(groups) == 0:
        raise DataError(
            f"groups must be an int64 tensor of shape (n,) with n >= 1, got {groups.dtype} of shape "
            f"{tuple(groups.shape)}."
        )
    if groups.min() < 0:
        raise DataError(
            f"groups must be numbers 0..G-1, but {int((groups < 0).sum())} rows are negative (first: row "
            f"{int((groups < 0).int().argmax())}). Leave out rows of no group."
        )
    # n rows leave one of the groups 0..n empty: clamping hides no gap, and an absurd number allocates no more than n.
    sizes = torch.bincount(groups.clamp(max=len(groups)))
    if not sizes.all():
        raise DataError(
            f"groups must be numbered 0..G-1 without gaps, but group {int((sizes == 0).int().argmax())} has no rows "
            f"while group {int(groups.max())} has. Let the training split hold rows of every group (splits, "
            "groups.min_size), or number them anew: torch.unique(groups, return_inverse=True)."
        )
    return sizes


def _check_labels(task: Tensor, y: Tensor) -> None:
    if task.shape != y.shape or task.ndim != 1 or not len(task) or int(task.min()) < 0:
        raise DataError(
            f"task and y must be of one shape (N,) with N >= 1 and task must hold the numbers 0..T-1, got "
            f"{tuple(task.shape)} {task.dtype} and {tuple(y.shape)}. Use LabelSampling with several label columns."
        )
    if not bool(((y == 0) | (y == 1)).all()):
        raise DataError(f"y must hold 0 and 1, got {sorted(set(y.tolist()))[:12]}. Leave out rows without a label.")


def _require_keyed(keys: Tensor, values: Tensor, name: str, of_values: str) -> None:
    """Raise :class:`DataError` unless ``keys`` are of shape (n,), n >= 1, and ``values`` are as many."""
    if keys.dim() != 1 or values.shape != keys.shape or not len(keys):
        raise DataError(
            f"{name} must be whole numbers of shape (n,) with n >= 1 and {of_values} of the same shape, got "
            f"{keys.dtype} of shape {tuple(keys.shape)} and shape {tuple(values.shape)}."
        )

"""Batch plans: the batches of an epoch as a pure function of (seed, epoch).

Nothing is drawn from a global random generator, so an epoch can be replayed, skipped into, or divided among processes
and always holds the same batches.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice, pairwise

import numpy as np
import torch
from torch import Tensor

from fcco_lightning.checks import at_least, fraction
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.state import shard_of


class BatchPlan(ABC):
    """The batches of every epoch.

    Args:
        batch_size: rows in a batch, over all processes together.
        seed: whole number >= 0.

    Attributes:
        num_batches: batches in an epoch, the same in every epoch.
    """

    num_batches: int

    def __init__(self, batch_size: int, seed: int) -> None:
        self.batch_size = at_least("batch_size", batch_size, 1)
        self.seed = at_least("seed", seed, 0)

    @abstractmethod
    def batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield the ``num_batches`` batches of ``epoch`` as int64 index tensors of shape (B,)."""

    def generator(self, epoch: int) -> torch.Generator:
        """Return a fresh CPU generator that depends on (seed, epoch) only."""
        # SeedSequence mixes the pair: seed + epoch would make epoch 1 of seed 0 equal to epoch 0 of seed 1.
        mixed = np.random.SeedSequence([self.seed, at_least("epoch", epoch, 0)]).generate_state(1, np.uint64)[0]
        return torch.Generator().manual_seed(int(mixed))


class UniformBatches(BatchPlan):
    """Every epoch is a permutation of 0..num_rows-1, cut into batches.

    Args:
        num_rows: rows n of the data set.
        batch_size: rows in a batch, <= n.
        seed: whole number >= 0.
        drop_last: leave out the last batch when it would be short (the n mod batch_size rows left out differ from
            epoch to epoch).
        num_batches: batches of an epoch, all of ``batch_size`` rows: fewer than a permutation has cut it short, more
            start another one.  None for one permutation.

    Raises:
        DataError: if ``batch_size`` > ``num_rows``.
    """

    def __init__(
        self,
        num_rows: int,
        batch_size: int,
        seed: int = 0,
        *,
        drop_last: bool = True,
        num_batches: int | None = None,
    ) -> None:
        super().__init__(batch_size, seed)
        self.num_rows = _enough_rows(num_rows, self.batch_size)
        self.drop_last = drop_last
        whole, rest = divmod(self.num_rows, self.batch_size)
        self._one_pass = num_batches is None
        passed = whole + (rest > 0 and not drop_last)
        self.num_batches = passed if num_batches is None else at_least("num_batches", num_batches, 1)

    def batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield consecutive pieces of a permutation, each of shape (batch_size,) (the last may be shorter)."""
        if not self._one_pass:
            cycle = _cycle(torch.arange(self.num_rows), self.batch_size, self.generator(epoch))
            yield from islice(cycle, self.num_batches)
            return
        order = torch.randperm(self.num_rows, generator=self.generator(epoch))
        yield from torch.split(order, self.batch_size)[: self.num_batches]


class OwnerBatches(BatchPlan):
    """Every process is handed only samples whose rows of a sharded dual state it holds, so that no row travels.

    A union batch is made of equal shares of the P shards, each gone through in a random order.  The batches of an epoch
    therefore depend on P; rows left over by the smallest shard differ from epoch to epoch.

    Args:
        num_rows: rows n of the data set and of the dual state.
        batch_size: rows in a union batch.
        seed: whole number >= 0.
        world_size: number of processes P.

    Raises:
        DataError: if a shard has fewer rows than its share of a batch.
    """

    def __init__(self, num_rows: int, batch_size: int, seed: int = 0, *, world_size: int = 1) -> None:
        super().__init__(batch_size, seed)
        self.num_rows = _enough_rows(num_rows, self.batch_size)
        bounds = [r * batch_size // world_size for r in range(world_size + 1)]
        self._shares = [high - low for low, high in pairwise(bounds)]
        self._shards = [shard_of(num_rows, r, world_size) for r in range(world_size)]
        counts = [count for _, count in self._shards]
        self.num_batches = min((c // s for c, s in zip(counts, self._shares, strict=True) if s), default=0)
        if self.num_batches == 0:
            raise DataError(
                f"The {num_rows} rows lie in shards of {counts}, a batch of {batch_size} takes {self._shares} of them. "
                "Lower batch_size, or use UniformBatches."
            )

    def batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield batches of shape (batch_size,), the share of process 0 first."""
        generator = self.generator(epoch)
        orders = [first + torch.randperm(count, generator=generator) for first, count in self._shards]
        for i in range(self.num_batches):
            yield torch.cat([o[i * s : (i + 1) * s] for o, s in zip(orders, self._shares, strict=True)])


class BalancedBatches(BatchPlan):
    """Every batch holds the same number of positives, as losses over pairs of a positive and a negative need.

    Each class is gone through in a random order and shuffled anew when exhausted, so within an epoch the counts of any
    two rows of a class differ by one at most.  An epoch is n // batch_size batches.  Positives are spread evenly over
    the positions of a batch, so that contiguous parts of it (one per process) are balanced too.

    Args:
        labels: classes of all rows, shape (n,), values in {0, 1}.
        batch_size: rows in a batch, <= n.
        seed: whole number >= 0.
        positive_fraction: share of positives in a batch, in (0, 1); rounded to whole rows.
        allow_repeats: let a row occur twice in a batch that asks for more rows of a class than there are.

    Raises:
        ConfigError: if a batch would hold no positive or no negative.
        DataError: if a class has no rows, or fewer than a batch asks for.
    """

    def __init__(
        self,
        labels: Tensor,
        batch_size: int,
        seed: int = 0,
        *,
        positive_fraction: float = 0.5,
        allow_repeats: bool = False,
    ) -> None:
        super().__init__(batch_size, seed)
        self.num_batches = _enough_rows(len(labels), self.batch_size) // self.batch_size
        self.num_positive = _positives(self.batch_size, positive_fraction)
        self.num_negative = self.batch_size - self.num_positive
        self.allow_repeats = allow_repeats
        self._positives = self._rows_of(labels, 1, self.num_positive)
        self._negatives = self._rows_of(labels, 0, self.num_negative)
        # Position j is a positive where the count floor(j * share) steps up: evenly spaced, and exact in integers.
        steps = torch.arange(self.batch_size + 1) * self.num_positive // self.batch_size
        self._is_positive = steps.diff().bool()

    def batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield batches of shape (batch_size,) with ``num_positive`` positives each."""
        generator = self.generator(epoch)
        positives = _cycle(self._positives, self.num_positive, generator)
        negatives = _cycle(self._negatives, self.num_negative, generator)
        for _ in range(self.num_batches):
            batch = torch.empty(self.batch_size, dtype=torch.int64)
            batch[self._is_positive] = next(positives)
            batch[~self._is_positive] = next(negatives)
            yield batch

    def _rows_of(self, labels: Tensor, label: int, needed: int) -> Tensor:
        rows = (labels == label).nonzero().flatten()
        if len(rows) == 0:
            raise DataError(f"labels must hold both classes 0 and 1, but none of its {len(labels)} rows is {label}.")
        if len(rows) < needed and not self.allow_repeats:
            raise DataError(
                f"A batch of {self.batch_size} asks for {needed} rows of class {label}, which has {len(rows)}. "
                "Lower batch_size, change positive_fraction, or set allow_repeats=True."
            )
        return rows


class GroupBatches(BatchPlan):
    """Every batch holds the same number of samples of each of a few groups, as group-wise estimates need.

    A batch is ``groups_per_batch`` different groups, drawn uniformly, with ``samples_per_group`` samples of each.  It
    is laid out sample by sample: first one of every group, then the next of every group in the same order, and so on.
    Contiguous equal parts of it (one per process) therefore hold equal shares of every group if their number divides
    ``samples_per_group``, and shares that differ by one sample at most otherwise.

    Args:
        groups: group of every row, shape (n,), int64, every number of 0..G-1 at least once.
        groups_per_batch: groups in a batch (B1), <= G.
        samples_per_group: samples of each of them (B2), over all processes together.
        seed: whole number >= 0.
        replacement: draw the samples of a group independently; otherwise each group is gone through in a random order
            and shuffled anew when exhausted, and no sample occurs twice in a batch.
        num_batches: batches in an epoch; None for n // (B1 B2), but at least 1.

    Raises:
        ConfigError: if ``groups_per_batch`` > G.
        DataError: if ``groups`` is empty, holds other numbers or skips one, or (without replacement) if a group has
            fewer than ``samples_per_group`` rows.
    """

    def __init__(
        self,
        groups: Tensor,
        groups_per_batch: int,
        samples_per_group: int,
        seed: int = 0,
        *,
        replacement: bool = False,
        num_batches: int | None = None,
    ) -> None:
        self.groups_per_batch = at_least("groups_per_batch", groups_per_batch, 1)
        self.samples_per_group = at_least("samples_per_group", samples_per_group, 1)
        super().__init__(self.groups_per_batch * self.samples_per_group, seed)
        self.replacement = replacement
        self._sizes = _sizes_of(groups)
        self._check_sizes()
        if num_batches is None:
            num_batches = max(1, len(groups) // self.batch_size)
        self.num_batches = at_least("num_batches", num_batches, 1)
        # The rows group by group: group g owns self._rows[first : first + size].
        self._rows = torch.argsort(groups, stable=True)
        self._firsts = self._sizes.cumsum(0) - self._sizes

    @property
    def num_groups(self) -> int:
        """Number of groups G."""
        return len(self._sizes)

    def batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield batches of shape (B1 * B2,); entry j belongs to the batch's group number j mod B1."""
        generator = self.generator(epoch)
        cycles: dict[int, Iterator[Tensor]] = {}
        for _ in range(self.num_batches):
            chosen = torch.randperm(self.num_groups, generator=generator)[: self.groups_per_batch]
            if self.replacement:
                yield self._independent(chosen, generator)
            else:
                yield self._in_turn(chosen, cycles, generator)

    def _independent(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        shape = (self.samples_per_group, self.groups_per_batch)
        # float64 in [0, 1) times a size below 2^53 stays below that size, also after rounding.
        offsets = (torch.rand(shape, generator=generator, dtype=torch.float64) * self._sizes[chosen]).long()
        return self._rows[self._firsts[chosen] + offsets].flatten()

    def _in_turn(self, chosen: Tensor, cycles: dict[int, Iterator[Tensor]], generator: torch.Generator) -> Tensor:
        for group in chosen.tolist():
            if group not in cycles:  # shuffled when first drawn: groups that are not drawn cost nothing
                first, size = int(self._firsts[group]), int(self._sizes[group])
                cycles[group] = _cycle(self._rows[first : first + size], self.samples_per_group, generator)
        return torch.stack([next(cycles[group]) for group in chosen.tolist()], dim=1).flatten()

    def _check_sizes(self) -> None:
        if self.groups_per_batch > self.num_groups:
            raise ConfigError(
                f"groups_per_batch={self.groups_per_batch} exceeds the {self.num_groups} groups. Lower it."
            )
        size, group = (int(part) for part in self._sizes.min(dim=0))
        if size < self.samples_per_group and not self.replacement:
            raise DataError(
                f"A batch takes samples_per_group={self.samples_per_group} rows of a group (with several processes it "
                f"counts those of all of them), but group {group} has {size}. Set replacement=True, lower "
                "samples_per_group, or raise min_size so that small groups are left out."
            )


class RowsOf(BatchPlan):
    """The batches of a plan over some rows of a table, as rows of the whole table.

    Args:
        plan: batches of positions within ``rows``.
        rows: rows of the table, shape (r,), int64.

    Example:
        >>> plan = RowsOf(UniformBatches(2, batch_size=2), torch.tensor([40, 70]))
        >>> sorted(next(plan.batches(epoch=0)).tolist())
        [40, 70]
    """

    def __init__(self, plan: BatchPlan, rows: Tensor) -> None:
        super().__init__(plan.batch_size, plan.seed)
        self.plan, self.rows, self.num_batches = plan, rows, plan.num_batches

    def batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield ``rows`` of every batch of the plan."""
        for batch in self.plan.batches(epoch):
            yield self.rows[batch]


def _cycle(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield ``size`` of ``rows`` at a time for ever, one shuffled pass after another."""
    left = rows[:0]
    while True:
        take, left = left[:size], left[size:]
        while len(take) < size:
            fresh = rows[torch.randperm(len(rows), generator=generator)]
            # Rows this batch already holds go to the end of the new pass: no repeats, and no row loses its turn.
            seen = torch.isin(fresh, take)
            fresh = torch.cat([fresh[~seen], fresh[seen]])
            missing = size - len(take)
            take, left = torch.cat([take, fresh[:missing]]), fresh[missing:]
        yield take


def _enough_rows(num_rows: int, batch_size: int) -> int:
    if batch_size > num_rows:
        raise DataError(
            f"batch_size={batch_size} exceeds the {num_rows} rows of the training split "
            "(with several processes it counts the rows of all of them). Lower batch_size."
        )
    return num_rows


def _sizes_of(groups: Tensor) -> Tensor:
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
            f"while group {int(groups.max())} has. Number them anew: torch.unique(groups, return_inverse=True)."
        )
    return sizes


def _positives(batch_size: int, positive_fraction: float) -> int:
    count = round(fraction("positive_fraction", positive_fraction) * batch_size)
    if not 1 <= count <= batch_size - 1:
        raise ConfigError(
            f"positive_fraction={positive_fraction!r} of batch_size={batch_size} is {count} positives and "
            f"{batch_size - count} negatives; both must be >= 1. Raise batch_size or move positive_fraction to 0.5."
        )
    return count

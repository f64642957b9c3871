"""Batches of a few groups with equally many samples of each."""

import copy
from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.plans.balanced import Prevalence, checked_prevalence
from fcco_lightning.data.plans.base import (
    BatchPlan,
    cycle,
    mean_product,
    none_drawn_of_each,
    sum_of_largest,
    with_strata,
)
from fcco_lightning.errors import ConfigError, DataError


class GroupBatches(BatchPlan):
    """Every batch holds the same number of samples of each of a few groups, as group-wise estimates need.

    A batch is ``groups_per_batch`` different groups, drawn uniformly, with ``samples_per_group`` samples of each.  It
    is laid out sample by sample: first one of every group, then the next of every group in the same order, and so on.
    Contiguous equal parts of it (one per process) therefore hold equal shares of every group if their number divides
    ``samples_per_group``, and shares that differ by one sample at most otherwise.

    For even ``samples_per_group`` the two contiguous halves of a batch are therefore two draws per group, of the same
    groups.  With replacement they are independent; without, the covariance of means over them is that of samples
    without replacement, O(1 / N_g) for a group of N_g rows.

    Args:
        groups: group of every row, shape (n,), int64, every number of 0..G-1 at least once.
        groups_per_batch: groups in a batch (B1), <= G.
        samples_per_group: samples of each of them (B2), over all processes together.
        seed: whole number >= 0.
        replacement: draw the samples of a group independently; otherwise each group is gone through in a random order
            and shuffled anew when exhausted, and no sample occurs twice in a batch.
        num_batches: batches in an epoch; None for n // (B1 B2), but at least 1.
        prevalence: "batch" gives rows no weights, as objectives over groups need none; "data" gives a row of a group of
            N_g rows the weight N_g G / n, so that the expectation of a weighted mean over a batch is the mean over the
            data (the weights have mean 1 in expectation, not in every batch).

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
        prevalence: Prevalence = "batch",
    ) -> None:
        self.groups_per_batch = at_least("groups_per_batch", groups_per_batch, 1)
        self.samples_per_group = at_least("samples_per_group", samples_per_group, 1)
        super().__init__(len(groups), self.groups_per_batch * self.samples_per_group, seed)
        self.replacement, self.prevalence = replacement, checked_prevalence(prevalence)
        self._groups = groups
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
        for chosen in self._choices(epoch, generator):
            if self.replacement:
                yield self._independent(chosen, generator)
            else:
                yield self._in_turn(chosen, cycles, generator)

    @property
    def strata(self) -> Tensor:
        """Group of every row, shape (n,), int64."""
        return self._groups

    @property
    def stratum_kinds(self) -> Tensor:
        """Groups of one size are drawn alike."""
        return self._sizes

    @property
    def distinct(self) -> bool:
        """Without replacement, or with one sample of a group."""
        return not self.replacement or self.samples_per_group == 1

    def weights(self) -> Tensor | None:
        """Weights by group; None with ``prevalence="batch"``, or without replacement if all groups are of one size."""
        if self.prevalence == "batch":
            return None
        weights = (self._sizes.double() * self.num_groups / self.num_rows)[self._groups].float()
        return None if bool((weights == 1).all()) and not self.replacement else weights

    def columns(self) -> dict[str, Tensor]:
        """``weight``, and unless ``prevalence`` is "batch" the strata, and whether they are drawn with replacement."""
        columns = super().columns()
        if self.prevalence == "batch":
            return columns
        every = torch.ones_like(self._groups)
        columns = with_strata(columns, self._groups) | {"strata": self.num_groups * every}
        return columns | {"replaced": every} if self.replacement else columns

    def _absence(self, counts: Tensor) -> float:
        """Mean over all choices of B1 of the G groups of the product of their own absences."""
        if self.replacement:
            absences = ((1 - counts / self._sizes.double()) ** self.samples_per_group).numpy()
        else:
            absences = none_drawn_of_each(self._sizes, counts, self.samples_per_group)
        return mean_product(absences, self.groups_per_batch)

    def _most(self, counts: Tensor) -> int:
        """The largest number of B1 groups together; of one with a marked row all draws with replacement may be that."""
        drawn = self.samples_per_group
        own = drawn * (counts > 0) if self.replacement else counts.clamp(max=drawn)
        return sum_of_largest(own, self.groups_per_batch)

    def _second_half(self) -> Self:
        """Half the samples of every group, exactly so for even ``samples_per_group``."""
        half = copy.copy(self)
        half.samples_per_group = self.samples_per_group - self.samples_per_group // 2
        return half

    def _choices(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the groups of every batch, shape (B1,): those of the first draw, whichever draw this is."""
        if self.stream == 0:
            for _ in range(self.num_batches):
                yield torch.randperm(self.num_groups, generator=generator)[: self.groups_per_batch]
            return
        first = copy.copy(self)
        first.stream = 0
        for batch in first.batches(epoch):
            yield self._groups[batch[: self.groups_per_batch]]

    def _independent(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        shape = (self.samples_per_group, self.groups_per_batch)
        # float64 in [0, 1) times a size below 2^53 stays below that size, also after rounding.
        offsets = (torch.rand(shape, generator=generator, dtype=torch.float64) * self._sizes[chosen]).long()
        return self._rows[self._firsts[chosen] + offsets].flatten()

    def _in_turn(self, chosen: Tensor, cycles: dict[int, Iterator[Tensor]], generator: torch.Generator) -> Tensor:
        for group in chosen.tolist():
            if group not in cycles:  # shuffled when first drawn: groups that are not drawn cost nothing
                first, size = int(self._firsts[group]), int(self._sizes[group])
                cycles[group] = cycle(self._rows[first : first + size], self.samples_per_group, generator)
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

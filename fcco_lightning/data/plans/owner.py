"""Batches whose rows of a sharded dual state lie on the process that is given them."""

import copy
import math
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Self

import torch
from torch import Tensor

from fcco_lightning.data.plans.base import BatchPlan, enough_rows, none_drawn, stratum_weights, with_strata
from fcco_lightning.errors import DataError
from fcco_lightning.state import shard_of


class OwnerBatches(BatchPlan):
    """Every process is handed only samples whose rows of a sharded dual state it holds, so that no row travels.

    A union batch is made of equal shares of the P shards, each gone through in a random order.  The batches of an epoch
    therefore depend on P; rows left over by the smallest shard differ from epoch to epoch.

    A shard is a contiguous block of rows.  In a table that is ordered by class, group or time the shards differ, and so
    do the parts of a batch: what a process sees correlates with content.  Permute the rows of such a table once before
    it is used, as :class:`~fcco_lightning.data.sampling.OwnerSampling` does unless it is asked not to; the shards are
    then random samples.

    Args:
        num_rows: rows n of the data set and of the dual state.
        batch_size: rows in a union batch.
        seed: whole number >= 0.
        world_size: number of processes P.

    Raises:
        DataError: if a shard has fewer rows than its share of a batch.
    """

    def __init__(self, num_rows: int, batch_size: int, seed: int = 0, *, world_size: int = 1) -> None:
        super().__init__(num_rows, batch_size, seed)
        enough_rows(num_rows, self.batch_size)
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

    @property
    def strata(self) -> Tensor | None:
        """Shard of every row, shape (n,); None with one process."""
        counts = torch.tensor([count for _, count in self._shards])
        return None if len(counts) == 1 else torch.repeat_interleave(torch.arange(len(counts)), counts)

    def weights(self) -> Tensor | None:
        """Shards of different sizes: their rows are drawn with different probabilities."""
        strata = self.strata
        return None if strata is None else stratum_weights(strata, self._shares)

    def columns(self) -> dict[str, Tensor]:
        """``weight``, and the strata: two rows of one shard come together less often than two of different ones."""
        columns, strata = super().columns(), self.strata
        return columns if strata is None else with_strata(columns, strata)

    def _second_half(self) -> Self:
        half, first = copy.copy(self), self.batch_size // 2
        ends = list(accumulate(self._shares, initial=0))
        half._shares = [max(0, high - max(low, first)) for low, high in pairwise(ends)]
        return half

    def _absence(self, counts: Tensor) -> float:
        """Product over the shards, which are drawn from independently."""
        shards = zip(self._shards, counts.tolist(), self._shares, strict=True)
        return math.prod(none_drawn(size, marked, drawn) for (_, size), marked, drawn in shards)

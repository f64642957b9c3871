"""Uniform draws without replacement."""

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.plans.base import BatchPlan, enough_rows
from fcco_lightning.data.plans.draws import cycle, none_drawn


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
        super().__init__(num_rows, batch_size, seed)
        enough_rows(num_rows, self.batch_size)
        self.drop_last = drop_last
        whole, rest = divmod(self.num_rows, self.batch_size)
        self._rest = rest
        self._one_pass = num_batches is None
        passed = whole + (rest > 0 and not drop_last)
        self.num_batches = passed if num_batches is None else at_least("num_batches", num_batches, 1)

    @property
    def smallest(self) -> int:
        """Rows of the smallest batch of an epoch."""
        short = self._one_pass and not self.drop_last and self._rest
        return self._rest if short else self.batch_size

    def batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield consecutive pieces of a permutation, each of shape (batch_size,) (the last may be shorter)."""
        if not self._one_pass:
            rows = cycle(torch.arange(self.num_rows), self.batch_size, self.generator(epoch))
            yield from islice(rows, self.num_batches)
            return
        order = torch.randperm(self.num_rows, generator=self.generator(epoch))
        yield from torch.split(order, self.batch_size)[: self.num_batches]

    @property
    def strata(self) -> None:
        """All rows are drawn alike."""
        return None

    @property
    def distinct(self) -> bool:
        """Always, also in batches that span two permutations."""
        return True

    def _most(self, counts: Tensor) -> int:
        return int(counts.sum())

    def _second_half(self) -> Self:
        half = copy.copy(self)
        half.batch_size, half._rest = (size - size // 2 for size in (self.batch_size, self._rest))
        return half

    def by_size(self) -> list[tuple[float, Self]]:
        if self.smallest == self.batch_size:
            return [(1.0, self)]
        whole, short, last = copy.copy(self), copy.copy(self), 1 / self.num_batches
        short.batch_size, short._rest, whole._rest = self._rest, 0, 0
        return [(1 - last, whole), (last, short)]

    def _absence(self, counts: Tensor) -> float:
        """Hypergeometric: a batch, also one that spans two permutations, is a uniform set of its size."""
        size, marked = np.array(self.num_rows), counts.numpy()
        chances = [(share, none_drawn(size, marked, np.array(plan.batch_size))) for share, plan in self.by_size()]
        return float(sum(share * chance.item() for share, chance in chances))


class ShuffledBatches(UniformBatches):
    """The probabilities of the batches of another loader that shuffles: nearly :class:`UniformBatches`.

    They are not its batches, and not quite of its kind: where processes are to be given equally many samples, torch's
    ``DistributedSampler`` fills up an epoch with samples that it has given before, perhaps in the same batch.
    """

    @property
    def distinct(self) -> bool:
        """Not for certain."""
        return False

    def _most(self, counts: Tensor) -> int:
        return self.batch_size * bool(counts.any())

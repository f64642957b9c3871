"""The batches of an epoch as a pure function of (seed, epoch), and how likely they hold which samples.

Nothing is drawn from a global random generator, so an epoch can be replayed, skipped into, or divided among processes
and always holds the same batches.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from fcco_lightning.checks import at_least, one_of
from fcco_lightning.data.columns import listed_in_order
from fcco_lightning.errors import DataError


class BatchPlan(ABC):
    """The batches of every epoch.

    Rows are of strata 0..S-1 within which they are drawn alike, for example the classes of balanced batches.

    Args:
        num_rows: number of rows n of the table.
        batch_size: number of rows in a batch, over all processes together.
        seed: whole number >= 0.

    Attributes:
        num_batches: number of batches in an epoch, the same in every epoch.
        stream: 0 for the first draw, 1 for the second one (see :meth:`second_draw`).
    """

    num_batches: int

    def __init__(self, num_rows: int, batch_size: int, seed: int) -> None:
        self.num_rows = num_rows
        self.batch_size = at_least("batch_size", batch_size, 1)
        self.seed = at_least("seed", seed, 0)
        self.stream = 0

    @abstractmethod
    def batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield the ``num_batches`` batches of ``epoch`` as int64 index tensors of shape (B,)."""

    @property
    @abstractmethod
    def strata(self) -> Tensor | None:
        """Stratum of every row, shape (n,), int64 in 0..S-1; None where all rows are drawn alike (S = 1)."""

    @property
    def num_strata(self) -> int:
        """Number of strata S."""
        return len(self._stratum_sizes())

    @property
    def stratum_kinds(self) -> Tensor:
        """Kind of every stratum, shape (S,), int64: strata of one kind may be exchanged without changing any chance.

        Where S is large, few kinds spare the same computations for many groups or bags.  By default no two are alike.
        """
        return torch.arange(self.num_strata)

    def absence(self, counts: Tensor, share: float = 1.0) -> float:
        r"""Return the probability that a batch holds none of a set of marked rows, averaged over an epoch's batches.

        It is exact (for second halves, where :attr:`halves_known`), not an estimate, and 0 if no batch can be without a
        marked row.  With it the expectation of a mean that is defined on batches with a marked row only can be told
        from that of one over all batches.

        Args:
            counts: number of marked rows in every stratum, shape (S,), int64.
            share: 1 for whole batches, 1/2 for their second halves.

        Raises:
            ConfigError: if ``share`` is another number.
            DataError: if ``counts`` has another shape, or counts more rows than a stratum has.
        """
        plan = self if one_of("share", share, (1.0, 0.5)) == 1 else self._second_half()
        return min(max(plan._absence(self._checked(counts)), 0.0), 1.0)

    @abstractmethod
    def _absence(self, counts: Tensor) -> float:
        """Return the probability of :meth:`absence`, of checked counts, shape (S,), int64."""

    @abstractmethod
    def _second_half(self) -> Self:
        """Return a copy with the numbers of draws of the second half of a batch, for :meth:`_absence`."""

    def by_size(self) -> list[tuple[float, Self]]:
        """Return for every size of batches their share of an epoch, and a copy whose :meth:`absence` is that of these.

        By default all are of one size.  What a batch holds besides a certain row is another chance in each of them.
        """
        return [(1.0, self)]

    @property
    def halves_known(self) -> bool:
        """Whether :meth:`absence` is exact for second halves of batches, too."""
        return True

    @property
    def distinct(self) -> bool:
        """Whether no batch of any epoch holds a row twice; False where that is not certain."""
        return False

    def most(self, counts: Tensor) -> int:
        """Return a number of marked rows that no batch of any epoch exceeds; a row that comes twice counts twice.

        It is the least such number unless a stratum has fewer rows than are drawn from it.  ``batch_size`` says no more
        than that a batch is not larger, which is all that is known of some plans.

        Args:
            counts: number of marked rows in every stratum, shape (S,), int64.

        Raises:
            DataError: if ``counts`` has another shape, or counts more rows than a stratum has.
        """
        return min(self._most(self._checked(counts)), self.batch_size)

    def _most(self, counts: Tensor) -> int:  # noqa: ARG002
        """Return the bound of :meth:`most`, of checked counts, shape (S,), int64."""
        return self.batch_size

    def weights(self) -> Tensor | None:
        r"""Return the weight w_i of every row with which a mean over a batch estimates the mean over the data.

        .. math:: E \frac{1}{B} \sum_{i \in \text{batch}} w_i x_i = \frac{1}{n} \sum_{i=1}^n x_i, \qquad
                  w_i = \frac{N_s B}{n B_s}

        for a row of a stratum of N_s rows of which a batch holds B_s.

        Returns: shape (n,), float32; None where every weight is 1, or none are wanted.
        """
        return None

    def population(self, share: float = 1.0) -> Tensor | None:  # noqa: ARG002
        r"""Return for how many rows m_i of the population that a batch stands for a row of the data counts.

        .. math:: E \frac{1}{B} \sum_{i \in \text{batch}} w_i x_i = \frac{1}{n} \sum_{i=1}^n m_i x_i

        with the :meth:`weights` w_i, or 1 where there are none.  They add up to n.

        Args:
            share: 1 for whole batches, 1/2 for their second halves.

        Returns: shape (n,), float64; None where every m_i is 1, so that the population is the data.
        """
        return None

    def columns(self) -> dict[str, Tensor]:
        """Return the columns, each (n,), that training batches carry for the sake of how they are drawn.

        ``weight`` (float32), if there are :meth:`weights`.  Plans in whose batches not all pairs of rows are equally
        likely also give ``stratum`` and ``stratum_size`` (int64), the stratum of a row and its number of rows: with
        them a batch says how many rows each of its rows stands for.  Plans whose batches hold some of S strata, any
        set of them as likely as any other, give ``strata`` (int64), S everywhere.  Plans that draw the rows of a
        stratum with replacement give ``replaced`` (int64), too: how often a batch holds each draw.  Plans in whose
        halves of batches strata have other shares than in batches give ``weight_in_halves`` (n, 2), the factors of the
        weight in the first and in the second half.
        """
        weights = self.weights()
        return {} if weights is None else {"weight": weights}

    def second_draw(self) -> Self:
        """Return the plan of batches of the same kind that are drawn independently of these, for the same table.

        Batch t of both has the same composition: as many rows of every class, and the same groups where groups are
        drawn.  The seed stays the same; what differs is the stream of random numbers.
        """
        other = copy.copy(self)
        other.stream = self.stream + 1
        return other

    def generator(self, epoch: int) -> torch.Generator:
        """Return a fresh CPU generator that depends on (seed, epoch) and the stream only."""
        # SeedSequence mixes the pair: seed + epoch would make epoch 1 of seed 0 equal to epoch 0 of seed 1.
        key = [self.seed, at_least("epoch", epoch, 0), *([self.stream] if self.stream else [])]
        mixed = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
        return torch.Generator().manual_seed(int(mixed))

    def _checked(self, counts: Tensor) -> Tensor:
        sizes, counts = self._stratum_sizes(), counts.cpu().long()
        if counts.shape != sizes.shape or bool(((counts < 0) | (counts > sizes)).any()):
            raise DataError(
                f"counts must hold, for each of the {len(sizes)} strata of sizes {listed_in_order(sizes.tolist())}, "
                f"how many of its rows are marked, got {listed_in_order(counts.tolist())}."
            )
        return counts

    def _stratum_sizes(self) -> Tensor:
        strata = self.strata
        return torch.tensor([self.num_rows]) if strata is None else torch.bincount(strata)


class Drawn(NamedTuple):
    """What a part of the training batches is drawn from, and how.

    Attributes:
        columns: columns of the training table without the network's input, such as ``y``, ``group`` or ``task``, and
            ``index``, each with first dimension n.
        plan: union batches of all processes.
        shorter: whether batches lack samples of the plan that cannot be read.
    """

    columns: Mapping[str, Tensor]
    plan: BatchPlan
    shorter: bool = False


def enough_rows(num_rows: int, batch_size: int) -> int:
    """Return ``num_rows``, or raise :class:`DataError` if a batch is larger."""
    if batch_size > num_rows:
        raise DataError(
            f"batch_size={batch_size} exceeds the {num_rows} rows of the training split "
            "(with several processes it counts the rows of all of them). Lower batch_size."
        )
    return num_rows


def with_strata(columns: dict[str, Tensor], strata: Tensor) -> dict[str, Tensor]:
    """Return ``columns`` with those of ``strata`` (n,): ``stratum`` and ``stratum_size``, see BatchPlan.columns."""
    return columns | {"stratum": strata, "stratum_size": torch.bincount(strata)[strata]}

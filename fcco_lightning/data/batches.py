"""How training batches are drawn: a :class:`Sampling` that a user chooses becomes a :class:`BatchPlan` of a table.

The batches of an epoch are a pure function of (seed, epoch).  Nothing is drawn from a global random generator, so an
epoch can be replayed, skipped into, or divided among processes and always holds the same batches.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor
from torch.nn.functional import pad

from fcco_lightning.checks import at_least, inside, list_of, one_of
from fcco_lightning.data.columns import listed_in_order
from fcco_lightning.data.table import LabelTable, TensorTable
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import IN_HALVES

Choose = Callable[[Tensor, int, torch.Generator], Iterator[Tensor]]
Choice = tuple[Tensor, int]
Prevalence = Literal["data", "batch"]
Weighting = Literal["always", "if they differ", "never"]
Telling = Literal["nothing", "strata", "if needed", "choice"]

_FEW_GROUPS = 8  # of a batch, if nothing else is said


class BatchDraws(ABC):
    """What is known of batches before any is drawn, from which follows how likely one contains a row.

    :class:`BatchPlan` knows all of it.  Batches that are drawn in another way are described by a subclass: it must know
    :meth:`absence`, and what it does not override is not known.  Samples are those of the training split, n in number.

    Attributes:
        certain: False of batches that another loader draws, of which only nearly is known what they hold.
    """

    certain: bool = True

    @property
    def batch_size(self) -> int | None:
        """Number of samples of a batch, of all processes together."""
        return None

    @property
    def strata(self) -> Tensor | None:
        """Stratum of every sample, shape (n,), int64 in 0..S-1; None where all samples are drawn alike (S = 1)."""
        return None

    @property
    def stratum_kinds(self) -> Tensor | None:
        """Kind of every stratum, shape (S,), int64: exchanging strata of one kind changes no probability."""
        return None

    @property
    def distinct(self) -> bool:
        """Whether no batch holds a sample twice; False where that is not certain."""
        return False

    @property
    def halves_known(self) -> bool:
        """Whether :meth:`absence` is exact for second halves of batches, too."""
        return True

    @abstractmethod
    def absence(self, counts: Tensor, share: float = 1.0) -> float:
        """Return the probability that ``share`` of a batch holds none of some samples, ``counts`` (S,) by stratum."""

    def most(self, counts: Tensor) -> int | None:  # noqa: ARG002
        """Return how many of some samples, ``counts`` (S,) by stratum, a batch holds at most."""
        return None

    def weights(self) -> Tensor | None:
        """Return the samples' weights in means over the data, (n,); None where means are over the samples as drawn."""
        return None

    def population(self, share: float = 1.0) -> Tensor | None:  # noqa: ARG002
        """Return how often each sample counts in the population that ``share`` of a batch stands for, shape (n,).

        It is None where that is the data.
        """
        return None

    def by_size(self) -> Sequence[tuple[float, Self]]:
        """Return the sizes that batches have: the share of an epoch's batches, and how those are drawn."""
        return [(1.0, self)]


class BatchPlan(BatchDraws):
    r"""The batches of every epoch: each holds some units, with the same number of rows of each.

    *Strata* 0..S-1 divide the rows of a table; rows of one stratum are drawn alike.  A *unit* is what is chosen for a
    batch as a whole, such as a group, a label, a query or a bag: one stratum, or two of which one holds the positives.
    Units are of *kinds*, such as positive and negative bags, and a *choice* says how many units of a kind a batch
    holds.  A batch is laid out in *slots*: first a row of every chosen unit, then the next row of every one in the same
    order, and so on, with the positives of each spread evenly over the slots.  Contiguous parts of it (one per process)
    therefore hold about equal shares of every unit.

    Take two queries: rows 0 to 4 are items of the first, 0 and 1 of them relevant, and rows 5 to 9 of the second, 5
    and 6 relevant.  A batch is to hold one query, with one relevant and two other items:

    ======================  ============================  ======================================
    relevant items of 0     stratum 1, rows 0 and 1       one row drawn
    other items of 0        stratum 0, rows 2, 3 and 4    two rows drawn
    relevant items of 1     stratum 3, rows 5 and 6       one row drawn
    other items of 1        stratum 2, rows 7, 8 and 9    two rows drawn
    ======================  ============================  ======================================

    The units are the queries, of the strata (0, 1) and (2, 3); there is one kind, with the choice "1 of the units 0 and
    1"; and there are three slots, of which the last is that of the positive.  Weights make means over batches those of
    the data: a row of a stratum of N_s rows, of which B_s are drawn where its unit is one of c chosen among U, is in
    a batch p = c B_s / (U N_s) times on average and weighs B / (n p).  Relevant items weigh 3 * 2 * 2 / (10 * 1 * 1)
    = 1.2 here, others 3 * 3 * 2 / (10 * 1 * 2) = 0.9.

    Within a stratum rows are drawn in turn: it is gone through in a random order and shuffled anew when exhausted; or
    they are drawn with replacement.  Where a stratum has fewer rows than a batch asks for, all are there and some occur
    twice or more.

    Samplings such as :class:`GroupSampling` make plans; :meth:`repeated`, :meth:`of_rows`, :meth:`of_weighted_samples`
    and :meth:`second_draw` make others of them.

    Args:
        strata: stratum of every row, shape (n,), int64, every number of 0..S-1 at least once.
        units: the strata of every unit 0..U-1, in the order in which their rows are drawn, shape (U, 1) or (U, 2),
            int64; -1 stands for a second one that is missing.  None where every stratum is a unit.
        drawn: number of rows of every stratum in a batch that holds its unit, shape (S,), int64, or one number for all.
            Every unit has the same number R of them, and every unit of two strata the same number of positives.
        choices: for every kind its members, numbers of units, and how many of them a batch holds, which are chosen
            independently of other kinds.  None for one kind, of which a batch holds all.
        choose: members, number of them, generator -> the members of every batch; any set of a kind's members must be as
            likely as any other.  None for all members, in their order.
        num_batches: number of batches in an epoch.
        seed: whole number >= 0.
        ahead: whether all units of an epoch are chosen before any row is drawn, or those of a batch just before its
            rows, which gives other batches of the same kind.
        positive: whether a stratum holds the positives of its unit, shape (S,), bool; None where units are strata.
        replacement: whether rows are drawn with replacement, which takes units of one stratum.
        weights: "always" weights rows so that weighted means over batches estimate means over the data; "if they
            differ" does so unless all weights are 1; "never" does not.
        tells: what the columns of a batch say beside the weights: nothing; the "strata"; the strata "if needed", where
            weights do not tell them apart or a row may come twice; or the strata with their number, because they are
            what is chosen ("choice").

    Attributes:
        num_batches: number of batches in an epoch, the same in every epoch.
        num_rows: number of rows n of the table.
        sample_weight: how often each row counts in the data, (n,); None for once.
        certain: False of batches that another loader draws, see :class:`BatchDraws`.

    Example:
        >>> strata, units = torch.tensor([1, 1, 0, 0, 0, 3, 3, 2, 2, 2]), torch.tensor([[0, 1], [2, 3]])
        >>> drawn, positive = torch.tensor([2, 1, 2, 1]), torch.tensor([False, True, False, True])
        >>> one_query = [(torch.tensor([0, 1]), 1)]
        >>> plan = BatchPlan(strata, units, drawn, one_query, choose=cycle, num_batches=2, positive=positive)
        >>> [strata[batch].tolist() for batch in plan.batches(epoch=0)]
        [[0, 0, 1], [2, 2, 3]]
        >>> [round(weight, 6) for weight in plan.weights()[:3].tolist()]
        [1.2, 1.2, 0.9]
    """

    def __init__(
        self,
        strata: Tensor,
        units: Tensor | None,
        drawn: Tensor | int,
        choices: Sequence[Choice] | None = None,
        *,
        choose: Choose | None = None,
        num_batches: int,
        seed: int = 0,
        ahead: bool = True,
        positive: Tensor | None = None,
        replacement: bool = False,
        weights: Weighting = "always",
        tells: Telling = "strata",
    ) -> None:
        self.num_rows = len(strata)
        self.num_batches = num_batches
        self.seed = at_least("seed", seed, 0)
        self._sizes = torch.bincount(strata)
        if isinstance(drawn, int):
            drawn = torch.full_like(self._sizes, drawn)
        if units is None:
            units = torch.arange(len(drawn)).unsqueeze(1)
        self.drawn, self.replacement, self.certain = drawn, replacement, True
        self.sample_weight: Tensor | None = None
        self._stream = 0  # of random numbers: 1 for the second draw
        self._copies = 1
        self._num_drawn = self.num_rows  # of the table, without those that are never drawn
        self._last = 0  # rows of an epoch's last batch where it is short
        self._strata, self._units = strata, units
        self._choices = [(torch.arange(len(units)), len(units))] if choices is None else choices
        self._choose, self._ahead, self._weights, self._telling = choose or all_of_them, ahead, weights, tells
        self._positive = torch.ones_like(drawn, dtype=torch.bool) if positive is None else positive
        self._unit = torch.empty_like(drawn)
        unit, place = (units >= 0).nonzero(as_tuple=True)
        self._unit[units[unit, place]] = unit
        # The rows stratum by stratum: stratum s owns self._sorted[first : first + size].
        self._sorted = torch.argsort(strata, stable=True) if len(self._sizes) > 1 else torch.arange(len(strata))
        self._firsts = self._sizes.cumsum(0) - self._sizes
        self._even = spread_evenly(int(drawn[self._positive].min()), self._slots)  # where the positives of pairs go

    @property
    def batch_size(self) -> int:
        return self._copies * self._units_per_batch * self._slots

    @property
    def smallest(self) -> int:
        """Rows of the smallest batch of an epoch."""
        return self._copies * self._last or self.batch_size

    @property
    def _units_per_batch(self) -> int:
        """Number of units in a batch."""
        return sum(count for _, count in self._choices)

    @property
    def _slots(self) -> int:
        """Number of rows R of each of them."""
        first = self._units[0]
        return int(self.drawn[first[first >= 0]].sum())

    # Other plans made of this one

    def second_draw(self) -> Self:
        """Return the plan of batches of the same kind that are drawn independently of these, for the same table.

        Batch t of both has the same composition: as many rows of every class, and the same groups where groups are
        drawn.  The seed stays the same; what differs is the stream of random numbers.
        """
        return self._with(_stream=self._stream + 1)

    def repeated(self, copies: int) -> Self:
        """Return the plan of the same batches, each of them ``copies`` times in a row: samples x perturbations.

        For objectives whose inner function is an expectation over perturbations of a sample: every copy is perturbed
        independently by the network or the data set, and the copies of a sample have one row, which is given the mean
        of their inner values.  The two halves of a batch hold the same samples with independent perturbations (for an
        even number of copies), as methods need that move dual and primal variables by independent draws.

        Args:
            copies: how often a sample comes in its batch, >= 2.

        Example:
            >>> batch = next(UniformBatches(8, batch_size=2).repeated(3).batches(epoch=0)).tolist()
            >>> len(batch), batch[:2] == batch[2:4] == batch[4:]
            (6, True)
        """
        return self._with(_copies=self._copies * at_least("copies", copies, 2))

    def of_rows(self, rows: Tensor, num_rows: int | None = None) -> Self:
        """Return the plan of the same batches as rows of a larger table.

        The rows of that table which are never drawn are a stratum of their own, the last one.  "The data" of
        :meth:`weights` are the rows that are drawn; the others have weight 0.

        Args:
            rows: different rows of the table, shape (r,), int64: the first is what is row 0 here, and so on.
            num_rows: number of rows of the table; None for no more than ``rows`` names.

        Raises:
            DataError: if ``rows`` are not as many as are drawn, not different, or not rows of that table.

        Example:
            >>> plan = UniformBatches(2, batch_size=2).of_rows(torch.tensor([40, 70]))
            >>> sorted(next(plan.batches(epoch=0)).tolist())
            [40, 70]
        """
        different = len(set(rows.tolist()))
        if len(rows) != self.num_rows or different != len(rows):
            raise DataError(
                f"rows must name a different row of the table for each of the plan's {self.num_rows} rows, got "
                f"{len(rows)} rows of which {different} differ."
            )
        if int(rows.min()) < 0 or (num_rows is not None and int(rows.max()) >= num_rows):
            raise DataError(
                f"rows must lie in 0..num_rows - 1, got {int(rows.min())}..{int(rows.max())} with num_rows={num_rows}."
            )
        if self.sample_weight is not None or self.num_rows > self._num_drawn:
            raise DataError("of_rows comes before other weights of samples and other rows are given. Call it first.")
        strata = torch.full((int(rows.max()) + 1 if num_rows is None else num_rows,), len(self.drawn))
        strata[rows] = self._strata
        never = (strata == len(self.drawn)).nonzero().flatten()
        in_order = torch.cat([rows[self._sorted], never])
        plan = self._with(num_rows=len(strata), _strata=strata, _sorted=in_order)
        if not len(never):
            return plan
        # As if a batch held 0 rows of a stratum of the first unit.
        others = {"drawn": 0, "_sizes": len(never), "_firsts": len(rows), "_unit": 0, "_positive": True}
        return plan._with(**{name: pad(getattr(self, name), (0, 1), value=value) for name, value in others.items()})

    def of_weighted_samples(self, sample_weight: Tensor) -> Self:
        """Return the plan of the same batches, of samples that count differently in the data.

        The population that they stand for is that of this plan with the row i taken s_i times: means over the data are
        ``sum_i s_i x_i / sum_i s_i``.

        Args:
            sample_weight: s_i, shape (n,), >= 0 and not all 0.

        Example:
            >>> plan = UniformBatches(3, batch_size=1).of_weighted_samples(torch.tensor([1.0, 0.0, 3.0]))
            >>> plan.weights().tolist()
            [0.75, 0.0, 2.25]
        """
        return self._with(sample_weight=sample_weight)

    def by_size(self) -> list[tuple[float, Self]]:
        """Return for every size of batches their share of an epoch, and a copy whose :meth:`absence` is that of these.

        What a batch holds besides a certain row has another probability in each of them.
        """
        if not self._last:
            return [(1.0, self)]
        last, counts = 1 / self.num_batches, torch.where(self.drawn > 0, self._last, 0)
        return [(1 - last, self._with(_last=0)), (last, self._with(_last=0, drawn=counts))]

    def _with(self, **changes: object) -> Self:
        other = copy.copy(self)
        vars(other).update(changes)
        return other

    # Batches

    def batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield the ``num_batches`` batches of ``epoch`` as int64 index tensors of shape (B,).

        Entry j belongs to the batch's unit number j mod (their number).
        """
        for batch in self._drawn_batches(epoch):
            yield batch if self._copies == 1 else torch.tile(batch, (self._copies,))

    def generator(self, epoch: int) -> torch.Generator:
        """Return a fresh CPU generator that depends on (seed, epoch) and the stream only."""
        # SeedSequence mixes the pair: seed + epoch would make epoch 1 of seed 0 equal to epoch 0 of seed 1.
        key = [self.seed, at_least("epoch", epoch, 0), *([self._stream] if self._stream else [])]
        mixed = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
        return torch.Generator().manual_seed(int(mixed))

    def _drawn_batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield the batches without copies."""
        generator = self.generator(epoch)
        if self._last:  # all rows are of one stratum, which is gone through once
            yield from torch.split(self._sorted[torch.randperm(self._num_drawn, generator=generator)], self._slots)
            return
        cycles: dict[int, Iterator[Tensor]] = {}
        for units in self._chosen_units(epoch, generator):
            if self.replacement:
                yield self._independent(units, generator)
            else:
                rows = [self._in_turn(unit, cycles, generator) for unit in self._units[units].tolist()]
                yield torch.stack(rows, dim=1).flatten()

    def _chosen_units(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the units of every batch: those of the first draw, whichever draw this is."""
        first = self._with(_stream=0)
        if self._stream and not self._ahead:
            for batch in first._drawn_batches(epoch):
                yield self._unit[self._strata[batch[: self._units_per_batch]]]
            return
        generator = first.generator(epoch) if self._stream else generator
        kinds = [islice(self._choose(*choice, generator), self.num_batches) for choice in self._choices]
        yield from map(torch.cat, zip(*(map(list, kinds) if self._ahead else kinds), strict=True))

    def _independent(self, units: Tensor, generator: torch.Generator) -> Tensor:
        shape = (self._slots, len(units))
        # float64 in [0, 1) times a size below 2^53 stays below that size, also after rounding.
        places = (torch.rand(shape, generator=generator, dtype=torch.float64) * self._sizes[units]).long()
        return self._sorted[self._firsts[units] + places].flatten()

    def _in_turn(self, unit: Sequence[int], cycles: dict[int, Iterator[Tensor]], generator: torch.Generator) -> Tensor:
        """Return the rows of a unit of these strata, shape (R,)."""
        rows_of = {stratum: next(self._cycle(stratum, cycles, generator)) for stratum in unit if stratum >= 0}
        if len(rows_of) == 1:
            return rows_of[unit[0]]
        rows = torch.empty(self._slots, dtype=torch.int64)
        for stratum, drawn_rows in rows_of.items():
            rows[self._even if self._positive[stratum] else ~self._even] = drawn_rows
        return rows

    def _cycle(self, stratum: int, cycles: dict[int, Iterator[Tensor]], generator: torch.Generator) -> Iterator[Tensor]:
        """Return the passes through a stratum, which is shuffled when first drawn: those that are not cost nothing."""
        if stratum not in cycles:
            first, size = int(self._firsts[stratum]), int(self._sizes[stratum])
            cycles[stratum] = cycle(self._sorted[first : first + size], int(self.drawn[stratum]), generator)
        return cycles[stratum]

    # What batches carry along

    def weights(self) -> Tensor | None:
        r"""Return the weight w_i of every row with which a mean over a batch estimates the mean over the data.

        .. math:: E \frac{1}{B} \sum_{i \in \text{batch}} w_i x_i = \frac{1}{n} \sum_{i=1}^n x_i, \qquad
                  w_i = \frac{N_s U B}{n c B_s}

        for a row of a stratum of N_s rows, B_s of which are drawn if its unit is one of the c chosen among the U units
        of its kind.  Where samples count differently, they are multiplied by how often each of them does.

        Returns: shape (n,), float32; None where every weight is 1, or none are wanted.
        """
        stratum_weights = self._weights_of_strata()
        row_weights = None if stratum_weights is None else stratum_weights[self._strata]
        if self.sample_weight is None:
            return row_weights
        times = self._times()
        return (times if row_weights is None else row_weights * times).float()

    def population(self, share: float = 1.0) -> Tensor | None:
        r"""Return for how many rows m_i of the population that a batch stands for a row of the data counts.

        .. math:: E \frac{1}{B} \sum_{i \in \text{batch}} w_i x_i = \frac{1}{n} \sum_{i=1}^n m_i x_i

        with the :meth:`weights` w_i, or 1 where there are none.  They add up to n.

        Args:
            share: 1 for whole batches, 1/2 for their second halves.

        Returns: shape (n,), float64; None where every m_i is 1, so that the population is the data.
        """
        counts = self._drawn_population(share)
        if self.sample_weight is None:
            return counts
        return self._times() if counts is None else counts * self._times()

    def columns(self) -> dict[str, Tensor]:
        """Return the columns, each (n,), that training batches carry for the sake of how they are drawn.

        ``weight`` (float32), if there are :meth:`weights`.  Where not all pairs of rows are equally likely, ``stratum``
        and ``stratum_size`` (int64), the stratum of a row and its number of rows: with them a batch says how many rows
        each of its rows stands for.  Where batches hold some of S strata, any set of them as likely as any other,
        ``strata`` (int64), S everywhere.  Where the rows of a stratum are drawn with replacement ``replaced`` (int64),
        too: how often a batch holds each draw.  Where strata have other shares in halves of batches than in batches
        ``weight_in_halves`` (n, 2), the factors of the weight in the first and in the second half.
        """
        weights, single = self._weights_of_strata(), self._copies == 1
        factors = self._factors_in_halves() if single and self._weights != "never" else None
        needless = self._telling == "if needed" and weights is not None and self._never_twice
        informative = self._telling != "nothing" and not needless
        columns = {} if weights is None else {"weight": weights[self._strata]}
        if factors is not None:
            columns[IN_HALVES] = factors[self._strata]
        if informative or not single:
            # The pairs of a sample with itself are more likely than others: without weights as of uniform batches.
            columns |= _strata_columns(
                self._strata if informative or columns else (self.drawn == 0).long()[self._strata]
            )
        if informative and self._telling == "choice":
            columns["strata"] = torch.full_like(self._strata, int((self.drawn > 0).sum()))
        if informative and self.replacement:
            columns["replaced"] = torch.full_like(self._strata, self._copies)
        own_weights = None if self.sample_weight is None else self.weights()
        if own_weights is None:
            return columns
        # Weights of samples do not tell strata apart.
        strata = self._strata if "weight" in columns else torch.zeros_like(self._strata)
        return columns | {"weight": own_weights} | ({} if "stratum" in columns else _strata_columns(strata))

    def _times(self) -> Tensor:
        """How often every row counts in the data, (n,), float64, so that as many as before are drawn of it."""
        assert self.sample_weight is not None  # noqa: S101 - called only where there are some
        counts, weight = self._drawn_population(1.0), self.sample_weight.double()
        return weight * (len(weight) / (weight if counts is None else weight * counts).sum())

    def _drawn_population(self, share: float) -> Tensor | None:
        """The :meth:`population` of samples that count alike."""
        halved = share != 1 and self._copies == 1  # halves hold whole copies
        in_data, in_batch = (self._second_half() if halved else self)._shares()
        ratio = in_batch / in_data if self._weights == "never" else (self.drawn > 0).double()
        return None if bool((ratio == 1).all()) else (self.num_rows / self._num_drawn * ratio)[self._strata]

    def _weights_of_strata(self) -> Tensor | None:
        """The weights of the rows of every stratum, as of samples that count alike, shape (S,), float32."""
        if self._weights == "never":
            return None
        in_data, in_batch = self._shares()
        weights = torch.where(in_batch > 0, in_data / in_batch, 0.0).float()
        return None if self._weights == "if they differ" and bool((weights[in_batch > 0] == 1).all()) else weights

    def _shares(self) -> tuple[Tensor, Tensor]:
        """N_s U B and n c B_s of every stratum, shape (S,) each: whole numbers, whose products are exact."""
        sizes = torch.empty(len(self._units), 2, dtype=torch.float64)
        for members, count in self._choices:
            sizes[members] = torch.tensor([len(members), count], dtype=torch.float64)
        share, size = sizes[self._unit], self._units_per_batch * self._slots  # of the batch, or of its half
        return self._sizes * share[:, 0] * size, self._num_drawn * share[:, 1] * self.drawn

    def _factors_in_halves(self) -> Tensor | None:
        """How much larger the share of every stratum is in a batch than in its first and its second half, (S, 2).

        None where they are the same, or differ from batch to batch, as a half ends between the units of a slot.
        """
        second, slots = self._second_half().drawn, self._slots - self._slots // 2
        if bool((self._slots * second == slots * self.drawn).all()) or (self._slots % 2 and self._units_per_batch > 1):
            return None
        counts = torch.stack([self.drawn - second, second], dim=1)
        sizes = torch.tensor([self._slots - slots, slots])
        return (self.drawn.unsqueeze(1) * sizes / (self._slots * counts.clamp(min=1))).float()

    def _second_half(self) -> Self:
        """The later rows of every unit, exactly so for an even number of them."""
        slots, first = self._slots, self._slots // 2
        # Of the first j slots floor(j c / R) are those of c positives, see spread_evenly.
        before = torch.where(self._positive, first * self.drawn, first * self.drawn + slots - 1) // slots
        return self._with(drawn=self.drawn - before)

    # What is known before a batch is drawn

    @property
    def strata(self) -> Tensor | None:
        return None if self.num_strata == 1 else self._strata

    @property
    def num_strata(self) -> int:
        """Number of strata S."""
        return len(self._sizes)

    @property
    def stratum_kinds(self) -> Tensor:
        """As of :class:`BatchDraws`.

        Where S is large, few kinds spare the same computations for many groups or bags.  Where units are strata, those
        of one kind of units and one size are drawn alike; else no two strata are.
        """
        if len(self._units) != len(self._sizes) or len(self._sizes) == 1:
            return torch.arange(self.num_strata)
        kinds = torch.empty_like(self._sizes)
        for number, (members, _) in enumerate(self._choices):
            kinds[members] = number
        return len(self._choices) * self._sizes + kinds

    @property
    def distinct(self) -> bool:
        return self.certain and self._copies == 1 and self._never_twice

    @property
    def _never_twice(self) -> bool:
        """Whether strata have as many rows as a batch asks for, or one row is drawn of each with replacement."""
        return self._slots == 1 if self.replacement else bool((self._sizes >= self.drawn).all())

    @property
    def halves_known(self) -> bool:
        """Whether :meth:`absence` is exact for second halves of batches, too.

        It is not where rows come twice in turn, nor where a half ends between the units of a slot.
        """
        whole_slots = self._slots % 2 == 0 or self._units_per_batch == 1
        return self._copies > 1 or (whole_slots and (self.replacement or self._never_twice))

    def absence(self, counts: Tensor, share: float = 1.0) -> float:
        r"""Return the probability that a batch holds none of a set of marked rows, averaged over an epoch's batches.

        It is exact (for second halves, where :attr:`halves_known`), not an estimate, and 0 if no batch can be without a
        marked row.  With it the expectation of a mean that is defined on batches with a marked row only can be told
        from that of one over all batches: the probability that a batch includes some of them is 1 minus it.

        Of a stratum of N rows, k of them marked, m are drawn without one with probability C(N - k, m) / C(N, m), with
        replacement (1 - k / N)^m.  The probabilities of a chosen unit's strata are multiplied, and those of the chosen
        units; the mean over all choices of each kind is taken, and the kinds are multiplied.  Two of five rows, three
        of them marked, are drawn without one with probability 1 / 10: one pair of ten.

        Args:
            counts: number of marked rows in every stratum, shape (S,), int64.
            share: 1 for whole batches, 1/2 for their second halves.

        Raises:
            ConfigError: if ``share`` is another number.
            DataError: if ``counts`` has another shape, or counts more rows than a stratum has.

        Example:
            >>> plan = UniformBatches(5, batch_size=2)
            >>> round(plan.absence(torch.tensor([3])), 12)
            0.1
        """
        half = one_of("share", share, (1.0, 0.5)) != 1 and self._copies == 1  # a half of copies holds whole ones
        inner = self._checked(counts)
        plans = [(part, plan._second_half() if half else plan) for part, plan in self.by_size()]
        return min(max(float(sum(part * plan._absence(inner) for part, plan in plans)), 0.0), 1.0)

    def most(self, counts: Tensor) -> int:
        """Return a number of marked rows that no batch of any epoch exceeds; a row that comes twice counts twice.

        It is the least such number unless a stratum has fewer rows than are drawn from it.  ``batch_size`` says no more
        than that a batch is not larger, which is all that is known of some plans.

        Args:
            counts: number of marked rows in every stratum, shape (S,), int64.

        Raises:
            DataError: if ``counts`` has another shape, or counts more rows than a stratum has.
        """
        counts = self._checked(counts)
        at_most = self.drawn * (counts > 0)  # where rows may come twice, all draws may be of one that is marked
        if self.certain and not self.replacement:
            at_most = torch.where(self.drawn <= self._sizes, torch.minimum(self.drawn, counts), at_most)
        most_by_unit = torch.zeros(len(self._units), dtype=torch.int64).index_add(0, self._unit, at_most)
        most_by_kind = (int(most_by_unit[members].topk(count).values.sum()) for members, count in self._choices)
        return min(self._copies * sum(most_by_kind), self.batch_size)

    def _absence(self, counts: Tensor) -> float:
        """Product over the kinds of units of the mean over all choices of the product of the chosen ones' absences."""
        if self.replacement:
            none = ((1 - counts / self._sizes.double()) ** self.drawn).numpy()
        else:
            none = none_drawn(self._sizes.numpy(), counts.numpy(), self.drawn.numpy())
        absences = np.ones(len(self._units))
        np.multiply.at(absences, self._unit.numpy(), none)
        return float(np.prod([mean_product(absences[members.numpy()], count) for members, count in self._choices]))

    def _checked(self, counts: Tensor) -> Tensor:
        """Return the numbers of marked rows as they are used here, if they can be such."""
        sizes, counts = self._sizes, counts.cpu().long()
        if counts.shape != sizes.shape or bool(((counts < 0) | (counts > sizes)).any()):
            raise DataError(
                f"counts must hold, for each of the {len(sizes)} strata of sizes {listed_in_order(sizes.tolist())}, "
                f"how many of its rows are marked, got {listed_in_order(counts.tolist())}."
            )
        return counts


class UniformBatches(BatchPlan):
    """Every epoch is a permutation of 0..num_rows-1, cut into batches: one stratum, of which all are drawn alike.

    Args:
        num_rows: rows n of the data set.
        batch_size: rows in a batch, <= n.
        seed: whole number >= 0.
        drop_last: leave out the last batch when it would be short (the n mod batch_size rows left out differ from
            epoch to epoch).
        num_batches: batches of an epoch, all of ``batch_size`` rows: fewer than a permutation has cut it short, more
            start another one.  None for one permutation.
        certain: False for the batches of another loader that shuffles, which are nearly of this kind: where processes
            are to be given equally many samples, torch's ``DistributedSampler`` fills up an epoch with samples that it
            has given before, perhaps in the same batch.

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
        certain: bool = True,
    ) -> None:
        at_least("batch_size", batch_size, 1)
        full_batches, rest = divmod(_enough_rows(num_rows, batch_size), batch_size)
        last = rest if num_batches is None and not drop_last else 0
        super().__init__(
            torch.zeros(num_rows, dtype=torch.int64),
            None,
            batch_size,
            num_batches=full_batches + (last > 0) if num_batches is None else at_least("num_batches", num_batches, 1),
            seed=seed,
            weights="never",
            tells="nothing",
        )
        self.certain, self._last = certain, last


class Drawn(NamedTuple):
    """What a part of the training batches is drawn from, and how.

    Attributes:
        columns: columns of the training table without the network's input, such as ``y``, ``group`` or ``task``, and
            ``index``, each with first dimension n.
        plan: union batches of all processes.
        shorter: whether batches lack samples of the plan that cannot be read.
    """

    columns: Mapping[str, Tensor]
    plan: BatchDraws
    shorter: bool = False


def _strata_columns(strata: Tensor) -> dict[str, Tensor]:
    """Return the columns of ``strata`` (n,): ``stratum`` and ``stratum_size``, see :meth:`BatchPlan.columns`."""
    return {"stratum": strata, "stratum_size": torch.bincount(strata)[strata]}


def _enough_rows(num_rows: int, batch_size: int) -> int:
    """Return ``num_rows``, or raise :class:`DataError` if a batch is larger."""
    if batch_size > num_rows:
        raise DataError(
            f"batch_size={batch_size} exceeds the {num_rows} rows of the training split "
            "(with several processes it counts the rows of all of them). Lower batch_size."
        )
    return num_rows


def cycle(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield ``size`` of ``rows`` at a time for ever, one shuffled pass after another."""
    unused = rows[:0]
    while True:
        take, unused = unused[:size], unused[size:]
        while len(take) < size:
            fresh = rows[torch.randperm(len(rows), generator=generator)]
            if len(take):  # rows that this batch already holds go to the end of the pass: none loses its turn
                repeated = torch.isin(fresh, take)
                fresh = torch.cat([fresh[~repeated], fresh[repeated]])
            missing = size - len(take)
            take, unused = torch.cat([take, fresh[:missing]]), fresh[missing:]
        yield take


def none_drawn(sizes: NDArray[Any], marked: NDArray[Any], drawn: NDArray[Any]) -> NDArray[np.float64]:
    r"""Return the probability that none of ``marked`` rows is among ``drawn`` of ``sizes`` rows, without replacement.

    .. math:: \binom{N - k}{m} \Big/ \binom{N}{m}

    Each argument has a number for every stratum, shape (S,), or one for all.  More draws than rows (m > N) mean that
    every row is drawn.
    """
    unmarked = sizes - marked
    possible = drawn <= unmarked
    drawn = np.where(possible, drawn, 0)
    log = gammaln(unmarked + 1) - gammaln(unmarked - drawn + 1) - gammaln(sizes + 1) + gammaln(sizes - drawn + 1)
    return np.where(marked == 0, 1.0, possible * np.exp(np.minimum(log, 0.0)))


def mean_product(factors: NDArray[np.float64], count: int) -> float:
    r"""Return the mean over all choices of ``count`` of m numbers a_1..a_m in [0, 1] of the product of those chosen.

    That is the elementary symmetric polynomial e_count(a_1..a_m) divided by its number of terms.  Divided so at every
    step, the recurrence over the numbers is a convex combination, which neither overflows nor cancels:

    .. math:: E_j^{(m)} = \frac{m - j}{m} E_j^{(m-1)} + \frac{j}{m}\, a_m E_{j-1}^{(m-1)}

    Numbers that are 0 leave the mean over the choices among the others, times the probability of such a choice.
    """
    total, factors = len(factors), factors[factors > 0.0]
    if len(factors) < count:
        return 0.0
    j = np.arange(count)
    without_zeros = float(np.prod((len(factors) - j) / (total - j)))
    j = np.arange(count + 1)
    ones = int(np.count_nonzero(factors == 1.0))
    means = (j <= ones).astype(np.float64)  # products of ones
    for m, a in enumerate(factors[factors != 1.0].tolist(), start=ones + 1):
        before = np.concatenate([[0.0], means[:-1]])
        means = np.where(j <= m, (m - j) / m * means + j / m * a * before, 0.0)
    return without_zeros * float(means[-1])


def at_random(members: Tensor, count: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield ``count`` of ``members`` for every batch, independently of other batches."""
    while True:
        yield members[torch.randperm(len(members), generator=generator)[:count]]


def all_of_them(members: Tensor, count: int, generator: torch.Generator) -> Iterator[Tensor]:  # noqa: ARG001
    """Yield all ``members`` for every batch, in their order."""
    return repeat(members)


def spread_evenly(count: int, size: int) -> Tensor:
    """Return a mask (size,) with ``count`` places evenly spread: where floor(j count / size) steps up, in integers."""
    return (torch.arange(size + 1) * count // size).diff().bool()


class Sampling(ABC):
    """A way of drawing training batches, which becomes a :class:`BatchPlan` once the table is known."""

    @abstractmethod
    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return the union batches of ``world_size`` processes.

        Args:
            columns: columns of the training table with ``index``, each with first dimension n.
            seed: seed of the batches, a whole number >= 0.
            world_size: number of processes P.

        Raises:
            ConfigError: if the table has no column that these batches are drawn by, or less than they choose from.
            DataError: if it does not have enough rows, or the column holds something else.
        """

    def in_parts(self, parts: int) -> tuple["Sampling", int]:
        """Return batches of ``parts`` times as many samples, and the number of samples of a part of one process.

        An epoch has as many samples as before.

        Raises:
            ConfigError: if the batches are not of a given number of samples.
        """
        raise ConfigError(
            f"{type(self).__name__} draws no given number of samples, of which {parts} parts could be made. Raise its "
            "own numbers, and set --model.execution.micro_batch to the number of samples that fit into memory."
        )

    def table(self, table: TensorTable) -> TensorTable | LabelTable:
        """Return the table whose rows are drawn: that of the training split, unless another view of it is needed."""
        return table

    @property
    def single(self) -> "Sampling":
        """How each of two draws is drawn; the sampling itself where there is one."""
        return self

    @property
    def drawn_by(self) -> Sequence[str]:
        """Columns that rows are drawn by which a table may have beside those of its batches."""
        return ()


def _required_column(columns: Mapping[str, Tensor], name: str, criterion: str) -> Tensor:
    """Return the column ``name`` of whole numbers, by which rows are drawn; :class:`ConfigError` if there is none."""
    if name not in columns or columns[name].is_floating_point():
        what_to_do = "Convert it, if its values are whole (.long())" if name in columns else "Name what defines them"
        raise ConfigError(
            f"These batches are drawn by {criterion}, but the training table has no whole numbers in a column {name!r} "
            f"(its columns: {sorted(columns)}). {what_to_do}, or draw with UniformSampling."
        )
    return columns[name]


def _require_counts(sampling: Sampling, *arguments: str, or_none: Sequence[str] = ()) -> None:
    """Raise :class:`ConfigError` unless ``arguments`` are whole numbers >= 1, and those of ``or_none`` that or None."""
    for name in (*arguments, *or_none):
        count = getattr(sampling, name)
        if count is not None or name not in or_none:
            at_least(name, count, 1)


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
        _require_counts(self, "batch_size", or_none=["num_batches"])

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
            the data: a mean over one class, or over pairs of both, is the same.  Scores are then the log-odds of such
            a population, and decisions at 0 are for it; probabilities are still those of the data.

    Raises:
        ConfigError: if a number is out of range.
    """

    batch_size: int = 128
    positive_fraction: float = 0.5
    allow_repeats: bool = False
    prevalence: Prevalence = "data"

    def __post_init__(self) -> None:
        _require_counts(self, "batch_size")
        inside("positive_fraction", self.positive_fraction)
        one_of("prevalence", self.prevalence, ("data", "batch"))

    def in_parts(self, parts: int) -> tuple["BalancedSampling", int]:
        return replace(self, batch_size=parts * self.batch_size), self.batch_size

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return balanced union batches of ``batch_size`` rows of each process; negatives are the first stratum."""
        size = self.batch_size * world_size
        positives = self._positives(size)
        return _two_class_plan(
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
        _require_counts(self, "batch_size")
        if not list_of("CellSampling.columns", self.columns):
            raise ConfigError("CellSampling.columns must name at least one column, got none. Name one, such as y.")

    def in_parts(self, parts: int) -> tuple["CellSampling", int]:
        return replace(self, batch_size=parts * self.batch_size), self.batch_size

    @property
    def drawn_by(self) -> Sequence[str]:
        return self.columns

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return union batches of ``batch_size`` rows of each process."""
        names = [name for name in self.columns if name in columns] or list(self.columns[:1])
        values = [_required_column(columns, name, "cells") for name in names]
        for name, column in zip(names, values, strict=True):
            if column.ndim != 1:
                raise ConfigError(
                    f"CellSampling.columns names {name!r}, of which a sample has several values (its shape is "
                    f"{tuple(column.shape)}), so that it is of no one combination. Name other columns, or draw single "
                    "labels with LabelSampling."
                )
        number, cells = torch.unique(torch.stack(values), dim=1, return_inverse=True)
        count = number.shape[1]
        rows_per_cell = max(1, self.batch_size // count) * world_size
        return BatchPlan(
            cells,
            None,
            rows_per_cell,
            num_batches=max(1, len(cells) // (count * rows_per_cell)),
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

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return union batches with the rows of each process; censored samples are the first stratum."""
        rows_per_class = self.censored_per_batch * world_size, self.events_per_batch * world_size
        return _two_class_plan(
            columns,
            self.column,
            rows_per_class,
            seed,
            allow_repeats=self.allow_repeats,
            weights="if they differ",
            tells="strata",
        )


def _two_class_plan(
    columns: Mapping[str, Tensor],
    column: str,
    rows_per_class: tuple[int, int],
    seed: int,
    *,
    allow_repeats: bool,
    weights: Weighting,
    tells: Telling,
) -> BatchPlan:
    """Return batches with fixed numbers of rows with 0 and with 1 in a column; an epoch has as many as hold n rows."""
    labels, size = _required_column(columns, column, "classes"), sum(rows_per_class)
    if labels.ndim != 1 or not bool(((labels == 0) | (labels == 1)).all()):
        raise DataError(
            f"Batches with so many rows of two classes need one label per row, 0 or 1, but the column {column!r} has "
            f"shape {tuple(labels.shape)} and {listed_in_order(sorted(set(labels.flatten().tolist())))}. Use "
            "LabelSampling for several labels, else uniform or grouped batches."
        )
    num_batches = _enough_rows(len(labels), size) // size
    for label in (1, 0):
        rows = int((labels == label).sum())
        if rows == 0:
            raise DataError(
                f"The column {column!r} must hold both 0 and 1, but none of its {len(labels)} rows is {label}. Use "
                "UniformSampling, or check the column."
            )
        if rows < rows_per_class[label] and not allow_repeats:
            raise DataError(
                f"A batch of {size} asks for {rows_per_class[label]} rows of class {label}, which has {rows}. "
                "Lower batch_size, change positive_fraction, or set allow_repeats=True."
            )
    return BatchPlan(
        (labels == 1).long(),
        torch.tensor([[1, 0]]),  # positives are drawn first
        torch.tensor(rows_per_class),
        num_batches=num_batches,
        seed=seed,
        positive=torch.tensor([False, True]),
        weights=weights,
        tells=tells,
    )


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
        _require_counts(self, "samples_per_group", or_none=[*counted, "num_batches"])
        one_of("prevalence", self.prevalence, ("data", "batch"))

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return union batches of ``groups_per_batch`` groups with ``samples_per_group`` rows of each process."""
        groups = _required_column(columns, self.column, "groups")
        sizes, rows_per_group = _group_sizes(groups), self.samples_per_group * world_size
        num_groups = self.chosen(len(sizes))
        self._check(sizes, num_groups, rows_per_group)
        weighted: Weighting = "always" if self.replacement else "if they differ"
        return BatchPlan(
            groups,
            None,
            rows_per_group,
            [(torch.arange(len(sizes)), num_groups)],
            choose=at_random,
            ahead=False,
            num_batches=self.num_batches or max(1, len(groups) // (num_groups * rows_per_group)),
            seed=seed,
            replacement=self.replacement,
            weights="never" if self.prevalence == "batch" else weighted,
            tells="nothing" if self.prevalence == "batch" else "choice",
        )

    def chosen(self, groups: int) -> int:
        """Return how many of ``groups`` groups a batch holds."""
        if self.groups_per_batch == "auto":
            return min(groups, _FEW_GROUPS)
        return groups if self.groups_per_batch is None else self.groups_per_batch

    def _check(self, sizes: Tensor, num_groups: int, rows_per_group: int) -> None:
        if num_groups > len(sizes):
            raise ConfigError(f"groups_per_batch={num_groups} exceeds the {len(sizes)} groups. Lower it.")
        size, group = (int(part) for part in sizes.min(dim=0))
        if size < rows_per_group and not self.replacement:
            raise DataError(
                f"A batch takes samples_per_group={rows_per_group} rows of a group (with several processes it counts "
                f"those of all of them), but group {group} has {size}. Set replacement=True, lower samples_per_group, "
                "or raise min_size so that small groups are left out."
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
        _require_counts(self, "positives_per_label", "negatives_per_label", or_none=["labels_per_batch", "num_batches"])

    def table(self, table: TensorTable) -> LabelTable:
        """Return one row for every sample and label."""
        return LabelTable(table, self.missing)

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return union batches of ``labels_per_batch`` labels with as many rows of each process.

        Strata are ``2 t + y`` of the rows of a :class:`~fcco_lightning.data.table.LabelTable`.
        """
        task, y = (_required_column(columns, name, "labels") for name in ("task", "y"))
        _check_labels(task, y)
        labels = int(task.max()) + 1
        num_chosen = labels if self.labels_per_batch is None else self.labels_per_batch
        strata = 2 * task + (y == 1)
        sizes = torch.bincount(strata, minlength=2 * labels)
        rows_per_stratum = (
            torch.tensor([self.negatives_per_label, self.positives_per_label]).repeat(labels) * world_size
        )
        self._check_sizes(sizes, rows_per_stratum, num_chosen)
        return BatchPlan(
            strata,
            torch.arange(2 * labels).view(-1, 2),
            rows_per_stratum,
            [(torch.arange(labels), num_chosen)],
            choose=at_random,
            num_batches=self.num_batches or max(1, int(sizes[1::2].sum()) // (num_chosen * int(rows_per_stratum[1]))),
            seed=seed,
            positive=torch.tensor([False, True]).repeat(labels),
            weights="if they differ",
            tells="nothing",
        )

    def _check_sizes(self, sizes: Tensor, rows_per_stratum: Tensor, num_chosen: int) -> None:
        if num_chosen > len(sizes) // 2:
            raise ConfigError(f"labels_per_batch={num_chosen} exceeds the {len(sizes) // 2} labels. Lower it.")
        short = (sizes < rows_per_stratum).nonzero().flatten().tolist()
        if short:
            label, value = divmod(short[0], 2)
            name = ("negatives_per_label", "positives_per_label")[value]
            raise DataError(
                f"A batch takes {name}={int(rows_per_stratum[value])} rows of a label (with several processes it "
                f"counts those of all of them), but label {label} has {int(sizes[short[0]])}. Lower {name}, or leave "
                f"out labels that are too rare ({len(short)} classes are too small)."
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
        _require_counts(self, *counts, or_none=["num_batches"])

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return union batches of ``queries_per_batch`` queries with items of each process.

        Raises:
            ConfigError: as of every sampling, or if there are fewer queries.
            DataError: also if one item of a kind is drawn of queries that have several: a batch would then never hold
                two of them, and could not say how they compare.
        """
        queries = _required_column(columns, "query", "queries")
        if "y" not in columns:
            raise ConfigError(f"Batches of queries need the grades `y`, the training table has {sorted(columns)}.")
        relevant = columns["y"] > 0
        _require_keyed(queries, relevant, "queries", "relevant")
        query = torch.unique(queries, return_inverse=True)[1]
        num_queries = int(query.max()) + 1
        if self.queries_per_batch > num_queries:
            raise ConfigError(
                f"queries_per_batch={self.queries_per_batch} exceeds the {num_queries} queries. Lower it."
            )
        # Stratum 2 q + 1 would be the relevant items of query q; those that have rows are numbered anew.
        present, strata = torch.unique(2 * query + relevant.long(), return_inverse=True)
        query_of_stratum, positive = present // 2, present % 2 == 1
        is_single = torch.bincount(query_of_stratum)[query_of_stratum] == 1
        rows_per_kind = torch.tensor([self.negatives_per_query, self.positives_per_query]) * world_size
        rows_per_stratum = torch.where(is_single, rows_per_kind.sum(), rows_per_kind[positive.long()])
        self._refuse_single_draws(rows_per_stratum, torch.bincount(strata), positive)
        units = torch.full((num_queries, 2), -1)
        units[query_of_stratum, (positive & ~is_single).long()] = torch.arange(len(present))
        return BatchPlan(
            strata,
            units,
            rows_per_stratum,
            [(torch.arange(num_queries), self.queries_per_batch)],
            choose=cycle,
            num_batches=self.num_batches or -(-num_queries // self.queries_per_batch),
            seed=seed,
            positive=positive | is_single,
        )

    def _refuse_single_draws(self, rows_per_stratum: Tensor, sizes: Tensor, positive: Tensor) -> None:
        for kind, name in ((positive, "positives_per_query"), (~positive, "negatives_per_query")):
            several = kind & (rows_per_stratum == 1) & (sizes > 1)
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
        _require_counts(self, "positive_bags", "negative_bags", "instances_per_bag", or_none=["num_batches"])

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return union batches of these numbers of bags, the positive ones first, with instances of each process."""
        bags = _required_column(columns, "bag", "bags")
        labels = _required_column(columns, "y", "labels of bags")
        _require_keyed(bags, labels, "bags", "labels")
        bag = torch.unique(bags, return_inverse=True)[1]
        num_bags = int(bag.max()) + 1
        positive = torch.bincount(bag[labels == 1], minlength=num_bags) > 0
        choices = self._choices(positive)
        return BatchPlan(
            bag,
            None,
            self.instances_per_bag * world_size,
            choices,
            choose=cycle,
            num_batches=self.num_batches or max(-(-len(members) // count) for members, count in choices),
            seed=seed,
        )

    def _choices(self, positive: Tensor) -> list[tuple[Tensor, int]]:
        """The positive and the negative bags, each with how many of them are chosen."""
        kinds = (("positive", positive, self.positive_bags), ("negative", ~positive, self.negative_bags))
        for kind, members, count in kinds:
            if int(members.sum()) < count:
                raise DataError(
                    f"{kind}_bags={count} exceeds the {int(members.sum())} {kind} bags among {len(members)}. Lower "
                    "it, or check the columns `bag` and `y`."
                )
        return [(members.nonzero().flatten(), count) for _, members, count in kinds]


def _group_sizes(groups: Tensor) -> Tensor:
    """Return the number of rows of every group 0..G-1, shape (G,)."""
    if groups.ndim != 1 or groups.dtype != torch.int64 or len(groups) == 0:
        raise DataError(
            f"groups must be an int64 tensor of shape (n,) with n >= 1, got {groups.dtype} of shape "
            f"{tuple(groups.shape)}. Number them 0..G-1 with one number for every sample, and convert them by .long()."
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


@dataclass(frozen=True)
class _Derived(Sampling):
    """Batches that are made of those of another sampling, which are single draws."""

    batches: Sampling
    way_out: ClassVar[str]

    def __post_init__(self) -> None:
        if isinstance(self.batches, TwoDraws):
            raise ConfigError(f"{type(self).__name__} takes single draws as batches, got TwoDraws. {self.way_out}")

    def in_parts(self, parts: int) -> tuple["_Derived", int]:
        batches, size = self.batches.in_parts(parts)
        return replace(self, batches=batches), size

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return the union batches of ``batches``; a second draw is their :meth:`~BatchPlan.second_draw`."""
        return self.batches.plan(columns, seed, world_size)

    def table(self, table: TensorTable) -> TensorTable | LabelTable:
        """Return what ``batches`` are drawn from."""
        return self.batches.table(table)

    @property
    def drawn_by(self) -> Sequence[str]:
        return self.batches.drawn_by


@dataclass(frozen=True)
class RepeatedSampling(_Derived):
    """Every sample of a batch comes several times, to be perturbed anew each time.

    Args:
        batches: how the samples are drawn; its ``batch_size`` counts each of them once.
        copies: how often a sample comes in its batch, >= 2.

    Raises:
        ConfigError: if ``copies`` is out of range, or ``batches`` are not single draws.
    """

    copies: int = 4
    way_out = "Put it inside TwoDraws."

    def __post_init__(self) -> None:
        at_least("copies", self.copies, 2)
        super().__post_init__()

    def in_parts(self, parts: int) -> tuple[_Derived, int]:
        larger, size = super().in_parts(parts)
        return larger, self.copies * size

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return the union batches of ``batches``, repeated."""
        return super().plan(columns, seed, world_size).repeated(self.copies)


@dataclass(frozen=True)
class TwoDraws(_Derived):
    """Two independent draws in every batch, as methods need that move dual and primal variables by different samples.

    Training batches then have the parts "target" and "dual".  Both have the same composition: as many rows of every
    class, and the same groups in the same order.

    Args:
        batches: how each of them is drawn.

    Raises:
        ConfigError: if ``batches`` is itself a pair of draws.
    """

    way_out = "Leave one of the two out."

    @property
    def single(self) -> Sampling:
        return self.batches


def with_num_batches(sampling: Sampling, num_batches: int) -> Sampling:
    """Return ``sampling`` with epochs of ``num_batches`` batches, so that it keeps pace with another part.

    Raises:
        ConfigError: if it is of a kind whose epochs have a length of their own, or was given another length.
    """
    if isinstance(sampling, _Derived):
        return replace(sampling, batches=with_num_batches(sampling.batches, num_batches))
    if not isinstance(sampling, UniformSampling | GroupSampling | QuerySampling | BagSampling):
        raise ConfigError(f"{type(sampling).__name__} has epochs of a fixed length. Use GroupSampling here.")
    if sampling.num_batches not in (None, num_batches):
        raise ConfigError(
            f"num_batches={sampling.num_batches} is not the {num_batches} of the target's batches. Leave it out."
        )
    return replace(sampling, num_batches=num_batches)

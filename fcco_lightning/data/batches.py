"""How mini-batches are drawn: the user chooses a :class:`Sampling`, which makes a :class:`BatchPlan` for a table.

The batches of an epoch are a pure function of (seed, epoch), independent of global random generators.  An epoch
can therefore be repeated, resumed at any batch, or divided among processes, and always has the same batches.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import islice, repeat
from types import NoneType
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor
from torch.nn.functional import pad

from fcco_lightning.checks import at_least, inside, list_of, no_label, one_of
from fcco_lightning.data.columns import listed_in_order
from fcco_lightning.data.table import LabelTable, TensorTable
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import IN_HALVES

Choose = Callable[[Tensor, int, torch.Generator], Iterator[Tensor]]
Choice = tuple[Tensor, int]
Prevalence = Literal["data", "batch"]
Weighting = Literal["always", "if they differ", "never"]
Telling = Literal["nothing", "strata", "if needed", "choice"]

_FEW_GROUPS = 8  # groups in a batch, if groups_per_batch is "auto"


class BatchDraws(ABC):
    """Properties of mini-batches that are known before any is drawn; inclusion probabilities follow from them.

    :class:`BatchPlan` knows them all.  Batches that are drawn in another way are described by a subclass, which must
    define :meth:`absence`; properties that it does not override are unknown.  n is the size of the training split.

    Attributes:
        certain: False for batches of another loader, whose contents are known only approximately.
    """

    certain: bool = True

    @property
    def batch_size(self) -> int | None:
        """Number of samples of a batch, of all processes together."""
        return None

    @property
    def strata(self) -> Tensor | None:
        """Stratum of every sample, shape (n,), int64 in 0..S-1; None for one stratum of all samples (S = 1)."""
        return None

    @property
    def num_strata(self) -> int:
        """Number of strata S."""
        return 1 if self.strata is None else int(self.strata.max()) + 1

    @property
    def stratum_kinds(self) -> Tensor:
        """Kind of every stratum, shape (S,), int64; strata of one kind are exchangeable: they are drawn alike."""
        return torch.arange(self.num_strata)

    def counts(self, marked: Tensor) -> Tensor:
        """Return the number of ``marked`` samples, a mask (n,), bool, in every stratum, shape (S,)."""
        strata = self.strata
        return marked.sum().view(1) if strata is None else torch.bincount(strata[marked], minlength=self.num_strata)

    @property
    def distinct(self) -> bool:
        """Whether no batch can hold a sample twice; False if that is not certain."""
        return False

    @property
    def halves_known(self) -> bool:
        """Whether :meth:`absence` is exact for second halves of batches, too."""
        return True

    @abstractmethod
    def absence(self, counts: Tensor, share: float = 1.0) -> float:
        """Return the probability that a batch holds no marked sample, as :meth:`BatchPlan.absence` defines it.

        ``counts`` (S,) are the numbers of marked samples by stratum; ``share`` is 1 for batches, 1/2 for second halves.
        """

    def most(self, counts: Tensor) -> int | None:  # noqa: ARG002
        """Return the largest number of marked samples in a batch, of which there are ``counts`` (S,) by stratum."""
        return None

    def weights(self) -> Tensor | None:
        """Return the weights (n,) with which means over batches estimate means over the data; None if all are 1."""
        return None

    def population(self, share: float = 1.0) -> Tensor | None:  # noqa: ARG002
        """Return the multiplicity of every sample in the population that batches represent, shape (n,).

        It is None if that population is the data.  ``share`` is 1 for batches, 1/2 for their second halves.
        """
        return None

    def by_size(self) -> Sequence[tuple[float, Self]]:
        """Return for every size of batches their share of an epoch's batches, and how those batches are drawn."""
        return [(1.0, self)]


class BatchPlan(BatchDraws):
    r"""The batches of every epoch: each holds some units, with the same number of rows of each.

    A *unit*, such as a group, a label, a query or a bag, is chosen for a batch as a whole.  Units have *kinds*, such as
    positive and negative bags, and a *choice* is the number of units of a kind in a batch.  The rows of a unit that are
    drawn alike are a *stratum*: all of them, or its positives and the others.  A batch is ordered in *slots*: first one
    row of every chosen unit, then the next row of every unit in the same order, and so on, with the positives of each
    unit spread evenly over the slots.  Contiguous parts of a batch (one per process) therefore hold about equal shares
    of every unit.

    Example: rows 0 to 4 are the items of a first query, of which rows 0 and 1 are relevant, and rows 5 to 9 those of a
    second query, of which 5 and 6 are relevant.  A batch is to hold one query, with one relevant and two other items:

    ======================  ============================  ======================================
    relevant items of 0     stratum 1, rows 0 and 1       one row drawn
    other items of 0        stratum 0, rows 2, 3 and 4    two rows drawn
    relevant items of 1     stratum 3, rows 5 and 6       one row drawn
    other items of 1        stratum 2, rows 7, 8 and 9    two rows drawn
    ======================  ============================  ======================================

    The units are the queries; there is one kind, with the choice "1 of the units 0 and 1", and there are three slots,
    of which the last has the positive.  Weights make means over batches estimate means over the data.  Consider a row
    in a stratum of N_s rows, B_s of which are drawn if its unit is among the c chosen of U units: it occurs
    p = c B_s / (U N_s) times per batch on average and has weight B / (n p).  Here relevant items have weight
    3 * 2 * 2 / (10 * 1 * 1) = 1.2, others 3 * 3 * 2 / (10 * 1 * 2) = 0.9.

    The rows of a stratum are drawn in random order, which is shuffled anew when exhausted, or with replacement.  If a
    stratum has fewer rows than a batch needs, the batch holds all of them, some more than once.

    Samplings such as :class:`GroupSampling` make plans; :meth:`repeated`, :meth:`of_rows`, :meth:`of_weighted_samples`
    and :meth:`second_draw` derive plans from a plan.

    Args:
        units: unit of every row, shape (n,), int64, every number of 0..U-1 at least once.
        rows: number of rows of each of its units in a batch; if ``positive`` is given, the numbers of other and of
            positive rows.  Units that have rows of one sort only are one stratum, of which so many rows are drawn as
            of both sorts of other units.
        choices: for every kind the numbers of its units (the members), and how many of them are in a batch; kinds are
            chosen independently.  None for one kind, all units of which are in a batch.
        positive: which rows are positive, shape (n,), bool; None if the rows of a unit are drawn alike.
        choose: a function from members, their number in a batch and a generator to an iterator over the members in
            every batch; all subsets of that size must be equally likely.  None for all members, in their order.
        num_batches: number of batches in an epoch.
        seed: whole number >= 0.
        ahead: whether all units of an epoch are chosen before any row is drawn, or the units of a batch just before its
            rows; this changes the batches, but not their distribution.
        positives_first: whether the positives of a unit are drawn before its other rows, or after them; this changes
            the batches, but not their distribution.
        replacement: whether rows are drawn with replacement, which requires ``positive`` to be None.
        weights: "always" weights rows so that weighted means over batches estimate means over the data; "if they
            differ" does so unless all weights are 1; "never" does not.
        tells: further columns of a batch: "nothing"; the "strata"; the strata "if needed", that is, if weights do not
            identify them or a row may occur twice; or "choice", the strata and their number, if not all are drawn.

    Attributes:
        num_batches: number of batches in an epoch, the same in every epoch.
        num_rows: number of rows n of the table.
        sizes: number of rows of every stratum, shape (S,).
        drawn: number of rows of every stratum in a batch that holds its unit, shape (S,).
        sample_weight: weight of every row in the data, (n,); None if all are 1.
        certain: False for batches of another loader, see :class:`BatchDraws`.

    Example:
        >>> queries, relevant = torch.tensor([0] * 5 + [1] * 5), torch.tensor([1, 1, 0, 0, 0] * 2).bool()
        >>> one_query = [(torch.tensor([0, 1]), 1)]
        >>> plan = BatchPlan(queries, (2, 1), one_query, positive=relevant, choose=cycle, num_batches=2)
        >>> [plan.strata[batch].tolist() for batch in plan.batches(epoch=0)]
        [[0, 0, 1], [2, 2, 3]]
        >>> [round(weight, 6) for weight in plan.weights()[:3].tolist()]
        [1.2, 1.2, 0.9]
    """

    def __init__(
        self,
        units: Tensor,
        rows: int | tuple[int, int],
        choices: Sequence[Choice] | None = None,
        *,
        positive: Tensor | None = None,
        choose: Choose | None = None,
        num_batches: int,
        seed: int = 0,
        ahead: bool = True,
        positives_first: bool = False,
        replacement: bool = False,
        weights: Weighting = "always",
        tells: Telling = "strata",
    ) -> None:
        self.num_rows = self._num_drawn = len(units)  # the second is the number of rows that can be drawn
        self.num_batches = num_batches
        self.seed = at_least("seed", seed, 0)
        self.replacement, self.certain = replacement, True
        self.sample_weight: Tensor | None = None
        self._stream = 0  # number of the stream of random numbers: 1 for the second draw
        self._copies = 1
        self._last = 0  # rows of an epoch's last batch, if it is short
        # The numbers 2 unit + (1 if positive) that occur are the strata, in this order.
        keys = units if positive is None else 2 * units + positive
        sizes = torch.bincount(keys)
        present = sizes.nonzero().flatten()
        self.sizes = sizes[present]
        self._strata = keys if len(present) == len(sizes) else ((sizes > 0).cumsum(0) - 1)[keys]
        self._unit = present if positive is None else present // 2
        num_strata = torch.bincount(self._unit)  # of every unit
        alone = num_strata[self._unit] == 1
        if isinstance(rows, int):
            slots = positives = rows
            self.drawn, self._positive = torch.full_like(self.sizes, rows), alone
        else:
            slots, positives = sum(rows), rows[1]
            self.drawn = torch.where(alone, slots, torch.tensor(rows)[present % 2])
            self._positive = alone | (present % 2 == 1)
        self._even = (torch.arange(slots + 1) * positives // slots).diff().bool()  # slots of positives, evenly spread
        ends = num_strata.cumsum(0)
        self._spans = torch.stack([ends - num_strata, ends], dim=1)  # first stratum of every unit, and end
        self._choices = [(torch.arange(len(ends)), len(ends))] if choices is None else choices
        self._choose, self._ahead, self._positives_first = choose or all_of_them, ahead, positives_first
        self._weights, self._telling = weights, tells
        # The rows stratum by stratum: stratum s owns self._sorted[first : first + size].
        self._sorted = torch.argsort(self._strata, stable=True) if len(present) > 1 else torch.arange(len(units))
        self._firsts = self.sizes.cumsum(0) - self.sizes

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
        """Number of slots, which is the number of rows R of a unit."""
        first, end = self._spans[0].tolist()
        return int(self.drawn[first:end].sum())

    # Plans derived from this one

    def second_draw(self) -> Self:
        """Return a plan of batches for the same table with the same distribution, drawn independently of these.

        Batch t of both plans has the same composition: equally many rows of every class, and the same groups if groups
        are drawn.  The plans share the seed and differ in the stream of random numbers.
        """
        return self._with(_stream=self._stream + 1)

    def with_num_batches(self, num_batches: int) -> Self:
        """Return a plan with epochs of ``num_batches`` batches, >= 1, none of which is short."""
        return self._with(num_batches=at_least("num_batches", num_batches, 1), _last=0)

    def repeated(self, copies: int) -> Self:
        """Return a plan whose batches are those of this plan, each concatenated ``copies`` times.

        It is for objectives whose inner function is an expectation over perturbations of a sample: every copy is
        perturbed independently by the network or the data set, and the row of a sample is updated with the mean over
        its copies.  If the number of copies is even, the halves of a batch hold the same samples with independent
        perturbations, as methods need that update dual and primal variables by independent draws.

        Args:
            copies: number of copies of a sample in its batch, >= 1.

        Example:
            >>> batch = next(UniformBatches(8, batch_size=2).repeated(3).batches(epoch=0)).tolist()
            >>> len(batch), batch[:2] == batch[2:4] == batch[4:]
            (6, True)
        """
        return self._with(_copies=self._copies * at_least("copies", copies, 1))

    def of_rows(self, rows: Tensor, num_rows: int) -> Self:
        """Return a plan of the same batches as rows of a larger table.

        The rows of that table that are never drawn form a further stratum, the last one.  In :meth:`weights` the
        data are the rows that can be drawn; the others have weight 0.

        Args:
            rows: different rows of the larger table, shape (n,), int64: row i of this plan is ``rows[i]`` there.
            num_rows: number of rows of the larger table.

        Raises:
            DataError: if ``rows`` are not n different rows of that table, or the plan already has weights of samples.

        Example:
            >>> plan = UniformBatches(2, batch_size=2).of_rows(torch.tensor([40, 70]), 100)
            >>> sorted(next(plan.batches(epoch=0)).tolist())
            [40, 70]
        """
        different, inside = len(torch.unique(rows)), bool(((rows >= 0) & (rows < num_rows)).all())
        if not (len(rows) == different == self.num_rows and inside):
            raise DataError(
                f"rows must be {self.num_rows} different numbers in 0..{num_rows - 1}, one for each row of the plan, "
                f"got {len(rows)} numbers in {int(rows.min())}..{int(rows.max())}, {different} of them different."
            )
        if self.sample_weight is not None or self.num_rows > self._num_drawn:
            raise DataError("of_rows must be called before of_weighted_samples, and only once. Call it first.")
        strata = torch.full((num_rows,), self.num_strata)
        strata[rows] = self._strata
        never = (strata == self.num_strata).nonzero().flatten()
        plan = self._with(num_rows=num_rows, _strata=strata, _sorted=torch.cat([rows[self._sorted], never]))
        if not len(never):
            return plan
        # the new stratum belongs to the first unit, and 0 of its rows are drawn
        others = {"drawn": 0, "sizes": len(never), "_firsts": len(rows), "_unit": 0, "_positive": True}
        return plan._with(**{name: pad(getattr(self, name), (0, 1), value=value) for name, value in others.items()})

    def of_weighted_samples(self, sample_weight: Tensor) -> Self:
        """Return a plan of the same batches for weighted samples.

        Means over the data are then ``sum_i s_i x_i / sum_i s_i``, where s_i is the weight of row i; the population
        that batches represent is reweighted likewise.

        Args:
            sample_weight: s_i, shape (n,), >= 0 and not all 0.

        Example:
            >>> plan = UniformBatches(3, batch_size=1).of_weighted_samples(torch.tensor([1.0, 0.0, 3.0]))
            >>> plan.weights().tolist()
            [0.75, 0.0, 2.25]
        """
        return self._with(sample_weight=sample_weight)

    def by_size(self) -> list[tuple[float, Self]]:
        """Return for every size of batches their share of an epoch, and a plan with the :meth:`absence` of these.

        A short last batch holds a given row, and other rows beside it, with other probabilities.
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

        With c units in a batch, entry j belongs to unit j mod c of the batch.
        """
        generator, cycles = self.generator(epoch), dict[int, Iterator[Tensor]]()
        if self._last:  # one pass through the only stratum
            order = torch.randperm(self._num_drawn, generator=generator)
            drawn: Iterable[Tensor] = torch.split(self._sorted[order], self._slots)
        elif self.replacement:
            drawn = (self._independent(units, generator) for units in self._chosen_units(epoch, generator))
        else:
            spans = (self._spans[units].tolist() for units in self._chosen_units(epoch, generator))
            rows = ([self._in_turn(range(*span), cycles, generator) for span in batch] for batch in spans)
            drawn = (torch.stack(parts, dim=1).flatten() for parts in rows)
        for batch in drawn:
            yield batch if self._copies == 1 else torch.tile(batch, (self._copies,))

    def generator(self, epoch: int) -> torch.Generator:
        """Return a fresh CPU generator that depends on (seed, epoch) and the stream only."""
        # SeedSequence mixes the pair: seed + epoch would make epoch 1 of seed 0 equal to epoch 0 of seed 1.
        key = [self.seed, at_least("epoch", epoch, 0), *([self._stream] if self._stream else [])]
        mixed = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
        return torch.Generator().manual_seed(int(mixed))

    def _chosen_units(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the units of every batch; a second draw has the units of the first one."""
        first = self._with(_stream=0, _copies=1)
        if self._stream and not self._ahead:
            for batch in first.batches(epoch):
                yield self._unit[self._strata[batch[: self._units_per_batch]]]
            return
        generator = first.generator(epoch) if self._stream else generator
        kinds = [islice(self._choose(*choice, generator), self.num_batches) for choice in self._choices]
        yield from map(torch.cat, zip(*(map(list, kinds) if self._ahead else kinds), strict=True))

    def _independent(self, units: Tensor, generator: torch.Generator) -> Tensor:
        shape = (self._slots, len(units))
        # float64 in [0, 1) times a size below 2^53 stays below that size, also after rounding.
        places = (torch.rand(shape, generator=generator, dtype=torch.float64) * self.sizes[units]).long()
        return self._sorted[self._firsts[units] + places].flatten()

    def _in_turn(self, unit: Sequence[int], cycles: dict[int, Iterator[Tensor]], generator: torch.Generator) -> Tensor:
        """Return the next rows of a unit with these strata, shape (R,), drawn without replacement."""
        if len(unit) == 1:
            return next(self._cycle(unit[0], cycles, generator))
        rows = torch.empty(self._slots, dtype=torch.int64)
        for stratum in reversed(unit) if self._positives_first else unit:
            slots = self._even if self._positive[stratum] else ~self._even
            rows[slots] = next(self._cycle(stratum, cycles, generator))
        return rows

    def _cycle(self, stratum: int, cycles: dict[int, Iterator[Tensor]], generator: torch.Generator) -> Iterator[Tensor]:
        """Return the iterator over the rows of a stratum; a stratum is shuffled only when it is first drawn."""
        if stratum not in cycles:
            first, size = int(self._firsts[stratum]), int(self.sizes[stratum])
            cycles[stratum] = cycle(self._sorted[first : first + size], int(self.drawn[stratum]), generator)
        return cycles[stratum]

    # Further columns of batches

    def weights(self) -> Tensor | None:
        r"""Return the weight w_i of every row, with which the mean over a batch is unbiased for the mean over the data.

        .. math:: E \frac{1}{B} \sum_{i \in \text{batch}} w_i x_i = \frac{1}{n} \sum_{i=1}^n x_i, \qquad
                  w_i = \frac{N_s U B}{n c B_s}

        for a row of a stratum of N_s rows, B_s of which are drawn if its unit is one of the c chosen among the U units
        of its kind.  If samples are weighted, w_i is multiplied by the weight of the sample.

        Returns: shape (n,), float32; None if every weight is 1, or the plan has no weights.
        """
        stratum_weights = self._weights_of_strata()
        row_weights = None if stratum_weights is None else stratum_weights[self._strata]
        if self.sample_weight is None:
            return row_weights
        times = self._times()
        return (times if row_weights is None else row_weights * times).float()

    def population(self, share: float = 1.0) -> Tensor | None:
        r"""Return the multiplicity m_i of every row of the data in the population that batches represent.

        .. math:: E \frac{1}{B} \sum_{i \in \text{batch}} w_i x_i = \frac{1}{n} \sum_{i=1}^n m_i x_i

        with the :meth:`weights` w_i, or 1 if there are none.  The sum of the m_i is n.

        Args:
            share: 1 for whole batches, 1/2 for their second halves.

        Returns: shape (n,), float64; None where every m_i is 1, so that the population is the data.
        """
        counts = self._drawn_population(share)
        if self.sample_weight is None:
            return counts
        return self._times() if counts is None else counts * self._times()

    def columns(self) -> dict[str, Tensor]:
        """Return the columns, each (n,), that describe in a training batch how it was drawn.

        - ``weight`` (float32), if there are :meth:`weights`;
        - ``stratum`` and ``stratum_size`` (int64), the stratum of a row and its number of rows, if not all pairs of
          rows are equally likely; from them follows how many rows of the data each row of a batch represents;
        - ``strata`` (int64), the number S of strata, if a batch holds only some, all sets of them being equally likely;
        - ``replaced`` (int64), how often a batch holds each draw, if the rows of a stratum are drawn with replacement;
        - ``weight_in_halves`` (n, 2), factors on the weight in the first and second half of a batch, if the shares of
          strata in halves differ from those in the batch.
        """
        weights, single = self._weights_of_strata(), self._copies == 1
        factors = self._factors_in_halves() if single and self._weights != "never" else None
        needless = self._telling == "if needed" and weights is not None and self._never_twice
        informative = self._telling != "nothing" and not needless
        columns = {} if weights is None else {"weight": weights[self._strata]}
        if factors is not None:
            columns[IN_HALVES] = factors[self._strata]
        if informative or not single:
            # copies of a sample form pairs more often than others; without weights one stratum suffices
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
        # weights of samples do not identify strata
        strata = self._strata if "weight" in columns else torch.zeros_like(self._strata)
        return columns | {"weight": own_weights} | ({} if "stratum" in columns else _strata_columns(strata))

    def _times(self) -> Tensor:
        """The weights of samples, (n,), float64, scaled so that the population that batches represent has size n."""
        assert self.sample_weight is not None  # noqa: S101 - called only where there are some
        counts, weight = self._drawn_population(1.0), self.sample_weight.double()
        return weight * (len(weight) / (weight if counts is None else weight * counts).sum())

    def _drawn_population(self, share: float) -> Tensor | None:
        """The :meth:`population` without the weights of samples."""
        halved = share != 1 and self._copies == 1  # with copies, halves hold the same samples as batches
        in_data, in_batch = (self._second_half() if halved else self)._shares()
        ratio = in_batch / in_data if self._weights == "never" else (self.drawn > 0).double()
        return None if bool((ratio == 1).all()) else (self.num_rows / self._num_drawn * ratio)[self._strata]

    def _weights_of_strata(self) -> Tensor | None:
        """The weights of the rows of every stratum without the weights of samples, shape (S,), float32."""
        if self._weights == "never":
            return None
        in_data, in_batch = self._shares()
        weights = torch.where(in_batch > 0, in_data / in_batch, 0.0).float()
        return None if self._weights == "if they differ" and bool((weights[in_batch > 0] == 1).all()) else weights

    def _shares(self) -> tuple[Tensor, Tensor]:
        """N_s U B and n c B_s of every stratum, shape (S,) each; they are whole numbers and computed exactly."""
        sizes = torch.empty(len(self._spans), 2, dtype=torch.float64)
        for members, count in self._choices:
            sizes[members] = torch.tensor([len(members), count], dtype=torch.float64)
        share, size = sizes[self._unit], self._units_per_batch * self._slots  # size of the batch, or of its half
        return self.sizes * share[:, 0] * size, self._num_drawn * share[:, 1] * self.drawn

    def _factors_in_halves(self) -> Tensor | None:
        """Ratios of the share of every stratum in a batch to that in its first and in its second half, (S, 2).

        None if all are 1, or if they differ from batch to batch because a half ends within a slot.
        """
        second, slots = self._second_half().drawn, self._slots - self._slots // 2
        if bool((self._slots * second == slots * self.drawn).all()) or (self._slots % 2 and self._units_per_batch > 1):
            return None
        counts = torch.stack([self.drawn - second, second], dim=1)
        sizes = torch.tensor([self._slots - slots, slots])
        return (self.drawn.unsqueeze(1) * sizes / (self._slots * counts.clamp(min=1))).float()

    def _second_half(self) -> Self:
        """A plan of the second halves of batches; it is exact if the number of slots is even."""
        slots, first = self._slots, self._slots // 2
        # the first j of R slots hold floor(j c / R) of a unit's c positives
        before = torch.where(self._positive, first * self.drawn, first * self.drawn + slots - 1) // slots
        return self._with(drawn=self.drawn - before)

    # Properties that are known before a batch is drawn

    @property
    def strata(self) -> Tensor | None:
        return None if self.num_strata == 1 else self._strata

    @property
    def num_strata(self) -> int:
        """Number of strata S."""
        return len(self.sizes)

    @property
    def stratum_kinds(self) -> Tensor:
        """Kind of every stratum, see :class:`BatchDraws`; strata of one kind share computations if S is large.

        If units are strata, two strata have one kind if their units have one kind and their sizes agree; else every
        stratum is a kind.
        """
        if len(self._spans) != len(self.sizes) or len(self.sizes) == 1:
            return torch.arange(self.num_strata)
        kinds = torch.empty_like(self.sizes)
        for number, (members, _) in enumerate(self._choices):
            kinds[members] = number
        return len(self._choices) * self.sizes + kinds

    @property
    def distinct(self) -> bool:
        return self.certain and self._copies == 1 and self._never_twice

    @property
    def _never_twice(self) -> bool:
        """Whether no row is drawn twice: strata have enough rows, or one row of each is drawn with replacement."""
        return self._slots == 1 if self.replacement else bool((self.sizes >= self.drawn).all())

    @property
    def halves_known(self) -> bool:
        """Whether :meth:`absence` is exact for second halves of batches, too.

        It is not if a row may occur twice in a batch without replacement, or if a half ends within a slot.
        """
        whole_slots = self._slots % 2 == 0 or self._units_per_batch == 1
        return self._copies > 1 or (whole_slots and (self.replacement or self._never_twice))

    def absence(self, counts: Tensor, share: float = 1.0) -> float:
        r"""Return the probability that a batch holds none of a set of marked rows, averaged over an epoch's batches.

        1 minus it is the inclusion probability: that a batch contains at least one marked row, so that a mean over
        marked rows is defined.  It is exact (for second halves, if :attr:`halves_known`), not an estimate, and 0 if
        every batch holds a marked row.

        If m rows are drawn from a stratum of N rows, of which k are marked, none of them is marked with probability
        C(N - k, m) / C(N, m), or (1 - k / N)^m with replacement.  These probabilities are multiplied over the strata of
        the chosen units, averaged over all choices of each kind, and multiplied over the kinds.  For example, if two of
        five rows are drawn and three rows are marked, it is 1 / 10: one pair of ten has no marked row.

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
        half = one_of("share", share, (1.0, 0.5)) != 1 and self._copies == 1  # halves of copies hold the same samples
        inner = self._checked(counts)
        plans = [(part, plan._second_half() if half else plan) for part, plan in self.by_size()]
        return min(max(float(sum(part * plan._absence(inner) for part, plan in plans)), 0.0), 1.0)

    def most(self, counts: Tensor) -> int:
        """Return an upper bound on the number of marked rows in a batch; a row that occurs twice counts twice.

        It is the least upper bound unless a stratum has fewer rows than are drawn from it.

        Args:
            counts: number of marked rows in every stratum, shape (S,), int64.

        Raises:
            DataError: if ``counts`` has another shape, or counts more rows than a stratum has.
        """
        counts = self._checked(counts)
        at_most = self.drawn * (counts > 0)  # with repeats all draws may be marked
        if self.certain and not self.replacement:
            at_most = torch.where(self.drawn <= self.sizes, torch.minimum(self.drawn, counts), at_most)
        most_by_unit = torch.zeros(len(self._spans), dtype=torch.int64).index_add(0, self._unit, at_most)
        most_by_kind = (int(most_by_unit[members].topk(count).values.sum()) for members, count in self._choices)
        return min(self._copies * sum(most_by_kind), self.batch_size)

    def _absence(self, counts: Tensor) -> float:
        """Product over kinds of the mean, over all choices of units, of the product of the chosen units' absences."""
        if self.replacement:
            none = ((1 - counts / self.sizes.double()) ** self.drawn).numpy()
        else:
            none = none_drawn(self.sizes.numpy(), counts.numpy(), self.drawn.numpy())
        absences = np.ones(len(self._spans))
        np.multiply.at(absences, self._unit.numpy(), none)
        return float(np.prod([mean_product(absences[members.numpy()], count) for members, count in self._choices]))

    def _checked(self, counts: Tensor) -> Tensor:
        """Return ``counts`` on the CPU as int64; raise :class:`DataError` unless they are between 0 and the sizes."""
        sizes, counts = self.sizes, counts.cpu().long()
        if counts.shape != sizes.shape or bool(((counts < 0) | (counts > sizes)).any()):
            raise DataError(
                f"counts must hold, for each of the {len(sizes)} strata of sizes {listed_in_order(sizes.tolist())}, "
                f"how many of its rows are marked, got {listed_in_order(counts.tolist())}."
            )
        return counts


class UniformBatches(BatchPlan):
    """Every epoch is a random permutation of 0..num_rows-1, cut into batches; all rows are one stratum.

    Args:
        num_rows: number of rows n of the data set.
        batch_size: number of rows in a batch, <= n.
        seed: whole number >= 0.
        drop_last: whether an epoch's last batch is left out if it is short (the n mod batch_size rows that are left out
            differ from epoch to epoch).
        certain: False for the batches of another loader that shuffles, of which this plan is an approximation: to give
            processes equally many samples, torch's ``DistributedSampler`` repeats samples at the end of an epoch,
            possibly within a batch.

    Raises:
        DataError: if ``batch_size`` > ``num_rows``.
    """

    def __init__(
        self, num_rows: int, batch_size: int, seed: int = 0, *, drop_last: bool = True, certain: bool = True
    ) -> None:
        at_least("batch_size", batch_size, 1)
        number, rest = divmod(_enough_rows(num_rows, batch_size), batch_size)
        last = 0 if drop_last else rest
        units = torch.zeros(num_rows, dtype=torch.int64)
        number += last > 0
        super().__init__(units, batch_size, num_batches=number, seed=seed, weights="never", tells="nothing")
        self.certain, self._last = certain, last


class Drawn(NamedTuple):
    """The table from which one part of the training batches is drawn, and how it is drawn.

    Attributes:
        columns: columns of the training table without the network's input, such as ``y``, ``group`` or ``task``, and
            ``index``, each with first dimension n.
        plan: union batches, that is, those of all processes together.
        shorter: whether samples that cannot be read are left out of batches.
    """

    columns: Mapping[str, Tensor]
    plan: BatchDraws
    shorter: bool = False


def _strata_columns(strata: Tensor) -> dict[str, Tensor]:
    """Return the columns of ``strata`` (n,): ``stratum`` and ``stratum_size``, see :meth:`BatchPlan.columns`."""
    return {"stratum": strata, "stratum_size": torch.bincount(strata)[strata]}


def _enough_rows(num_rows: int, batch_size: int, argument: str = "batch_size") -> int:
    """Return ``num_rows``, or raise :class:`DataError` if a batch is larger."""
    if batch_size > num_rows:
        raise DataError(
            f"{argument}={batch_size} exceeds the {num_rows} rows of the training split "
            f"(with several processes it counts the rows of all of them). Lower {argument}."
        )
    return num_rows


def cycle(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield ``size`` of ``rows`` at a time, without end, in one random permutation after another."""
    unused = rows[:0]
    while True:
        take, unused = unused[:size], unused[size:]
        while len(take) < size:
            fresh = rows[torch.randperm(len(rows), generator=generator)]
            if len(take):  # rows that are in this batch already move to the end of the permutation
                repeated = torch.isin(fresh, take)
                fresh = torch.cat([fresh[~repeated], fresh[repeated]])
            missing = size - len(take)
            take, unused = torch.cat([take, fresh[:missing]]), fresh[missing:]
        yield take


def none_drawn(sizes: NDArray[Any], marked: NDArray[Any], drawn: NDArray[Any]) -> NDArray[np.float64]:
    r"""Return the probability that m rows, drawn without replacement from N, include none of k marked rows.

    .. math:: \binom{N - k}{m} \Big/ \binom{N}{m}

    ``sizes`` N, ``marked`` k and ``drawn`` m have a number for every stratum, shape (S,), or one for all.  If m > N,
    every row is drawn.
    """
    unmarked = sizes - marked
    possible = drawn <= unmarked
    drawn = np.where(possible, drawn, 0)
    log = gammaln(unmarked + 1) - gammaln(unmarked - drawn + 1) - gammaln(sizes + 1) + gammaln(sizes - drawn + 1)
    return np.where(marked == 0, 1.0, possible * np.exp(np.minimum(log, 0.0)))


def mean_product(factors: NDArray[np.float64], count: int) -> float:
    r"""Return the mean of the products of all subsets of size ``count`` of the numbers a_1..a_m in [0, 1].

    This is the elementary symmetric polynomial e_count(a_1..a_m) divided by its number of terms.  The recurrence for
    the divided polynomials E_j is a convex combination, so that it neither overflows nor cancels:

    .. math:: E_j^{(m)} = \frac{m - j}{m} E_j^{(m-1)} + \frac{j}{m}\, a_m E_{j-1}^{(m-1)}

    Subsets with a number 0 contribute nothing: the result is the mean over subsets of the other numbers, times the
    probability that a subset has no 0.
    """
    total, factors = len(factors), factors[factors > 0.0]
    if len(factors) < count:
        return 0.0
    j = np.arange(count)
    without_zeros = float(np.prod((len(factors) - j) / (total - j)))
    j = np.arange(count + 1)
    ones = int(np.count_nonzero(factors == 1.0))
    means = (j <= ones).astype(np.float64)  # E_j of the numbers that are 1
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


@dataclass(frozen=True)
class Sampling(ABC):
    """A way of drawing training batches, which becomes a :class:`BatchPlan` once the table is known.

    A subclass defines how a batch is composed.  Its whole numbers must be >= 1; those of rows are of one process, those
    of groups, labels, queries and bags are of all processes together.

    Args:
        num_batches: number of batches in an epoch; None for about one pass over the data.
        copies: how often a batch holds each of its samples, whose copies are perturbed independently, see
            :meth:`BatchPlan.repeated`; ``batch_size`` and other numbers of rows count a sample once.
        two_draws: whether every training batch has two independent draws, its parts "target" and "dual", for methods
            that update dual and primal variables by different samples, see :meth:`BatchPlan.second_draw`.

    Raises:
        ConfigError: if a number is out of range.
    """

    num_batches: int | None = field(default=None, kw_only=True)
    copies: int = field(default=1, kw_only=True)
    two_draws: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        for argument in fields(self):
            kinds, value = get_args(argument.type) or (argument.type,), getattr(self, argument.name)
            special = (value is None and NoneType in kinds) or (value == "auto" and Literal["auto"] in kinds)
            if int in kinds and not special:
                at_least(argument.name, value, 1)

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return the plan of the union batches, that is, the batches of all processes together.

        Args:
            columns: columns of the training table with ``index``, each with first dimension n.
            seed: seed of the batches, a whole number >= 0.
            world_size: number of processes P.

        Raises:
            ConfigError: if the table lacks a column by which these batches are drawn, or has too few groups, labels or
                queries.
            DataError: if the table does not have enough rows, or the column has invalid values.
        """
        plan = self._plan(columns, seed, world_size)
        plan = plan if self.num_batches is None else plan.with_num_batches(self.num_batches)
        return plan.repeated(self.copies)

    @abstractmethod
    def _plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> BatchPlan:
        """Return the plan without copies and with the usual number of batches."""

    def in_parts(self, parts: int) -> tuple[Self, int]:
        """Return a sampling with batches ``parts`` times as large, and the present batch size of one process.

        The number of samples in an epoch stays the same.

        Raises:
            ConfigError: if the sampling has no ``batch_size``.
        """
        size = getattr(self, "batch_size", None)
        if size is None:
            raise ConfigError(
                f"{type(self).__name__} has no batch_size that could be made {parts} times as large. Raise its own "
                "numbers, and set --model.execution.micro_batch to the number of samples that fit into memory."
            )
        fewer = None if self.num_batches is None else -(-self.num_batches // parts)
        larger: dict[str, Any] = {"batch_size": parts * size, "num_batches": fewer}
        return replace(self, **larger), self.copies * size

    def with_num_batches(self, num_batches: int) -> Self:
        """Return the sampling with ``num_batches`` batches in an epoch, as many as another part of the batches has.

        Raises:
            ConfigError: if another number was chosen.
        """
        if self.num_batches not in (None, num_batches):
            raise ConfigError(
                f"num_batches={self.num_batches} is not the {num_batches} of the target's batches. Leave it out."
            )
        return replace(self, num_batches=num_batches)

    def table(self, table: TensorTable) -> TensorTable | LabelTable:
        """Return the table whose rows are drawn: the training table, or another view of it."""
        return table

    @property
    def drawn_by(self) -> Sequence[str]:
        """Columns by which rows are drawn and that need not be columns of the batches."""
        return ()


@dataclass(frozen=True)
class UniformSampling(Sampling):
    """Every epoch is a permutation of the rows, cut into batches: :class:`UniformBatches`.

    With ``num_batches`` all batches have ``batch_size`` rows: fewer batches than in a permutation cut it short, more
    start another permutation.

    Args:
        batch_size: number of rows in a training batch of one process.
        drop_last: whether an epoch's last batch is left out if it is short.
    """

    batch_size: int = 128
    drop_last: bool = True

    def _plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> UniformBatches:
        return UniformBatches(len(columns["index"]), self.batch_size * world_size, seed, drop_last=self.drop_last)


@dataclass(frozen=True)
class BalancedSampling(Sampling):
    """Every batch holds the same number of positives (``y`` = 1), as losses over pairs of both classes need.

    The rows of each class are drawn in random order, which is shuffled anew when exhausted, so that within an epoch any
    two rows of a class are drawn equally often up to one.  An epoch of n rows has n // B batches of B rows.  Positives
    are spread evenly over a batch, so that contiguous parts of it (one per process) are balanced, too.  Negatives are
    stratum 0.

    Args:
        batch_size: number of rows in a training batch of one process.
        positive_fraction: share of positives in every batch, in (0, 1); rounded to whole rows.
        allow_repeats: whether a row may occur twice in a batch if its class has fewer rows than a batch needs.
        prevalence: "data" gives batches a column ``weight``, N_s B / (n B_s) for a class of N_s rows of which a batch
            holds B_s, with which means over batches are unbiased for means over the data.  "batch" gives no weights:
            means over batches then estimate those of a population with the batch's share of positives, while means over
            one class, or over pairs of both, are unaffected.  Scores are then log-odds of that population, and
            decisions at 0 refer to it; probabilities are still those of the data.
    """

    batch_size: int = 128
    positive_fraction: float = 0.5
    allow_repeats: bool = False
    prevalence: Prevalence = "data"

    def __post_init__(self) -> None:
        super().__post_init__()
        inside("positive_fraction", self.positive_fraction)
        one_of("prevalence", self.prevalence, ("data", "batch"))

    def _plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> BatchPlan:
        size = self.batch_size * world_size
        positives = round(self.positive_fraction * size)
        if not 1 <= positives <= size - 1:
            raise ConfigError(
                f"positive_fraction={self.positive_fraction!r} of batch_size={size} is {positives} positives and "
                f"{size - positives} negatives; both must be >= 1. Raise batch_size or move positive_fraction to 0.5."
            )
        rows, as_drawn = (size - positives, positives), self.prevalence == "batch"
        weights: Weighting = "never" if as_drawn else "if they differ"
        tells: Telling = "nothing" if as_drawn else "if needed"
        return _two_class_plan(columns, "y", rows, "batch_size", seed, self.allow_repeats, weights, tells)


@dataclass(frozen=True)
class CellSampling(Sampling):
    """Every batch holds equally many samples of every combination of some columns, such as class and group.

    This is for constraints on rates of a class in groups, one of which is small: if 1 of 400 samples is a positive of
    that group, only every third uniform batch of 128 holds one.  Rows are weighted, so that means over batches estimate
    means over the data.  The rows of each combination are drawn in random order, which is shuffled anew when exhausted;
    if one has fewer rows than a batch needs, the batch holds all of them, some more than once.  An epoch has about n
    samples.

    Args:
        batch_size: number of rows in a training batch of one process, divided equally among the combinations, rounded
            down, but at least one row each.
        columns: the columns whose combinations are drawn: columns of integers in the batches, or any other columns of
            the table, in which an empty cell is a value, too; names that occur in neither are ignored.

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
        super().__post_init__()
        if not list_of("CellSampling.columns", self.columns):
            raise ConfigError("CellSampling.columns must name at least one column, got none. Name one, such as y.")

    @property
    def drawn_by(self) -> Sequence[str]:
        return self.columns

    def _plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> BatchPlan:
        names = [name for name in self.columns if name in columns] or self.columns[:1]
        values = torch.stack([_column(columns, name, "cells") for name in names])
        combinations, cells = torch.unique(values, dim=1, return_inverse=True)
        count = combinations.shape[1]
        rows = max(1, self.batch_size // count) * world_size
        number = max(1, len(cells) // (count * rows))
        return BatchPlan(cells, rows, num_batches=number, seed=seed, weights="if they differ")


@dataclass(frozen=True)
class EventSampling(Sampling):
    """Every batch holds fixed numbers of samples with an event and of censored samples, for survival times.

    Rows are weighted, and batches have the strata (censored 0, event 1) as a column, so that sums over a risk set can
    be estimated from the samples of a batch.  An epoch of n rows has n // B batches of B rows.

    Args:
        events_per_batch: number of rows with an event in a training batch of one process, >= 2.
        censored_per_batch: number of censored rows in it, >= 2.
        allow_repeats: whether a row may occur twice in a batch if there are fewer rows of a kind than a batch needs.
        column: column of the events, 1 for an event and 0 for a censored sample.
    """

    events_per_batch: int = 32
    censored_per_batch: int = 96
    allow_repeats: bool = False
    column: str = "event"

    def __post_init__(self) -> None:
        at_least("events_per_batch", self.events_per_batch, 2)
        at_least("censored_per_batch", self.censored_per_batch, 2)
        super().__post_init__()

    def _plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> BatchPlan:
        rows = self.censored_per_batch * world_size, self.events_per_batch * world_size
        numbers, repeats = "events_per_batch + censored_per_batch", self.allow_repeats
        return _two_class_plan(columns, self.column, rows, numbers, seed, repeats, "if they differ", "strata")


def _two_class_plan(
    columns: Mapping[str, Tensor],
    name: str,
    rows: tuple[int, int],
    argument: str,
    seed: int,
    allow_repeats: bool,
    weights: Weighting,
    tells: Telling,
) -> BatchPlan:
    """Return batches with fixed numbers of rows with 0 and with 1 in a column; an epoch has about n rows.

    ``argument`` determines the number of rows in a batch, for messages.
    """
    labels, size = _column(columns, name, "classes"), sum(rows)
    number = _enough_rows(len(labels), size, argument) // size
    if (values := torch.unique(labels).tolist()) != [0, 1]:
        raise DataError(
            f"Batches that hold rows of both classes need a column {name!r} with the numbers 0 and 1, but its "
            f"{len(labels)} rows hold {listed_in_order(values)}. Check the column, or draw with UniformSampling."
        )
    labels = labels.long()
    if not allow_repeats:
        way_out = f"Lower {argument}, change the share of this class in a batch, or set allow_repeats=True."
        _require_rows(torch.bincount(labels), torch.tensor(rows), lambda s: f"with {name}={s}", way_out)
    return BatchPlan(
        torch.zeros_like(labels),
        rows,
        positive=labels == 1,
        positives_first=True,
        num_batches=number,
        seed=seed,
        weights=weights,
        tells=tells,
    )


@dataclass(frozen=True)
class GroupSampling(Sampling):
    """Every batch holds equally many samples of a few groups (column ``group``), as group-wise estimates need.

    The groups of a batch are drawn uniformly and without replacement; their samples are ordered in slots, one sample of
    every group after the other.  If the number of samples per group is even, the two contiguous halves of a batch are
    therefore two draws of the same groups.  They are independent if samples are drawn with replacement; without, means
    over them have a covariance of O(1 / N_g) for a group of N_g rows.  An epoch has about n samples.

    Args:
        groups_per_batch: number of groups in a training batch (B1), the same groups on all processes; None for all,
            "auto" for 8, or all if there are fewer.
        samples_per_group: number of samples of each of these groups in a training batch of one process (B2).
        replacement: whether the samples of a group are drawn with replacement; otherwise they are drawn in random
            order, which is shuffled anew when exhausted, and no sample occurs twice in a batch.
        prevalence: "batch" gives batches no weights, since objectives over groups need none; means over batches then
            estimate those of a population with equally large groups.  "data" gives rows of a group of N_g of n rows the
            ``weight`` N_g G / n, where G is the number of groups; means over batches then estimate those of the data.
        column: column of the groups, whole numbers 0..G-1.

    Example:
        >>> group = torch.tensor([0, 1, 1, 0, 2, 2])
        >>> batch = next(GroupSampling(2, samples_per_group=2).plan({"group": group}, seed=1).batches(epoch=0))
        >>> group[batch].tolist()  # sample by sample
        [2, 1, 2, 1]
    """

    groups_per_batch: int | Literal["auto"] | None = "auto"
    samples_per_group: int = 8
    replacement: bool = False
    prevalence: Prevalence = "batch"
    column: str = "group"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("prevalence", self.prevalence, ("data", "batch"))

    def _plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> BatchPlan:
        groups, rows = _column(columns, self.column, "groups"), self.samples_per_group * world_size
        sizes = _group_sizes(groups)
        chosen = _at_most("groups_per_batch", self.chosen(len(sizes)), len(sizes), "groups")
        if not self.replacement:
            way_out = "Set replacement=True, lower samples_per_group, or raise min_size, which leaves out small groups."
            _require_rows(sizes, torch.full_like(sizes, rows), lambda group: f"of group {group}", way_out)
        weights: Weighting = "always" if self.replacement else "if they differ"
        as_drawn = self.prevalence == "batch"
        return BatchPlan(
            groups,
            rows,
            [(torch.arange(len(sizes)), chosen)],
            choose=at_random,
            ahead=False,
            num_batches=max(1, len(groups) // (chosen * rows)),
            seed=seed,
            replacement=self.replacement,
            weights="never" if as_drawn else weights,
            tells="nothing" if as_drawn else "choice",
        )

    def chosen(self, groups: int) -> int:
        """Return the number of groups in a batch if there are ``groups``."""
        if self.groups_per_batch == "auto":
            return min(groups, _FEW_GROUPS)
        return groups if self.groups_per_batch is None else self.groups_per_batch


@dataclass(frozen=True)
class LabelSampling(Sampling):
    """Every batch holds positives and negatives of a few of T labels ``y`` (n, T), as means over labels need.

    Training batches then have one label of every sample: ``task`` (B,) is its number, ``y`` (B,) its value.  Labels are
    drawn uniformly; the rows of both classes of each are drawn in random order, which is shuffled anew when exhausted,
    so that no row occurs twice in a batch.  Rows are weighted so that means over batches estimate means over all rows.
    An epoch draws each positive once on average.  The stratum of a row is ``2 task + y``.

    Args:
        labels_per_batch: number of labels in a training batch, the same labels on all processes; None for all.
        positives_per_label: number of positives of each of these labels in a training batch of one process; mean
            average precision needs at least two over all processes.
        negatives_per_label: number of negatives of each of these labels in a training batch of one process.
        missing: value of ``y`` for labels that are not known, such as -1; None if all are known.
    """

    labels_per_batch: int | None = 4
    positives_per_label: int = 4
    negatives_per_label: int = 12
    missing: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        no_label("missing", self.missing)

    def table(self, table: TensorTable) -> LabelTable:
        """Return a table with one row for every sample and label."""
        return LabelTable(table, self.missing)

    def _plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> BatchPlan:
        task, y = (_column(columns, name, "labels") for name in ("task", "y"))
        if not bool(((y == 0) | (y == 1)).all()):
            found = listed_in_order(torch.unique(y).tolist())
            raise DataError(f"y must hold 0 and 1, got {found}. Set missing to the value of labels that are not known.")
        labels = int(task.max()) + 1
        chosen = labels if self.labels_per_batch is None else self.labels_per_batch
        _at_most("labels_per_batch", chosen, labels, "labels")
        rows = self.negatives_per_label * world_size, self.positives_per_label * world_size
        sizes = torch.bincount(2 * task + y, minlength=2 * labels)
        way_out = "Lower positives_per_label or negatives_per_label, or leave out rare labels."
        _require_rows(sizes, torch.tensor(rows).repeat(labels), lambda s: f"with y={s % 2} of label {s // 2}", way_out)
        return BatchPlan(
            task,
            rows,
            [(torch.arange(labels), chosen)],
            positive=y == 1,
            choose=at_random,
            num_batches=max(1, int(sizes[1::2].sum()) // (chosen * rows[1])),
            seed=seed,
            weights="if they differ",
            tells="nothing",
        )


@dataclass(frozen=True)
class QuerySampling(Sampling):
    """Every batch holds a few queries with the same number of relevant and irrelevant items of each.

    Queries are the values of the column ``query``, and items with ``y`` > 0 are relevant.  Queries are drawn in random
    order; an epoch draws each about once.  If a query has fewer items of a kind than a batch needs, the batch holds all
    of them, some more than once; if it has none, items of the other kind take their places, so that all batches have
    the same size.

    Rows are weighted so that means over batches estimate means over all rows, and batches have the strata (relevant and
    irrelevant items of every query) as a column, from which sums over the items of a query can be estimated.

    Args:
        queries_per_batch: number of queries in a training batch, the same queries on all processes.
        positives_per_query: number of relevant items of each of these queries in a training batch of one process.
        negatives_per_query: number of irrelevant items of each of these queries in a training batch of one process.
    """

    queries_per_batch: int = 8
    positives_per_query: int = 4
    negatives_per_query: int = 12

    def _plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> BatchPlan:
        names, query = torch.unique(_column(columns, "query", "queries"), return_inverse=True)
        if "y" not in columns:
            raise ConfigError(f"Batches of queries need the grades `y`, the training table has {sorted(columns)}.")
        chosen = _at_most("queries_per_batch", self.queries_per_batch, len(names), "queries")
        rows = self.negatives_per_query * world_size, self.positives_per_query * world_size
        plan = BatchPlan(
            query,
            rows,
            [(torch.arange(len(names)), chosen)],
            positive=columns["y"] > 0,
            choose=cycle,
            num_batches=-(-len(names) // chosen),
            seed=seed,
        )
        if single := int(((plan.drawn == 1) & (plan.sizes > 1)).sum()):
            raise DataError(
                f"positives_per_query={rows[1]} and negatives_per_query={rows[0]} on all processes together draw one "
                f"item of a kind, of which {single} queries have several: a batch never holds two of these, which "
                "objectives compare. Use 2 or more."
            )
        return plan


@dataclass(frozen=True)
class BagSampling(Sampling):
    """Every batch holds fixed numbers of positive and of negative bags, with equally many instances of each bag.

    Bags are the values of the column ``bag``; a bag is positive if one of its instances has ``y`` = 1.  The bags of
    each class are drawn in random order, which is shuffled anew when exhausted, and so are the instances of a bag.  If
    it has fewer instances than a batch needs, the batch holds all of them, some more than once.  An epoch draws every
    bag at least once.

    Rows are weighted so that means over batches estimate means over all rows; batches have the strata (the bags) as a
    column.

    Args:
        positive_bags: number of positive bags in a training batch, the same bags on all processes.
        negative_bags: number of negative bags in a training batch, the same bags on all processes.
        instances_per_bag: number of instances of each of these bags in a training batch of one process.
    """

    positive_bags: int = 8
    negative_bags: int = 8
    instances_per_bag: int = 4

    def _plan(self, columns: Mapping[str, Tensor], seed: int, world_size: int) -> BatchPlan:
        names, bag = torch.unique(_column(columns, "bag", "bags"), return_inverse=True)
        labels = _column(columns, "y", "labels of bags")
        positive = torch.bincount(bag[labels == 1], minlength=len(names)) > 0
        choices = []
        for kind, of_kind, count in (
            ("positive", positive, self.positive_bags),
            ("negative", ~positive, self.negative_bags),
        ):
            members = of_kind.nonzero().flatten()
            what = f"{kind} bags among {len(names)} (by the columns `bag` and `y`)"
            choices.append((members, _at_most(f"{kind}_bags", count, len(members), what)))
        number = max(-(-len(members) // count) for members, count in choices)
        rows = self.instances_per_bag * world_size
        return BatchPlan(bag, rows, choices, choose=cycle, num_batches=number, seed=seed)


# Checks of the columns by which rows are drawn


def _column(columns: Mapping[str, Tensor], name: str, criterion: str) -> Tensor:
    """Return the column ``name``, whole numbers of shape (n,) with n >= 1, by which rows are drawn."""
    column = columns.get(name)
    if column is None or column.is_floating_point():
        what_to_do = "Name what defines them" if column is None else "Convert it, if its values are whole (.long())"
        raise ConfigError(
            f"These batches are drawn by {criterion}, but the training table has no whole numbers in a column {name!r} "
            f"(its columns: {sorted(columns)}). {what_to_do}, or draw with UniformSampling."
        )
    if column.ndim != 1 or not len(column):
        raise DataError(
            f"These batches are drawn by {criterion}, one number of the column {name!r} for every row, but its shape "
            f"is {tuple(column.shape)}. Name another column, or draw with LabelSampling if a sample has several labels."
        )
    return column


def _group_sizes(groups: Tensor) -> Tensor:
    """Return the number of rows of every group 0..G-1, shape (G,)."""
    if groups.dtype != torch.int64 or int(groups.min()) < 0:
        raise DataError(
            f"groups must be int64 numbers 0..G-1, got {groups.dtype}, of which {int((groups < 0).sum())} are negative "
            f"(first: row {int((groups < 0).int().argmax())}). Convert them by .long(), and leave out rows of no group."
        )
    # With n rows one of the groups 0..n is empty, so clamping hides no gap; it bounds memory if a number is huge.
    sizes = torch.bincount(groups.clamp(max=len(groups)))
    if not sizes.all():
        raise DataError(
            f"groups must be numbered 0..G-1 without gaps, but group {int((sizes == 0).int().argmax())} has no rows "
            f"while group {int(groups.max())} has. Let the training split hold rows of every group (splits, "
            "groups.min_size), or number them anew: torch.unique(groups, return_inverse=True)."
        )
    return sizes


def _at_most(name: str, number: int, available: int, what: str) -> int:
    """Return ``number``, or raise :class:`ConfigError` if a batch cannot hold so many groups, labels, ..."""
    if number > available:
        raise ConfigError(f"{name}={number} exceeds the {available} {what}. Lower it.")
    return number


def _require_rows(sizes: Tensor, drawn: Tensor, which: Callable[[int], str], way_out: str) -> None:
    """Raise :class:`DataError` if a stratum has fewer rows than a batch takes, shape (S,) each."""
    if short := (sizes < drawn).nonzero().flatten().tolist():
        first = short[0]
        raise DataError(
            f"A batch of all processes together takes {int(drawn[first])} rows {which(first)}, but there are "
            f"{int(sizes[first])}{f' (too few in {len(short)} cases)' if len(short) > 1 else ''}. {way_out}"
        )

"""How mini-batches are drawn: the user chooses a :class:`Sampling`, which makes a :class:`BatchPlan` for a table.

The batches of an epoch are a pure function of (seed, epoch), independent of global random generators.  An epoch
can therefore be repeated, resumed at any batch, or divided among processes, and always has the same batches.
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
    def stratum_kinds(self) -> Tensor | None:
        """Kind of every stratum, shape (S,), int64; strata of one kind are exchangeable: they are drawn alike."""
        return None

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

    *Strata* 0..S-1 partition the rows of a table; rows of one stratum are drawn alike.  A *unit*, such as a group, a
    label, a query or a bag, is chosen for a batch as a whole; it is one stratum, or two, of which one holds the
    positives.  Units have *kinds*, such as positive and negative bags, and a *choice* is the number of units of a kind
    in a batch.  A batch is ordered in *slots*: first one row of every chosen unit, then the next row of every unit in
    the same order, and so on, with the positives of each unit spread evenly over the slots.  Contiguous parts of a
    batch (one per process) therefore hold about equal shares of every unit.

    Example: rows 0 to 4 are the items of a first query, of which rows 0 and 1 are relevant, and rows 5 to 9 those of a
    second query, of which 5 and 6 are relevant.  A batch is to hold one query, with one relevant and two other items:

    ======================  ============================  ======================================
    relevant items of 0     stratum 1, rows 0 and 1       one row drawn
    other items of 0        stratum 0, rows 2, 3 and 4    two rows drawn
    relevant items of 1     stratum 3, rows 5 and 6       one row drawn
    other items of 1        stratum 2, rows 7, 8 and 9    two rows drawn
    ======================  ============================  ======================================

    The units are the queries, with the strata (0, 1) and (2, 3); there is one kind, with the choice "1 of the units 0
    and 1", and there are three slots, of which the last has the positive.  Weights make means over batches estimate
    means over the data.  Consider a row in a stratum of N_s rows, B_s of which are drawn if its unit is among the c
    chosen of U units: it occurs p = c B_s / (U N_s) times per batch on average and has weight B / (n p).  Here relevant
    items have weight 3 * 2 * 2 / (10 * 1 * 1) = 1.2, others 3 * 3 * 2 / (10 * 1 * 2) = 0.9.

    The rows of a stratum are drawn in random order, which is shuffled anew when exhausted, or with replacement.  If a
    stratum has fewer rows than a batch needs, the batch holds all of them, some more than once.

    Samplings such as :class:`GroupSampling` make plans; :meth:`repeated`, :meth:`of_rows`, :meth:`of_weighted_samples`
    and :meth:`second_draw` derive plans from a plan.

    Args:
        strata: stratum of every row, shape (n,), int64, every number of 0..S-1 at least once.
        units: the strata of every unit 0..U-1, in the order in which their rows are drawn, shape (U, 1) or (U, 2),
            int64; -1 for no second stratum.  None if every stratum is a unit.
        drawn: number of rows of every stratum in a batch that holds its unit, shape (S,), int64, or one number for all.
            Its sum R over the strata of a unit must be the same for all units, and so must the number of positives for
            all units of two strata.
        choices: for every kind the numbers of its units (the members), and how many of them are in a batch; kinds are
            chosen independently.  None for one kind, all units of which are in a batch.
        choose: a function from members, their number in a batch and a generator to an iterator over the members in
            every batch; all subsets of that size must be equally likely.  None for all members, in their order.
        num_batches: number of batches in an epoch.
        seed: whole number >= 0.
        ahead: whether all units of an epoch are chosen before any row is drawn, or the units of a batch just before its
            rows; this changes the batches, but not their distribution.
        positive: whether a stratum holds the positives of its unit, shape (S,), bool; None if units are strata.
        replacement: whether rows are drawn with replacement; every unit must then be one stratum.
        weights: "always" weights rows so that weighted means over batches estimate means over the data; "if they
            differ" does so unless all weights are 1; "never" does not.
        tells: further columns of a batch: "nothing"; the "strata"; the strata "if needed", that is, if weights do not
            identify them or a row may occur twice; or "choice", the strata and their number, if not all are drawn.

    Attributes:
        num_batches: number of batches in an epoch, the same in every epoch.
        num_rows: number of rows n of the table.
        sample_weight: weight of every row in the data, (n,); None if all are 1.
        certain: False for batches of another loader, see :class:`BatchDraws`.

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
        self._stream = 0  # number of the stream of random numbers: 1 for the second draw
        self._copies = 1
        self._num_drawn = self.num_rows  # number of rows that can be drawn
        self._last = 0  # rows of an epoch's last batch, if it is short
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
        self._even = spread_evenly(int(drawn[self._positive].min()), self._slots)  # slots of positives

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
        first = self._units[0]
        return int(self.drawn[first[first >= 0]].sum())

    # Plans derived from this one

    def second_draw(self) -> Self:
        """Return a plan of batches for the same table with the same distribution, drawn independently of these.

        Batch t of both plans has the same composition: equally many rows of every class, and the same groups if groups
        are drawn.  The plans share the seed and differ in the stream of random numbers.
        """
        return self._with(_stream=self._stream + 1)

    def repeated(self, copies: int) -> Self:
        """Return a plan whose batches are those of this plan, each concatenated ``copies`` times.

        It is for objectives whose inner function is an expectation over perturbations of a sample: every copy is
        perturbed independently by the network or the data set, and the row of a sample is updated with the mean over
        its copies.  If the number of copies is even, the halves of a batch hold the same samples with independent
        perturbations, as methods need that update dual and primal variables by independent draws.

        Args:
            copies: number of copies of a sample in its batch, >= 2.

        Example:
            >>> batch = next(UniformBatches(8, batch_size=2).repeated(3).batches(epoch=0)).tolist()
            >>> len(batch), batch[:2] == batch[2:4] == batch[4:]
            (6, True)
        """
        return self._with(_copies=self._copies * at_least("copies", copies, 2))

    def of_rows(self, rows: Tensor, num_rows: int | None = None) -> Self:
        """Return a plan of the same batches as rows of a larger table.

        The rows of that table that are never drawn form a further stratum, the last one.  In :meth:`weights` the
        data are the rows that can be drawn; the others have weight 0.

        Args:
            rows: different rows of the larger table, shape (n,), int64: row i of this plan is ``rows[i]`` there.
            num_rows: number of rows of the larger table; None for the largest of ``rows`` plus 1.

        Raises:
            DataError: if ``rows`` are not n different rows of that table.

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
        # the new stratum belongs to the first unit, and 0 of its rows are drawn
        others = {"drawn": 0, "_sizes": len(never), "_firsts": len(rows), "_unit": 0, "_positive": True}
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
        if self._last:  # one pass through the only stratum
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
        """Yield the units of every batch; a second draw has the units of the first one."""
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
        """Return the next rows of a unit with these strata, shape (R,), drawn without replacement."""
        rows_of = {stratum: next(self._cycle(stratum, cycles, generator)) for stratum in unit if stratum >= 0}
        if len(rows_of) == 1:
            return rows_of[unit[0]]
        rows = torch.empty(self._slots, dtype=torch.int64)
        for stratum, drawn_rows in rows_of.items():
            rows[self._even if self._positive[stratum] else ~self._even] = drawn_rows
        return rows

    def _cycle(self, stratum: int, cycles: dict[int, Iterator[Tensor]], generator: torch.Generator) -> Iterator[Tensor]:
        """Return the iterator over the rows of a stratum; a stratum is shuffled only when it is first drawn."""
        if stratum not in cycles:
            first, size = int(self._firsts[stratum]), int(self._sizes[stratum])
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
        sizes = torch.empty(len(self._units), 2, dtype=torch.float64)
        for members, count in self._choices:
            sizes[members] = torch.tensor([len(members), count], dtype=torch.float64)
        share, size = sizes[self._unit], self._units_per_batch * self._slots  # size of the batch, or of its half
        return self._sizes * share[:, 0] * size, self._num_drawn * share[:, 1] * self.drawn

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
        # the first j of R slots hold floor(j c / R) of a unit's c positives, see spread_evenly
        before = torch.where(self._positive, first * self.drawn, first * self.drawn + slots - 1) // slots
        return self._with(drawn=self.drawn - before)

    # Properties that are known before a batch is drawn

    @property
    def strata(self) -> Tensor | None:
        return None if self.num_strata == 1 else self._strata

    @property
    def num_strata(self) -> int:
        """Number of strata S."""
        return len(self._sizes)

    @property
    def stratum_kinds(self) -> Tensor:
        """Kind of every stratum, see :class:`BatchDraws`; strata of one kind share computations if S is large.

        If units are strata, two strata have one kind if their units have one kind and their sizes agree; else every
        stratum is a kind.
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
        """Whether no row is drawn twice: strata have enough rows, or one row of each is drawn with replacement."""
        return self._slots == 1 if self.replacement else bool((self._sizes >= self.drawn).all())

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
            at_most = torch.where(self.drawn <= self._sizes, torch.minimum(self.drawn, counts), at_most)
        most_by_unit = torch.zeros(len(self._units), dtype=torch.int64).index_add(0, self._unit, at_most)
        most_by_kind = (int(most_by_unit[members].topk(count).values.sum()) for members, count in self._choices)
        return min(self._copies * sum(most_by_kind), self.batch_size)

    def _absence(self, counts: Tensor) -> float:
        """Product over kinds of the mean, over all choices of units, of the product of the chosen units' absences."""
        if self.replacement:
            none = ((1 - counts / self._sizes.double()) ** self.drawn).numpy()
        else:
            none = none_drawn(self._sizes.numpy(), counts.numpy(), self.drawn.numpy())
        absences = np.ones(len(self._units))
        np.multiply.at(absences, self._unit.numpy(), none)
        return float(np.prod([mean_product(absences[members.numpy()], count) for members, count in self._choices]))

    def _checked(self, counts: Tensor) -> Tensor:
        """Return ``counts`` on the CPU as int64; raise :class:`DataError` unless they are between 0 and the sizes."""
        sizes, counts = self._sizes, counts.cpu().long()
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
        num_batches: number of batches in an epoch, all of ``batch_size`` rows: fewer than in a permutation cut it
            short, more start another permutation.  None for one permutation.
        certain: False for the batches of another loader that shuffles, of which this plan is an approximation: to give
            processes equally many samples, torch's ``DistributedSampler`` repeats samples at the end of an epoch,
            possibly within a batch.

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


def _enough_rows(num_rows: int, batch_size: int) -> int:
    """Return ``num_rows``, or raise :class:`DataError` if a batch is larger."""
    if batch_size > num_rows:
        raise DataError(
            f"batch_size={batch_size} exceeds the {num_rows} rows of the training split "
            "(with several processes it counts the rows of all of them). Lower batch_size."
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


def spread_evenly(count: int, size: int) -> Tensor:
    """Return a mask (size,) with ``count`` True entries, evenly spread: where floor(j count / size) increases."""
    return (torch.arange(size + 1) * count // size).diff().bool()


class Sampling(ABC):
    """A way of drawing training batches, which becomes a :class:`BatchPlan` once the table is known."""

    @abstractmethod
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

    def in_parts(self, parts: int) -> tuple["Sampling", int]:
        """Return a sampling with batches ``parts`` times as large, and the present batch size of one process.

        The number of samples in an epoch stays the same.

        Raises:
            ConfigError: if the sampling has no ``batch_size``.
        """
        raise ConfigError(
            f"{type(self).__name__} draws no given number of samples, of which {parts} parts could be made. Raise its "
            "own numbers, and set --model.execution.micro_batch to the number of samples that fit into memory."
        )

    def table(self, table: TensorTable) -> TensorTable | LabelTable:
        """Return the table whose rows are drawn: the training table, or another view of it."""
        return table

    @property
    def single(self) -> "Sampling":
        """The sampling of each draw, if batches consist of two draws; otherwise the sampling itself."""
        return self

    @property
    def drawn_by(self) -> Sequence[str]:
        """Columns by which rows are drawn and that need not be columns of the batches."""
        return ()


def _required_column(columns: Mapping[str, Tensor], name: str, criterion: str) -> Tensor:
    """Return the column ``name`` by which rows are drawn; :class:`ConfigError` if it is absent or has no integers."""
    if name not in columns or columns[name].is_floating_point():
        what_to_do = "Convert it, if its values are whole (.long())" if name in columns else "Name what defines them"
        raise ConfigError(
            f"These batches are drawn by {criterion}, but the training table has no whole numbers in a column {name!r} "
            f"(its columns: {sorted(columns)}). {what_to_do}, or draw with UniformSampling."
        )
    return columns[name]


def _require_counts(sampling: Sampling, *arguments: str, or_none: Sequence[str] = ()) -> None:
    """Raise :class:`ConfigError` unless ``arguments``, and those ``or_none`` that are not None, are integers >= 1."""
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
        """Return larger and fewer batches, see :meth:`Sampling.in_parts`."""
        fewer = None if self.num_batches is None else -(-self.num_batches // parts)
        return replace(self, batch_size=parts * self.batch_size, num_batches=fewer), self.batch_size

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> UniformBatches:
        """Return uniform union batches with ``batch_size`` rows for each process."""
        size, rows = self.batch_size * world_size, len(columns["index"])
        return UniformBatches(rows, size, seed, drop_last=self.drop_last, num_batches=self.num_batches)


@dataclass(frozen=True)
class BalancedSampling(Sampling):
    """Every batch holds the same number of positives (``y`` = 1), as losses over pairs of both classes need.

    The rows of each class are drawn in random order, which is shuffled anew when exhausted, so that within an epoch any
    two rows of a class are drawn equally often up to one.  An epoch of n rows has n // B batches of B rows.  Positives
    are spread evenly over a batch, so that contiguous parts of it (one per process) are balanced, too.

    Args:
        batch_size: number of rows in a training batch of one process.
        positive_fraction: share of positives in every batch, in (0, 1); rounded to whole rows.
        allow_repeats: whether a row may occur twice in a batch if its class has fewer rows than a batch needs.
        prevalence: "data" gives batches a column ``weight``, N_s B / (n B_s) for a class of N_s rows of which a batch
            holds B_s, with which means over batches are unbiased for means over the data.  "batch" gives no weights:
            means over batches then estimate those of a population with the batch's share of positives, while means over
            one class, or over pairs of both, are unaffected.  Scores are then log-odds of that population, and
            decisions at 0 refer to it; probabilities are still those of the data.

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
        """Return balanced union batches with ``batch_size`` rows for each process; negatives are stratum 0."""
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
        _require_counts(self, "batch_size")
        if not list_of("CellSampling.columns", self.columns):
            raise ConfigError("CellSampling.columns must name at least one column, got none. Name one, such as y.")

    def in_parts(self, parts: int) -> tuple["CellSampling", int]:
        return replace(self, batch_size=parts * self.batch_size), self.batch_size

    @property
    def drawn_by(self) -> Sequence[str]:
        return self.columns

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return union batches with ``batch_size`` rows for each process."""
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
    """Every batch holds fixed numbers of samples with an event and of censored samples, for survival times.

    Rows are weighted, and batches have the strata (censored, event) as a column, so that sums over a risk set can be
    estimated from the samples of a batch.  An epoch of n rows has n // B batches of B rows.

    Args:
        events_per_batch: number of rows with an event in a training batch of one process.
        censored_per_batch: number of censored rows in it.
        allow_repeats: whether a row may occur twice in a batch if there are fewer rows of a kind than a batch needs.
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
        """Return union batches with these numbers of rows for each process; censored samples are stratum 0."""
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
    """Return batches with fixed numbers of rows with 0 and with 1 in a column; an epoch has about n rows."""
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
    """Every batch holds equally many samples of a few groups (column ``group``), as group-wise estimates need.

    The groups of a batch are drawn uniformly and without replacement; their samples are ordered in slots, one sample of
    every group after the other.  If the number of samples per group is even, the two contiguous halves of a batch are
    therefore two draws of the same groups.  They are independent if samples are drawn with replacement; without, means
    over them have a covariance of O(1 / N_g) for a group of N_g rows.

    Args:
        groups_per_batch: number of groups in a training batch (B1), the same groups on all processes; None for all,
            "auto" for 8, or all if there are fewer.
        samples_per_group: number of samples of each of these groups in a training batch of one process (B2).
        replacement: whether the samples of a group are drawn with replacement; otherwise they are drawn in random
            order, which is shuffled anew when exhausted, and no sample occurs twice in a batch.
        num_batches: number of batches in an epoch; None for about n samples in an epoch.
        prevalence: "batch" gives batches no weights, since objectives over groups need none; means over batches then
            estimate those of a population with equally large groups.  "data" gives rows of a group of N_g of n rows the
            ``weight`` N_g G / n, where G is the number of groups; means over batches then estimate those of the data.
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
        """Return union batches of ``groups_per_batch`` groups with ``samples_per_group`` rows each for each process."""
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
        """Return the number of groups in a batch if there are ``groups``."""
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
    """Every batch holds positives and negatives of a few of T labels ``y`` (n, T), as means over labels need.

    Training batches then have one label of every sample: ``task`` (B,) is its number, ``y`` (B,) its value.  Labels are
    drawn uniformly; the rows of both classes of each are drawn in random order, which is shuffled anew when exhausted,
    so that no row occurs twice in a batch.  Rows are weighted so that means over batches estimate means over all rows.

    Args:
        labels_per_batch: number of labels in a training batch, the same labels on all processes; None for all.
        positives_per_label: number of positives of each of these labels in a training batch of one process; mean
            average precision needs at least two over all processes.
        negatives_per_label: number of negatives of each of these labels in a training batch of one process.
        num_batches: number of batches in an epoch; None for so many that each positive is drawn once on average.
        missing: value of ``y`` for labels that are not known, such as -1; None if all are known.

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
        no_label("missing", self.missing)

    def table(self, table: TensorTable) -> LabelTable:
        """Return a table with one row for every sample and label."""
        return LabelTable(table, self.missing)

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return union batches of ``labels_per_batch`` labels with equally many rows for each process.

        The stratum of a row of a :class:`~fcco_lightning.data.table.LabelTable` is ``2 task + y``.
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

    Queries are the values of the column ``query``, and items with ``y`` > 0 are relevant.  Queries are drawn in random
    order.  If a query has fewer items of a kind than a batch needs, the batch holds all of them, some more than once;
    if it has none, items of the other kind take their places, so that all batches have the same size.

    Rows are weighted so that means over batches estimate means over all rows, and batches have the strata (relevant and
    irrelevant items of every query) as a column, from which sums over the items of a query can be estimated.

    Args:
        queries_per_batch: number of queries in a training batch, the same queries on all processes.
        positives_per_query: number of relevant items of each of these queries in a training batch of one process.
        negatives_per_query: number of irrelevant items of each of these queries in a training batch of one process.
        num_batches: number of batches in an epoch; None for so many that every query is drawn about once.

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
        """Return union batches of ``queries_per_batch`` queries with these numbers of items for each process.

        Raises:
            ConfigError: if a column is absent, or there are fewer queries.
            DataError: if a column has invalid values, or if only one item of a kind is drawn from queries that have
                several: no batch would then hold two of them, so that they could not be compared.
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
        # 2 q + 1 stands for the relevant items of query q; only numbers that occur become strata
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
    """Every batch holds fixed numbers of positive and of negative bags, with equally many instances of each bag.

    Bags are the values of the column ``bag``; a bag is positive if one of its instances has ``y`` = 1.  The bags of
    each class are drawn in random order, which is shuffled anew when exhausted, and so are the instances of a bag.  If
    it has fewer instances than a batch needs, the batch holds all of them, some more than once.

    Rows are weighted so that means over batches estimate means over all rows; batches have the strata (the bags) as a
    column.

    Args:
        positive_bags: number of positive bags in a training batch, the same bags on all processes.
        negative_bags: number of negative bags in a training batch, the same bags on all processes.
        instances_per_bag: number of instances of each of these bags in a training batch of one process.
        num_batches: number of batches in an epoch; None for so many that every bag is drawn at least once.

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
        """Return union batches of these bags, positive ones first, with ``instances_per_bag`` for each process."""
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
        """The positive and the negative bags, each with their number in a batch."""
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
    # With n rows one of the groups 0..n is empty, so clamping hides no gap; it bounds memory if a number is huge.
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
    """Raise :class:`DataError` unless ``keys`` and ``values`` have the same shape (n,) with n >= 1."""
    if keys.dim() != 1 or values.shape != keys.shape or not len(keys):
        raise DataError(
            f"{name} must be whole numbers of shape (n,) with n >= 1 and {of_values} of the same shape, got "
            f"{keys.dtype} of shape {tuple(keys.shape)} and shape {tuple(values.shape)}."
        )


@dataclass(frozen=True)
class _Derived(Sampling):
    """A sampling that is derived from another one, ``batches``, which must not be :class:`TwoDraws`."""

    batches: Sampling
    way_out: ClassVar[str]

    def __post_init__(self) -> None:
        if isinstance(self.batches, TwoDraws):
            raise ConfigError(f"{type(self).__name__} takes single draws as batches, got TwoDraws. {self.way_out}")

    def in_parts(self, parts: int) -> tuple["_Derived", int]:
        batches, size = self.batches.in_parts(parts)
        return replace(self, batches=batches), size

    def plan(self, columns: Mapping[str, Tensor], seed: int = 0, world_size: int = 1) -> BatchPlan:
        """Return the plan of ``batches``; a second draw is its :meth:`~BatchPlan.second_draw`."""
        return self.batches.plan(columns, seed, world_size)

    def table(self, table: TensorTable) -> TensorTable | LabelTable:
        """Return the table from which ``batches`` are drawn."""
        return self.batches.table(table)

    @property
    def drawn_by(self) -> Sequence[str]:
        return self.batches.drawn_by


@dataclass(frozen=True)
class RepeatedSampling(_Derived):
    """Every sample occurs several times in its batch, and each copy is perturbed independently.

    Args:
        batches: how the samples are drawn; its ``batch_size`` counts each sample once.
        copies: number of copies of a sample in its batch, >= 2.

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
        """Return the plan of ``batches`` with every batch repeated ``copies`` times."""
        return super().plan(columns, seed, world_size).repeated(self.copies)


@dataclass(frozen=True)
class TwoDraws(_Derived):
    """Every batch has two independent draws, for methods that update dual and primal variables by different samples.

    The draws are the parts "target" and "dual" of a training batch.  Both have the same composition: equally many rows
    of every class, and the same groups in the same order.

    Args:
        batches: how each of the two is drawn.

    Raises:
        ConfigError: if ``batches`` is itself a pair of draws.
    """

    way_out = "Leave one of the two out."

    @property
    def single(self) -> Sampling:
        return self.batches


def with_num_batches(sampling: Sampling, num_batches: int) -> Sampling:
    """Return ``sampling`` with ``num_batches`` batches in an epoch, as many as another part of the batches has.

    Raises:
        ConfigError: if the length of its epochs cannot be chosen, or was chosen differently.
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

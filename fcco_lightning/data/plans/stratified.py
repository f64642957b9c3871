"""Batches of some units, such as groups, labels, queries or bags, with fixed numbers of rows of each."""

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from fcco_lightning.data.plans.base import BatchPlan, with_strata
from fcco_lightning.data.plans.draws import cycle, mean_product, none_drawn
from fcco_lightning.models.batch import IN_HALVES

Choose = Callable[[Tensor, int, torch.Generator], Iterator[Tensor]]
Choice = tuple[Tensor, int]
Weighting = Literal["always", "if they differ", "never"]
Telling = Literal["nothing", "strata", "if needed", "choice"]


class StratifiedBatches(BatchPlan):
    """Every batch holds some units (groups, labels, queries, bags) with the same number of rows of each.

    A unit is one stratum of rows, or two of them, of which one holds the positives.  Rows of a stratum are drawn alike:
    it is gone through in a random order and shuffled anew when exhausted, or drawn from with replacement.  Where a
    stratum has fewer rows than a batch asks for, all are there and some occur twice or more.

    A batch is laid out slot by slot: first a row of every unit, then the next of every unit in the same order, and so
    on, with the positives spread evenly over the slots.  Contiguous parts of it (one per process) therefore hold about
    equal shares of every unit.

    Samplings such as :class:`~fcco_lightning.data.GroupSampling` make these plans.

    Args:
        strata: stratum of every row, shape (n,), int64, every number of 0..S-1 at least once.
        units: the strata of every unit 0..U-1, in the order in which their rows are drawn, shape (U, 1) or (U, 2),
            int64; -1 stands for a second one that is missing.
        drawn: number of rows of every stratum in a batch that holds its unit, shape (S,), int64.  Every unit has the
            same number R of them, and every unit of two strata the same number of positives.
        choices: which units a batch holds: kinds of units, each with its members and how many of them are chosen,
            independently of the other kinds.
        choose: members, number of them, generator -> the members of every batch; any set of a kind's members must be as
            likely as any other.
        ahead: whether all units of an epoch are chosen before any row is drawn, or those of a batch just before its
            rows, which gives other batches of the same kind.
        num_batches: number of batches in an epoch.
        seed: whole number >= 0.
        positive: whether a stratum holds the positives of its unit, shape (S,), bool; None where units are strata.
        replacement: whether rows are drawn with replacement, which takes units of one stratum.
        weights: "always" weights rows so that weighted means over batches estimate means over the data; "if they
            differ" does so unless all weights are 1; "never" does not.
        tells: what the columns of a batch say beside the weights: nothing; the "strata"; the strata "if needed", where
            weights do not tell them apart or a row may come twice; or the strata with their number, because they are
            what is chosen ("choice").
    """

    def __init__(
        self,
        strata: Tensor,
        units: Tensor,
        drawn: Tensor,
        choices: Sequence[Choice],
        *,
        choose: Choose,
        num_batches: int,
        seed: int = 0,
        ahead: bool = True,
        positive: Tensor | None = None,
        replacement: bool = False,
        weights: Weighting = "always",
        tells: Telling = "strata",
    ) -> None:
        self.slots = int(drawn[units[0][units[0] >= 0]].sum())
        self.chosen = sum(count for _, count in choices)
        super().__init__(len(strata), self.chosen * self.slots, seed)
        self.drawn, self.num_batches, self.replacement = drawn, num_batches, replacement
        self._strata, self._units, self._choices = strata, units, choices
        self._choose, self._ahead, self._weights, self._tells = choose, ahead, weights, tells
        self._positive = torch.ones_like(drawn, dtype=torch.bool) if positive is None else positive
        self._unit = torch.empty_like(drawn)
        unit, place = (units >= 0).nonzero(as_tuple=True)
        self._unit[units[unit, place]] = unit
        # The rows stratum by stratum: stratum s owns self._rows[first : first + size].
        self._rows, self._sizes = torch.argsort(strata, stable=True), torch.bincount(strata)
        self._firsts = self._sizes.cumsum(0) - self._sizes
        self._even = spread_evenly(int(drawn[self._positive].min()), self.slots)  # of pairs: where their positives go

    def batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield batches of shape (batch_size,); entry j belongs to the batch's unit number j mod (their number)."""
        generator = self.generator(epoch)
        cycles: dict[int, Iterator[Tensor]] = {}
        for chosen in self._chosen(epoch, generator):
            if self.replacement:
                yield self._independent(chosen, generator)
            else:
                drawn = [self._in_turn(unit, cycles, generator) for unit in self._units[chosen].tolist()]
                yield torch.stack(drawn, dim=1).flatten()

    @property
    def strata(self) -> Tensor:
        return self._strata

    @property
    def stratum_kinds(self) -> Tensor:
        """Where units are strata, those of one kind and size are drawn alike."""
        if len(self._units) != len(self._sizes):
            return torch.arange(self.num_strata)
        kinds = torch.empty_like(self._sizes)
        for number, (members, _) in enumerate(self._choices):
            kinds[members] = number
        return len(self._choices) * self._sizes + kinds

    @property
    def distinct(self) -> bool:
        """Whether strata have as many rows as a batch asks for, or one row is drawn of each with replacement."""
        return self.slots == 1 if self.replacement else bool((self._sizes >= self.drawn).all())

    @property
    def halves_known(self) -> bool:
        """Not where rows come twice in turn, nor where a half ends between the units of a slot."""
        whole_slots = self.slots % 2 == 0 or self.chosen == 1
        return whole_slots and (self.replacement or self.distinct)

    def weights(self) -> Tensor | None:
        """Weight N_s U B / (n c B_s) of a row of a stratum of N_s rows, B_s of which are drawn if its unit is chosen.

        That is B / (n p) for a row that is in a batch p times on average, c of U units of its kind being chosen.
        """
        if self._weights == "never":
            return None
        in_data, in_batch = self._shares()
        weights = (in_data / in_batch)[self._strata].float()
        return None if self._weights == "if they differ" and bool((weights == 1).all()) else weights

    def population(self, share: float = 1.0) -> Tensor | None:
        """Without weights n p / B of a row that is in a batch p times on average, see :meth:`weights`."""
        if self._weights != "never":
            return None
        in_data, in_batch = (self if share == 1 else self._second_half())._shares()
        return None if torch.equal(in_data, in_batch) else (in_batch / in_data)[self._strata]

    def _shares(self) -> tuple[Tensor, Tensor]:
        """N_s U B and n c B_s of every stratum, shape (S,) each: whole numbers, whose products are exact."""
        wanted = torch.empty(len(self._units), 2, dtype=torch.float64)
        for members, count in self._choices:
            wanted[members] = torch.tensor([len(members), count], dtype=torch.float64)
        share, first = wanted[self._unit], self._units[0]
        size = self.chosen * int(self.drawn[first[first >= 0]].sum())  # of the batch, or of its half
        return self._sizes * share[:, 0] * size, self.num_rows * share[:, 1] * self.drawn

    def columns(self) -> dict[str, Tensor]:
        """``weight`` and what corrects it in halves of batches; and the strata as far as they are told."""
        columns = super().columns()
        told = self._tells != "nothing" and not (self._tells == "if needed" and columns and self.distinct)
        factors = None if self._weights == "never" else self._factors_in_halves()
        if factors is not None:
            columns[IN_HALVES] = factors[self._strata]
        if not told:
            return columns
        columns = with_strata(columns, self._strata)
        every = torch.ones_like(self._strata)
        if self._tells == "choice":
            columns["strata"] = self.num_strata * every
        return columns | ({"replaced": every} if self.replacement else {})

    def _factors_in_halves(self) -> Tensor | None:
        """How much larger the share of every stratum is in a batch than in its first and its second half, (S, 2).

        None where they are the same, or differ from batch to batch, as a half ends between the units of a slot.
        """
        second, slots = self._second_half().drawn, self.slots - self.slots // 2
        if bool((self.slots * second == slots * self.drawn).all()) or (self.slots % 2 and self.chosen > 1):
            return None
        drawn = torch.stack([self.drawn - second, second], dim=1)
        sizes = torch.tensor([self.slots - slots, slots])
        return (self.drawn.unsqueeze(1) * sizes / (self.slots * drawn.clamp(min=1))).float()

    def _absence(self, counts: Tensor) -> float:
        """Product over the kinds of units of the mean over all choices of the product of the chosen ones' absences."""
        if self.replacement:
            own = ((1 - counts / self._sizes.double()) ** self.drawn).numpy()
        else:
            own = none_drawn(self._sizes.numpy(), counts.numpy(), self.drawn.numpy())
        absences = np.ones(len(self._units))
        np.multiply.at(absences, self._unit.numpy(), own)
        return float(np.prod([mean_product(absences[members.numpy()], count) for members, count in self._choices]))

    def _most(self, counts: Tensor) -> int:
        """The most of the units of every kind; where rows may come twice, all draws may be of one that is marked."""
        own = self.drawn * (counts > 0)
        if not self.replacement:
            own = torch.where(self.drawn <= self._sizes, torch.minimum(self.drawn, counts), own)
        of_unit = torch.zeros(len(self._units), dtype=torch.int64).index_add(0, self._unit, own)
        return sum(int(of_unit[members].topk(count).values.sum()) for members, count in self._choices)

    def _stratum_sizes(self) -> Tensor:
        return self._sizes

    def _second_half(self) -> Self:
        """The later rows of every unit, exactly so for an even number of them."""
        half, first = copy.copy(self), self.slots // 2
        # Of the first j slots floor(j c / R) are those of c positives, see spread_evenly.
        before = torch.where(self._positive, first * self.drawn, first * self.drawn + self.slots - 1) // self.slots
        half.drawn = self.drawn - before
        return half

    def _chosen(self, epoch: int, generator: torch.Generator) -> Iterator[Tensor]:
        """Yield the units of every batch: those of the first draw, whichever draw this is."""
        first = copy.copy(self)
        first.stream = 0
        if self.stream and not self._ahead:
            for batch in first.batches(epoch):
                yield self._unit[self._strata[batch[: self.chosen]]]
            return
        generator = first.generator(epoch) if self.stream else generator
        kinds = [islice(self._choose(*choice, generator), self.num_batches) for choice in self._choices]
        yield from map(torch.cat, zip(*(map(list, kinds) if self._ahead else kinds), strict=True))

    def _independent(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        shape = (self.slots, len(chosen))
        # float64 in [0, 1) times a size below 2^53 stays below that size, also after rounding.
        places = (torch.rand(shape, generator=generator, dtype=torch.float64) * self._sizes[chosen]).long()
        return self._rows[self._firsts[chosen] + places].flatten()

    def _in_turn(self, unit: Sequence[int], cycles: dict[int, Iterator[Tensor]], generator: torch.Generator) -> Tensor:
        """Return the rows of a unit of these strata, shape (R,)."""
        drawn = {stratum: next(self._cycle(stratum, cycles, generator)) for stratum in unit if stratum >= 0}
        if len(drawn) == 1:
            return drawn[unit[0]]
        rows = torch.empty(self.slots, dtype=torch.int64)
        for stratum, own in drawn.items():
            rows[self._even if self._positive[stratum] else ~self._even] = own
        return rows

    def _cycle(self, stratum: int, cycles: dict[int, Iterator[Tensor]], generator: torch.Generator) -> Iterator[Tensor]:
        """Return the passes through a stratum, which is shuffled when first drawn: those that are not cost nothing."""
        if stratum not in cycles:
            first, size = int(self._firsts[stratum]), int(self._sizes[stratum])
            cycles[stratum] = cycle(self._rows[first : first + size], int(self.drawn[stratum]), generator)
        return cycles[stratum]


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

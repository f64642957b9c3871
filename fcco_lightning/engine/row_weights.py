r"""How much a row of a batch weighs in its term, so that the gradient is right on average.

A term ``(1/n) sum_i f_i(g_i(w))`` is estimated from the rows i of which a batch speaks.  A row that is in a batch with
probability p_i has to weigh ``1/(n p_i)`` there: then the expectation over batches of the weighted sum is the mean over
all n rows (Horvitz and Thompson), however rare a row is.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from fcco_lightning.errors import DataError
from fcco_lightning.objectives.base import Partition
from fcco_lightning.objectives.self_weights import expected_copies
from fcco_lightning.records import Columns

RARE = 1 / 20
"""Share of the batches below which a row counts as rarely seen."""
_PRIOR = 16.0  # batches that the assumption of equal probabilities counts for, where they are estimated
_MOST_SUBSETS = 10  # of a row, for exact probabilities: all 2^c - 1 unions are looked at


class BatchDraws(Protocol):
    """How batches are drawn: what is needed of a batch plan."""

    @property
    def strata(self) -> Tensor | None:
        """Stratum of every sample, shape (n,), int64; None where there is one only."""

    def absence(self, counts: Tensor, share: float = 1.0) -> float:
        """Probability that ``share`` of a batch holds none of some samples, ``counts`` (S,) of every stratum."""


class Drawn(Protocol):
    """The columns of a part's training samples, without the network's input, and how batches of them are drawn."""

    @property
    def columns(self) -> Columns: ...
    @property
    def plan(self) -> BatchDraws: ...


class Arrival(NamedTuple):
    """The rows of a term of which a batch speaks; all tensors are on the host.

    Attributes:
        index: rows, shape (b,), all different.
        samples: for terms with a row per sample: the samples that own these rows, shape (b,); where a sample may own
            one for each of T labels, ``T sample + label``.
        columns: of the part of the batch.
        owners: positions in the batch of one copy of each of these samples, shape (b,); None if not known.
        copies: how often the batch holds each, shape (b,), where ``owners`` are known; None for once.
    """

    index: Tensor  # type: ignore[assignment]  # the field hides tuple.index
    samples: Tensor
    columns: Columns
    owners: Tensor | None = None
    copies: Tensor | None = None


class RowWeights(nn.Module, ABC):
    """Weights of the rows of a batch in the mean over all rows of a term; computed on the host."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:  # noqa: ARG002
        return self  # probabilities need their digits, whatever the module's precision, and stay on the host

    @abstractmethod
    def forward(self, arrival: Arrival) -> Tensor | float:
        """One weight a row, shape (b,), or one for all."""

    @property
    def same(self) -> bool:
        """Whether the weights of rows that are not those of samples are the same in all batches with all rows."""
        return True


class SampleWeights(RowWeights):
    r"""For terms in which single samples own the rows.

    A row weighs ``(n_samples / n_rows) v_i c_i / B`` in a batch of B, which holds its sample c_i times, with v the
    batch's column ``weight``.  Its expectation is 1/n_rows whatever else is in the batch, also where the weights of a
    batch do not add up to B (those of groups or queries of different sizes do not).  Where samples are drawn with
    replacement (column ``replaced``), c_i is its mean over the batches that hold the sample: all of these then count
    alike, as they do for the remembered row.

    Where batches have no such column, all v are 1, and the different samples of the batch share its weight equally.
    The number counts all samples and not those with a row only, which differ from batch to batch: what a batch says of
    a row may depend on that number (in average precision it does), and a mean over them would then be biased.

    Where a batch speaks of a row only if it also holds another kind of sample, the weight is divided by the probability
    of that, given that it holds the owner.

    Args:
        samples_per_row: n_samples / n_rows, > 0.
        rows_per_sample: T, where a sample may own a row for each of T labels.
        partner_presence: probability that a batch which holds the owner of row i speaks of it, shape (n_rows,) in
            (0, 1], or one number for all rows.
    """

    partner_presence: Tensor | None

    def __init__(
        self, samples_per_row: float = 1.0, rows_per_sample: int = 1, partner_presence: Tensor | float = 1.0
    ) -> None:
        super().__init__()
        self.samples_per_row, self.rows_per_sample = samples_per_row, rows_per_sample
        self._same_for_all = partner_presence if isinstance(partner_presence, float) else 1.0
        self.register_buffer(
            "partner_presence", partner_presence if isinstance(partner_presence, Tensor) else None, persistent=False
        )

    def forward(self, arrival: Arrival) -> Tensor | float:
        weight = self._alone(arrival)
        if self.partner_presence is not None:
            return weight / self.partner_presence.index_select(0, arrival.index)
        return weight if self._same_for_all == 1 else weight / self._same_for_all

    def _alone(self, arrival: Arrival) -> Tensor | float:
        """The weights where a batch speaks of every row whose owner it holds."""
        columns = arrival.columns
        every = self.samples_per_row == 1 and self.rows_per_sample == 1
        if "index" not in columns or (every and "weight" not in columns):
            return 1 / len(arrival.index)
        if arrival.owners is not None and "weight" in columns:
            owners, copies = arrival.owners, arrival.copies
        else:
            index, order = columns["index"].sort()
            if "weight" not in columns:
                return self.samples_per_row / (1 + int((index[1:] != index[:-1]).sum()))
            samples = arrival.samples // self.rows_per_sample
            first = torch.searchsorted(index, samples)
            copies = torch.searchsorted(index, samples, right=True) - first
            owners = order[first.clamp(max=len(index) - 1)]
        weight = columns["weight"].index_select(0, owners)
        if "replaced" in columns:
            weight = weight * expected_copies(columns).index_select(0, owners).to(weight.dtype)
        elif copies is not None:
            weight = weight * copies
        return weight * (self.samples_per_row / len(columns["index"]))


class SubsetWeights(RowWeights):
    r"""For terms whose rows are groups or constraints: ``1/(n p_i)`` with known probabilities.

    Args:
        probability: p_i that a batch speaks of row i, shape (n,), in (0, 1].
    """

    probability: Tensor

    def __init__(self, probability: Tensor) -> None:
        super().__init__()
        self.register_buffer("probability", probability, persistent=False)
        self._equal = float(probability[0]) if bool((probability == probability[0]).all()) else None

    def forward(self, arrival: Arrival) -> Tensor | float:
        n = len(self.probability)
        if self._equal is not None:
            return 1 / (n * self._equal)
        return 1 / (n * self.probability.index_select(0, arrival.index))


class EstimatedWeights(RowWeights):
    r"""The same with probabilities estimated by how often a batch has spoken of row i, where the plan is not known.

    ``p_i = (c_i + 16 b/n) / (T + 16)`` after T batches, c_i of which spoke of row i, with b of the n rows in a batch on
    average: at first all rows count as equally likely.  The estimate is not exact, and is part of checkpoints.

    Args:
        num_rows: n.
    """

    counts: Tensor

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(num_rows + 1, dtype=torch.float64))  # the last one: batches
        self._even: bool | None = None  # whether every batch has spoken of every row; None where that must be looked up

    def forward(self, arrival: Arrival) -> Tensor | float:
        n = len(self.counts) - 1
        if len(arrival.index) == n and self.same:
            return 1 / n
        counts, batches = self.counts[:-1], self.counts[-1]
        seen = counts.index_select(0, arrival.index) + 1  # with this batch, which is counted when it is committed
        average = (counts.sum() + len(arrival.index)) / (n * (batches + 1))
        return (batches + 1 + _PRIOR) / (n * (seen + _PRIOR * average))

    def count(self, index: Tensor) -> None:
        """Take note that a batch has spoken of the rows ``index``, all different."""
        if len(index) == len(self.counts) - 1:
            self.counts.add_(1)
            return
        self.counts.index_add_(0, index, self.counts.new_ones(len(index)))
        self.counts[-1] += 1
        self._even = None

    @property
    def same(self) -> bool:
        """Whether every batch has spoken of every row."""
        if self._even is None:
            self._even = not bool((self.counts[:-1] != self.counts[-1]).any())
        return self._even

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._even = None


def presence(rows: Sequence[Sequence[Tensor]], drawn: Drawn, names: Sequence[str], share: float = 1.0) -> Tensor:
    """Probability that a batch speaks of each row, that is, holds a sample of each of its subsets; shape (n,), float64.

    Args:
        rows: for every row its subsets, each a mask (n_samples,) of the training samples.
        drawn: the training samples and how batches are drawn.
        names: of the rows, for messages.
        share: part of a batch that the gradient is taken on.

    Raises:
        DataError: if a subset has no sample.
    """
    if isinstance(rows, Partition):
        return _presence_in_partition(rows, drawn, names, share)
    strata = drawn.plan.strata
    kinds = 1 if strata is None else int(strata.max()) + 1

    def absence(subset: Tensor) -> float:
        counts = subset.sum().view(1) if strata is None else torch.bincount(strata[subset], minlength=kinds)
        return drawn.plan.absence(counts, share)

    probability: list[float] = []
    of_row: dict[int, float] = {}  # thresholds of one class share their subsets
    of_subset: dict[int, float] = {}  # and some of them one of these
    for name, subsets in zip(names, rows, strict=True):
        if id(subsets) not in of_row:
            for position, subset in enumerate(subsets):
                if id(subset) in of_subset:
                    continue
                if not bool(subset.any()):
                    raise DataError(_empty(name, position))
                of_subset[id(subset)] = absence(subset)
            absent = sum(of_subset[id(subset)] for subset in subsets)
            for size in range(2, len(subsets) + 1):  # inclusion and exclusion over the subsets that may be missing
                for missing in combinations(subsets, size):
                    absent += (-1) ** (size + 1) * absence(torch.stack(missing).any(0))
            of_row[id(subsets)] = min(1.0, max(0.0, 1 - absent))
        probability.append(of_row[id(subsets)])
    return torch.tensor(probability, dtype=torch.float64)


def _presence_in_partition(rows: Partition, drawn: Drawn, names: Sequence[str], share: float) -> Tensor:
    """The same in time linear in rows and samples: rows that lie alike in the strata share one computation."""
    cells = _cells(rows, drawn)
    filled, found = torch.zeros(len(rows), dtype=torch.bool), torch.zeros(len(rows), dtype=torch.float64)
    filled[cells.row] = True
    if not bool(filled.all()):
        raise DataError(_empty(names[int((~filled).nonzero()[0])], 0))
    alone = [drawn.plan.absence(counts, share) for counts in cells.partners]
    known: dict[tuple[int, ...], float] = {}
    ends = torch.bincount(cells.row).cumsum(0).tolist()
    signs, first = cells.sign.tolist(), 0
    for row, (partner, end) in enumerate(zip(rows.partner_of.tolist(), ends, strict=True)):
        like = (partner, *signs[first:end])
        if like not in known:
            own = torch.zeros(cells.num_strata, dtype=torch.int64)
            own[cells.stratum[first:end]] = cells.count[first:end]
            absent = drawn.plan.absence(own, share)
            if partner >= 0:
                if not bool(cells.partners[partner].any()):
                    raise DataError(_empty(names[row], 1))
                absent += alone[partner] - drawn.plan.absence(own + cells.partners[partner], share)
            known[like] = min(1.0, max(0.0, 1 - absent))
        found[row], first = known[like], end
    return found


class _Cells(NamedTuple):
    """How the rows of a partition lie in the strata: a cell for every row and stratum that have samples in common.

    Attributes:
        row: of every cell, in increasing order, shape (c,), int64.
        stratum: likewise.
        count: number of common samples.
        sign: number of what a batch can tell of it: kind of the stratum, count, and partners of the row in the stratum;
            in increasing order within a row.
        partners: numbers of each set of partners in every stratum, shape (S,) each.
        num_strata: S.
    """

    row: Tensor
    stratum: Tensor
    count: Tensor  # type: ignore[assignment]  # the field hides tuple.count
    sign: Tensor
    partners: list[Tensor]
    num_strata: int


def _cells(rows: Partition, drawn: Drawn) -> _Cells:
    strata = drawn.plan.strata
    strata = torch.zeros_like(rows.of) if strata is None else strata
    kinds: Tensor = getattr(drawn.plan, "stratum_kinds", torch.arange(int(strata.max()) + 1))  # where nothing is known
    size = len(kinds)
    partners = [torch.bincount(strata[mask], minlength=size) for mask in rows.partners]
    mine = (rows.of >= 0) & (rows.of < len(rows))
    cell, count = torch.unique(rows.of[mine] * size + strata[mine], return_counts=True)
    row, stratum = cell // size, cell % size
    beside = torch.stack([*partners, torch.zeros(size, dtype=torch.int64)])[rows.partner_of[row], stratum]
    sign = torch.zeros_like(cell)
    for column in (kinds[stratum], count, beside):
        sign = torch.unique(sign * (int(column.max()) + 1) + column, return_inverse=True)[1]
    order = (row * (int(sign.max()) + 1) + sign).argsort() if len(sign) else row
    return _Cells(row[order], stratum[order], count[order], sign[order], partners, size)


def _empty(name: str, position: int) -> str:
    return (
        f"no training sample belongs to subset {position} of {name!r}, so nothing can be learnt of it. Correct its "
        "description (`where`), or the split."
    )


def partner_presence(owners: Tensor, partners: Tensor, drawn: Drawn, name: str, share: float = 1.0) -> Tensor | float:
    """Probability that a batch which holds an owner holds a partner too: one number, or (n_rows,) where it differs.

    Args:
        owners: the samples that own rows, shape (n_samples,), bool.
        partners: those of which a batch must hold one, likewise; none of them is an owner.
        drawn: the training samples and how batches are drawn.
        name: of the term, for messages.
        share: part of a batch that the gradient is taken on.

    Raises:
        DataError: if no batch holds both.
    """
    strata = drawn.plan.strata
    strata = torch.zeros(len(owners), dtype=torch.int64) if strata is None else strata
    size = int(strata.max()) + 1
    others, of_owners = torch.bincount(strata[partners], minlength=size), strata[owners]
    without = drawn.plan.absence(others, share)
    given = torch.ones(size, dtype=torch.float64)
    for stratum in torch.unique(of_owners).tolist():
        one = torch.zeros(size, dtype=torch.int64)
        one[stratum] = 1
        lonely, neither = drawn.plan.absence(one, share), drawn.plan.absence(others + one, share)
        given[stratum] = max(0.0, (1 - lonely - without + neither) / (1 - lonely)) if lonely < 1 else 0.0
    least = float(given[of_owners].min())
    require_company(least, name)
    warn_of_rare_rows(torch.tensor([least]), [f"{name}, which needs samples of both classes"])
    found = given[of_owners]
    return float(found[0]) if bool((found == found[0]).all()) else found


def require_company(probability: float, name: str) -> None:
    """Refuse batches of which none holds what a term compares.

    Args:
        probability: that a batch does.
        name: of the term.

    Raises:
        DataError: if it is 0, up to rounding.
    """
    if probability < 1e-6:
        raise DataError(
            f"{name} compares samples of two kinds, but some never come in a batch with one of the other kind. Draw "
            "batches of both classes, with BalancedSampling, or larger batches."
        )


def can_know(subsets: Sequence[Sequence[Tensor]]) -> bool:
    """Whether the probabilities of rows with these subsets can be computed exactly at a bearable cost."""
    return isinstance(subsets, Partition) or all(len(row) <= _MOST_SUBSETS for row in subsets)


def warn_of_rare_rows(probability: Tensor, names: Sequence[str]) -> None:
    """Warn where a row is seen in fewer than one of twenty batches, and one such batch then says too much of it.

    That is where its weight 1/(n p_i) is more than the whole mean, or more than three times that of a row on average.
    Of many rows that are drawn alike each is rare, and nothing is wrong: a batch that speaks of 16 of 1,000 groups
    gives each of them 1/16 of the mean.  So are the bags of the frequent class, where both classes are drawn alike.
    """
    uneven = probability < torch.maximum(1 / torch.tensor(len(probability)), probability.mean() / 3)
    rare = ((probability < RARE) & uneven).nonzero().flatten().tolist()
    if rare:
        shown = ", ".join(f"{names[i]!r} in {float(probability[i]):.2%}" for i in rare[:5])
        more = f" and {len(rare) - 5} more" if len(rare) > 5 else ""
        warnings.warn(
            f"few batches speak of {shown}{more}: to make up for it, their gradient weighs up to "
            f"{1 / max(float(probability.min()), 1e-12):,.0f} times as much where it comes, which is noisy. Draw these "
            "samples more often, with `batches: GroupBatches` (or BalancedBatches if they are of one class), or use "
            "larger batches.",
            stacklevel=2,
        )

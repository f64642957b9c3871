r"""Inclusion probabilities of rows, whose inverses weight the rows so that the gradient is unbiased.

A term ``(1/n) sum_i f_i(g_i(w))`` is estimated from the rows i that a batch contains.  A row that is in a batch with
probability p_i gets the weight ``1/(n p_i)`` there: then the expectation of the weighted sum over batches is the mean
over all n rows (Horvitz and Thompson), however rare a row is.

Where batches represent another population than the data (``prevalence: batch``), in which the owner of row i stands for
m_i samples, the term is the mean over that population, ``sum_i m_i f_i(g_i(w)) / sum_i m_i``, and the weight of row i
is multiplied by ``n m_i / sum_j m_j``.
"""

import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from fcco_lightning.data.batches import Drawn
from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import counts
from fcco_lightning.objectives.base import Partition
from fcco_lightning.objectives.self_weights import expected_copies
from fcco_lightning.state import Copies

RARE = 1 / 20
"""Fraction of the batches below which a row counts as rare."""
_NEVER = 1e-9  # a probability below it is 0 up to rounding
_PRIOR = 16.0  # weight, in batches, of the prior assumption of equal probabilities
_MOST_SUBSETS = 10  # c of a row, for exact probabilities: all 2^c - 1 unions are visited
_MOST_PARTS = 8  # the same for subsets by strata, in place of which a ratio can be used


class Inclusion(NamedTuple):
    r"""The inclusion probabilities of the rows of a term, as far as they are known before training.

    *Rows of groups or constraints* have known probabilities p_i, or else estimates of them, see :func:`estimated`.

    *Rows of samples* weigh ``(n_samples / n_rows) v_i c_i / B`` in a batch of B, which holds the sample c_i times, with
    v the batch's column ``weight``.  Its expectation is 1/n_rows, also where the weights of a batch do not add up to B
    (as with groups or queries of different sizes).  Where samples are drawn with replacement (column ``replaced``), c_i
    is replaced by its mean over the batches that hold the sample, so that these batches all have the same weight.
    Without the column ``weight`` all v are 1, and c_i / B is one over the number of distinct samples in the batch; if
    every sample owns a row, only those that the batch measures are counted.  Otherwise samples without a row are
    counted, too: the number of samples with a row varies between batches, the value of a row may depend on it (as in
    average precision), and dividing by it would be biased.  Where a batch measures a row only if it also holds a sample
    of another kind, the weight is divided by the probability of that, given the owner.

    Where batches represent another population than the data, rows of samples have known probabilities as those of
    groups.

    Attributes:
        probability: p_i of every row, shape (n,), in (0, 1], or one number; for rows of samples given that the batch
            holds the owner.  None to estimate them.
        samples_per_row: n_samples / n_rows, where samples own the rows and batches represent the data; None otherwise.
        all_own: whether every sample owns one row (equal numbers of rows and samples do not imply it).
        population: m_i of the owner of every row, shape (n,); None where batches represent the data.
    """

    probability: Tensor | float | None = None
    samples_per_row: float | None = None
    all_own: bool = False
    population: Tensor | None = None

    def inverse(self, num_rows: int) -> Tensor | float:
        """The factor of ``1/(n p_i)`` that is the same for all batches, (n,), or one number; 1 if it is estimated."""
        if self.probability is None:
            return 1.0
        among = num_rows if self.samples_per_row is None else 1
        if not isinstance(self.probability, Tensor):
            return 1 / (self.probability * among)
        inverse = 1 / (among * torch.where(self.probability > 0, self.probability, 1.0))  # finite for p = 0
        return float(inverse[0]) if bool((inverse == inverse[0]).all()) else inverse

    def relevance(self) -> Tensor | None:
        """The weight of each row in the mean over all rows, shape (n,), with mean 1; None if all weights are equal."""
        counted = self.population
        alike = counted is None or bool((counted == counted[0]).all())
        return None if counted is None or alike else counted / counted.mean()


def of_samples(columns: Columns, known: Inclusion, share: Tensor, again: Copies | None) -> Tensor | float:
    """``1/(n p)`` of the entries that the samples of a batch own, shape (r,), or one number, see :class:`Inclusion`.

    Args:
        columns: the columns of the samples.
        known: the term's inclusion probabilities, with ``samples_per_row``.
        share: 1/c for each of c copies of a row, shape (r,); 0 where the batch does not measure it.
        again: which entries are copies of each other; None if no row occurs twice.
    """
    assert known.samples_per_row is not None  # noqa: S101 - the caller has seen to it
    size = len(columns["index"])
    if "weight" not in columns and known.all_own:
        return 1 / share.sum().clamp(min=1)
    if "weight" not in columns:
        different = size if again is None else (1 / counts(columns["index"]).to(share.dtype)).sum().round()
        return known.samples_per_row / different
    weight, times = columns["weight"].to(share.dtype), len(share) // size
    if "replaced" in columns:
        weight = weight * expected_copies(columns).to(share.dtype)
    weight = weight.repeat(times) if times > 1 else weight  # all samples for label 0, then for label 1, ...
    if again is not None and "replaced" not in columns:
        weight = weight * again.count
    return weight * (known.samples_per_row / size)


def estimated(counted: Tensor, rows: Tensor | None, share: Tensor) -> Tensor:
    """``1/(n p_i)`` of the entries of a batch, shape (r,), estimated from how often batches have measured the rows.

    ``p_i = (c_i + 16 b/n) / (T + 16)`` after T batches, including this one, of which c_i measured row i; a batch
    contains b of the n rows on average.  At first all rows are thus taken to be equally likely.

    Args:
        counted: the c_i before this batch, followed by T, shape (n + 1,), float64.
        rows: the row numbers of the entries, shape (r,); None for all rows.
        share: see :func:`of_samples`.
    """
    row_counts = counted[:-1]
    batches = counted[-1] + 1
    n = len(counted) - 1
    seen = (row_counts if rows is None else row_counts.index_select(0, rows)) + (share > 0)
    average = (row_counts.sum() + share.sum()) / (n * batches)
    # at least 1 where the batch measures a row; it may be 0 elsewhere, at the beginning
    often = (seen + _PRIOR * average).clamp(min=1)
    return ((batches + _PRIOR) / (n * often)).to(share.dtype)


def count(counted: Tensor, rows: Tensor | None, share: Tensor) -> None:
    """Count the rows that a batch has measured; arguments as for :func:`estimated`."""
    counted[-1].add_(1)
    if rows is None:
        counted[:-1].add_(share)
    else:
        counted.index_add_(0, rows, share.to(counted.dtype))


def that_count(drawn: Drawn) -> Tensor | None:
    """The samples with a weight above 0, a mask (n_samples,), bool; None if these are all."""
    weight = drawn.plan.weights()
    return None if weight is None or bool((weight > 0).all()) else weight > 0


def presence(rows: Sequence[Sequence[Tensor]], drawn: Drawn, names: Sequence[str], share: float = 1.0) -> Tensor:
    """Probability that a batch measures each row, that is, holds a sample of each of its subsets; shape (n,), float64.

    Only samples with a weight above 0 count, see :func:`that_count`.

    Args:
        rows: for every row its subsets, each a mask (n_samples,) of the training samples.
        drawn: the training samples and how batches are drawn.
        names: names of the rows, for messages.
        share: fraction of a batch on which the gradient is computed.

    Raises:
        DataError: if a subset has no sample.
    """
    if isinstance(rows, Partition):
        return _presence_in_partition(rows, drawn, names, share)
    plan, counting = drawn.plan, that_count(drawn)
    row_probability: dict[int, float] = {}  # thresholds of a class have the same subsets
    subset_absence: dict[int, float] = {}  # some rows have one subset in common

    def absence(subset: Tensor) -> float:
        return plan.absence(plan.counts(subset if counting is None else subset & counting), share)

    for name, subsets in zip(names, rows, strict=True):
        if id(subsets) in row_probability:
            continue
        for position, subset in enumerate(subsets):
            if id(subset) not in subset_absence:
                if not bool(subset.any()):
                    raise DataError(_empty(name, position))
                subset_absence[id(subset)] = absence(subset)
        absent = sum(subset_absence[id(subset)] for subset in subsets)
        for size in range(2, len(subsets) + 1):  # inclusion and exclusion over the subsets that may be missing
            for missing in combinations(subsets, size):
                absent += (-1) ** (size + 1) * absence(torch.stack(missing).any(0))
        row_probability[id(subsets)] = min(1.0, max(0.0, 1 - absent))
    return torch.tensor([row_probability[id(subsets)] for subsets in rows], dtype=torch.float64)


def _presence_in_partition(rows: Partition, drawn: Drawn, names: Sequence[str], share: float) -> Tensor:
    """The same in linear time: rows with the same numbers of samples in the strata share one computation.

    A *cell* is a row and a stratum with samples in common.  Cells have the same *sign* if their kinds of stratum, their
    numbers of samples, and the numbers of partners in the stratum agree.
    """
    plan, counting, num_strata = drawn.plan, that_count(drawn), drawn.plan.num_strata
    mine = (rows.of >= 0) & (rows.of < len(rows))
    unfilled = torch.bincount(rows.of[mine], minlength=len(rows)) == 0
    without = torch.tensor([*(not bool(mask.any()) for mask in rows.partners), False])[rows.partner_of]
    for position, lacking in enumerate((unfilled, without)):
        if bool(lacking.any()):
            raise DataError(_empty(names[int(lacking.int().argmax())], position))
    mine = mine if counting is None else mine & counting
    partners = [plan.counts(mask if counting is None else mask & counting) for mask in rows.partners]
    alone = [plan.absence(counts, share) for counts in partners]
    # the cells, ordered by row and sign
    cell, count = torch.unique(rows.of[mine] * num_strata + _strata(drawn, rows.of)[mine], return_counts=True)
    row, stratum = cell // num_strata, cell % num_strata
    beside = torch.stack([*partners, torch.zeros(num_strata, dtype=torch.int64)])[rows.partner_of[row], stratum]
    sign = torch.zeros_like(cell)
    for column in (plan.stratum_kinds[stratum], count, beside):
        sign = torch.unique(sign * (int(column.max()) + 1) + column, return_inverse=True)[1] if len(sign) else sign
    order = (row * (int(sign.max()) + 1) + sign).argsort() if len(sign) else row
    stratum, count, signs = stratum[order], count[order], sign[order].tolist()
    ends = torch.bincount(row, minlength=len(rows)).cumsum(0).tolist()
    known: dict[tuple[int, ...], float] = {}
    probability, first = list[float](), 0
    for partner, end in zip(rows.partner_of.tolist(), ends, strict=True):
        key = (partner, *signs[first:end])
        if key not in known:
            own = torch.zeros(num_strata, dtype=torch.int64)
            own[stratum[first:end]] = count[first:end]
            absent = plan.absence(own, share)
            if partner >= 0:
                absent += alone[partner] - plan.absence(own + partners[partner], share)
            known[key] = min(1.0, max(0.0, 1 - absent))
        probability.append(known[key])
        first = end
    return torch.tensor(probability, dtype=torch.float64)


def _strata(drawn: Drawn, samples: Tensor) -> Tensor:
    """Stratum of each of the training ``samples`` (n, ...), shape (n,)."""
    strata = drawn.plan.strata
    return torch.zeros(len(samples), dtype=torch.int64) if strata is None else strata


def _empty(name: str, position: int) -> str:
    return (
        f"no training sample belongs to subset {position} of {name!r}, so its value cannot be estimated. Correct "
        "`where`, or use a training split that has such samples."
    )


def most_in_a_batch(kinds: Sequence[Tensor], drawn: Drawn) -> tuple[int, ...]:
    """The largest number of samples of each kind in a batch; empty where the plan does not determine it.

    Args:
        kinds: masks of the training samples, shape (n_samples,), bool.
        drawn: the training samples and how batches are drawn.
    """
    most = [drawn.plan.most(drawn.plan.counts(kind)) for kind in kinds]
    known = tuple(number for number in most if number is not None)
    return known if len(known) == len(most) else ()


def partner_presence(owners: Tensor, partners: Tensor, drawn: Drawn, name: str, share: float = 1.0) -> Tensor | float:
    """Probability that a batch with an owner also holds a partner: one number, or (n_rows,) where it differs.

    If batches have several sizes, it is the mean over the sizes, as each batch is a mean over its own samples.

    Args:
        owners: the samples that own rows, a mask (n_samples,), bool.
        partners: the samples of which a batch must hold one, a mask (n_samples,), bool; none of them is an owner.
        drawn: the training samples and how batches are drawn.
        name: name of the term, for messages.
        share: fraction of a batch on which the gradient is computed.

    Raises:
        DataError: if no batch holds both.
    """
    plan, counting, owner_strata = drawn.plan, that_count(drawn), _strata(drawn, owners)[owners]
    others = plan.counts(partners if counting is None else partners & counting)
    conditional = torch.zeros(plan.num_strata, dtype=torch.float64)
    for stratum in torch.unique(owner_strata).tolist():
        one = torch.zeros_like(others)
        one[stratum] = 1
        for epoch_share, of_size in plan.by_size():
            lonely, without, neither = (of_size.absence(marked, share) for marked in (one, others, others + one))
            both = 1 - lonely - without + neither
            conditional[stratum] += epoch_share * max(0.0, both / (1 - lonely)) if lonely < 1 else 0.0
    least = float(conditional[owner_strata].min())
    require_company(least, name)
    warn_of_rare_rows(torch.tensor([least]), [f"{name}, which needs samples of both classes"])
    probability = conditional[owner_strata]
    return float(probability[0]) if bool((probability == probability[0]).all()) else probability


def owner_presence(owners: Tensor, drawn: Drawn, share: float = 1.0) -> Tensor:
    """Probability that a batch holds the owner of each row, shape (n_rows,), float64.

    Args:
        owners: the samples that own rows, shape (n_samples,), bool, or (n_samples, T) for rows of samples and T labels.
        drawn: the training samples and how batches are drawn.
        share: fraction of a batch on which the gradient is computed.
    """
    plan, kinds = drawn.plan, drawn.plan.stratum_kinds
    of_stratum = torch.empty(plan.num_strata, dtype=torch.float64)
    for kind in torch.unique(kinds).tolist():
        one = torch.zeros(plan.num_strata, dtype=torch.int64)
        one[int((kinds == kind).int().argmax())] = 1
        of_stratum[kinds == kind] = min(1.0, max(0.0, 1 - plan.absence(one, share)))
    return of_rows(of_stratum[_strata(drawn, owners)], owners)


def of_rows(values: Tensor, owners: Tensor) -> Tensor:
    """The values (n_samples,) of the owner of every row, shape (n_rows,); owners as of :func:`owner_presence`."""
    return values.view(len(owners), *[1] * (owners.dim() - 1)).expand_as(owners)[owners]


def require_company(probability: float, name: str) -> None:
    """Refuse a sampling whose batches never hold both kinds of samples that a term compares.

    Args:
        probability: the probability that a batch holds both.
        name: name of the term.

    Raises:
        DataError: if the probability is 0, up to rounding.
    """
    if probability < 1e-6:
        raise DataError(
            f"{name} compares samples of two kinds, but some are never in a batch with one of the other kind. Draw "
            "batches of both classes, with BalancedSampling, or larger batches."
        )


def within_strata(subsets: Sequence[Sequence[Tensor]], strata: Tensor) -> list[list[Tensor]] | None:
    """For every row the intersections of its subsets with the strata, without the empty ones.

    Args:
        subsets: for every row its subsets, masks (n,) of the samples.
        strata: stratum of every sample, shape (n,); -1 for samples that are never drawn.

    Returns: for every row the masks (n,); None if a row has too many for exact probabilities.
    """
    parts, rows = dict[int, list[Tensor]](), dict[int, list[Tensor]]()  # many rows have the same subsets
    for row in subsets:
        if id(row) in rows:
            continue
        held = [torch.bincount(strata[subset & (strata >= 0)]).nonzero().flatten().tolist() for subset in row]
        if sum(map(len, held)) > _MOST_PARTS:
            return None
        for subset, numbers in zip(row, held, strict=True):
            if id(subset) not in parts:
                parts[id(subset)] = [subset & (strata == stratum) for stratum in numbers]
        rows[id(row)] = [part for subset in row for part in parts[id(subset)]]
    return [rows[id(row)] for row in subsets]


def can_know(subsets: Sequence[Sequence[Tensor]]) -> bool:
    """Whether the probabilities of rows with these subsets can be computed exactly at an acceptable cost."""
    return isinstance(subsets, Partition) or all(len(row) <= _MOST_SUBSETS for row in subsets)


def warn_of_rare_rows(probability: Tensor, names: Sequence[str]) -> None:
    """Warn of rows in fewer than one of twenty batches whose gradient is therefore large and noisy.

    These are rows whose weight 1/(n p_i) is above 1, or above three times that at the average probability.  Many rows
    that are drawn alike are all rare without harm: in a batch of 16 of 1,000 groups each group has the weight 1/16.
    The same holds for bags of the more frequent class in class-balanced batches.
    """
    uneven = probability < torch.maximum(1 / torch.tensor(len(probability)), probability.mean() / 3)
    never = (probability < _NEVER).nonzero().flatten().tolist()
    if never:
        warnings.warn(
            f"no batch contains samples of all subsets of {names[never[0]]!r}{_and_more(never, 1)}, so that their rows "
            "are never updated. Draw larger batches, or others (`batches`).",
            stacklevel=2,
        )
    rare = ((probability >= _NEVER) & (probability < RARE) & uneven).nonzero().flatten().tolist()
    if rare:
        shown = ", ".join(f"{names[i]!r} ({float(probability[i]):.2%} do)" for i in rare[:5])
        warnings.warn(
            f"few batches contain samples of {shown}{_and_more(rare, 5)}: there, their gradient is multiplied by the "
            f"inverse probability, up to {1 / float(probability[rare].min()):,.0f} times, and is noisy. Draw these "
            "samples more often, with `batches: GroupSampling` (or BalancedSampling if they are of one class), or use "
            "larger batches.",
            stacklevel=2,
        )


def _and_more(rows: Sequence[int], shown: int) -> str:
    return f" and {len(rows) - shown} more" if len(rows) > shown else ""

"""Means over sides: the one way in which rates of groups and of subsets are measured.

All means are taken at once, as one product of matrices, in shapes that follow from the batch's size alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.constraints.base import Constraint
from fcco_lightning.constraints.decisions import Decisions, TopShare
from fcco_lightning.constraints.vacuity import constant_decision, enough_decisions
from fcco_lightning.models.batch import KNOWN_STRATUM, POPULATION, SAMPLE_WEIGHT, Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives import ErrorProbability, Quantity
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.objectives.ratios import warn_of_ratios


class OverSides(Constraint, ABC):
    """Every row compares what is measured on its sides: sets of samples, of a class or of all.

    A batch without a sample of a side leaves the row untouched.  A mean over the k samples of a side in a batch is a
    ratio of two estimates where these are drawn with different probabilities, and biased by about 1/k.  So it is taken
    stratum by stratum (:class:`StrataOfSides`) where batches mostly have samples for that; elsewhere a warning says so
    if k is small.

    Attributes:
        strata: how the training samples of the sides are spread over strata; None where that plays no role.
    """

    strata: "StrataOfSides | None" = None

    def compare(self, rows: Sequence[Sequence[int]]) -> None:
        """Say which sides the rows of a class compare.

        Args:
            rows: for every row the positions of its sides among those of :meth:`members`.
        """
        picked = [side for sides in rows for side in sides]
        self._rows, self._picked = rows, None if picked == list(range(len(picked))) else Known(torch.tensor(picked))

    @abstractmethod
    def members(self, batch: Columns) -> Tensor:
        """Mark the samples of every class and side, shape (number of classes, number of sides, B), bool.

        Raises:
            DataError: if the batch lacks a column, or has no single label for a sample.
        """

    def check(self, outputs: Any, batch: Any) -> None:
        super().check(outputs, batch)
        some = None if self.strata is None else self.strata.some
        if self.strata is not None and some is None:
            return
        members = self.members(batch)
        ratios = members if some is None else members[:, ~some.like(members)]
        others = f" or another of {len(self.names)}" if len(self.names) > 1 else ""
        warn_of_ratios(ratios.flatten(0, 1), batch, f"the constraint {self.names[0]!r}{others}")

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]]:
        """A batch measures a row if it holds a sample of each of its sides, of the class."""
        return [[of_class[side] for side in sides] for of_class in self.members(columns) for sides in self._rows]

    def over_strata(self, columns: Columns, strata: Tensor, rows: Tensor) -> "StrataOfSides":
        members, counted = self.members(columns), None
        if SAMPLE_WEIGHT in columns:
            counted = columns[SAMPLE_WEIGHT].double(), columns[POPULATION]
        if bool(rows.all()):
            return StrataOfSides(members, strata, counted=counted)
        some = torch.zeros(members.shape[1], dtype=torch.bool)  # joined constraints have a row and sides each
        some[[side for sides, row in zip(self._rows, rows.tolist(), strict=True) if row for side in sides]] = True
        return StrataOfSides(members, strata, some, counted)

    def shares(self, batch: Columns, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What every sample counts in the mean over each class and side, and of which of these the batch has enough.

        Args:
            batch: columns.
            dtype: of the shares.

        Returns: shares of sum 1, or 0 where there is no sample, shape (c, s, B), and a mask (c, s), bool.
        """
        members = self.members(batch)
        if self.strata is None or KNOWN_STRATUM not in batch:
            return shares_of(members, batch, dtype)
        found, known = self.strata.shares(members, batch[KNOWN_STRATUM], dtype, batch.get(SAMPLE_WEIGHT))
        if self.strata.some is None:
            return found, known
        ratios, there = shares_of(members, batch, dtype)
        some = self.strata.some.like(members)
        return torch.where(some.unsqueeze(1), found, ratios), torch.where(some, known, there)

    def by_rows(self, table: Tensor) -> Tensor:
        """What belongs to the sides of every row of a class, (c, p, k, ...), from that of all sides, (c, s, ...)."""
        if self._picked is not None:
            table = table.index_select(1, self._picked.like(table))
        return table.view(len(table), len(self._rows), -1, *table.shape[2:])

    def values_of(self, measured: Tensor) -> Tensor:
        """What is measured on all sides, (c, s) or (c, s, t), as values of the rows by class and row, (m, k)."""
        return self.by_rows(measured).reshape(-1, self.width)

    def known_of(self, known: Tensor) -> Tensor:
        """Which rows a batch measures, (m,), from the sides of which it has samples, (c, s)."""
        known = self.by_rows(known)
        return known.flatten() if known.shape[-1] == 1 else known.all(-1).flatten()


class OfMeans(OverSides, ABC):
    """What is measured are means of numbers of the samples.

    Where samples are not drawn uniformly the means are weighted by the column ``weight``.
    """

    @abstractmethod
    def of_samples(self, outputs: Tensor, batch: Columns) -> Tensor:
        """What is averaged, with graph: a number of every sample, shape (B,), or t of them, (B, t).

        Where it is a rate it is a smoothed decision, ``sigmoid((score - threshold) / temperature)``.
        """

    @abstractmethod
    def of_decisions(self, outputs: Tensor, batch: Columns) -> Tensor:
        """What is averaged in the place of :meth:`of_samples` where decisions are: 0 or 1, of the same shape."""

    def mean(self, shares: Tensor, values: Tensor) -> Tensor:
        """The means of values of samples in every class and side, (c, s) or (c, s, t), by their shares, (c, s, B)."""
        return shares @ only_of(shares, values)

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[None, Rows]:
        return self.measure_at([outputs], batch)[0]

    def measure_at(self, points: Sequence[Tensor], batch: Columns) -> list[tuple[None, Rows]]:
        """The shares of the samples in the means are the same at all points, and computed once."""
        return [(None, rows) for rows in self._rows_of_means([self.of_samples(at, batch) for at in points], batch)]

    def decided(self, outputs: Tensor, batch: Columns) -> Tensor:
        if not self.smooths:
            return super().decided(outputs, batch)
        return self._rows_of_means([self.of_decisions(outputs.detach(), batch)], batch)[0].values

    def _rows_of_means(self, values: Sequence[Tensor], batch: Columns) -> list[Rows]:
        shares, known = self.shares(batch, values[0].dtype)
        weight = self.known_of(known)
        return [Rows(self.values_of(self.mean(shares, of_samples)), weight) for of_samples in values]


class OfQuantity(OfMeans, ABC):
    """Means of a quantity q of the samples, and where it smooths decisions of these.

    Attributes:
        quantity: q.
    """

    quantity: Quantity

    @property
    def smooths(self) -> bool:
        return self.quantity.smooths

    def decide_by(self, decisions: Decisions) -> None:
        self.quantity = decisions.rate(self.quantity)

    def check(self, outputs: Tensor, batch: Columns) -> None:
        super().check(outputs, batch)
        self.quantity.check(outputs, batch)

    def of_samples(self, outputs: Tensor, batch: Columns) -> Tensor:
        return self.quantity(outputs, batch)

    def of_decisions(self, outputs: Tensor, batch: Columns) -> Tensor:
        return self.quantity.decided(outputs, batch)

    def vacuous(self, outputs: Tensor, batch: Columns) -> str | None:
        """Nearly all decisions are equal, or too soft to tell, where q is a rate: then it holds whatever the scores."""
        if self.quantity.range != (0.0, 1.0) or isinstance(self.quantity, ErrorProbability):
            return None  # a loss decides nothing, and errors may be rare
        enough = enough_decisions(batch, len(outputs), self.asked(batch))
        return constant_decision(self.quantity(outputs, batch), enough, batch.get("weight"))

    def asked(self, batch: Columns) -> tuple[float, float]:
        """Between which shares of all samples of a split the positive decisions are asked to be."""
        return self.quantity.asked(batch) if isinstance(self.quantity, TopShare) else (0.0, 1.0)


class StrataOfSides:
    r"""Means over sides of which each stratum is drawn apart, with the strata's known shares (post-stratification).

    The mean of q over side a is ``sum_s (N_as / N_a) (mean of q over the samples of a in stratum s)``, with N_as of the
    N_a training samples of the side in stratum s.  The samples of a stratum are drawn alike, so each of these means is
    unbiased in the batches that hold a sample of side and stratum, and so is their sum in those that hold one of every
    stratum in which the side has samples (Cochran, Sampling Techniques, 1977, section 5A.9).

    Args:
        sides: which training samples belong to each side, shape (..., n), bool.
        strata: of the training samples, shape (n,), int64; -1 for those that are never drawn.
        some: which sides are to be measured so, shape (number of sides,), bool; None for all.
        counted: w_i and m_i of the training samples, shape (n,) each, where they have weights of their own, and count
            m_i times in the population that batches stand for.  The mean of q is then
            ``sum_s (D_as / M_a) (mean of w q over the samples of a in stratum s)``, with M_a the sum of m over the side
            and D_as that of m/w over its samples in stratum s, which is unbiased, too.
    """

    def __init__(
        self,
        sides: Tensor,
        strata: Tensor,
        some: Tensor | None = None,
        counted: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.some = None if some is None else Known(some)
        number, drawn = int(strata.max()) + 1, strata >= 0
        weight, population = counted or 2 * (torch.ones(len(strata), dtype=torch.float64),)
        each, population = (torch.where(drawn, of, 0.0) for of in (population / weight, population))
        sizes = torch.stack(
            [torch.bincount(strata.clamp(min=0), side * each, minlength=number) for side in sides.flatten(0, -2)]
        )
        totals = (sides * population).sum(-1, keepdim=True)
        self._shares = Known(sizes.view(*sides.shape[:-1], number) / torch.where(totals > 0, totals, 1.0))
        self._numbers = Known(torch.arange(number).unsqueeze(1))

    def shares(
        self, members: Tensor, stratum: Tensor, dtype: torch.dtype, sample_weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What every sample of a batch counts in each mean, and of which sides a batch has samples of all strata.

        Args:
            members: which samples belong to each side, shape (..., B), bool.
            stratum: of the samples, shape (B,), int64.
            dtype: of the shares.
            sample_weight: of the samples, shape (B,), if they have weights of their own.

        Returns: as :func:`shares_of`; with weights of the samples, shares of which 1 is the expected sum.
        """
        counts, own = members.to(dtype), self._shares.like(members, dtype)
        within = (stratum == self._numbers.like(stratum)).to(dtype)
        found = counts @ within.T
        known = ((found > 0) | (own == 0)).all(-1) & members.any(-1)
        shares = counts * ((own / found.clamp(min=1)) @ within)
        return shares if sample_weight is None else shares * sample_weight.to(dtype), known


def shares_of(member: Tensor, batch: Columns, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What every sample of a batch counts in the mean over each subset, and of which subsets the batch has samples.

    Samples count alike, or by the column ``weight`` where they are not drawn uniformly.

    Args:
        member: which samples belong to each subset, shape (..., B), bool.
        batch: columns.
        dtype: of the shares.

    Returns: shares of sum 1, or 0 where there is no sample, shape (..., B), and a mask (...,), bool.
    """
    counts = member.to(dtype)
    if "weight" in batch:
        counts = counts * batch["weight"].to(dtype)
    total = counts.sum(-1, keepdim=True)
    return counts.div_(total.clamp(min=torch.finfo(dtype).tiny)), total.squeeze(-1) > 0


def only_of(shares: Tensor, values: Tensor) -> Tensor:
    """The values of the samples that count somewhere, and 0 in the place of the others.

    A share of 0 alone would make NaN of an infinite value.  So whatever the network makes of a sample that counts
    nowhere, the means and their gradients stay as they are.

    Args:
        shares: what the samples count, shape (..., B).
        values: theirs, shape (B, ...).
    """
    nowhere = shares.sum(list(range(shares.dim() - 1))) == 0
    return values.masked_fill(nowhere.view(-1, *(1 for _ in values.shape[1:])), 0.0)

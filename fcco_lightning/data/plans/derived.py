"""Batches made of those of another plan: each several times, or of some of the rows of a table."""

import copy
from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.plans.base import BatchPlan, with_strata
from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import IN_HALVES


class OfAnother(BatchPlan):
    """Batches that are those of another plan but for something; rows are of its strata, and drawn as it draws them.

    Args:
        plan: the other one.
        num_rows: number of rows of the table.
        batch_size: number of rows in a batch.
    """

    def __init__(self, plan: BatchPlan, num_rows: int, batch_size: int) -> None:
        super().__init__(num_rows, batch_size, plan.seed)
        self.plan, self.num_batches, self.stream = plan, plan.num_batches, plan.stream

    @property
    def strata(self) -> Tensor | None:
        return self.plan.strata

    def second_draw(self) -> Self:
        return self._of(self.plan.second_draw())

    def by_size(self) -> list[tuple[float, Self]]:
        return [(share, self._of(plan)) for share, plan in self.plan.by_size()]

    def _second_half(self) -> Self:
        return self._of(self.plan._second_half())

    def _of(self, plan: BatchPlan) -> Self:
        """The same of a plan of the same table."""
        other = copy.copy(self)
        other.plan, other.stream = plan, plan.stream
        return other


class RepeatedBatches(OfAnother):
    """The batches of another plan, each of them ``copies`` times in a row: samples x perturbations.

    For objectives whose inner function is an expectation over perturbations of a sample: every copy is perturbed
    independently by the network or the data set, and the copies of a sample have one row, which is given the mean of
    their inner values.  The two halves of a batch hold the same samples with independent perturbations (for an even
    number of copies), as methods need that move dual and primal variables by independent draws.

    Args:
        plan: batches of samples.
        copies: how often a sample comes in its batch, >= 2.

    Example:
        >>> from fcco_lightning.data.plans import UniformBatches
        >>> batch = next(RepeatedBatches(UniformBatches(8, batch_size=2), copies=3).batches(epoch=0)).tolist()
        >>> len(batch), batch[:2] == batch[2:4] == batch[4:]
        (6, True)
    """

    def __init__(self, plan: BatchPlan, copies: int) -> None:
        self.copies = at_least("copies", copies, 2)
        super().__init__(plan, plan.num_rows, plan.batch_size * copies)

    def batches(self, epoch: int) -> Iterator[Tensor]:
        for batch in self.plan.batches(epoch):
            yield torch.tile(batch, (self.copies,))

    @property
    def stratum_kinds(self) -> Tensor:
        return self.plan.stratum_kinds

    def weights(self) -> Tensor | None:
        """Weights of the plan: every sample of a batch is repeated equally often."""
        return self.plan.weights()

    def population(self, share: float = 1.0) -> Tensor | None:  # noqa: ARG002
        """That of the plan, also of halves, which hold whole copies."""
        return self.plan.population()

    def columns(self) -> dict[str, Tensor]:
        """Columns of the plan, and its strata: the pairs of a sample with itself are more likely than others.

        Without weights all samples are one stratum, as if batches without copies were uniform.
        """
        columns = self.plan.columns()
        columns.pop(IN_HALVES, None)  # halves hold whole copies
        if "replaced" in columns:
            columns["replaced"] = columns["replaced"] * self.copies
        if "stratum" in columns:
            return columns
        strata = self.plan.strata if columns else None
        return with_strata(columns, torch.zeros(self.num_rows, dtype=torch.int64) if strata is None else strata)

    def _of(self, plan: BatchPlan) -> Self:
        return type(self)(plan, self.copies)

    def _second_half(self) -> Self:
        return copy.copy(self)  # it holds a whole copy of the batch

    def _absence(self, counts: Tensor) -> float:
        return self.plan.absence(counts)

    def _most(self, counts: Tensor) -> int:
        return self.copies * self.plan.most(counts)


class WeightedSamples(OfAnother):
    """The batches of another plan, of samples that count differently in the data.

    The population that these batches stand for is that of the plan with the row i taken ``s_i`` times: means over the
    data are ``sum_i s_i x_i / sum_i s_i``.

    Args:
        plan: how the samples are drawn.
        sample_weight: s_i, shape (n,), >= 0 and not all 0.

    Example:
        >>> from fcco_lightning.data.plans import UniformBatches
        >>> WeightedSamples(UniformBatches(3, batch_size=1), torch.tensor([1.0, 0.0, 3.0])).weights().tolist()
        [0.75, 0.0, 2.25]
    """

    def __init__(self, plan: BatchPlan, sample_weight: Tensor) -> None:
        super().__init__(plan, plan.num_rows, plan.batch_size)
        self.sample_weight = sample_weight
        drawn, given = plan.population(), sample_weight.double()
        self._scale = len(given) / (given if drawn is None else given * drawn).sum()

    def batches(self, epoch: int) -> Iterator[Tensor]:
        return self.plan.batches(epoch)

    @property
    def stratum_kinds(self) -> Tensor:
        return self.plan.stratum_kinds

    @property
    def halves_known(self) -> bool:
        return self.plan.halves_known

    @property
    def distinct(self) -> bool:
        return self.plan.distinct

    def weights(self) -> Tensor:
        """Weights of the plan times those of the samples."""
        weights, own = self.plan.weights(), self.sample_weight.double() * self._scale
        return (own if weights is None else weights * own).float()

    def population(self, share: float = 1.0) -> Tensor:
        """That of the plan, with every row as often as its weight says."""
        drawn, own = self.plan.population(share), self.sample_weight.double() * self._scale
        return own if drawn is None else drawn * own

    def columns(self) -> dict[str, Tensor]:
        """Columns of the plan, with the product of both weights, and the strata, which it does not tell apart."""
        columns = self.plan.columns() | {"weight": self.weights()}
        if "stratum" in columns:
            return columns
        strata = self.plan.strata if self.plan.weights() is not None else None
        return with_strata(columns, torch.zeros(self.num_rows, dtype=torch.int64) if strata is None else strata)

    def _absence(self, counts: Tensor) -> float:
        return self.plan.absence(counts)

    def _most(self, counts: Tensor) -> int:
        return self.plan.most(counts)


class RowsOf(OfAnother):
    """The batches of a plan over some rows of a table, as rows of the whole table.

    The rows of the table that are never drawn are a stratum of their own, the last one.  "The data" of
    :meth:`weights` are the rows that are drawn; the others have weight 0.

    Args:
        plan: batches of positions within ``rows``.
        rows: different rows of the table, shape (r,), int64.
        num_rows: number of rows of the table; None for no more than ``rows`` names.

    Example:
        >>> from fcco_lightning.data.plans import UniformBatches
        >>> plan = RowsOf(UniformBatches(2, batch_size=2), torch.tensor([40, 70]))
        >>> sorted(next(plan.batches(epoch=0)).tolist())
        [40, 70]
    """

    def __init__(self, plan: BatchPlan, rows: Tensor, num_rows: int | None = None) -> None:
        self._check(plan, rows, num_rows)
        super().__init__(plan, int(rows.max()) + 1 if num_rows is None else num_rows, plan.batch_size)
        self.rows = rows

    def batches(self, epoch: int) -> Iterator[Tensor]:
        for batch in self.plan.batches(epoch):
            yield self.rows[batch]

    @property
    def strata(self) -> Tensor | None:
        """Strata of the plan, and of the rows that are never drawn one more, shape (n,)."""
        inner = self.plan.strata
        if inner is None and len(self.rows) == self.num_rows:
            return None
        strata = torch.full((self.num_rows,), self.plan.num_strata)
        strata[self.rows] = 0 if inner is None else inner
        return strata

    @property
    def distinct(self) -> bool:
        """As the plan: its rows are different rows of the table."""
        return self.plan.distinct

    def weights(self) -> Tensor | None:
        """Weights of the plan at its rows, 0 elsewhere."""
        return self.columns().get("weight")

    def population(self, share: float = 1.0) -> Tensor | None:
        """That of the plan at its rows, 0 elsewhere."""
        inner = self.plan.population(share)
        if inner is None and len(self.rows) == self.num_rows:
            return None
        population = torch.zeros(self.num_rows, dtype=torch.float64)
        population[self.rows] = self.num_rows / len(self.rows) * (1.0 if inner is None else inner)
        return population

    def columns(self) -> dict[str, Tensor]:
        """Columns of the plan at its rows, 0 elsewhere."""
        columns = {}
        for name, inner in self.plan.columns().items():
            columns[name] = inner.new_zeros(self.num_rows, *inner.shape[1:])
            columns[name][self.rows] = inner
        return columns

    def _absence(self, counts: Tensor) -> float:
        return self.plan.absence(counts[: self.plan.num_strata])

    def _most(self, counts: Tensor) -> int:
        return self.plan.most(counts[: self.plan.num_strata])

    @staticmethod
    def _check(plan: BatchPlan, rows: Tensor, num_rows: int | None) -> None:
        different = len(set(rows.tolist()))
        if len(rows) != plan.num_rows or different != len(rows):
            raise DataError(
                f"rows must name a different row of the table for each of the plan's {plan.num_rows} rows, got "
                f"{len(rows)} rows of which {different} differ."
            )
        if int(rows.min()) < 0 or (num_rows is not None and int(rows.max()) >= num_rows):
            raise DataError(
                f"rows must lie in 0..num_rows - 1, got {int(rows.min())}..{int(rows.max())} with num_rows={num_rows}."
            )

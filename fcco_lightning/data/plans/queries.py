"""Batches of a few queries with some relevant and some irrelevant items of each."""

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.plans.base import (
    BatchPlan,
    cycle,
    mean_product,
    most_of_each,
    none_drawn_of_each,
    require_keyed,
    spread_evenly,
    sum_of_largest,
    with_strata,
)
from fcco_lightning.errors import ConfigError, DataError


class QueryBatches(BatchPlan):
    """Every batch holds a few queries with the same number of relevant and irrelevant items of each.

    A batch is ``queries_per_batch`` different queries, which are gone through in a random order, with
    ``positives_per_query`` of their relevant items and ``negatives_per_query`` of the others.  Where a query has fewer
    of a kind than asked for, all are there and some occur twice or more; where it has none, items of the other kind
    take their places.  So all batches are of one size.

    A batch is laid out item by item: one of every query, then the next of every query in the same order, and so on,
    relevant items spread evenly.  Contiguous parts of it (one per process) hold about equal shares of every query.

    Rows are weighted so that means over batches estimate means over all rows, and the strata (relevant and irrelevant
    items of every query) come along, so that sums over the items of a query can be estimated from those of a batch.

    Args:
        queries: query of every row, shape (n,), int64.
        relevant: whether a row is relevant to its query, shape (n,), bool.
        queries_per_batch: queries in a batch, <= their number.
        positives_per_query: relevant items of each, over all processes together.
        negatives_per_query: irrelevant items of each, likewise.
        seed: whole number >= 0.
        num_batches: batches in an epoch; None for as many as go through all queries once.

    Raises:
        ConfigError: if a number is out of range.
        DataError: if the columns do not fit, or one item of a kind is drawn of queries that have several: a batch would
            then never hold two of them, and could not say how they compare.
    """

    def __init__(
        self,
        queries: Tensor,
        relevant: Tensor,
        queries_per_batch: int,
        positives_per_query: int,
        negatives_per_query: int,
        seed: int = 0,
        *,
        num_batches: int | None = None,
    ) -> None:
        self.queries_per_batch = at_least("queries_per_batch", queries_per_batch, 1)
        self._drawn = (
            at_least("negatives_per_query", negatives_per_query, 1),
            at_least("positives_per_query", positives_per_query, 1),
        )
        super().__init__(len(queries), self.queries_per_batch * sum(self._drawn), seed)
        require_keyed(queries, relevant, "queries", "relevant")
        _, query = torch.unique(queries, return_inverse=True)
        self.num_queries = int(query.max()) + 1
        if self.queries_per_batch > self.num_queries:
            raise ConfigError(
                f"queries_per_batch={self.queries_per_batch} exceeds the {self.num_queries} queries. Lower it."
            )
        # Stratum 2 q + 1 would be the relevant items of query q; those that have rows are numbered anew.
        present, strata = torch.unique(2 * query + relevant.long(), return_inverse=True)
        self._strata: Tensor = strata
        self._query, self._kind = present // 2, present % 2
        self._sizes = torch.bincount(self._strata)
        self._alone = torch.bincount(self._query)[self._query] == 1
        if num_batches is None:
            num_batches = -(-self.num_queries // self.queries_per_batch)
        self.num_batches = at_least("num_batches", num_batches, 1)
        self._is_positive = spread_evenly(self._drawn[1], sum(self._drawn))
        self._refuse_single_draws()
        rows = torch.argsort(self._strata, stable=True)
        self._rows = torch.split(rows, self._sizes.tolist())  # by stratum
        strata_of = torch.split(torch.arange(len(self._query)), torch.bincount(self._query).tolist())
        self._strata_of: list[list[int]] = [of.tolist() for of in strata_of]  # by query

    def batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield batches of shape (batch_size,); entry j belongs to the batch's query number j mod queries_per_batch."""
        choices, generator = self.generators(epoch)
        queries = cycle(torch.arange(self.num_queries), self.queries_per_batch, choices)
        sizes = self._counts().tolist()
        cycles = [cycle(rows, size, generator) for rows, size in zip(self._rows, sizes, strict=True)]
        for chosen in list(islice(queries, self.num_batches)):  # all of them before any item is drawn
            yield torch.stack([self._items(query, cycles) for query in chosen.tolist()], dim=1).flatten()

    @property
    def strata(self) -> Tensor:
        """Relevant and irrelevant items of every query, numbered from 0; shape (n,), int64."""
        return self._strata

    @property
    def distinct(self) -> bool:
        """Whether every query has as many items of each kind as a batch asks for."""
        return bool((self._sizes >= self._counts()).all())

    def weights(self) -> Tensor | None:
        """Weight B / (n p) of a row that is in a batch p times on average."""
        chance = self._counts() / self._sizes * self.queries_per_batch / self.num_queries
        return (self.batch_size / (self.num_rows * chance))[self._strata].float()

    def columns(self) -> dict[str, Tensor]:
        """``weight`` and the strata."""
        return with_strata(super().columns(), self._strata)

    def _counts(self) -> Tensor:
        """Draws of every stratum, when its query is drawn, shape (S,)."""
        apart = torch.tensor(self._drawn)[self._kind]
        return torch.where(self._alone, torch.full_like(apart, sum(self._drawn)), apart)

    def _absence(self, counts: Tensor) -> float:
        """Mean over all choices of queries of the product over the strata of those chosen."""
        absences = np.ones(self.num_queries)
        np.multiply.at(absences, self._query.numpy(), none_drawn_of_each(self._sizes, counts, self._counts()))
        return mean_product(absences, self.queries_per_batch)

    def _most(self, counts: Tensor) -> int:
        of_strata = most_of_each(self._sizes, counts, self._counts())
        own = torch.zeros(self.num_queries, dtype=torch.int64).index_add(0, self._query, of_strata)
        return sum_of_largest(own, self.queries_per_batch)

    def _stratum_sizes(self) -> Tensor:
        return self._sizes

    def _second_half(self) -> Self:
        """The later items of every query, exactly so for an even number of items."""
        half, rest = copy.copy(self), self._is_positive[len(self._is_positive) // 2 :]
        half._drawn = (int((~rest).sum()), int(rest.sum()))
        return half

    def _items(self, query: int, cycles: list[Iterator[Tensor]]) -> Tensor:
        drawn = [next(cycles[stratum]) for stratum in self._strata_of[query]]
        if len(drawn) == 1:
            return drawn[0]
        items = torch.empty(len(self._is_positive), dtype=torch.int64)
        items[~self._is_positive], items[self._is_positive] = drawn
        return items

    def _refuse_single_draws(self) -> None:
        for kind, name in ((1, "positives_per_query"), (0, "negatives_per_query")):
            several = (self._kind == kind) & ~self._alone & (self._sizes > 1)
            if self._drawn[kind] == 1 and bool(several.any()):
                raise DataError(
                    f"{name}=1, but {int(several.sum())} queries have several such items: no batch would hold two of "
                    "them, so that nothing could be said of how they compare. Use 2 or more."
                )

"""How well scores order the items of queries."""

import torch
from torch import Tensor

from fcco_lightning.checks import at_least


class RankedLists:
    """Items in the order of their scores, query by query.

    Among items of equal scores the less relevant ones come first, so that a constant score is not rewarded for the
    order of the table.

    Args:
        scores: shape (n,).
        grades: relevance, shape (n,), >= 0; 0 is irrelevant.
        queries: shape (n,), int64.
    """

    def __init__(self, scores: Tensor, grades: Tensor, queries: Tensor) -> None:
        _, of = torch.unique(queries, return_inverse=True)
        order = grades.argsort(stable=True)
        order = order[(-scores[order]).argsort(stable=True)]
        order = order[of[order].argsort(stable=True)]
        self.of: Tensor = of[order]
        self.grades = grades[order].double()
        self.sizes = torch.bincount(self.of)
        firsts = self.sizes.cumsum(0) - self.sizes
        self.places = torch.arange(len(order), device=scores.device) - firsts[self.of] + 1  # 1 is the first
        self.relevant = self.grades > 0
        self.has_relevant = self._total(self.relevant.double()) > 0

    def ndcg(self, k: int) -> Tensor:
        """NDCG of the first k places with the gain 2^y - 1, of the queries with a relevant item, shape (Q,), float64.

        Example:
            >>> lists = RankedLists(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0, 1, 0]), torch.tensor([7, 7, 7]))
            >>> round(float(lists.ndcg(3)), 3)  # the relevant item is second: 1 / log2(3)
            0.631
        """
        # 2^y - 1 divided by 2 to the highest grade of the query, which cancels, so that no grade is too large
        highest = self.grades.new_zeros(len(self.sizes)).scatter_reduce_(0, self.of, self.grades, "amax")[self.of]
        gains = torch.exp2(self.grades - highest) - torch.exp2(-highest)
        discounts = (self.places <= at_least("k", k, 1)) / torch.log2(1 + self.places.double())
        ideal = gains[(-self.grades).argsort(stable=True)]
        ideal = ideal[self.of[(-self.grades).argsort(stable=True)].argsort(stable=True)]
        best = self._total(ideal * discounts)[self.has_relevant]
        return self._total(gains * discounts)[self.has_relevant] / best

    def average_precision(self) -> Tensor:
        """Mean over a query's relevant items (y > 0) of the precision at their places, shape (Q,), float64."""
        hits = self.relevant.double().cumsum(0)
        before = (self._total(self.relevant.double()).cumsum(0) - self._total(self.relevant.double()))[self.of]
        precision = self.relevant * (hits - before) / self.places
        return (self._total(precision) / self._total(self.relevant.double()))[self.has_relevant]

    def reciprocal_rank(self, k: int) -> Tensor:
        """1 / place of the first relevant item (y > 0), 0 beyond place k, shape (Q,), float64."""
        shares = (self.relevant & (self.places <= at_least("k", k, 1))) / self.places.double()
        best = shares.new_zeros(len(self.sizes)).scatter_reduce_(0, self.of, shares, "amax")
        return best[self.has_relevant]

    def _total(self, values: Tensor) -> Tensor:
        return values.new_zeros(len(self.sizes)).index_add_(0, self.of, values)

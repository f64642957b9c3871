"""How well scores order the items of queries."""

import numpy as np
import pandas as pd
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

    Attributes:
        items: a row for every item, with ``query``, ``score``, ``grade``, and ``place`` in its list, 1 for the first.
        has_relevant: whether there is an item with y > 0, by query.
    """

    def __init__(self, scores: Tensor, grades: Tensor, queries: Tensor) -> None:
        items = pd.DataFrame({"query": queries.cpu(), "score": scores.cpu(), "grade": grades.double().cpu()})
        items = items.sort_values(["query", "score", "grade"], ascending=[True, False, True], ignore_index=True)
        self.items = items.assign(place=items.groupby("query").cumcount() + 1)
        self.has_relevant = items.groupby("query")["grade"].max() > 0

    def ndcg(self, k: int, gain: str = "exponential") -> pd.Series:
        """NDCG of the first k places with the gain 2^y - 1, or "linear" y, of the queries with a relevant item.

        Example:
            >>> import torch
            >>> lists = RankedLists(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0, 1, 0]), torch.tensor([7, 7, 7]))
            >>> round(float(lists.ndcg(3).item()), 3)  # the relevant item is second: 1 / log2(3)
            0.631
        """
        query, gains, place = self.items["query"], self.items["grade"], self.items["place"]
        if gain == "exponential":
            # 2^y - 1 divided by 2 to the highest grade of the query, which cancels, so that no grade is too large
            highest = gains.groupby(query).transform("max")
            gains = np.exp2(gains - highest) - np.exp2(-highest)
        ideal = self.items.assign(gain=gains).sort_values(["query", "gain"], ascending=[True, False])["gain"]
        discounts = (place <= at_least("k", k, 1)) / np.log2(1 + place)
        sums = pd.DataFrame({"found": gains * discounts, "best": ideal.to_numpy() * discounts}).groupby(query).sum()
        return (sums["found"] / sums["best"])[self.has_relevant]

    def average_precision(self) -> pd.Series:
        """Mean over a query's relevant items (y > 0) of the precision at their places, of the queries with one."""
        query, relevant = self.items["query"], self.items["grade"] > 0
        precision = relevant.groupby(query).cumsum() / self.items["place"]
        return precision[relevant].groupby(query).mean()

    def reciprocal_rank(self, k: int) -> pd.Series:
        """1 / place of the first relevant item (y > 0), 0 beyond place k, of the queries with one."""
        relevant = self.items[self.items["grade"] > 0]
        first = relevant.groupby("query")["place"].min()
        return (1 / first).where(first <= at_least("k", k, 1), 0.0)

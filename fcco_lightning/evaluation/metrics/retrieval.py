"""Metrics of the ranked lists of queries."""

import numpy as np
import pandas as pd
from torch import Tensor

from fcco_lightning.checks import at_least


class RankedLists:
    """For every query, its items in descending order of their scores.

    Among items with equal scores the less relevant ones come first, so that the figures of a constant score do not
    depend on the order of the table.

    Args:
        scores: shape (n,).
        grades: grades of relevance y, shape (n,), >= 0; 0 is irrelevant.
        queries: number of every item's query, shape (n,), int64.

    Attributes:
        items: a row for every item, with ``query``, ``score``, ``grade``, and ``place`` in its list, 1 for the first.
        has_relevant: query -> whether one of its items has y > 0.
    """

    def __init__(self, scores: Tensor, grades: Tensor, queries: Tensor) -> None:
        items = pd.DataFrame({"query": queries.cpu(), "score": scores.cpu(), "grade": grades.double().cpu()})
        items = items.sort_values(["query", "score", "grade"], ascending=[True, False, True], ignore_index=True)
        self.items = items.assign(place=items.groupby("query").cumcount() + 1)
        self.has_relevant = items.groupby("query")["grade"].max() > 0

    def ndcg(self, k: int, gain: str = "exponential") -> pd.Series:
        """NDCG of the first k places for every query with a relevant item; the gain is 2^y - 1, or y if "linear".

        Example:
            >>> import torch
            >>> lists = RankedLists(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0, 1, 0]), torch.tensor([7, 7, 7]))
            >>> round(float(lists.ndcg(3).item()), 3)  # the relevant item is second: 1 / log2(3)
            0.631
        """
        query, gains, place = self.items["query"], self.items["grade"], self.items["place"]
        if gain == "exponential":
            # divided by 2^(highest grade of the query), which cancels in NDCG, so that large grades do not overflow
            highest = gains.groupby(query).transform("max")
            gains = np.exp2(gains - highest) - np.exp2(-highest)
        ideal = self.items.assign(gain=gains).sort_values(["query", "gain"], ascending=[True, False])["gain"]
        discounts = (place <= at_least("k", k, 1)) / np.log2(1 + place)
        sums = pd.DataFrame({"found": gains * discounts, "best": ideal.to_numpy() * discounts}).groupby(query).sum()
        return (sums["found"] / sums["best"])[self.has_relevant]

    def average_precision(self) -> pd.Series:
        """Mean precision at the places of a query's relevant items (y > 0), for every query with one."""
        query, relevant = self.items["query"], self.items["grade"] > 0
        precision = relevant.groupby(query).cumsum() / self.items["place"]
        return precision[relevant].groupby(query).mean()

    def reciprocal_rank(self, k: int) -> pd.Series:
        """1 / place of the first relevant item (y > 0), or 0 beyond place k, for every query with one."""
        relevant = self.items[self.items["grade"] > 0]
        first = relevant.groupby("query")["place"].min()
        return (1 / first).where(first <= at_least("k", k, 1), 0.0)

"""Figures of items that are ranked for queries."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from torch import Tensor

from fcco_lightning.checks import at_least, list_of, one_of
from fcco_lightning.errors import ConfigError
from fcco_lightning.evaluation.base import Evaluation, require_columns
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives import binary_scores
from fcco_lightning.objectives.ranking.lists import graded


class RetrievalEvaluation(Evaluation):
    """NDCG, mean average precision and mean reciprocal rank of the lists of all queries.

    The outputs are one score per item, shape (n,) or (n, 1); the column ``query`` (n,) contains the query of an item,
    the column ``y`` (n,) its grade >= 0.  Every figure is a mean over the queries with a relevant item (y > 0), and NaN
    if there is none.  Items with equal scores are ranked from the least to the most relevant.

    - ``ndcg_K``: the normalized discounted cumulative gain of the first K places, for every K;
    - ``map``: the mean average precision over whole lists;
    - ``mrr_K``: the mean of 1 / place of the first relevant item, 0 beyond place K, for the largest K.

    Args:
        k: The numbers of places, each >= 1.
        gain: "exponential" for 2^y - 1, "linear" for y.

    Raises:
        ConfigError: if ``k`` is empty or has a number < 1, or ``gain`` is another word.
    """

    bar = ("map",)
    separable = False

    def __init__(self, k: Sequence[int] = (5, 10), gain: Literal["exponential", "linear"] = "exponential") -> None:
        if not list_of("k", k):
            raise ConfigError("k must name at least one number of places, got none. Use k=[10].")
        self.k = sorted({at_least("k", places, 1) for places in k})
        self.gain = one_of("gain", gain, ("exponential", "linear"))
        self.bar = (f"ndcg_{self.k[-1]}",)

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        items = _ranked(outputs, batch, self)
        relevant = items[items["grade"] > 0]
        if relevant.empty:
            queries = items["query"].nunique()
            reason = f": none of the {queries} queries of a split has a relevant item (y > 0)"
            self.warn_of_undefined("ndcg, map and mrr", reason)
        items = items[items["query"].isin(relevant["query"])]
        precision = (relevant.groupby("query").cumcount() + 1) / relevant["place"]
        first = relevant.groupby("query")["place"].min()
        figures = {f"ndcg_{k}": float(self._ndcg(items, k).mean()) for k in self.k}
        return figures | {
            "map": float(precision.groupby(relevant["query"]).mean().mean()),
            f"mrr_{self.k[-1]}": float((1 / first).where(first <= self.k[-1], 0.0).mean()),
        }

    def _ndcg(self, items: pd.DataFrame, k: int) -> pd.Series:
        """NDCG of the first k places, for every query of :func:`_ranked`; each has a relevant item."""
        query, gains, place = items["query"], items["grade"], items["place"]
        if self.gain == "exponential":
            # divided by 2^(highest grade of the query), which cancels in NDCG, so that large grades do not overflow
            highest = gains.groupby(query).transform("max")
            gains = np.exp2(gains - highest) - np.exp2(-highest)
        ideal = items.assign(gain=gains).sort_values(["query", "gain"], ascending=[True, False])["gain"].to_numpy()
        discounts = (place <= k) / np.log2(1 + place)
        sums = pd.DataFrame({"found": gains * discounts, "best": ideal * discounts}).groupby(query).sum()
        return sums["found"] / sums["best"]

    def details(self, outputs: Tensor, batch: Columns) -> dict[str, Any]:
        """Return the number of all ``queries``, and that of queries with a relevant item."""
        highest = _ranked(outputs, batch, self).groupby("query")["grade"].max()
        return {"num_queries": len(highest), "num_queries_with_relevant": int((highest > 0).sum())}


def _ranked(outputs: Tensor, batch: Columns, needed_by: Evaluation) -> pd.DataFrame:
    """The items of every query, the highest scores first: ``query``, ``score``, ``grade``, and ``place`` from 1.

    Among items with equal scores the less relevant ones come first, so that the figures of a constant score do not
    depend on the order of the table.
    """
    require_columns(batch, "query", "y", figures="figures of ranked lists")
    query, grade = graded(batch, needed_by)
    scores = binary_scores(outputs).double()
    items = pd.DataFrame({"query": query.cpu(), "score": scores.cpu(), "grade": grade.double().cpu()})
    items = items.sort_values(["query", "score", "grade"], ascending=[True, False, True], ignore_index=True)
    return items.assign(place=items.groupby("query").cumcount() + 1)

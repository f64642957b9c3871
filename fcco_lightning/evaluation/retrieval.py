"""Figures of items that are ranked for queries."""

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from fcco_lightning.checks import at_least, list_of, one_of
from fcco_lightning.errors import ConfigError
from fcco_lightning.evaluation.base import Evaluation, require_columns
from fcco_lightning.evaluation.metrics.retrieval import RankedLists
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
        lists = _lists(outputs, batch, self)
        if not bool(lists.has_relevant.any()):
            queries = len(lists.has_relevant)
            reason = f": none of the {queries} queries of a split has a relevant item (y > 0)"
            self.warn_of_undefined("ndcg, map and mrr", reason)
        figures = {f"ndcg_{k}": float(lists.ndcg(k, self.gain).mean()) for k in self.k}
        return figures | {
            "map": float(lists.average_precision().mean()),
            f"mrr_{self.k[-1]}": float(lists.reciprocal_rank(self.k[-1]).mean()),
        }

    def details(self, outputs: Tensor, batch: Columns) -> dict[str, Any]:
        """Return the number of all ``queries``, and that of queries with a relevant item."""
        lists = _lists(outputs, batch, self)
        return {"num_queries": len(lists.has_relevant), "num_queries_with_relevant": int(lists.has_relevant.sum())}


def _lists(outputs: Tensor, batch: Columns, needed_by: Evaluation) -> RankedLists:
    require_columns(batch, "query", "y", figures="figures of ranked lists")
    query, grade = graded(batch, needed_by)
    return RankedLists(binary_scores(outputs).double(), grade, query)

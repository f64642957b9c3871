import math

import pytest
import torch

from fcco_lightning.errors import ConfigError
from fcco_lightning.evaluation import RetrievalEvaluation
from fcco_lightning.evaluation.metrics.retrieval import RankedLists

GRADES, QUERIES = torch.tensor([2, 1, 0, 0, 3, 0]), torch.tensor([5, 5, 5, 5, 8, 8])


def test_a_constant_score_is_not_rewarded_for_the_order_of_the_table():
    lists = RankedLists(torch.zeros(6), GRADES, QUERIES)
    assert lists.items.place[lists.items.grade > 0].tolist() == [3, 4, 2]
    assert lists.reciprocal_rank(10).tolist() == pytest.approx([1 / 3, 1 / 2])
    assert lists.average_precision().tolist() == pytest.approx([(1 / 3 + 2 / 4) / 2, 1 / 2])


def test_no_grade_is_too_large():
    """A query whose only relevant item comes second has 1 / log2(3), whatever its grade."""
    for grade in (1, 50, 2000):
        lists = RankedLists(torch.tensor([2.0, 1.0, 0.0]), torch.tensor([0, grade, 0]), torch.tensor([7, 7, 7]))
        assert lists.ndcg(3).tolist() == pytest.approx([1 / math.log2(3)])


def test_without_a_relevant_item_figures_are_nan():
    with pytest.warns(UserWarning, match="none of the 2 queries of a split has a relevant item"):
        figures = RetrievalEvaluation()(torch.randn(6), {"query": QUERIES, "y": torch.zeros(6)})
    assert figures.keys() == {"ndcg_5", "ndcg_10", "map", "mrr_10"}
    assert all(math.isnan(value) for value in figures.values())


def test_what_is_refused():
    with pytest.raises(ConfigError, match="k must name at least one"):
        RetrievalEvaluation([])

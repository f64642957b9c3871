"""Figures of ranked lists: ties, large grades, gains, and lists without relevant items."""

import math

import pytest
import torch
from sklearn.metrics import ndcg_score

from fcco_lightning.errors import ConfigError
from fcco_lightning.evaluation import RetrievalEvaluation

GRADES, QUERIES = torch.tensor([2, 1, 0, 0, 3, 0]), torch.tensor([5, 5, 5, 5, 8, 8])


def test_a_constant_score_is_not_rewarded_for_the_order_of_the_table():
    """The relevant items are ranked third and fourth in one list, and second in the other."""
    figures = RetrievalEvaluation()(torch.zeros(6), {"query": QUERIES, "y": GRADES})
    assert figures["mrr_10"] == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert figures["map"] == pytest.approx(((1 / 3 + 2 / 4) / 2 + 1 / 2) / 2)
    assert RetrievalEvaluation([2])(torch.zeros(6), {"query": QUERIES, "y": GRADES})["mrr_2"] == pytest.approx(1 / 4)


def test_no_grade_is_too_large():
    """A query whose only relevant item comes second has 1 / log2(3), whatever its grade."""
    for grade in (1, 50, 2000):
        batch = {"query": torch.tensor([7, 7, 7]), "y": torch.tensor([0, grade, 0])}
        figures = RetrievalEvaluation([3])(torch.tensor([2.0, 1.0, 0.0]), batch)
        assert figures["ndcg_3"] == pytest.approx(1 / math.log2(3))


def test_the_linear_gain_is_that_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    grades, scores = torch.randint(5, (6, 12), generator=generator), torch.randn(6, 12, generator=generator)
    batch = {"query": torch.arange(6).repeat_interleave(12), "y": grades.flatten()}
    figures = RetrievalEvaluation([4], "linear")(scores.flatten(), batch)
    assert figures["ndcg_4"] == pytest.approx(ndcg_score(grades, scores, k=4))
    exponential = RetrievalEvaluation([4])(scores.flatten(), batch)
    assert exponential["ndcg_4"] == pytest.approx(ndcg_score(2**grades - 1, scores, k=4))


def test_without_a_relevant_item_figures_are_nan():
    with pytest.warns(UserWarning, match="none of the 2 queries of a split has a relevant item"):
        figures = RetrievalEvaluation()(torch.randn(6), {"query": QUERIES, "y": torch.zeros(6)})
    assert figures.keys() == {"ndcg_5", "ndcg_10", "map", "mrr_10"}
    assert all(math.isnan(value) for value in figures.values())


def test_what_is_refused():
    with pytest.raises(ConfigError, match="k must name at least one"):
        RetrievalEvaluation([])

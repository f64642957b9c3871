"""Binary evaluation: figures that a split leaves undefined, and which pictures are drawn."""

import math

import pytest
import torch

from fcco_lightning import BinaryEvaluation
from tests import drawing
from tests.evaluation.reference import split

drawn = drawing.drawn


def test_a_split_of_one_class_has_no_auc():
    evaluation, one_class = BinaryEvaluation(), (torch.tensor([1.0, 3.0]), {"y": torch.ones(2).long()})
    with pytest.warns(UserWarning, match="all 2 samples of a split are of one class"):
        evaluation(*one_class)
    got = evaluation(*one_class)  # it is said once
    assert math.isnan(got.pop("auc"))
    assert math.isnan(got.pop("average_precision"))
    assert got == {"score_min": 1.0, "score_max": 3.0}


def test_whoever_trains_by_auc_or_cross_entropy_sees_average_precision_too():
    scores, y = torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([0, 1, 0, 1])
    assert BinaryEvaluation()(scores, {"y": y})["average_precision"] == pytest.approx((1 / 2 + 2 / 4) / 2)
    batch = {"y": y, "weight": torch.tensor([0.0, 1.0, 1.0, 3.0])}
    assert BinaryEvaluation()(scores, batch)["average_precision"] == pytest.approx((1 * 1 + 3 * 4 / 5) / 4)


def test_a_gap_is_one_of_two_groups_with_both_classes():
    outputs, batch = split(2)
    assert 0 < BinaryEvaluation()(outputs, batch)["roc_gap"] < 1
    assert "roc_gap" not in BinaryEvaluation()(*split(3))
    batch["y"][batch["group"] == 1] = 0
    assert math.isnan(BinaryEvaluation()(outputs, batch)["roc_gap"])


def test_a_group_of_which_no_sample_counts_is_none(tmp_path):
    outputs, batch = split(2)
    batch["weight"] = (batch["group"] == 0).double()
    assert "roc_gap" not in BinaryEvaluation()(outputs, batch)
    assert [path.name for path in BinaryEvaluation().draw([], {"test": (outputs, batch)}, tmp_path)] == []


def test_a_column_of_scores_is_one_score():
    outputs, batch = split(2)
    assert BinaryEvaluation()(outputs.unsqueeze(1), batch) == BinaryEvaluation()(outputs, batch)


def test_the_roc_curves_of_two_groups_are_drawn(tmp_path):
    outputs, batch = split(5)
    assert BinaryEvaluation().draw([], {"test": (outputs, batch)}, tmp_path) == []
    outputs, batch = split(2)
    batch["y"][batch["group"] == 1] = 0  # a group that lacks a class
    assert BinaryEvaluation().draw([], {"test": (outputs, batch)}, tmp_path) == []
    assert BinaryEvaluation().draw([], {"test": split(2)}, tmp_path) == [tmp_path / "roc_by_group.png"]


def test_the_picture_has_the_gap_of_the_figures(drawn, tmp_path):
    evaluation, (outputs, batch) = BinaryEvaluation(num_thresholds=3), split(2)
    evaluation.draw([], {"test": (outputs, batch)}, tmp_path)
    *_, shown = drawn[0].axes[0].get_legend().get_texts()
    assert shown.get_text() == f"hard gap {evaluation(outputs, batch)['roc_gap']:.3f}, at one threshold"

"""AUCs of groups against a loop over pairs, and labels that are not classes."""

import pytest
import torch

from fcco_lightning import SOX, ConfigError, CrossEntropy, DataError, EqualizedOdds, SoftRate
from fcco_lightning.constraints import (
    Comparison,
    LossOfPairs,
    OverSides,
    PrecisionOf,
    RatesAbove,
    RawScores,
    SidesOfGroups,
    measured,
)
from fcco_lightning.constraints.subsets import SidesOfSubsets, Subset
from fcco_lightning.data import UniformBatches
from fcco_lightning.data.batches import Drawn
from fcco_lightning.objectives import LogisticPair, SigmoidPair


@pytest.mark.parametrize("at_once", [2**20, 60, 1])
def test_sums_over_pairs_do_not_depend_on_the_blocks(monkeypatch, at_once):
    monkeypatch.setattr(measured, "_AT_ONCE", at_once)
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(20, generator=draw, dtype=torch.float64)
    shares = torch.rand(3, 20, generator=draw, dtype=torch.float64)
    positive = torch.rand(20, generator=draw) < 0.4
    v, w, loss = shares * positive, shares * ~positive, LogisticPair()
    expected = [
        sum(v[k, i] * w[k, j] * loss(scores[i] - scores[j]) for i in range(20) for j in range(20)) for k in range(3)
    ]
    torch.testing.assert_close(measured.pair_losses(loss, scores, v, w), torch.stack(expected), rtol=1e-12, atol=0)


@pytest.mark.parametrize("label", [2.5, 2])
def test_rates_of_classes_need_two_of_them(label):
    """Said of all samples when the problem is posed, not that none of them belongs to a class."""
    columns = {"y": torch.full((8,), label), "group": torch.arange(8) % 2, "index": torch.arange(8)}
    sampling = {"target": Drawn(columns, UniformBatches(8, 4, 0))}
    with pytest.raises(DataError, match=rf"EqualizedOdds needs labels `y` of 0 and 1, got {label} at position 0"):
        SOX().pose(CrossEntropy(), [EqualizedOdds()], num_samples=8, sampling=sampling)


RATE, LEVELS = SoftRate(), RatesAbove([0.0, 1.0], 1.0, RawScores())
DIFFERENCE = Comparison((1, -1), sides=2)


@pytest.mark.parametrize(
    ("quantity", "kinds", "classes", "comparison", "said"),
    [
        (RATE, ["tpr"], [1], Comparison(), r"of 1 numbers, and SoftRate of 2 side.* gives 2, at 1 level\(s\)"),
        (PrecisionOf(SoftRate()), ["precision"], [], DIFFERENCE, "of 2 numbers, and PrecisionOf .* gives 4"),
        (RATE, ["tpr"], [1, 0], DIFFERENCE, "2 rows, of 2 class.* and 1 names. Give the sides one of `kinds`"),
        (LEVELS, ["tpr"], [1], DIFFERENCE, "gives 4, .* name each of several levels of the quantity in `levels`"),
        (LossOfPairs(SigmoidPair()), ["auc"], [1], DIFFERENCE, r"LossOfPairs needs sides with classes=\[1, 0\], got"),
    ],
)
def test_parts_of_a_constraint_that_do_not_go_together_are_refused(quantity, kinds, classes, comparison, said):
    over = SidesOfGroups("group", "pairs", None, kinds, classes)
    with pytest.raises(ConfigError, match=said):
        OverSides(quantity, over, comparison, 0.1)
    ratios = Comparison((1, -1), sides=2, ratios=True)
    assert OverSides(PrecisionOf(SoftRate()), SidesOfGroups("group", "pairs", None, ["p"]), ratios, 0.1)
    with pytest.raises(ConfigError, match=r"weights must be \(1, -1\) with ratios=True, got \(-1, 0.8\)"):
        Comparison((-1, 0.8), ratios=True)


def test_two_sides_cannot_both_be_larger_than_the_other():
    def ratio(times, compared):
        over = SidesOfGroups("group", "pairs", None, ["rate"], labelled=False, compared=compared)
        return OverSides(RATE, over, Comparison((-1, times)), 0.0)

    with pytest.raises(ConfigError, match=r"weights=\(-1, 1.25\) of the comparison, both ways, .* Use \(-1, 0.8\)"):
        ratio(1.25, "both ways")
    assert len(ratio(0.8, "both ways").names) == 2
    assert len(ratio(1.25, "pairs").names) == 1


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.float32])
def test_groups_may_be_numbers_of_any_type(dtype):
    columns = {"y": torch.tensor([1, 1, 0, 0]), "group": torch.tensor([0, 1, 0, 1])}
    odds, scores = EqualizedOdds(), torch.tensor([1.0, -1.0, 0.5, 0.2])
    narrow = {name: column.to(dtype) for name, column in columns.items()}
    odds.check(scores, narrow)
    assert torch.equal(odds.measure(scores, narrow)[1].values, odds.measure(scores, columns)[1].values)


@pytest.mark.parametrize("weights", [(), (0.0, 0.0), (torch.nan,), (torch.inf, 1.0)])
def test_weights_that_compare_nothing_are_refused(weights):
    with pytest.raises(ConfigError, match="finite numbers that are not all 0"):
        Comparison(weights)


@pytest.mark.parametrize(
    ("weights", "kappa", "reachable"), [((-1.0,), -0.5, True), ((-1.0,), -1.5, False), ((2.0,), -0.5, False)]
)
def test_a_rate_may_be_bounded_from_below(weights, kappa, reachable):
    """``-u <= kappa`` is ``u >= -kappa``; a rate is in [0, 1]."""
    over = SidesOfSubsets([Subset({"group": 1})], ["rate"])
    if reachable:
        assert OverSides(RATE, over, Comparison(weights), kappa).allowed == (-kappa, float("inf"))
    else:
        with pytest.raises(ConfigError, match="no model can reach"):
            OverSides(RATE, over, Comparison(weights), kappa)

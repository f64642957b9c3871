"""Objectives of bags beyond their contract: refused input, and limits of pooling."""

import warnings

import pytest
import torch

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    SONEX,
    SOX,
    AttentionPooling,
    BagEvaluation,
    MeanPooling,
    MultiInstanceAUC,
    PooledPairs,
    SmoothMaxPooling,
)
from fcco_lightning.data import Drawn, UniformBatches
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.outer import slopes
from tests.plans import BagBatches

BAG = torch.tensor([5, 5, 2, 2, 2, 9, 9, 4])
COLUMNS = {"bag": BAG, "y": (BAG > 4).long(), "index": torch.arange(8)}


def pose(algorithm, columns=COLUMNS):
    plan = BagBatches(BAG, COLUMNS["y"], 1, 2, 2)
    return algorithm.pose(MultiInstanceAUC(), num_samples=8, sampling={"target": Drawn(columns, plan)})


def test_bags_of_unequal_chances_are_warned_of_and_others_are_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pose(SOX())  # bags are drawn, whatever their sizes
    with pytest.warns(UserWarning, match=r"bags with y = 0 are there with probabilities from .* BagSampling") as seen:
        SOX().pose(MultiInstanceAUC(), num_samples=8, sampling={"target": Drawn(COLUMNS, UniformBatches(8, 4))})
    assert len(seen) == 1  # the bags of one class have sizes 2 and 2, those of the other 3 and 1
    alike = COLUMNS | {"bag": torch.arange(8) // 2, "y": torch.arange(8) // 4}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SOX().pose(MultiInstanceAUC(), num_samples=8, sampling={"target": Drawn(alike, UniformBatches(8, 4))})


@pytest.mark.parametrize("algorithm", [ALEXR(), ALEXR2()])
def test_dual_steps_are_refused_with_the_reason(algorithm):
    with pytest.raises(ConfigError, match=r"PooledPairs\(.*, which compares bags with one another, is not convex"):
        pose(algorithm)


def test_sonex_leaves_it_alone_and_alexr2_takes_it_without_a_dual_step():
    algorithm = SONEX()
    outer = pose(algorithm).objective.outer
    assert algorithm.smoothing(outer) is outer
    assert len(pose(ALEXR2(objective_gamma=0.5)).states) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": torch.tensor([1, 0, 0, 0, 0, 1, 1, 0])}, r"1 bags hold both labels \(first: bag 5\)"),
        ({"y": torch.zeros(8)}, "the training split has 0 samples with y = 1"),
        ({"y": torch.full((8,), 2)}, "needs the labels 0 and 1"),
        ({"bag": BAG + 0.5}, r"`bag` of a batch must hold whole numbers, got 5.5 at position 0"),
    ],
)
def test_bags_that_cannot_be_learnt_from(change, message):
    with pytest.raises(DataError, match=message):
        pose(SOX(), COLUMNS | change)


@pytest.mark.filterwarnings("ignore:few batches contain samples of")
def test_batches_that_never_hold_both_classes_are_refused():
    with pytest.raises(DataError, match="no batch holds a bag of y = 1 beside one of the other class"):
        SOX().pose(MultiInstanceAUC(), num_samples=8, sampling={"target": Drawn(COLUMNS, UniformBatches(8, 1))})


def test_a_strange_bag_and_an_unknown_split_are_named():
    objective, outputs = MultiInstanceAUC(), torch.zeros(8)
    with pytest.raises(ConfigError, match="does not know the training split"):
        objective.measure(outputs, COLUMNS)
    with pytest.raises(ConfigError, match="must know the labels"):
        objective.row_domain(8, None)
    objective.row_domain(8, COLUMNS)
    strange = COLUMNS | {"bag": torch.where(BAG == 4, 6, BAG)}
    with pytest.raises(DataError, match="bag 6 of a batch is not among the 4 bags"):
        objective.check(outputs, strange)
    assert objective.measure(outputs, strange)[1].values.isnan().any()  # so that the engine asks


def test_the_pairs_belong_to_their_rows():
    objective = MultiInstanceAUC()
    objective.row_domain(8, COLUMNS)
    u = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).unsqueeze(1)
    batch = {name: column[[2, 5, 0]] for name, column in COLUMNS.items()}
    rows = objective.measure(torch.zeros(3), batch)[1]
    index = rows.index
    assert index.tolist() == [0, 3, 2]
    some = u[index]
    every = objective.outer
    alone = PooledPairs(objective.pooling, objective.loss, every.positive[index], every.share[index])
    torch.testing.assert_close(rows.outer(some), alone(some), rtol=1e-14, atol=0)
    torch.testing.assert_close(slopes(rows.outer, some), slopes(alone, some), rtol=1e-14, atol=0)
    with pytest.raises(ConfigError, match="made for 4 bags, not for 3"):
        objective.outer(some)


def test_pooled_scores_are_between_mean_and_maximum():
    scores, figures = torch.randn(8, generator=torch.Generator().manual_seed(0)), BagEvaluation(MeanPooling())
    pooled = {tau: BagEvaluation(SmoothMaxPooling(tau))._bags(scores, COLUMNS)[0] for tau in (1e-2, 1.0, 1e4)}
    mean = figures._bags(scores, COLUMNS)[0]
    highest = torch.tensor([scores[bag == BAG].max() for bag in (2, 4, 5, 9)], dtype=torch.float64)
    torch.testing.assert_close(pooled[1e-2], highest, rtol=0, atol=0.02)
    torch.testing.assert_close(pooled[1e4], mean, rtol=0, atol=1e-3)
    assert (mean <= pooled[1.0] + 1e-12).all()
    assert (pooled[1.0] <= highest + 1e-12).all()
    even = torch.stack([scores, torch.full((8,), 7.0)], dim=1)  # the same weight for all instances
    torch.testing.assert_close(BagEvaluation(AttentionPooling())._bags(even, COLUMNS)[0], mean)

"""The weight of a sample among those it is compared with: estimates of means over n samples by all batches."""

import numpy as np
import pytest
import torch

from fcco_lightning.data import BalancedBatches
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.objectives.self_weights import (
    SELF_WEIGHTS,
    common_weights,
    comparison_weights,
    self_and_others,
)
from tests.reference.probabilities import Balanced, Uniform

N = 8
VALUES = torch.randn(N, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = np.array([1, 0, 0, 1, 0, 1, 0, 0])


def mean_estimate(sampler, kind, weight=None, strata=None):
    """Mean over the batches that hold anchor i of the estimate of its mean over all samples, for every i."""
    sums, chances = torch.zeros(N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    for batch, chance in sampler.batches():
        index = torch.tensor(batch)
        drawn = None if weight is None else weight[index]
        every = torch.arange(len(index))
        stratum = None if strata is None else strata[index]
        table = comparison_weights(kind, every, len(index), N, drawn, torch.float64, stratum=stratum)
        sums[index] += chance * (table * VALUES[index][:, index]).sum(1)
        chances[index] += chance
    return sums / chances


OTHERS = (VALUES.sum(1) - VALUES.diagonal()) / (N - 1)


def class_weights(positives, negatives):
    size = positives + negatives
    return torch.from_numpy(np.where(LABELS == 1, 3 * size / (N * positives), 5 * size / (N * negatives)))


@pytest.mark.parametrize("size", [2, 3, 7, 8])
def test_means_that_contain_the_anchor_are_unbiased_under_uniform_batches(size):
    torch.testing.assert_close(mean_estimate(Uniform(N, size), "dataset"), VALUES.mean(1))
    torch.testing.assert_close(mean_estimate(Uniform(N, size), "none"), OTHERS)


@pytest.mark.parametrize(("positives", "negatives"), [(2, 2), (3, 2), (2, 4)])
def test_and_under_batches_by_class_that_come_with_weights(positives, negatives):
    sampler, weight = Balanced(LABELS, positives, negatives), class_weights(positives, negatives)
    torch.testing.assert_close(mean_estimate(sampler, "dataset", weight), VALUES.mean(1))
    torch.testing.assert_close(mean_estimate(sampler, "none", weight), OTHERS)
    assert (mean_estimate(sampler, "dataset") - VALUES.mean(1)).abs().max() > 0.01  # without the weights


def test_and_under_batches_with_the_classes_shares_of_the_data():
    """All weights are 1, but pairs of one class are rarer than in uniform batches."""
    labels = np.array([1, 0, 0, 1, 0, 1, 0, 1])
    sampler = Balanced(labels, 2, 2)
    plan = BalancedBatches(torch.from_numpy(labels), 4)
    assert sorted(plan.columns()) == ["stratum", "stratum_size"]
    strata = plan.columns()["stratum"]
    for kind, expected in (("dataset", VALUES.mean(1)), ("none", OTHERS)):
        torch.testing.assert_close(mean_estimate(sampler, kind, strata=strata), expected)
        assert (mean_estimate(sampler, kind) - expected).abs().max() > 0.01  # without them


def test_the_weight_of_mini_batch_losses_is_biased_towards_the_anchor():
    """By (1/B - 1/n) (q_ii - the mean over the others)."""
    bias = (1 / 3 - 1 / N) * (VALUES.diagonal() - OTHERS)
    torch.testing.assert_close(mean_estimate(Uniform(N, 3), "batch") - VALUES.mean(1), bias)


@pytest.mark.parametrize("kind", SELF_WEIGHTS)
@pytest.mark.parametrize("anchors", [[0, 1, 2, 3], [2, 0]])
def test_both_forms_are_the_same_and_equal_weights_change_nothing(kind, anchors):
    own, others = self_and_others(kind, 4, N)
    assert own + 3 * others == pytest.approx(1)
    anchors = torch.tensor(anchors)
    table = comparison_weights(kind, anchors, 4, N, dtype=torch.float64)
    square = torch.full((4, 4), others, dtype=torch.float64).fill_diagonal_(own)
    torch.testing.assert_close(table, square[anchors])
    torch.testing.assert_close(comparison_weights(kind, anchors, 4, N, torch.ones(4), torch.float64), table)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("stratified", [False, True])
def test_anchors_of_one_class_have_weights_in_common(weighted, stratified):
    """Three positives and four negatives, once the former are all anchors and once one of them is not."""
    chosen = torch.tensor([1, 0, 3, 5, 2, 4, 6])
    mask = torch.tensor(LABELS[chosen] == 1)
    drawn = {
        "weight": class_weights(3, 4)[chosen] if weighted else None,
        "stratum": mask.long() if stratified else None,
    }
    anchors = mask.nonzero().squeeze(1)
    others, excess = common_weights(mask, anchors, N, dtype=torch.float64, **drawn)
    table = comparison_weights("dataset", anchors, 7, N, dtype=torch.float64, **drawn)
    expected = others.repeat(3, 1)
    expected[torch.arange(3), anchors] += excess
    torch.testing.assert_close(expected, table)
    mask[anchors[0]] = False
    fewer = common_weights(mask, anchors[1:], N, dtype=torch.float64, **drawn)
    assert (fewer is None) == (weighted or stratified)


def test_an_anchor_alone_of_its_class_leaves_the_rest_of_it_out():
    """Two strata, in a batch one positive of three and three negatives of five."""
    weight = class_weights(1, 3)[[0, 1, 2, 4]]
    table = comparison_weights("dataset", torch.tensor([0]), 4, N, weight, torch.float64)
    torch.testing.assert_close(table, torch.tensor([[1 / 8, 5 / 24, 5 / 24, 5 / 24]], dtype=torch.float64))


def test_what_is_refused():
    assert self_and_others("batch", 2, None) == (0.5, 0.5)
    assert self_and_others("none", 3, None) == (0, 0.5)
    with pytest.raises(ConfigError, match="needs the number of samples n"):
        self_and_others("dataset", 3, None)
    with pytest.raises(ConfigError, match="needs the number of samples n"):
        comparison_weights("none", torch.tensor([0]), 3, None, torch.ones(3))
    with pytest.raises(ConfigError, match="num_samples must be a whole number >= 2, got 1"):
        self_and_others("dataset", 3, 1)
    with pytest.raises(DataError, match="the batch holds 1"):
        self_and_others("none", 1, 5)
    with pytest.raises(ConfigError, match="kind must be one of 'dataset', 'batch', 'none', got 'all'"):
        self_and_others("all", 5, N)

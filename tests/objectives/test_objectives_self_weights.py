"""The weight of a sample in its own comparison set: estimates of means over n samples, by all batches."""

import numpy as np
import pytest
import torch

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.objectives.self_weights import (
    SELF_WEIGHTS,
    Comparisons,
    comparison_weights,
    self_and_others,
)
from tests.contracts.registry_plans import PLANS
from tests.plans import BalancedBatches, GroupBatches
from tests.reference.probabilities import Balanced, Uniform

N = 8
VALUES = torch.randn(N, N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = np.array([1, 0, 0, 1, 0, 1, 0, 0])


def batch_of(index, **columns):
    """A batch with the columns that are not None."""
    return {"index": torch.as_tensor(index), **{k: c for k, c in columns.items() if c is not None}}


def strata_of(stratum, sizes):
    return {"stratum": stratum, "stratum_size": sizes[stratum]}


def mean_estimate(sampler, kind, weight=None, strata=None):
    """Mean over the batches that hold anchor i of the estimate of its mean over all samples, for every i."""
    sums, chances = torch.zeros(N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    for batch, chance in sampler.batches():
        index = torch.tensor(batch)
        drawn = batch_of(index, weight=None if weight is None else weight[index])
        if strata is not None:
            drawn |= strata_of(strata[index], torch.bincount(strata))
        table = comparison_weights(kind, drawn, N, torch.float64)
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
    table = comparison_weights(kind, batch_of(range(4)), N, torch.float64, anchors=anchors)
    square = torch.full((4, 4), others, dtype=torch.float64).fill_diagonal_(own)
    torch.testing.assert_close(table, square[anchors])
    weighted = batch_of(range(4), weight=torch.ones(4))
    torch.testing.assert_close(comparison_weights(kind, weighted, N, torch.float64, anchors=anchors), table)
    some = slice(1, 3)
    part = comparison_weights(kind, weighted, N, torch.float64, anchors=anchors, others=some)
    torch.testing.assert_close(part, table[:, some])


@pytest.mark.parametrize("owners", [[1, 0, 1, 0], [1, 1, 1, 1]])
def test_a_lonely_sample_matters_only_where_it_owns_a_row(owners):
    """Two positives and a negative beside another with a copy: the weights of the positives are known either way."""
    weight = torch.tensor([0.7, 1.3, 0.7, 2.0], dtype=torch.float64)
    batch, owners = batch_of([0, 3, 1, 6], weight=weight), torch.tensor(owners).bool()
    table = comparison_weights("dataset", batch, N, torch.float64, owners=owners)
    assert table[[0, 2]].isfinite().all()
    lonely = torch.tensor([False, True, False, True]) & owners
    assert torch.equal(table.isnan().any(1), lonely)
    if lonely.any():
        with pytest.raises(DataError, match="a batch holds one sample of stratum"):
            Comparisons(batch, N, owners=owners).check()
    else:
        Comparisons(batch, N, owners=owners).check()


REFUSED = {  # batches that say nothing of some samples, or not what: one sample, one of a class, one group, some bags
    "uniform, short last batch": "the batch holds 1",
    "owner": "one sample of stratum 0",
    "queries": "strata .* of .* of 9 samples, and the sampling does not determine",
    "queries, enough items": "strata .* of .* of 9 samples, and the sampling does not determine",
    "groups, one sample with replacement": "one sample of stratum",
    "bags, enough instances": "one sample of stratum",
    "bags": "strata .* of .* of 8 samples, and the sampling does not determine",
    "labels": "one sample of stratum",
    "labels, all of them": "one sample of stratum",
    "rows of a table": "one sample of stratum",
}


@pytest.mark.parametrize("name", [name for name, case in PLANS.items() if case.unbiased])
@pytest.mark.parametrize("kind", ["dataset", "none"])
def test_means_are_unbiased_however_batches_are_drawn_or_refused(name, kind):
    """Of every plan over all batches that it can draw and that hold a sample, each counted once: whom it meets."""
    case = PLANS[name]
    columns = {key: c.double() if key == "weight" else c for key, c in case.tiny.columns().items()}
    rows = sorted({row for _, batch in case.outcomes for row in batch})
    n, place = len(rows), {row: i for i, row in enumerate(rows)}
    sums, visits = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)

    def add_all():
        for chance, rows_of_batch in case.outcomes:
            index = torch.tensor(rows_of_batch)
            batch = batch_of(index, **{key: c[index] for key, c in columns.items()})
            table = comparison_weights(kind, batch, n, torch.float64)
            if table.isnan().any():
                Comparisons(batch, n).check()  # says why
                pytest.fail("NaN without a reason")
            at = torch.tensor([place[row] for row in rows_of_batch])
            once = (chance / torch.bincount(at, minlength=n)[at]).double()
            sums.index_add_(0, at, once * (table * SQUARE[at][:, at]).sum(1))
            visits.index_add_(0, at, once)

    if name in REFUSED:
        with pytest.raises(DataError, match=REFUSED[name]):
            add_all()
        return
    add_all()
    inside = SQUARE[:n, :n]
    expected = inside.mean(1) if kind == "dataset" else (inside.sum(1) - inside.diagonal()) / (n - 1)
    torch.testing.assert_close(sums / visits, expected, rtol=1e-6, atol=1e-6)  # weights have seven digits


SQUARE = torch.randn(9, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_an_anchor_that_meets_nobody_of_its_class_or_of_another_is_refused():
    y = torch.tensor([0, 0, 0, 1, 1])
    weight = class_weights(1, 3)[[0, 1, 2, 4]]
    alone = batch_of(range(4), weight=weight)
    with pytest.raises(DataError, match=r"one sample of stratum .* which has 3, .* they draw two or more of each"):
        Comparisons(alone, N).check()
    assert comparison_weights("dataset", alone, N).isnan().any()
    one_group = batch_of(
        [0, 2], **{name: c[[0, 2]] for name, c in GroupBatches(y, 1, 2, prevalence="data").columns().items()}
    )
    with pytest.raises(DataError, match=r"a batch holds one of 2 strata .* groups_per_batch to 2 or more"):
        Comparisons(one_group, 5).check()
    assert comparison_weights("none", one_group, 5).isnan().all()
    other = batch_of([0, 2], stratum=torch.tensor([4, 4]), stratum_size=torch.tensor([3, 3]))
    with pytest.raises(
        DataError, match=r"strata .* of 3 of 5 samples, and the sampling does not determine .* Use UniformSampling"
    ):
        Comparisons(other, 5).check()
    assert comparison_weights("none", other, 5).isnan().all()


def test_what_is_refused():
    assert self_and_others("batch", 2, None) == (0.5, 0.5)
    assert self_and_others("none", 3, None) == (0, 0.5)
    with pytest.raises(ConfigError, match="needs the number of samples n"):
        self_and_others("dataset", 3, None)
    with pytest.raises(ConfigError, match="needs the number of samples n"):
        comparison_weights("none", batch_of(range(3), weight=torch.ones(3)), None)
    with pytest.raises(ConfigError, match="num_samples must be a whole number >= 2, got 1"):
        self_and_others("dataset", 3, 1)
    with pytest.raises(DataError, match="the batch holds 1"):
        self_and_others("none", 1, 5)

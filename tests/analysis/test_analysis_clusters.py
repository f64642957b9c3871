"""Confidence intervals of clustered samples: their coverage, and special cases with a known answer."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import t as student

from fcco_lightning import (
    DataError,
    GroupAUCAtLeast,
    LogisticLoss,
    MeanAtMost,
    MeanDifferenceAtMost,
    SoftRate,
)
from fcco_lightning.analysis import intervals
from tests.analysis.problems import HardRate, Score

RATE = MeanAtMost(SoftRate(), 0.5, {"group": 0})


def split(rng, clusters=12, size=8):
    """Scores whose correlation within clusters is .5; half of every cluster is in group 1."""
    numbers = np.repeat(np.arange(clusters), size)
    scores = rng.standard_normal(clusters)[numbers] + rng.standard_normal(clusters * size)
    group = np.tile([0, 1], clusters * size // 2)
    return torch.from_numpy(scores), {"group": torch.from_numpy(group)}, torch.from_numpy(numbers)


@pytest.mark.slow
def test_coverage_of_a_rare_rate():
    """What the docstring says: hits of 3% with a correlation of .6 in 40 clusters of 8."""
    rng, held = np.random.default_rng(1), {True: [], False: []}
    numbers = torch.arange(40).repeat_interleave(8)
    columns = {"y": torch.zeros(320)}
    for _ in range(250):
        odds = np.repeat(rng.beta(0.03 * 4 / 6, 0.97 * 4 / 6, 40), 8)
        scores = torch.from_numpy((rng.random(320) < odds) - 0.5)
        for known, inside in held.items():
            clusters = numbers if known else None
            (found,) = intervals([MeanAtMost(HardRate(), 0.0)], scores, columns, clusters=clusters).values()
            inside.append(found.low <= 0.03 <= found.high)
    assert np.mean(held[True]) == pytest.approx(0.91, abs=0.04)
    assert np.mean(held[False]) == pytest.approx(0.62, abs=0.07)


def test_the_error_of_a_mean_is_that_of_the_means_of_equal_clusters():
    scores, columns, clusters = split(np.random.default_rng(0))
    means = scores.reshape(12, 8).mean(1).numpy()
    half = student.ppf(0.975, 11) * means.std(ddof=1) / math.sqrt(12)
    (found,) = intervals([MeanAtMost(Score(), 0.1)], scores, columns, clusters=7 * clusters - 30).values()
    assert found[:3] == pytest.approx((means.mean() - 0.1, means.mean() - 0.1 - half, means.mean() - 0.1 + half))


@pytest.mark.parametrize(
    "constraint",
    [
        MeanAtMost(LogisticLoss(), 0.4, {"y": 0}),
        MeanAtMost(HardRate(), 0.3),
        MeanAtMost(SoftRate(), 0.3),
        MeanDifferenceAtMost(HardRate(), 0.1, {"y": 1}, {"y": 0}),
        MeanDifferenceAtMost(LogisticLoss(), 0.1, {"y": 1}, {"y": 0}),
        GroupAUCAtLeast(0.6),
    ],
)
def test_where_every_sample_is_its_own_cluster(constraint):
    """The figures are those of independent samples, up to n / (n - 1) and the quantile of t: 1% to 4%."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(200, generator=generator, dtype=torch.float64)
    columns = {"y": torch.arange(200) % 2, "group": torch.arange(200) // 2 % 2}
    constraint.names = constraint.names or ["0", "1"]
    same = intervals([constraint], scores, columns)
    for name, found in intervals([constraint], scores, columns, clusters=torch.randperm(200)).items():
        wide = same[name]
        assert (found.h, found.method) == (wide.h, wide.method)
        half = wide.high - wide.h
        assert wide.high <= found.high <= wide.high + 0.04 * half
        assert wide.low - 0.04 * half <= found.low <= wide.low
        assert found.noise == pytest.approx(wide.noise, rel=0.04, nan_ok=True)


def test_copies_of_samples_say_nothing_new():
    """Eight copies of each of 40 samples, as clusters, have about the interval of the forty."""
    scores = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    clusters, copies = torch.arange(40).repeat_interleave(8), scores.repeat_interleave(8)
    few, many = {"y": torch.zeros(40)}, {"y": torch.zeros(320)}
    for quantity in (HardRate(), SoftRate(), Score()):
        (one,) = intervals([MeanAtMost(quantity, 0.3)], scores, few).values()
        (found,) = intervals([MeanAtMost(quantity, 0.3)], copies, many, clusters=clusters).values()
        assert found[:3] == pytest.approx(one[:3], abs=0.02)
    (none,) = intervals([MeanAtMost(HardRate(), 0.0)], -copies.abs(), many, clusters=clusters).values()
    assert none.high == pytest.approx(1 - 0.025 ** (1 / 40), rel=0.1)  # no hits: of 40, not of 320


def test_the_noise_floor_is_what_a_permutation_of_whole_clusters_shows():
    rng = np.random.default_rng(3)
    scores, columns, clusters = split(rng, clusters=60)
    columns = {"group": clusters % 2}
    limit = MeanDifferenceAtMost(HardRate(), 0.0, {"group": 1}, {"group": 0})
    (found,) = intervals([limit], scores, columns, clusters=clusters).values()
    means, shown = (scores > 0).double().reshape(60, 8).mean(1).numpy(), []
    for _ in range(2000):
        order = rng.permutation(60)
        shown.append(abs(means[order[:30]].mean() - means[order[30:]].mean()))
    assert found.noise == pytest.approx(np.quantile(shown, 0.95), rel=0.15)
    assert found.noise > 1.5 * intervals([limit], scores, columns)[limit.names[0]].noise


def test_rows_of_a_single_cluster_have_no_interval():
    scores, columns = torch.randn(20), {"group": torch.arange(20) // 10}
    limits = [MeanAtMost(SoftRate(), 0.3, {"group": g}) for g in (0, 1)]
    clusters = torch.where(columns["group"] == 1, 5, torch.arange(20))
    assert list(intervals(limits, scores, columns, clusters=clusters)) == [limits[0].names[0]]
    assert intervals(limits, scores, columns, clusters=torch.zeros(20)) == {}


@pytest.mark.parametrize("small", [0.1, 0.01, 1e-9])
def test_clusters_of_unequal_weight_say_no_more_than_independent_samples(small):
    """Of two samples in group 0 one has nearly all of the weight, so that they count as about one."""
    scores = torch.tensor([1.0, -1.0, 0.5, -0.3, 2.0, -2.0])
    columns = {"group": torch.tensor([0, 0, 1, 1, 1, 1]), "weight": torch.tensor([1.0, small, 1.0, 1.0, 1.0, 1.0])}
    (alone,) = intervals([RATE], scores, columns).values()
    (of_clusters,) = intervals([RATE], scores, columns, clusters=torch.arange(6)).values()
    assert of_clusters.low <= alone.low < of_clusters.h < alone.high <= of_clusters.high


def test_clusters_of_another_shape_are_refused():
    with pytest.raises(
        DataError, match=r"clusters must contain one number for each sample, shape \(20,\), got \(19,\)"
    ):
        intervals([], torch.zeros(20), {}, clusters=torch.zeros(19))

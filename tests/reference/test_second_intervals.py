"""Intervals of the package against a second implementation, and their coverage in hard cases."""

import numpy as np
import pytest
import torch

from fcco_lightning import MeanAtMost, MeanDifferenceAtMost, SoftRate
from fcco_lightning.analysis import intervals

from .second_intervals import clopper_pearson, newcombe, noise_floor
from .toy import sigmoid

T = 0.4


def scores(rng, n, high=0.1):
    """Few samples with a high score among low ones."""
    return np.where(rng.random(n) < high, rng.normal(2, 0.5, n), rng.normal(-2, 0.5, n))


def found(limit, values, group):
    (one,) = intervals([limit], torch.from_numpy(values), {"group": torch.from_numpy(group)}).values()
    return one


def gap(kappa=0.0):
    return MeanDifferenceAtMost(SoftRate(0.0, T), kappa, {"group": 1}, {"group": 0})


def cap(kappa=0.3):
    return MeanAtMost(SoftRate(0.0, T), kappa, {"group": 0})


@pytest.mark.parametrize("n", [9, 40, 400])
def test_intervals_and_the_noise_floor(n):
    rng = np.random.default_rng(n)
    values, group = scores(rng, n, 0.3), (np.arange(n) % 3 == 0).astype(np.int64)
    q = sigmoid(values / T)
    one, (low, high) = found(cap(), values, group), clopper_pearson(q[group == 0])
    assert one[:3] == pytest.approx((q[group == 0].mean() - 0.3, low - 0.3, high - 0.3))
    one, (low, high) = found(gap(), values, group), newcombe(q, group)
    assert one.noise == pytest.approx(noise_floor(q, group), rel=1e-3)
    assert one[1:3] == pytest.approx((max(low, -high, 0.0), max(-low, high)))


@pytest.mark.parametrize("n", [20, 60])
def test_samples_without_a_high_score_do_not_say_that_there_is_none(n):
    """2% of high scores, which two thirds of all splits of 20 lack; of 150 splits."""
    true = sigmoid(scores(np.random.default_rng(0), 200_000, 0.02) / T).mean()
    group, ends = np.zeros(n, dtype=np.int64), []
    for seed in range(150):
        one = found(cap(), scores(np.random.default_rng(seed + 1), n, 0.02), group)
        ends.append(one.low <= true - 0.3 <= one.high)
    assert np.mean(ends) >= 0.93


def test_a_small_group_stays_below_the_noise_floor():
    """8 samples against 70 of the same distribution, 250 splits."""
    group = (np.arange(78) < 8).astype(np.int64)
    ones = [found(gap(), scores(np.random.default_rng(seed), 78, 0.2), group) for seed in range(250)]
    assert 0.93 <= np.mean([one.h <= one.noise for one in ones]) <= 0.99

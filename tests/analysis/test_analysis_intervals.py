"""Confidence intervals of constraints: against scipy, a bootstrap, a permutation, and by their coverage."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from fcco_lightning import (
    ConfigError,
    DemographicParity,
    FourFifthsRule,
    LogisticLoss,
    MeanAtMost,
    MeanDifferenceAtMost,
    PredictiveParity,
    SoftRate,
)
from fcco_lightning.analysis import exact_binomial, intervals
from tests.analysis.problems import HardRate
from tests.contracts.registry_constraints import CASES
from tests.contracts.sampled import Bench


@pytest.mark.parametrize(("hits", "size"), [(0, 7), (3, 10), (10, 10), (450, 1000)])
def test_an_exact_interval_is_that_of_scipy(hits, size):
    expected = binomtest(hits, size).proportion_ci(0.95, method="exact")
    assert exact_binomial(hits / size, size, 0.025) == pytest.approx((expected.low, expected.high))


def split(size, seed, group_share=0.3):
    generator = torch.Generator().manual_seed(seed)
    group = (torch.rand(size, generator=generator) < group_share).long()
    y = (torch.rand(size, generator=generator) < 0.4).long()
    scores = torch.randn(size, generator=generator, dtype=torch.float64) * 1.5 + y - 0.5
    return scores, {"y": y, "group": group}


def test_a_hard_rate_has_the_exact_binomial_interval():
    scores, columns = split(200, 0)
    (found,) = intervals([MeanAtMost(HardRate(), 0.3, {"y": 0})], scores, columns).values()
    hits, size = int((scores[columns["y"] == 0] > 0).sum()), int((columns["y"] == 0).sum())
    expected = binomtest(hits, size).proportion_ci(0.95, method="exact")
    assert found[:3] == pytest.approx((hits / size - 0.3, expected.low - 0.3, expected.high - 0.3))
    assert found.method == "binomial"
    assert math.isnan(found.noise)


def test_the_interval_of_a_difference_is_that_of_newcombe():
    """Rates 2 of 40 and 30 of 50: uneven intervals, of which the ends that are used differ."""
    scores = torch.tensor([1.0] * 2 + [-1.0] * 38 + [1.0] * 30 + [-1.0] * 20, dtype=torch.float64)
    columns = {"group": torch.tensor([1] * 40 + [0] * 50)}
    small, large = (binomtest(k, n).proportion_ci(0.95, method="exact") for k, n in ((2, 40), (30, 50)))
    below = math.hypot(0.6 - large.low, small.high - 0.05)
    above = math.hypot(large.high - 0.6, 0.05 - small.low)
    for first, second in ((1, 0), (0, 1)):  # the difference is negative, or positive
        limit = MeanDifferenceAtMost(HardRate(), 0.1, {"group": first}, {"group": second})
        (found,) = intervals([limit], scores, columns).values()
        assert found[:3] == pytest.approx((0.45, 0.45 - below, 0.45 + above))
    columns["group"] = torch.arange(90) % 2  # no difference to speak of: no h is below -kappa
    (found,) = intervals([limit], scores, columns).values()
    assert found.low == pytest.approx(-0.1)
    assert found.h < found.high


CONSTRAINTS = {
    "hard rate": lambda: MeanAtMost(HardRate(), 0.4, {"group": 1}),
    "smoothed rate": lambda: MeanAtMost(SoftRate(), 0.4, {"group": 1}),
    "loss": lambda: MeanAtMost(LogisticLoss(), 0.4, {"y": 0}),
    "difference": lambda: MeanDifferenceAtMost(HardRate(), 0.0, {"group": 1}, {"group": 0}),
    "four fifths": lambda: FourFifthsRule(rate=HardRate()),
    "precision": lambda: PredictiveParity(0.0, SoftRate()),
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_coverage(name):
    """95% intervals of 150 splits of 80 samples hold the value on 100,000; three standard deviations are 5%."""
    scores, columns = split(100_000, 1)
    constraint = CONSTRAINTS[name]()
    true = constraint.violation(constraint.measure(scores, columns)[1].values)[0]
    held = []
    for seed in range(150):
        found = next(iter(intervals([constraint], *split(80, seed + 2)).values()))
        assert found.low <= found.h <= found.high
        held.append(found.low <= true <= found.high)
    assert np.mean(held) >= (0.88 if name == "precision" else 0.9)


@pytest.mark.parametrize("name", ["auc of every group", "equal aucs", "non-forgetting", "predictive parity"])
def test_normal_intervals_have_the_width_of_a_bootstrap(name):
    """Of the registry's nine samples, each taken forty times: a bootstrap that resamples within 360."""
    bench = Bench(CASES[name])
    outputs, columns = bench.case.outputs.repeat_interleave(40, 0).detach(), {
        k: v.repeat_interleave(40, 0) for k, v in bench.columns.items()
    }  # fmt: skip
    found = list(intervals([bench.part], outputs, columns).values())
    rng, values = np.random.default_rng(0), []
    for _ in range(150):
        index = torch.from_numpy(rng.integers(0, len(outputs), len(outputs)))
        rows = bench.part.measure(outputs[index], {k: v[index] for k, v in columns.items()})[1]
        assert bool(rows.weight.all())
        values.append(bench.part.number().value(rows.values))
    spread = torch.stack(values).std(0)
    for one, sd in zip(found, spread.tolist(), strict=True):
        assert one.method == "normal"
        half = one.high - one.h  # of |s| the upper end may come from the other side
        assert half >= 1.96 * sd * 0.8 - abs(one.h)
        if bench.part.sides == 1:
            assert half == pytest.approx(1.96 * sd, rel=0.2)
        else:
            assert one.noise == pytest.approx(1.96 * sd, rel=0.2)


def test_the_noise_floor_is_what_a_permutation_of_the_groups_shows():
    scores, columns = split(400, 5)
    (found,) = intervals([DemographicParity(rate=SoftRate())], scores, columns).values()
    rng, shown = np.random.default_rng(0), []
    q, group = torch.sigmoid(scores).numpy(), columns["group"].numpy()
    for _ in range(2000):
        other = rng.permutation(group)
        shown.append(abs(q[other == 1].mean() - q[other == 0].mean()))
    assert found.noise == pytest.approx(np.quantile(shown, 0.95), rel=0.15)


def test_a_subset_without_samples_has_no_interval_and_names_stay_apart():
    scores, columns = split(50, 0)
    columns["group"] = torch.zeros_like(columns["group"])
    limits = [MeanAtMost(SoftRate(), 0.1, {"group": 1}), MeanAtMost(SoftRate(), 0.1), MeanAtMost(SoftRate(), 0.2)]
    assert list(intervals(limits, scores, columns)) == ["soft rate", "soft rate'"]


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5])
def test_a_level_that_is_none(level):
    with pytest.raises(ConfigError, match="level must lie in"):
        intervals([], torch.zeros(1), {}, level)

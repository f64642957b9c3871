"""Confidence intervals of constraints: against scipy, a bootstrap, and by their coverage."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from fcco_lightning import (
    ConfigError,
    DemographicParity,
    EqualizedOdds,
    FourFifthsRule,
    LogisticLoss,
    MeanAtMost,
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


@pytest.mark.parametrize(
    ("constraint", "least"),
    [
        (MeanAtMost(LogisticLoss(), 0.4, {"y": 0}), 0.9),
        (FourFifthsRule(rate=HardRate()), 0.9),
        (PredictiveParity(0.0, SoftRate(temperature=1.0)), 0.88),
    ],
)
def test_coverage(constraint, least):
    """95% intervals of 150 splits of 80 samples hold the value on 100,000; three standard deviations are 5%."""
    scores, columns = split(100_000, 1)
    true = constraint.violation(constraint.measure(scores, columns)[1].values)[0]
    held = []
    for seed in range(150):
        found = next(iter(intervals([constraint], *split(80, seed + 2)).values()))
        assert found.low <= found.h <= found.high
        held.append(found.low <= true <= found.high)
    assert np.mean(held) >= least


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
        values.append(bench.part.number(rows.values))
    spread = torch.stack(values).std(0)
    for one, sd in zip(found, spread.tolist(), strict=True):
        assert one.method == "normal"
        half = one.high - one.h  # of |s| the upper end may come from the other side
        assert half >= 1.96 * sd * 0.8 - abs(one.h)
        if bench.part.sides == 1:
            assert half == pytest.approx(1.96 * sd, rel=0.2)
        else:
            assert one.noise == pytest.approx(1.96 * sd, rel=0.2)


@pytest.mark.parametrize("scores", [-1.0, 1.0])
def test_rates_of_samples_that_do_not_differ_have_noise(scores):
    """Of 8 and 12 samples without a hit a difference of rates is not known to be 0: as of one hit in 20 + 2."""
    columns = {"group": torch.tensor([0] * 8 + [1] * 12)}
    (found,) = intervals(
        [DemographicParity(0.0, HardRate())], torch.full((20,), scores, dtype=torch.float64), columns
    ).values()
    assert found.h == pytest.approx(0)
    assert found.noise == pytest.approx(1.95996 * math.sqrt(1 / 22 * 21 / 22 * (1 / 8 + 1 / 12)), rel=1e-5)
    assert 0 < found.noise < found.high


def test_a_subset_without_samples_has_no_interval_and_names_stay_apart():
    scores, columns = split(50, 0)
    columns["group"] = torch.zeros_like(columns["group"])
    limits = [
        MeanAtMost(SoftRate(temperature=1.0), 0.1, {"group": 1}),
        MeanAtMost(SoftRate(temperature=1.0), 0.1),
        MeanAtMost(SoftRate(temperature=1.0), 0.2),
    ]
    assert list(intervals(limits, scores, columns)) == ["soft rate", "soft rate'"]


def test_a_single_sample_says_nothing_of_the_spread_of_losses():
    scores, columns = split(50, 0)
    columns["group"] = (torch.arange(50) == 7).long()
    limits = [MeanAtMost(LogisticLoss(), 0.1, {"group": 1}), MeanAtMost(HardRate(), 0.1, {"group": 1})]
    (found,) = intervals(limits, scores, columns).values()
    assert found.method == "binomial"
    assert found.high - found.low == pytest.approx(0.975)


def test_samples_that_weigh_differently_do_so_in_intervals():
    """As a bootstrap of samples with their weights, by the delta method written out."""
    scores, columns = split(400, 0)
    columns["weight"] = 0.5 + 2 * columns["y"].double()
    (found,) = intervals([MeanAtMost(LogisticLoss(), 0.1)], scores, columns).values()
    s, w, sign = scores.double(), columns["weight"], 2 * columns["y"] - 1
    q = torch.log1p(torch.exp(-sign * s))
    mean = float((w * q).sum() / w.sum())
    error = float((w * (q - mean)).norm() / w.sum())
    assert found.h == pytest.approx(mean - 0.1, rel=1e-5)
    assert found.high - found.h == pytest.approx(1.959964 * error, rel=1e-5)


def test_a_weighted_rate_has_the_interval_of_the_effective_number_of_samples():
    """A rate of 0 is not certain because none of five samples was a hit, whatever these weigh."""
    w = torch.tensor([1.0, 1.0, 1.0, 2.0, 5.0], dtype=torch.float64)
    size = float(w.sum() ** 2 / w.square().sum())
    columns = {"y": torch.zeros(5).long(), "weight": w}
    (found,) = intervals([MeanAtMost(HardRate(), 0.1)], torch.full((5,), -1.0), columns).values()
    assert found.method == "binomial"
    assert found[:3] == pytest.approx((-0.1, -0.1, 1 - 0.025 ** (1 / size) - 0.1))
    again = intervals([MeanAtMost(HardRate(), 0.1)], torch.full((5,), -1.0), columns | {"weight": 3 * w})
    assert next(iter(again.values())) == pytest.approx(found, nan_ok=True)


@pytest.mark.parametrize(("rate", "size", "of_hits"), [(0.05, 30, 1), (0.3, 100, 4), (0.05, 200, 3)])
def test_coverage_of_weighted_rates(rate, size, of_hits):
    """As above, with weights of which the hits have more; normal intervals hold the first in 70 of 100 splits."""
    rng, held = np.random.default_rng(0), []
    true = rate * of_hits / (rate * of_hits + 1 - rate)
    for _ in range(150):
        hit = rng.random(size) < rate
        weight = np.exp(rng.normal(0, 0.7, size)) * np.where(hit, of_hits, 1)
        columns = {"y": torch.zeros(size).long(), "weight": torch.from_numpy(weight)}
        scores = torch.from_numpy(np.where(hit, 1.0, -1.0))
        (found,) = intervals([MeanAtMost(HardRate(), 0.0)], scores, columns).values()
        held.append(found.low <= true <= found.high)
    assert np.mean(held) >= 0.9


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5])
def test_a_level_that_is_none(level):
    with pytest.raises(ConfigError, match="level must lie in"):
        intervals([], torch.zeros(1), {}, level)


def test_intervals_of_decisions_are_those_of_the_rates_themselves():
    """Where constraints are enforced on decisions, soft rates say nothing: those of scores near 0 are all about 1/2."""
    scores, columns = split(400, 3)
    soft, hard = EqualizedOdds(0.02), EqualizedOdds(0.02, rate=HardRate())
    found = intervals([soft], 0.01 * scores, columns, decisions=True)
    assert found == intervals([hard], 0.01 * scores, columns)
    assert found != intervals([soft], 0.01 * scores, columns)
    loss = MeanAtMost(LogisticLoss(), 0.4)  # decides nothing
    assert intervals([loss], scores, columns, decisions=True) == intervals([loss], scores, columns)

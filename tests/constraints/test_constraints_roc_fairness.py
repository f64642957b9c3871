"""ROC fairness beyond the shared contract of constraints: names, scales of the scores, vacuity."""

import pytest
import torch

from fcco_lightning.constraints import QuantileScores, RawScores, ROCFairness, StandardScores
from fcco_lightning.data import BalancedSampling
from fcco_lightning.errors import ConfigError

THRESHOLDS = (-0.5, 0.0, 1.0)


def sample(size=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, generator=generator, dtype=torch.float64)
    y, group = torch.randint(2, (2, size), generator=generator)
    return scores, {"y": y, "group": group}


def test_rows_are_named_by_rate_and_threshold():
    fair = ROCFairness(THRESHOLDS)
    assert fair.names == ["tpr@-0.5", "tpr@0", "tpr@1", "fpr@-0.5", "fpr@0", "fpr@1"]


def test_the_favoured_group_comes_first():
    batch = {"y": torch.tensor([1, 1, 0, 0]), "group": torch.tensor([1, 0, 1, 0])}
    values = ROCFairness((0.0,)).measure(torch.tensor([9.0, -9.0, 8.0, -8.0]), batch)[1].values
    assert (values > 0.5).tolist() == [[True, False], [True, False]]


@pytest.mark.parametrize(("shift", "factor"), [(100.0, 1.0), (0.0, 0.01), (-7.0, 30.0)])
def test_standard_scores_do_not_change_under_shift_and_scale(shift, factor):
    scores, batch = sample()
    fair = ROCFairness(THRESHOLDS, temperature=0.15, scale=StandardScores())
    moved = fair.measure(factor * scores + shift, batch)[1].values
    assert torch.allclose(moved, fair.measure(scores, batch)[1].values, atol=1e-9)
    raw = ROCFairness(THRESHOLDS, temperature=0.15, scale=RawScores())
    assert not torch.allclose(
        raw.measure(factor * scores + shift, batch)[1].values, raw.measure(scores, batch)[1].values, atol=0.01
    )


def test_standard_scores_of_equal_scores_are_zero_with_a_finite_gradient():
    constant = torch.full((5,), 3.0, requires_grad=True)
    standard = StandardScores()(constant)
    standard[0].backward()
    assert standard.tolist() == [0] * 5
    assert bool(torch.isfinite(constant.grad).all())


@pytest.mark.parametrize("scale", [StandardScores(), QuantileScores(), QuantileScores(knots=9)])
def test_scales_of_batches_that_are_not_drawn_uniformly_are_those_of_the_data(scale):
    """Class-balanced batches of a tenth of positives, whose column ``weight`` says what they stand for."""
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(4000, generator=generator) < 0.1).long()
    scores = 1.5 * y + torch.randn(4000, generator=generator, dtype=torch.float64)
    columns = {"y": y, "index": torch.arange(4000)}
    plan = BalancedSampling(400).plan(columns, seed=1)
    weight, whole = plan.columns()["weight"], scale(scores)
    seen = torch.stack([(scale(scores[i], weight[i]) - whole[i]).mean() for i in plan.batches(0)])
    assert seen.mean().abs() < 0.01
    unweighted = torch.stack([(scale(scores[i]) - whole[i]).mean() for i in plan.batches(0)])
    assert unweighted.mean().abs() > 0.1
    alike = scale(scores[:50], torch.full((50,), 2.5))
    torch.testing.assert_close(alike, scale(scores[:50]))
    assert scale(torch.zeros(4), torch.tensor([1.0, 2, 3, 0])).isfinite().all()


def test_vacuous_constraints_say_why():
    scores, batch = sample()
    fair = ROCFairness()
    assert fair.vacuous(2 * scores, batch) is None
    assert "0 of 7 thresholds" in fair.vacuous(scores - 40, batch)
    assert "1 of 7 thresholds" in fair.vacuous(0.01 * scores, batch)
    assert "less than one temperature" in ROCFairness((-0.01, 0.0, 0.01)).vacuous(0.05 * scores, batch)
    standard = ROCFairness((-1.0, 0.0, 1.0), temperature=0.15, scale=StandardScores())
    assert standard.vacuous(0.01 * scores - 40, batch) is None


def test_a_single_threshold_needs_only_itself_inside():
    scores, batch = sample()
    assert ROCFairness((0.0,), temperature=0.5).vacuous(scores, batch) is None
    assert "0 of 1 thresholds" in ROCFairness((5.0,)).vacuous(scores, batch)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"thresholds": ()}, "non-empty list without repeats"),
        ({"thresholds": (0.0, 1.0, 0.0)}, "non-empty list without repeats"),
        ({"kappa": 1.0}, "must be < 1"),
    ],
)
def test_bad_arguments_are_refused(bad, message):
    ROCFairness((0.0,), kappa=0.0, temperature=1e-3)
    with pytest.raises(ConfigError, match=message):
        ROCFairness(**bad)


def test_floor_of_the_deviation_must_be_positive():
    StandardScores(1e-9)
    with pytest.raises(ConfigError, match="floor must be"):
        StandardScores(0.0)


class TestQuantileScores:
    def test_is_the_level_among_the_scores(self):
        scores = torch.randn(1001, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        level = QuantileScores(knots=11)(scores)
        assert torch.equal(level.argsort(), scores.argsort())
        ranks = scores.argsort().argsort().double() / 1000
        at_knots = (ranks * 10).round().sub(ranks * 10).abs() < 1e-9
        assert at_knots.sum() == 11
        torch.testing.assert_close(level[at_knots], ranks[at_knots], rtol=0, atol=1e-9)
        assert (level - ranks).abs().max() < 0.1  # linear in between

    @pytest.mark.parametrize("change", [lambda s: s + 50, lambda s: s * 1e-3, lambda s: s.exp(), lambda s: s**3])
    def test_increasing_maps_change_little(self, change):
        """Exactly nothing for affine maps; at most the interpolation between knots for others."""
        scores = torch.randn(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        scale = QuantileScores(knots=101)
        assert (scale(change(scores)) - scale(scores)).abs().max() < 0.01

    def test_a_common_shift_or_scaling_has_no_gradient(self):
        scores = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
        weights = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        (gradient,) = torch.autograd.grad((QuantileScores(knots=9)(scores) * weights).sum(), scores)
        assert gradient.abs().max() > 1e-3
        assert abs(gradient.sum().item()) < 1e-9
        assert abs((gradient * scores).sum().item()) < 1e-9

    def test_equal_scores_give_finite_values_and_gradients(self):
        scores = torch.zeros(8, requires_grad=True)
        (gradient,) = torch.autograd.grad(QuantileScores()(scores).sum(), scores)
        assert torch.isfinite(gradient).all()


def test_what_an_evaluation_has_cached_is_fit_for_a_graph():
    fair = ROCFairness((0.0, 0.5))
    batch = {"y": torch.tensor([0, 1, 0, 1]), "group": torch.tensor([0, 0, 1, 1])}
    scores = torch.tensor([0.1, -0.3, 0.4, 0.9])
    with torch.inference_mode():
        expected = fair.measure(scores, batch)[1].values
    scores.requires_grad_()
    values = fair.measure(scores, batch)[1].values
    values.sum().backward()
    assert torch.equal(values, expected)
    assert bool((scores.grad > 0).all())

"""Warnings about vacuous constraints: nearly all decisions are equal, or scores rank by chance."""

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu

from fcco_lightning import (
    DemographicParity,
    EqualizedOdds,
    ErrorProbability,
    GroupAUCAtLeast,
    MeanAtMost,
    MeanNear,
    QuantileScores,
    ROCFairness,
    SoftRate,
    TopShare,
)
from fcco_lightning.evaluation import BinaryEvaluation, is_feasible, standing, summarise
from fcco_lightning.objectives.vacuity import by_chance

RATE = SoftRate(temperature=0.4)


def split(positives, size=1000):
    """Labels of a split, the positives first, and two groups that alternate."""
    return {"y": (torch.arange(size) < positives).long(), "group": torch.arange(size) % 2}


def scores(chosen, size=1000):
    """Some of the samples have scores above 0, all others below, and none are equal."""
    return 0.01 * (chosen - 0.5 - torch.arange(size, dtype=torch.float64))


@pytest.mark.parametrize(
    ("positives", "chosen", "kind"),
    [
        (50, 3, "positive"),  # a tenth of 50 is 5
        (50, 5, None),
        (20, 3, None),
        (500, 49, "positive"),
        (500, 50, None),
        (950, 995, None),  # and of 50 negatives
        (950, 996, "negative"),
        (50, 0, "every sample is decided negative"),
        (50, 1000, "every sample is decided positive"),
        (0, 1, None),  # no positive is to be found
    ],
)
def test_nearly_alike_is_measured_against_the_class(positives, chosen, kind):
    found = DemographicParity(rate=RATE).vacuous(scores(chosen), split(positives))
    assert found is None if kind is None else kind in found


def test_why_decisions_are_nearly_alike_is_told_in_numbers():
    reason = EqualizedOdds().vacuous(scores(3), split(50))
    assert "3 of 1,000 samples are decided positive, less than a tenth of those that are positive" in reason
    assert (
        "asked for (50). Ask for decisions of both kinds: --decisions balanced, --decisions.costs [1,10] with a l"
        in reason
    )


@pytest.mark.parametrize(
    ("constraint", "enough"),
    [
        (MeanAtMost(RATE, 0.01), 1),  # of 10 that are allowed
        (MeanAtMost(RATE, 0.01, {"group": 0}), 5),  # the other group may have any number
        (MeanAtMost(RATE, 0.4), 5),
        (MeanNear(RATE, 0.02, 0.01), 3),
        (MeanNear(RATE, 0.2), 5),
    ],
)
def test_a_tenth_of_what_is_asked_for_is_enough(constraint, enough):
    assert constraint.vacuous(scores(enough), split(50)) is None
    if enough > 1:
        assert "nearly all alike" in constraint.vacuous(scores(enough - 1), split(50))


@pytest.mark.parametrize("rate", [TopShare(0.004, 0.001), TopShare(0.08, 0.001, of="positives"), TopShare(0.99, 0.001)])
def test_a_budget_decides_as_many_as_it_has(rate):
    assert DemographicParity(rate=rate).vacuous(scores(500), split(50)) is None
    assert DemographicParity(rate=rate).vacuous(torch.zeros(1000), split(50)) is not None


@pytest.mark.parametrize("rate", [RATE, TopShare(0.06, 0.001), TopShare(0.6, 0.001, of="positives")])
def test_samples_count_by_their_weights(rate):
    """As many copies of each sample as its weight says are decided on in the same way, or one with this weight."""
    generator = torch.Generator().manual_seed(0)
    told = []
    for k in range(60):
        batch, chosen = split(50, 200), int(torch.randint(0, 200, (1,), generator=generator))
        copies = torch.randint(0, 40 if k % 2 else 4, (200,), generator=generator)
        ranked = scores(chosen, 200)[torch.randperm(200, generator=generator)]
        if k % 3 == 0:  # those that are decided positive hardly count, or those that are not
            copies = torch.where(ranked > 0, copies, torch.randint(0, 2, (200,), generator=generator))
        many = {name: column.repeat_interleave(copies) for name, column in batch.items()}
        constraint = DemographicParity(rate=rate)
        of_copies = constraint.vacuous(ranked.repeat_interleave(copies), many)
        of_weights = constraint.vacuous(ranked, batch | {"weight": copies.float()})
        assert (of_copies is None) == (of_weights is None)
        told.append(of_weights)
        halves = constraint.vacuous(ranked, batch | {"weight": copies.float() / 2})
        assert (of_weights is None) == (halves is None)
    assert any(told) == (rate is RATE)  # a budget decides as many as it has
    assert not all(told)


def test_a_heavy_positive_is_not_few_and_many_light_ones_are():
    batch, ranked = split(50), scores(3)
    assert "nearly all alike" in DemographicParity(rate=RATE).vacuous(ranked, batch)
    heavy = torch.where(torch.arange(1000) < 3, 5.0, 1.0)
    assert DemographicParity(rate=RATE).vacuous(ranked, batch | {"weight": heavy}) is None
    light = torch.where(torch.arange(1000) < 40, 0.001, 1.0)
    reason = DemographicParity(rate=RATE).vacuous(scores(40), batch | {"weight": light})
    assert "0.0 of 960.0 samples, counted by their weights, are decided positive" in reason
    none = torch.where(torch.arange(1000) < 40, 0.0, 1.0)
    assert "every sample is decided negative" in DemographicParity(rate=RATE).vacuous(
        scores(40), batch | {"weight": none}
    )


def test_labels_that_are_no_classes_leave_one_decision_of_each_kind():
    ratings = {"y": torch.arange(1000) % 5, "group": torch.arange(1000) % 2}
    assert DemographicParity(rate=RATE).vacuous(scores(1), ratings) is None
    assert "every sample" in DemographicParity(rate=RATE).vacuous(scores(0), ratings)


def test_a_model_without_errors_is_not_vacuous():
    batch = split(50)
    sure = (20.0 * batch["y"] - 10).double()
    assert MeanAtMost(ErrorProbability(), 0.05).vacuous(sure, batch) is None


def test_thresholds_may_lie_between_few_positives_and_the_others():
    batch = split(6)  # fewer than the 1% that are left out of a span of classes of equal size
    ranked = torch.where(batch["y"] == 1, 2.0, -1.0) + 0.1 * torch.linspace(-1, 1, 1000)
    fair = ROCFairness((0.0, 0.5, 1.0))
    assert fair.vacuous(ranked, batch) is None
    assert "0 of 3 thresholds" in fair.vacuous(ranked, split(500))


def test_what_is_told_from_chance_is_what_the_rank_test_tells():
    generator = np.random.default_rng(0)
    told = []
    for shift in np.linspace(-0.3, 0.6, 60):
        y = torch.from_numpy((generator.random(400) < 0.1).astype(np.int64))
        found = generator.normal(size=400) + shift * y.numpy()
        test = mannwhitneyu(
            found[y == 1], found[y == 0], alternative="greater", method="asymptotic", use_continuity=False
        )
        auc = test.statistic / (int(y.sum()) * int((1 - y).sum()))
        told.append(by_chance(float(auc), y) is None)
        assert told[-1] == (test.pvalue <= 0.0227501)  # two standard errors
    assert 10 < sum(told) < 50
    assert by_chance(0.3, torch.ones(5)) is None  # no order at all


def test_chance_knows_the_weights():
    generator = np.random.default_rng(0)
    y = torch.from_numpy((np.arange(300) % 3 == 0).astype(np.int64))
    weight = torch.from_numpy(generator.exponential(size=300) ** 2)
    above, below = (weight[y == c].numpy() / float(weight[y == c].sum()) for c in (1, 0))
    orders = []  # of scores that know nothing
    for _ in range(3000):
        ranks = generator.permutation(300)
        orders.append(above @ (ranks[y == 1][:, None] > ranks[y == 0]) @ below)
    least = 0.5 + 2 * np.std(orders)
    assert by_chance(least - 0.006, y, weight) is not None
    assert by_chance(least + 0.006, y, weight) is None
    assert by_chance(least - 0.006, y) is None  # without the weights much less is told from chance
    figures, reason = summarise(
        BinaryEvaluation(),
        [EqualizedOdds(0.9)],
        9 * y.double() + torch.linspace(-9, 9, 300),
        {"y": y, "group": torch.arange(300) % 2, "weight": weight},
    )
    assert figures["auc"] > least + 0.006
    assert reason is None


def test_only_equal_treatment_is_met_by_knowing_nothing():
    batch = split(50)
    unknown = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    known = unknown + batch["y"]
    budget = DemographicParity(0.5, TopShare(0.1))
    curves = ROCFairness((0.5, 0.9), 0.5, 0.1, QuantileScores())
    for fair in (budget, curves, EqualizedOdds(0.9)):
        figures, reason = summarise(BinaryEvaluation(), [fair], unknown, batch)
        assert figures["worst_violation"] <= 0
        assert reason.startswith("the scores rank no better than chance may: their AUC is 0.")
        assert not is_feasible(figures["worst_violation"], figures["vacuous"])
        figures, reason = summarise(BinaryEvaluation(), [fair], known, batch)
        assert (is_feasible(figures["worst_violation"], figures["vacuous"]), reason) == (True, None)
    for cap in (MeanAtMost(RATE, 0.9), GroupAUCAtLeast(0.01)):
        assert summarise(BinaryEvaluation(), [cap], unknown, batch)[1] is None


def test_vacuous_weights_stand_below_all_others():
    nan = float("nan")
    ordered = [
        standing(0.8, None), standing(0.7, 0.0), standing(nan, -1.0), standing(0.9, 0.1), standing(0.9, 3.0),
        standing(0.9, nan), standing(0.95, -1.0, vacuous=True), standing(0.9, 5.0, vacuous=True),
    ]  # fmt: skip
    assert ordered == sorted(ordered, reverse=True)
    assert len(set(ordered)) == len(ordered)


def test_soft_decisions_do_not_matter_where_decisions_are_enforced():
    """A weak signal spreads scores by less than a temperature, and decisions on them are decisions."""
    weak, few = 0.01 * scores(500), scores(2)
    for constraint in (DemographicParity(rate=RATE), EqualizedOdds()):
        assert "too soft" in constraint.vacuous(weak, split(50))
        assert constraint.vacuous(weak, split(50), decisions=True) is None
        assert "nearly all alike" in constraint.vacuous(few, split(50), decisions=True)
    fair = ROCFairness((-0.001, 0.001))
    assert "less than one temperature" in fair.vacuous(weak, split(500))
    assert fair.vacuous(weak, split(500), decisions=True) is None

"""The purpose of decisions: costs in the loss, thresholds against brute force, rates in constraints."""

import math

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from sklearn.metrics import balanced_accuracy_score
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.optim import Adam

from fcco_lightning import (
    AUC,
    BalancedSampling,
    CellSampling,
    ClassEvaluation,
    ConfigError,
    CostedLoss,
    CrossEntropy,
    CrossEntropyLoss,
    DataError,
    DecisionRule,
    Decisions,
    DemographicParity,
    FCCOModule,
    GroupSampling,
    MeanAtMost,
    SoftRate,
    SquaredError,
    TabularMLP,
    TensorDataModule,
    TopShare,
    UniformSampling,
    WorstGroupDRO,
)
from fcco_lightning.constraints import as_decisions
from fcco_lightning.data.batches import Drawn
from fcco_lightning.training.posing import class_changes, cost_classes, of_changed_classes, of_rare_positives
from tests.conftest import QUIET


def sample(seed=0, n=400, rare=1.6):
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, generator=g, dtype=torch.float64).round(decimals=1)  # with many equal ones
    y = (scores + torch.randn(n, generator=g, dtype=torch.float64) > rare).long()
    return scores, y, torch.rand(n, generator=g, dtype=torch.float64) + 0.1


def every_decision(scores):
    """All ways to divide the scores, as masks."""
    cuts = [-math.inf, *sorted(set(scores.tolist()))]
    return [(scores > cut) for cut in cuts]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_division_of_least_cost(seed, weighted):
    scores, y, weight = sample(seed)
    weight = weight if weighted else torch.ones_like(weight)
    sizes = np.array([float(weight[y == c].sum()) for c in (0, 1)])
    for asked, costs in (
        (Decisions("balanced"), 1 / sizes),
        (Decisions([1, 7]), [1, 7]),
        (Decisions(threshold=0.3), [0.3, 0.7]),
    ):
        price = [
            costs[0] * float(weight[d & (y == 0)].sum()) + costs[1] * float(weight[~d & (y == 1)].sum())
            for d in every_decision(scores)
        ]
        decided = scores > asked.division(scores, y, weight)
        own = costs[0] * float(weight[decided & (y == 0)].sum()) + costs[1] * float(weight[~decided & (y == 1)].sum())
        assert own == pytest.approx(min(price), rel=1e-12)


def test_balanced_costs_ask_for_the_balanced_accuracy():
    scores, y, _ = sample(1)
    best = max(balanced_accuracy_score(y, d) for d in every_decision(scores))
    decided = scores > Decisions("balanced").division(scores, y)
    assert balanced_accuracy_score(y, decided) == pytest.approx(best)


@pytest.mark.parametrize("share", [0.05, 0.37, 0.9])
def test_a_budget_and_a_least_rate_against_all_divisions(share):
    scores, y, weight = sample(2)
    ways = every_decision(scores)
    decided = scores > Decisions(share=share).division(scores, y, weight)
    chosen = [float((weight * d).sum() / weight.sum()) for d in ways]
    assert float((weight * decided).sum() / weight.sum()) == pytest.approx(max(c for c in chosen if c <= share))
    decided = scores > Decisions(tpr=share).division(scores, y, weight)
    found = [(float((weight * y)[d].sum() / (weight * y).sum()), int(d.sum())) for d in ways]
    assert int(decided.sum()) == min(count for rate, count in found if rate >= share)


def test_a_budget_is_of_the_samples_that_are_given():
    rule = DecisionRule(Decisions(share=0.25), division=36.5)
    for scores, chosen in ((torch.arange(40.0), 10), (torch.zeros(40), 0), (torch.arange(3.0), 0)):
        assert int(rule.decided(scores, among_themselves=True).sum()) == chosen  # of equal scores none is above
    assert int(rule.decided(torch.arange(40.0)).sum()) == 3  # of samples one by one


@pytest.mark.parametrize(
    "wrong",
    [
        {"costs": "balance"},
        {"costs": [1.0]},
        {"costs": 10.0},
        {"costs": [1.0, -2.0]},
        {"costs": [1.0, math.inf]},
        {"share": 0.0},
        {"share": 1.0},
        {"tpr": 2},
        {"threshold": -0.1},
        {"share": 0.1, "tpr": 0.5},
    ],
)
def test_what_no_decision_can_be_for(wrong):
    with pytest.raises(ConfigError, match="decisions"):
        Decisions(**wrong)


def test_ways_to_write_it():
    assert as_decisions("balanced") == Decisions("balanced")
    assert as_decisions({"share": 0.2}) == Decisions(share=0.2)
    assert not as_decisions(None).asked
    with pytest.raises(ConfigError, match="'balanced' or Decisions"):
        as_decisions(3)


def test_costs_in_the_loss_are_weights_of_the_classes():
    g = torch.Generator().manual_seed(0)
    scores, y = torch.randn(30, generator=g, dtype=torch.float64), torch.randint(0, 2, (30,), generator=g)
    own = CostedLoss(CrossEntropyLoss(), torch.tensor([0.5, 3.0]))(scores, {"y": y})
    theirs = binary_cross_entropy_with_logits(
        scores, y.double(), weight=torch.where(y == 1, 3.0, 0.5).double(), reduction="none"
    )
    torch.testing.assert_close(own, theirs)
    soft = CostedLoss(CrossEntropyLoss(), torch.tensor([0.5, 3.0]))(scores, {"y": y.double()})
    torch.testing.assert_close(soft, theirs)
    logits, c = torch.randn(30, 3, generator=g), torch.randint(0, 3, (30,), generator=g)
    costs = torch.tensor([1.0, 2.0, 4.0])
    theirs = cross_entropy(logits, c, weight=costs, reduction="none")
    torch.testing.assert_close(CostedLoss(CrossEntropyLoss(), costs)(logits, {"y": c}), theirs)


def test_costs_have_mean_one_and_come_once():
    y = torch.tensor([0] * 19 + [1])
    objective = CrossEntropy()
    for _ in range(2):  # a second fit does not multiply them
        costs = cost_classes(objective, Decisions("balanced"), {"y": y})
        assert costs == pytest.approx([10 / 19, 10.0])
        scores = torch.linspace(-1, 1, 20, dtype=torch.float64)
        expected = torch.tensor(costs, dtype=torch.float64)[y] @ binary_cross_entropy_with_logits(
            scores, y.double(), reduction="none"
        )
        assert float(objective.measure(scores, {"y": y})[0]) == pytest.approx(float(expected) / 20)
    assert cost_classes(objective, Decisions(), {"y": y}) == []
    assert not isinstance(objective.loss, CostedLoss)
    assert cost_classes(AUC(), Decisions("balanced"), None) == []
    with pytest.raises(ConfigError, match="not known"):
        cost_classes(CrossEntropy(), Decisions("balanced"), None)
    with pytest.raises(DataError, match="needs training samples of every class"):
        cost_classes(CrossEntropy(), Decisions("balanced"), {"y": torch.zeros(5, dtype=torch.int64)})
    with pytest.raises(ConfigError, match="give 3 costs"):
        cost_classes(CrossEntropy(), Decisions([1, 1, 1]), {"y": y})


def test_probabilities_do_not_know_of_costs():
    """A constant model that is fitted with costs has the data's share of positives as its probability."""
    y = torch.tensor([0] * 90 + [1] * 10)
    costs = Decisions([1, 6]).class_costs(torch.bincount(y))
    s = math.log(float(costs[1]) * 10 / (float(costs[0]) * 90))  # where the costed loss of a constant is least
    rule = DecisionRule(Decisions([1, 6]), costs.tolist())
    assert float(rule.probabilities(torch.tensor([s], dtype=torch.float64))) == pytest.approx(0.1)
    logits = torch.tensor([[math.log(costs[0] * 90), math.log(costs[1] * 10)]], dtype=torch.float64)
    assert rule.probabilities(logits)[0, 1].item() == pytest.approx(0.1)


def drawn_of(sampling, y, **columns):
    columns = {"y": y, "index": torch.arange(len(y)), **columns}
    plan = sampling.plan(columns)
    weight = columns.get("sample_weight")
    return Drawn(columns, plan if weight is None else plan.of_weighted_samples(weight))


def test_how_much_batches_count_the_classes():
    y = (torch.arange(100) < 10).long()
    halves = BalancedSampling(20, prevalence="batch")
    assert class_changes(CrossEntropy(), drawn_of(halves, y)) == pytest.approx([0.5 / 0.9, 0.5 / 0.1])
    weight = torch.where(y == 1, 3.0, 1.0)  # positives are 30 of 120, and each drawn one counts three times
    assert class_changes(CrossEntropy(), drawn_of(halves, y, sample_weight=weight)) == pytest.approx(
        [(1 / 4) / 0.75, (3 / 4) / 0.25]
    )
    classes = torch.arange(90) % 9 // 4  # 40, 40 and 10 of three classes
    each = GroupSampling(3, 2, column="y", prevalence="batch")
    assert class_changes(CrossEntropy(), drawn_of(each, classes)) == pytest.approx([90 / 120, 90 / 120, 90 / 30])
    groups = (torch.arange(100) % 3 == 0).long()  # samples of one class do not count alike
    uneven = GroupSampling(2, 4, column="group", prevalence="batch")
    for same in (UniformSampling(20), BalancedSampling(20), CellSampling(20)):
        assert class_changes(CrossEntropy(), drawn_of(same, y, group=groups)) == []
    assert class_changes(CrossEntropy(), drawn_of(uneven, y, group=groups)) == []
    assert class_changes(CrossEntropy(), None) == class_changes(WorstGroupDRO(), drawn_of(halves, y)) == []


def test_decisions_of_batches_that_count_classes_otherwise_are_said():
    said = of_changed_classes(Decisions(), [0.5 / 0.9, 5.0])
    assert "0.56, 5 times" in said
    assert "threshold 0.5" in said
    assert "UniformSampling" in of_changed_classes(Decisions(), [0.5, 1.0, 2.0])
    assert of_changed_classes(Decisions("balanced"), [0.5, 5.0]) is None


@pytest.mark.parametrize("decisions", [None, "balanced", Decisions([1, 4])], ids=["unasked", "balanced", "costs"])
def test_probabilities_are_of_the_data_however_batches_are_drawn(decisions):
    """Log-odds are linear in a feature: by two shares of positives in a batch the same probabilities are learnt."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 1, generator=g)
    y = (torch.rand(4000, generator=g) < torch.sigmoid(1.5 * x[:, 0] - 2)).long()
    split = {"x": x, "y": y}
    data = TensorDataModule({"train": split, "test": split}, batches=BalancedSampling(400, prevalence="batch"))
    module = FCCOModule(
        TabularMLP([]), CrossEntropy(), decisions=decisions, optimizer=lambda params: Adam(params, lr=0.1)
    )
    Trainer(max_epochs=30, **QUIET).fit(module, data)
    scores = module.network(x).flatten().detach()
    probabilities = module.rule.probabilities(scores)
    assert float(probabilities.mean()) == pytest.approx(float(y.double().mean()), abs=0.02)
    # a positive that counts c times as much is decided from 1 / (1 + c) on; half of a batch is as much as "balanced"
    ratio = 4.0 if decisions == Decisions([1, 4]) else float((y == 0).sum() / (y == 1).sum())
    chosen = module.rule.decided(scores)
    torch.testing.assert_close(chosen, probabilities > 1 / (1 + ratio))


@pytest.mark.slow
def test_probabilities_of_several_classes_are_of_the_data_too():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 1, generator=g)
    logits = x * torch.tensor([[0.0, 1.0, -1.0]]) + torch.tensor([[2.0, 0.0, -1.0]])
    y = torch.multinomial(logits.softmax(1), 1, generator=g).flatten()
    split, by_class = {"x": x, "y": y}, GroupSampling(3, 100, column="y")
    data = TensorDataModule({"train": split, "test": split}, batches=by_class)
    network = TabularMLP([], out_features=3)
    module = FCCOModule(
        network, CrossEntropy(), evaluation=ClassEvaluation(), optimizer=lambda params: Adam(params, 0.1)
    )
    Trainer(max_epochs=30, **QUIET).fit(module, data)
    shares = torch.bincount(y) / len(y)
    scores = network(x).detach()
    assert float((scores.softmax(1).mean(0) - shares).abs().max()) > 0.1  # those of batches
    torch.testing.assert_close(module.rule.probabilities(scores).mean(0), shares, atol=0.02, rtol=0.0)


def test_a_rule_survives_being_written():
    costs = DecisionRule(Decisions([1, 6]))
    costs.take(DecisionRule(Decisions((1.0, 6.0)), division=2.0))  # written otherwise
    assert costs.division == 2.0
    assert costs.state()["asked"] == {"costs": [1.0, 6.0]}
    rule = DecisionRule(Decisions(tpr=0.7))
    rule.fit(*sample()[:2], classifies=True)
    other = DecisionRule.of(rule.state())
    assert vars(other) == vars(rule)
    assert other.known
    other = DecisionRule(Decisions(tpr=0.8))
    other.take(rule)  # of other decisions: nothing is taken over
    assert not other.known


def test_constraints_follow():
    budget = Decisions(share=0.1)
    parity, cap, own = DemographicParity(), MeanAtMost(SoftRate(), 0.5), MeanAtMost(SoftRate(0.0), 0.5)
    for constraint in (parity, cap, own):
        constraint.decide_by(budget)
    assert parity.quantity == cap.quantity == TopShare(0.1)
    assert own.quantity == SoftRate(0.0)  # a threshold that is named stays
    parity.decide_by(Decisions("balanced"))
    odds = DemographicParity()
    odds.decide_by(Decisions("balanced"))
    assert isinstance(odds.quantity, SoftRate)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_least_rate_selects_that_share_of_the_positives(weighted):
    scores, y, weight = sample(3, n=2000)
    columns = {"y": y} | ({"weight": weight} if weighted else {})
    chosen = TopShare(0.7, 0.01, of="positives").decided(scores + 1e-3 * torch.rand(2000), columns)
    counts = (weight if weighted else torch.ones_like(weight)) * y
    assert float(chosen @ counts / counts.sum()) == pytest.approx(0.7, abs=0.03)
    none = TopShare(0.7, of="positives")(scores, columns | {"y": torch.zeros_like(y)})
    assert bool(none.isfinite().all())


@pytest.mark.parametrize(
    ("objective", "decisions", "positives", "expected"),
    [
        (CrossEntropy(), None, 10, "10 of 100 training samples (10.0%) are positive"),
        (
            AUC(),
            None,
            10,
            "--decisions.share 0.1 (this share of all samples is classified as positive; the share of positives gives",
        ),
        (AUC(), None, 20, None),
        (CrossEntropy(), "balanced", 10, None),
        (SquaredError(), None, 10, None),
    ],
)
def test_rare_positives_are_said_where_nothing_says_what_decisions_are_for(objective, decisions, positives, expected):
    y = (torch.arange(100) < positives).long()
    said = of_rare_positives(objective, as_decisions(decisions), {"y": y})
    assert said is None if expected is None else expected in said
    one_of_several = {"y": y, "task": torch.arange(100) % 2}
    assert of_rare_positives(objective, as_decisions(decisions), one_of_several) is None


@pytest.mark.parametrize("top", [1.0, -0.1, 3e9, 1e-38])
@pytest.mark.parametrize("asked", [Decisions(share=0.5), Decisions(tpr=1.0 - 1e-9), Decisions(costs=(1, 1))])
def test_a_division_parts_scores_that_are_neighbours_in_float32(asked, top):
    high = torch.tensor(top)
    scores = torch.stack([high, torch.nextafter(high, torch.tensor(-math.inf))])
    rule = DecisionRule(asked)
    rule.fit(scores, torch.tensor([1, 0]), classifies=False)
    assert rule.decided(scores).tolist() == [True, False]
    assert rule.decided(scores, among_themselves=True).tolist() == [True, False]


def test_a_division_below_all_scores_is_below_large_ones_too():
    scores = torch.tensor([3e9, 3e9])
    assert (scores > Decisions(tpr=0.9).division(scores, torch.tensor([1, 0]))).all()

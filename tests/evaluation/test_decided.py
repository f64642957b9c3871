"""Confusion, rates and calibration of a split against scikit-learn's, and weights against samples that occur twice."""

import math

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, confusion_matrix, precision_score, recall_score

from fcco_lightning.constraints import DecisionRule, Decisions
from fcco_lightning.evaluation import decision_details

N = 600


def split(seed=0):
    rng = np.random.default_rng(seed)
    scores, noise = rng.normal(size=N) - 2, rng.logistic(size=N)
    columns = {"y": torch.from_numpy((scores + noise > 0).astype(int)), "group": torch.from_numpy(np.arange(N) % 3)}
    return torch.from_numpy(scores), columns


RULE = DecisionRule(Decisions(), division=-1.5, known=True)


def test_decisions_are_counted_as_scikit_learn_does():
    scores, columns = split()
    y, decided = columns["y"].numpy(), scores.numpy() > -1.5
    told = decision_details(RULE, scores, columns, ["no", "yes"], "abc".__getitem__)
    assert [list(record.values())[1:] for record in told["confusion_matrix"]] == confusion_matrix(y, decided).tolist()
    assert list(told["confusion_matrix"][1]) == ["true", "decided no", "decided yes"]
    everyone, *groups = told["rates_by_group"]
    assert everyone["group"] == "all"
    assert everyone["positives"] + everyone["negatives"] == N
    assert [one["tpr"] for one in groups] == sorted(one["tpr"] for one in groups)
    assert {one["group"] for one in groups} == set("abc")
    for one in groups:
        own = np.arange(N) % 3 == "abc".index(one["group"])
        assert one["positives"] == y[own].sum()
        assert one["negatives"] == (1 - y[own]).sum()
        assert one["tpr"] == pytest.approx(recall_score(y[own], decided[own]))
        assert one["fpr"] == pytest.approx(1 - recall_score(1 - y[own], ~decided[own]))
        assert one["precision"] == pytest.approx(precision_score(y[own], decided[own]))
        assert one["chosen"] == pytest.approx(decided[own].mean())


@pytest.mark.parametrize("costs", [(1, 10), (3, 0.5)])
def test_mistakes_cost_what_they_were_said_to(costs):
    scores, columns = split()
    y, decided = columns["y"].numpy() == 1, scores.numpy() > -1.5
    rule = DecisionRule(Decisions(costs=costs), division=-1.5, known=True)
    told = decision_details(rule, scores, columns)
    each = np.where(y, costs[1], costs[0])
    assert told["decision_cost"] == pytest.approx((each * (y != decided)).mean())
    assert told["constant_decision_cost"] == pytest.approx(min((each * ~y).mean(), (each * y).mean()))
    weight = torch.arange(N).float()
    weighted = decision_details(rule, scores, columns | {"weight": weight})
    assert weighted["decision_cost"] == pytest.approx(np.average(each * (y != decided), weights=weight))
    for other in (Decisions(), Decisions(costs="balanced")):
        assert "decision_cost" not in decision_details(DecisionRule(other, known=True), scores, columns)


def test_probabilities_are_judged_as_scikit_learn_does():
    scores, columns = split()
    y, p = columns["y"].numpy(), scores.sigmoid().numpy()
    told = decision_details(RULE, scores.unsqueeze(1), columns)
    observed, predicted = calibration_curve(y, p, n_bins=10, strategy="quantile")
    np.testing.assert_allclose([one["observed"] for one in told["calibration"]], observed)
    np.testing.assert_allclose([one["predicted"] for one in told["calibration"]], predicted)
    assert {one["samples"] for one in told["calibration"]} == {N // 10}
    assert told["calibration_error"] == pytest.approx(np.abs(observed - predicted).mean())
    assert told["brier_loss"] == pytest.approx(brier_score_loss(y, p))


def test_a_weight_of_two_counts_as_two_samples():
    scores, columns = split()
    counts = torch.arange(N) % 4
    weighted = decision_details(RULE, scores, columns | {"weight": counts.float()})
    repeated = decision_details(
        RULE, scores.repeat_interleave(counts), {k: v.repeat_interleave(counts) for k, v in columns.items()}
    )
    for name in ("brier_loss", "calibration_error"):
        assert weighted[name] == pytest.approx(repeated[name])
    for name in ("confusion_matrix", "rates_by_group", "calibration"):
        for one, other in zip(weighted[name], repeated[name], strict=True):
            kept = one.keys() - {"samples", "positives", "negatives"}
            assert {k: one[k] for k in kept} == pytest.approx({k: other[k] for k in kept})
    assert weighted["rates_by_group"][0]["positives"] == int(columns["y"].sum())


def test_samples_of_no_group_are_in_no_record_of_a_group():
    scores, columns = split()
    group = torch.where(torch.arange(N) < 60, -1, columns["group"])
    told = decision_details(RULE, scores, columns | {"group": group}, group_name="abc".__getitem__)
    everyone, *groups = told["rates_by_group"]
    assert sorted(one["group"] for one in groups) == ["a", "b", "c"]
    assert sum(one["positives"] + one["negatives"] for one in groups) == N - 60
    assert everyone["positives"] + everyone["negatives"] == N


def test_groups_of_further_columns_have_records_beside_those_of_group():
    scores, columns = split()
    cities = (torch.arange(N) % 7 < 3).long() - (torch.arange(N) == 0).long()  # -1 is in none
    by = {"group by city": ["city=Oslo", "city=Rome"], "group by job": ["job=cook"]}
    told = decision_details(RULE, scores, columns | {"group by city": cities}, (), "abc".__getitem__, by)
    found = {one["group"]: one for one in told["rates_by_group"]}
    assert found.keys() == {"all", "a", "b", "c", "city=Oslo", "city=Rome"}
    own = cities == 1
    assert found["city=Rome"]["positives"] == int(columns["y"][own].sum())
    assert found["city=Rome"]["chosen"] == pytest.approx(float((scores[own] > -1.5).double().mean()))


def test_equal_probabilities_are_one_bin():
    _, columns = split()
    told = decision_details(RULE, torch.zeros(N), columns)
    assert told["calibration"] == [
        {"samples": N, "predicted": 0.5, "observed": pytest.approx(columns["y"].double().mean().item())}
    ]


def test_two_scores_decide_for_the_larger():
    scores, columns = split()
    both = torch.stack([-scores / 2, scores / 2], 1)
    plain = DecisionRule(known=True)
    one, two = decision_details(plain, scores, columns), decision_details(plain, both, columns)
    assert one["confusion_matrix"] == two["confusion_matrix"]
    assert one["brier_loss"] == pytest.approx(two["brier_loss"])
    assert decision_details(plain, both, columns, classifies=False) == {}  # an embedding


def test_what_is_not_known_is_not_told():
    scores, columns = split()
    assert decision_details(DecisionRule(proper=False), scores, columns) == {}  # nothing divides the scores
    ranked = decision_details(DecisionRule(division=-1.5, known=True, proper=False), scores, columns)
    assert {*ranked} == {"confusion_matrix", "rates_by_group"}
    assert decision_details(RULE, scores, columns | {"y": scores}) == {}
    assert decision_details(RULE, scores, {}) == {}
    negatives = {"y": torch.zeros(N, dtype=torch.int64)}
    (rates,) = decision_details(RULE, scores, negatives)["rates_by_group"]
    assert math.isnan(rates["tpr"])
    assert rates["positives"] == 0


def test_a_budget_is_a_share_of_the_split():
    scores, columns = split()
    rule = DecisionRule(Decisions(share=0.1), division=100.0, known=True)
    assert decision_details(rule, scores, columns)["rates_by_group"][0]["chosen"] == pytest.approx(0.1)


def test_a_group_whose_samples_all_weigh_nothing_has_no_rates():
    scores, columns = split()
    weight = (columns["group"] != 2).double() * 3
    told = decision_details(RULE, scores, {**columns, "weight": weight}, group_name="abc".__getitem__)
    of_c = next(record for record in told["rates_by_group"] if record["group"] == "c")
    assert all(math.isnan(of_c[name]) for name in ("tpr", "fpr", "chosen", "precision"))
    kept = columns["group"] != 2
    alone = decision_details(RULE, scores[kept], {name: column[kept] for name, column in columns.items()})
    assert told["brier_loss"] == pytest.approx(alone["brier_loss"])
    assert told["confusion_matrix"][1]["decided 1"] == 3 * alone["confusion_matrix"][1]["decided 1"]

"""The last line of a run is true whether the constraints hold or not."""

import math

import pytest

from fcco_lightning.reports.verdict import chosen_line, headline, ranking_line, reached_line, verdict


def report(*values, vacuous=False, **more):
    split = {"constraints": dict(zip("abc", values, strict=False)), "vacuous": vacuous, "auc": 0.87, "roc_gap": 0.06}
    later = {"constraints": {**split["constraints"], "a": 0.05}, "auc": 0.861, "roc_gap": 0.05}
    return {"train": split, "test": {**split, **later}, **more}


OTHER = {"unconstrained": {"train": {"auc": 0.9}, "test": {"auc": 0.88, "roc_gap": 0.21}}}
FIGURES = "test AUC 0.861 against 0.880 unconstrained, hard ROC gap 0.050 against 0.210."


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([-0.01, -0.003, -0.2], "All 3 constraints hold on the training split (largest h -0.003, on test +0.050)"),
        ([-0.01, 0.0], "Both constraints hold on the training split (largest h +0.000, on test +0.050)"),
        ([-0.01], "The constraint holds on the training split (largest h -0.010, on test +0.050)"),
        (
            [-0.01, 0.018, 0.001],
            "2 of 3 constraints do not hold on the training split (largest h +0.018, b, on test +0.050)",
        ),
        (
            [-0.01, 0.018, -1],
            "1 of 3 constraints does not hold on the training split (largest h +0.018, b, on test +0.050)",
        ),
        ([0.2], "1 of 1 constraint does not hold on the training split (largest h +0.200, a, on test +0.050)"),
        ([math.nan], "1 of 1 constraint does not hold on the training split (largest h +nan, a, on test +0.050)"),
    ],
)
def test_whether_they_hold(values, expected):
    assert verdict(report(*values, **OTHER), ["auc", "roc_gap"]) == f"{expected}; {FIGURES}"


def test_what_a_split_has_no_samples_of_is_counted():
    line = verdict(report(-0.01, 0.018, kappas={"a": 0.1, "b": 0.1, "c": 0.1, "d": 0.2}), [])
    assert line == (
        "1 of 2 constraints does not hold on the training split (largest h +0.018, b, on test +0.050); 2 more "
        "cannot be evaluated, as it has no samples of their subsets."
    )


def test_a_figure_that_is_not_defined_is_not_told():
    parts = report(-0.01)
    parts["test"]["roc_gap"] = math.nan
    assert verdict(parts, ["auc", "roc_gap"]).endswith("; test AUC 0.861.")


@pytest.mark.parametrize(("change", "said"), [(-0.26, True), (0.0, True), (0.01, False), (math.nan, False)])
def test_a_target_that_is_not_learnt_is_said(change, said):
    results = {"delta_target": change, "target_accuracy": 0.013}
    line = f" The target has not improved: its accuracy on the test split has changed by {change:+.3f}, to 0.013."
    held = report(-0.1)
    for found in (
        verdict({**held, "test": {**held["test"], **results}}, ["auc"]),
        headline({"train": {}, "test": {"auc": 0.9, **results}}, ["auc"]),
    ):
        assert found.endswith(line) is said
        assert ("not improved" in found) is said


def test_vacuous_constraints_are_not_praised():
    line = verdict(report(-1, -1, -1, vacuous=True), [])
    assert line == (
        "All 3 constraints hold on the training split (largest h -1.000, on test +0.050), but they are vacuous there."
    )
    known = {"train": {"constraints": {"a": -1.0}, "vacuous": True, "vacuous_because": "all are decided alike"}}
    assert verdict(known, []).endswith("but it is vacuous there: all are decided alike.")


def validations(*of_epochs):
    """Records of the largest h, whether constraints are vacuous, and a figure."""
    names = ("worst_violation", "vacuous", "auc")
    return [{"epoch": i, **dict(zip(names, one, strict=True))} for i, one in enumerate(of_epochs)]


def test_an_epoch_is_named_in_which_constraints_held_and_said_something():
    history = validations((-0.3, 1.0, 0.43), (-0.01, 0.0, 0.7), (-0.02, 0.0, 0.6), (0.1, 0.0, 0.9))
    assert reached_line(history, "auc").startswith("All of them held in epoch 1: the callback BestFeasible")
    assert reached_line(history).startswith("All of them held in epoch 2:")
    assert reached_line([*history, {**history[0], "epoch": 4}], "auc").startswith("All of them held in epoch 1")
    assert reached_line([*history, history[1]], "auc") is None


def test_what_the_ranking_has_paid_for_the_constraints_is_told_with_what_a_larger_kappa_gains():
    history = validations((0.2, 0.0, 0.8), (0.05, 0.0, 0.72), (0.1, 0.0, 0.74), (-0.01, 0.0, 0.6))
    other = {"val": {"worst_violation": 0.3, "auc": 0.82}}
    line = ranking_line({"val": history}, other, "fcco front --config c.yaml")
    assert line == (
        "The constraints ruin the ranking: val AUC 0.600 against 0.820 unconstrained. With kappa larger by 0.05 the "
        "weights of epoch 1 had 0.720; points in between: fcco front --config c.yaml"
    )
    line = ranking_line({"val": history[-1:]}, other)
    assert line.endswith("With kappa larger by 0.3 the model without constraints had 0.820.")
    assert "against 0.800 in epoch 0" in ranking_line({"val": history}, {})
    held = [{**history[0], "worst_violation": -0.1}, history[3]]
    assert "At this kappa the weights of epoch 0 had 0.800." in ranking_line({"val": held}, {})
    assert ranking_line({"val": [*history[:3], {**history[3], "auc": 0.72}]}, other) is None  # more than two thirds
    by_chance = validations((0.1, 0.0, 0.528), (-0.01, 0.0, 0.503))
    assert ranking_line({"val": by_chance}, {}) is None  # there was nothing to lose
    nothing = ([], history[:1], [{"epoch": 0, "worst_violation": 0.1}], [{**history[0], "auc": math.nan}])
    for unknown in nothing:
        assert ranking_line({"val": unknown}, {}) is None


def test_a_model_that_knows_the_training_split_by_heart_ranks_no_better():
    final = {"worst_violation": 0.0, "auc": 0.76}
    other = {"train": {"worst_violation": 0.3, "auc": 0.92}, "test": {"worst_violation": 0.3, "auc": 0.75}}
    assert ranking_line({"train": [final], "test": [{**final, "auc": 0.74}]}, other) is None
    line = ranking_line({"train": [final], "val": [], "test": [{**final, "auc": 0.58}]}, other)
    assert line.startswith("The constraints ruin the ranking: train AUC 0.760 against 0.920 unconstrained.")
    assert ranking_line({"train": [final], "test": [{**final, "auc": 0.74}]}, {"train": other["train"]}) is not None


def test_no_epoch_is_named_for_having_decided_all_alike():
    history = validations((-0.3, 1.0, 0.43), (0.05, 0.0, 0.7), (0.1, 0.0, 0.9))
    assert reached_line(history, "auc").startswith(
        "No weights were found that satisfy all constraints and are not vacuous; those of epoch 1 have the smallest "
        "violation (h +0.05). "
    )
    assert reached_line(history, "auc", enforced=False).startswith("They were only measured")
    assert reached_line(history[:1], "auc") == "They were vacuous in every epoch."
    both = {**history[0], "worst_violation": 0.1, "vacuous_because": "all are decided alike"}
    assert reached_line([both]) == "They were vacuous in every epoch: all are decided alike."
    chosen = {"epoch": 3, "feasible": False, "vacuous": True, "worst_violation": -0.1}
    line = "In every epoch the constraints were vacuous on the validation split, so that none is feasible; these are "
    line += "the weights of epoch 3, with the best figure."
    assert chosen_line(chosen) == line
    assert chosen_line({**chosen, "bound": 0.1, "constraints": 1, "confidence": 0.9}) == line


def test_what_is_decided_stands_beside_what_is_smoothed():
    held = {"constraints": {"a": -0.01, "b": -0.2}, "decided": {"a": 0.03, "b": -0.1}}
    assert (
        verdict({"train": held}, [])
        == "Both constraints hold on the training split (largest h -0.010; of decisions +0.030)."
    )
    broken = {"constraints": {"a": 0.01}, "decided": {"a": -0.03}}
    line = "1 of 1 constraint does not hold on the training split (largest h +0.010, a; of decisions -0.030)."
    assert verdict({"train": broken}, []) == line
    assert verdict(report(-1, vacuous=True), []).endswith(", but it is vacuous there.")


def test_constraints_on_decisions_are_judged_by_them():
    held = {"constraints": {"a": 0.088, "b": -0.2}, "decided": {"a": -0.001}}
    assert verdict({"train": held, "decisions": True}, []) == (
        "Both constraints hold on the training split (largest h of decisions -0.001; smoothed +0.088)."
    )
    broken = {"constraints": {"a": -0.02}, "decided": {"a": 0.03}}
    assert verdict({"train": broken, "decisions": True}, []) == (
        "1 of 1 constraint does not hold on the training split (largest h of decisions +0.030, a; smoothed -0.020)."
    )
    assert "(largest h -0.020)" in verdict({"train": {"constraints": {"a": -0.02}}, "decisions": True}, [])


def test_the_split_that_was_not_trained_on_is_named_beside_it():
    """A group of nine positives there, of which the training split says nothing."""
    test = {"constraints": {"a": 0.01, "b": -0.2}, "decided": {"a": 0.12}}
    held = {"constraints": {"a": 0.088, "b": -0.2}, "decided": {"a": -0.001}}
    assert verdict({"train": held, "test": test, "decisions": True}, []) == (
        "Both constraints hold on the training split (largest h of decisions -0.001, on test +0.120; smoothed +0.088)."
    )
    undefined = {"constraints": {"a": math.nan, "b": 0.3}}
    assert "(largest h +0.088, b, on test +nan" in verdict(
        {"train": {"constraints": {"b": 0.088}}, "test": undefined}, []
    )


def test_without_a_model_to_compare_with():
    line = verdict(report(-1, -1, -1), ["auc", "roc_gap", "absent"])
    assert line.endswith("(largest h -1.000, on test +0.050); test AUC 0.861, hard ROC gap 0.050.")


def test_other_splits():
    assert verdict({"val": report(-1)["train"]}, ["auc"]) == (
        "The constraint holds on the val split (largest h -1.000); val AUC 0.870."
    )


def test_without_constraints():
    assert verdict({"train": {"auc": 0.9}, "seconds": 3.0, "config": {"constraints": {"a": 1}}}, ["auc"]) is None


def test_constraints_that_no_split_has_samples_of_are_not_passed_over():
    unjudged = {"test": {"auc": 0.8614}, "kappas": {"a": 0.1, "b": 0.1}}
    assert verdict(unjudged, ["auc"]) == (
        "The 2 constraints cannot be evaluated: no split has samples of their subsets with a weight > 0. "
        "On the test split: AUC 0.861."
    )
    assert verdict({"test": {"auc": 0.8614}, "kappas": {}}, ["auc"]) is None

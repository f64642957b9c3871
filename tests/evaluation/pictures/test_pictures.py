"""The contents of pictures, read back from the figures, and when they are skipped."""

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve

from fcco_lightning.evaluation import BinaryEvaluation, RankingEvaluation, pictures
from fcco_lightning.evaluation.metrics import roc_gap
from tests import drawing
from tests.drawing import legend
from tests.evaluation.metrics.test_ranking import sample

drawn = drawing.drawn

NAMES = [f"h/{rate}@{threshold}" for threshold in range(-3, 4) for rate in ("fpr", "tpr")]


def record(epoch, split="train", **values):
    return {"epoch": epoch, "split": split, **values}


def full_history(epochs):
    constraints = {name: 0.01 * i - 0.05 for i, name in enumerate(NAMES)}
    return [
        record(epoch, split, auc=0.8 + 0.01 * epoch, worst_violation=0.08, **constraints)
        for epoch, split in itertools.product(range(epochs), ("train", "val"))
    ]


def line(axes, label):
    (found,) = [line for line in axes.lines if line.get_label() == label]
    return found


@pytest.mark.parametrize("epochs", [1, 3])
def test_objective_and_violation_side_by_side(drawn, tmp_path, epochs):
    path = pictures.plot_objective_and_violation(full_history(epochs), tmp_path / "new folder" / "fig.png")
    assert path == tmp_path / "new folder" / "fig.png"
    objective, violation = drawn[0].axes
    assert [objective.get_xlabel(), objective.get_ylabel()] == ["epoch", "AUC"]
    assert legend(objective) == ["train", "val"]
    assert legend(violation) == ["train", "val", "feasible: $h \\leq 0$"]
    assert list(line(objective, "val").get_ydata()) == [0.8 + 0.01 * epoch for epoch in range(epochs)]
    assert list(line(violation, "feasible: $h \\leq 0$").get_ydata()) == [0, 0]
    assert line(objective, "val").get_marker() == "s"  # so that one epoch is seen
    assert all(tick == round(tick) for tick in objective.get_xticks())


def test_values_out_of_order_absent_or_not_finite(drawn, tmp_path):
    history = [
        record(3, auc=0.9),
        record(0, auc=0.6),
        record(1, auc=None),
        record(2, auc=math.inf),
        record(2, "audit", auc=0.5),
        record(1, "val"),
    ]
    pictures.plot_objective_and_violation(history, tmp_path / "fig.png")
    (axes,) = drawn[0].axes  # without constraints the objective alone
    epochs, values = line(axes, "train").get_data()
    assert list(epochs) == [0, 2, 3]
    assert values[0] == 0.6
    assert math.isnan(values[1])
    assert legend(axes) == ["train", "audit"]


def test_all_constraints_on_one_pair_of_axes(drawn, tmp_path):
    assert pictures.plot_constraints(full_history(3), str(tmp_path / "fig.png")) == tmp_path / "fig.png"
    (axes,) = drawn[0].axes
    minus = "\N{MINUS SIGN}"
    thresholds = [f"τ = {minus}3", f"τ = {minus}2", f"τ = {minus}1", "τ = 0", "τ = 1", "τ = 2", "τ = 3"]
    assert legend(axes) == [f"{rate}, {threshold}" for rate in ("TPR", "FPR") for threshold in thresholds]
    tpr, fpr = line(axes, "TPR, τ = 2"), line(axes, "FPR, τ = 2")
    assert (tpr.get_linestyle(), fpr.get_linestyle()) == ("-", "--")
    assert tpr.get_color() == fpr.get_color() != line(axes, "TPR, τ = 1").get_color()
    assert list(tpr.get_ydata()) == [0.01 * NAMES.index("h/tpr@2") - 0.05] * 3
    assert list(line(axes, "_unlisted").get_ydata()) == [0, 0]
    box, frame = axes.get_legend().get_window_extent(), axes.get_window_extent()
    assert box.x0 >= frame.x1  # outside: hides no line
    assert box.x1 <= drawn[0].bbox.x1
    assert "train" in axes.get_title()


@pytest.mark.slow
@pytest.mark.parametrize(("epochs", "edges"), [([4], [3.5, 4.5]), ([3, 7, 11], [1, 5, 9, 13])])
def test_many_constraints_are_a_heat_map(drawn, tmp_path, epochs, edges):
    h = {f"h/group {i}": 0.01 * (i - 10) for i in range(50)}
    pictures.plot_constraints([record(e, **h, **{"h/none": math.nan}) for e in epochs], tmp_path / "fig.png")
    axes, scale = drawn[0].axes
    (mesh,) = axes.collections
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"group {i}" for i in range(10, 50)]
    assert mesh.get_array().tolist() == [[h[f"h/group {i}"]] * len(epochs) for i in range(10, 50)]
    assert mesh.get_coordinates()[0, :, 0].tolist() == edges
    assert axes.get_title().endswith("the 40 largest of 50")
    red, _, blue, _ = mesh.to_rgba(0.01)
    assert red > blue
    red, _, blue, _ = mesh.to_rgba(-0.01)
    assert red < blue
    assert "feasible: at most 0" in scale.get_ylabel()


@pytest.mark.slow
@pytest.mark.parametrize(("least", "range_"), [(0.0, (0, 1.9)), (-2.0, (-2, 2))])
def test_many_multipliers_are_a_heat_map(drawn, tmp_path, least, range_):
    nu = {f"nu/group {i}": 0.1 * i for i in range(20)} | {"nu/group 0": least}
    pictures.plot_multipliers([record(0, **nu)], tmp_path / "fig.png")
    axes, scale = drawn[0].axes
    (mesh,) = axes.collections
    assert mesh.get_array().tolist() == [[value] for value in nu.values()]
    assert mesh.get_clim() == pytest.approx(range_)
    assert "multiplier" in scale.get_ylabel()


def test_multipliers_are_drawn_as_the_constraints_are(drawn, tmp_path):
    history = [record(e, **{"h/tpr@0": 0.1, "nu/tpr@0": 0.5 * e, "nu/tpr@1": 0.25}) for e in range(3)]
    assert pictures.plot_multipliers(history, tmp_path / "fig.png") == tmp_path / "fig.png"
    (axes,) = drawn[0].axes
    assert legend(axes) == ["TPR, τ = 0", "TPR, τ = 1"]
    assert list(line(axes, "TPR, τ = 0").get_ydata()) == [0.0, 0.5, 1.0]
    assert pictures.plot_multipliers([record(0, **{"h/tpr@0": 0.1})], tmp_path / "none.png") is None


def test_constraints_of_other_names_and_another_split(drawn, tmp_path):
    history = [
        record(0, auc=0.5),
        record(0, "val", **{"h/clear": 0.1, "h/snowy": 0.2, "h/rainy": None, "h/tpr@q": 0.3, "h/fpr@0": 0.4}),
    ]
    assert pictures.plot_constraints(history, tmp_path / "fig.png")
    (axes,) = drawn[0].axes
    *others, fpr = legend(axes)
    assert others == ["clear", "snowy", "tpr@q"]
    assert len({line(axes, name).get_color() for name in others}) == 3
    assert [line(axes, name).get_marker() for name in ("clear", fpr)] == ["o", "x"]  # so that one epoch is seen
    assert "val" in axes.get_title()


def test_the_split_of_the_constraints_can_be_chosen(drawn, tmp_path):
    history = [record(0, "val", **{"h/a": 2.0}), record(0, **{"h/a": 1.0}), record(0, "other", **{"h/a": 3.0})]
    for split in ("val", None):
        pictures.plot_constraints(history, tmp_path / "fig.png", split)
    assert [list(line(figure.axes[0], "a").get_ydata()) for figure in drawn] == [[2.0], [1.0]]
    assert pictures.plot_constraints(history, tmp_path / "fig.png", split="test") is None


# In the second sample the negatives of the groups differ, so the gap is one of false positive rates.
@pytest.mark.parametrize("flipped", [False, True], ids=["tpr", "fpr"])
def test_roc_by_group_with_aucs_and_gap(drawn, tmp_path, flipped):
    scores, labels, groups = sample(90)
    scores, labels = (-scores, 1 - labels) if flipped else (scores, labels)
    splits = {"train": (scores, labels, groups), "test": sample(60)}
    assert pictures.plot_roc_by_group(splits, tmp_path / "fig.png", names=("a", "b")) == tmp_path / "fig.png"
    axes, _ = drawn[0].axes
    assert [axes.get_title() for axes in drawn[0].axes] == ["ROC by group (train)", "ROC by group (test)"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("false positive rate", "true positive rate")
    gap = roc_gap(scores, labels, groups)
    widest = line(axes, f"hard gap {gap:.3f}, at one threshold").get_xydata()
    assert abs(widest[0] - widest[1]).max() == gap
    for k, name in enumerate("ab"):
        own = labels[groups == k], scores[groups == k]
        curve = line(axes, f"{name}: AUC {roc_auc_score(*own):.3f}").get_xydata()
        assert curve == pytest.approx(np.stack(roc_curve(*own, drop_intermediate=False)[:2], axis=1), abs=1e-12)
        assert abs(curve - widest[k]).max(1).min() < 1e-12
    assert len(legend(axes)) == 3


@pytest.mark.parametrize("history", [[], [record(0)], [record(0, auc=None, **{"h/a": math.nan})]])
def test_pictures_without_numbers_are_skipped(history, tmp_path):
    assert pictures.plot_objective_and_violation(history, tmp_path / "a.png") is None
    assert pictures.plot_constraints(history, tmp_path / "b.png") is None
    assert pictures.plot_roc_by_group({}, tmp_path / "c.png") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("evaluation", [BinaryEvaluation(), RankingEvaluation()], ids=["by group", "ranking"])
def test_a_weight_of_two_is_drawn_as_two_samples(drawn, tmp_path, evaluation):
    scores, y, group = sample(80)
    counts = torch.arange(80) % 3
    twice = {name: column.repeat_interleave(counts) for name, column in {"y": y, "group": group}.items()}
    final = {"test": (scores, {"y": y, "group": group, "weight": counts.float()})}
    repeated = {"test": (scores.repeat_interleave(counts), twice)}
    texts = []
    for split in (final, repeated):
        evaluation.draw([], split, tmp_path)
        texts.append([[*map(str, legend(axes))] for axes in drawn[-1].axes])
    assert texts[0] == texts[1]
    evaluation.draw([], {"test": (scores, {"y": y, "group": group})}, tmp_path)
    assert [[*map(str, legend(axes))] for axes in drawn[-1].axes] != texts[0]

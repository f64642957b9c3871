"""Figures by group of a split against numpy and sklearn, their report, and two processes against one."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from fcco_lightning.training.evaluation import correct_and_loss
from sklearn.metrics import accuracy_score, log_loss

from fcco_lightning import (
    BinaryEvaluation,
    ConfigError,
    CrossEntropy,
    DataError,
    Evaluation,
    GroupEvaluation,
    TaskEvaluation,
)
from fcco_lightning.callbacks import Report
from fcco_lightning.metrics import num_worst
from tests import jobs
from tests.launch import launch, values

PNG = b"\x89PNG\r\n\x1a\n"


class GroupCrossEntropy(CrossEntropy):
    figures = "groups"


def split(groups, classes=1, size=400, seed=0):
    """Outputs and batch in float32; one score a sample for ``classes=1``."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, max(2, classes), (size,), generator=generator)
    group = torch.randint(0, groups, (size,), generator=generator)
    harder = 1 + 3 * group / groups  # sklearn cuts probabilities below 1e-16, so no more than that
    noise = torch.randn((size, classes) if classes > 1 else (size,), generator=generator)
    noise *= harder.unsqueeze(1) if classes > 1 else harder
    signal = torch.nn.functional.one_hot(y, classes) if classes > 1 else 2 * y - 1
    return signal * 2 + noise, {"y": y, "group": group}


def probabilities(outputs):
    scores = outputs.double().numpy()
    if scores.ndim == 1:
        p = 1 / (1 + np.exp(-scores))
        return np.stack([1 - p, p], 1)
    e = np.exp(scores - scores.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def by_group(outputs, batch):
    """``{group: (size, accuracy, loss)}`` by sklearn."""
    p, y, group = probabilities(outputs), batch["y"].numpy(), batch["group"].numpy()
    classes = range(p.shape[1])
    return {
        g: (
            int((own := group == g).sum()),
            accuracy_score(y[own], p[own].argmax(1)),
            log_loss(y[own], p[own], labels=classes),
        )
        for g in np.unique(group).tolist()
    }


def expected(outputs, batch, alpha, pooled=False):
    found = list(by_group(outputs, batch).values())
    sizes, accuracies, losses = map(np.array, zip(*found, strict=True))
    worst = np.argsort(accuracies, kind="stable")[: num_worst(len(found), alpha)]
    thresholds = [s + np.maximum(losses - s, 0).sum() / (alpha * len(losses)) for s in losses]
    return {
        "accuracy": np.average(accuracies, weights=sizes),
        "worst_group_accuracy": accuracies.min(),
        "tail_accuracy": np.average(accuracies[worst], weights=sizes[worst] if pooled else None),
        "group_balanced_accuracy": accuracies.mean(),
        "loss": np.average(losses, weights=sizes),
        "worst_group_loss": losses.max(),
        "cvar_loss": min(thresholds),
    }


# ------------------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("classes", [1, 2, 5])
@pytest.mark.parametrize(("groups", "alpha"), [(1, 0.1), (2, 0.1), (7, 0.3), (7, 1.0), (30, 0.25)])
def test_figures_as_sklearn(groups, alpha, classes, pooled):
    outputs, batch = split(groups, classes)
    got = GroupEvaluation(alpha, most_groups=0, pooled=pooled)(outputs, batch)
    assert got == pytest.approx(expected(outputs, batch, alpha, pooled), rel=1e-9)
    assert all(type(value) is float for value in got.values())
    assert set(GroupEvaluation.bar) <= got.keys()


def test_a_column_of_scores_is_one_score():
    outputs, batch = split(3)
    assert GroupEvaluation()(outputs.unsqueeze(1), batch) == GroupEvaluation()(outputs, batch)


def test_one_group_is_the_average():
    got = GroupEvaluation(most_groups=0)(*split(1))
    for name, value in got.items():
        assert value == pytest.approx(got["accuracy" if "accuracy" in name else "loss"]), name


def test_every_group_by_its_name():
    outputs, batch = split(3)
    evaluation = GroupEvaluation(most_groups=3)
    numbered = evaluation(outputs, batch)
    evaluation.group_names = ["a", "b"]  # of the third no name is known
    named = evaluation(outputs, batch)
    for g, (_, accuracy, loss) in by_group(outputs, batch).items():
        name = ["a", "b", "2"][g]
        assert named[f"group_accuracy/{name}"] == numbered[f"group_accuracy/{g}"] == pytest.approx(accuracy)
        assert named[f"group_loss/{name}"] == numbered[f"group_loss/{g}"] == pytest.approx(loss)


@pytest.mark.parametrize(("most", "logged"), [(2, 0), (3, 6), (32, 6)])
def test_groups_are_logged_if_they_are_few(most, logged):
    assert sum("/" in name for name in GroupEvaluation(most_groups=most)(*split(3))) == logged


def test_a_split_without_some_groups():
    outputs, batch = split(4)
    kept = (batch["group"] != 0) & (batch["group"] != 2)
    outputs, batch = outputs[kept], {name: column[kept] for name, column in batch.items()}
    evaluation = GroupEvaluation(alpha=0.5)
    evaluation.group_names = ["a", "b", "c", "d", "e"]
    got = evaluation(outputs, batch)
    scalars = {k: v for k, v in got.items() if "/" not in k}
    assert scalars == pytest.approx(expected(outputs, batch, 0.5), rel=1e-9)  # alpha of the two groups that are there
    assert {k for k in got if "/" in k} == {f"group_{what}/{name}" for what in ("accuracy", "loss") for name in "bd"}
    assert {row["name"] for row in evaluation.details(outputs, batch)["groups"]} == {"b", "d"}
    assert not any(math.isnan(value) for value in got.values())


def test_a_score_of_zero_is_class_0():
    correct, loss = correct_and_loss(torch.zeros(2), torch.tensor([0, 1]))
    assert correct.tolist() == [True, False]
    assert loss.tolist() == pytest.approx([math.log(2)] * 2)


def test_large_scores_have_finite_losses():
    _, loss = correct_and_loss(torch.tensor([1e4, -1e4]), torch.tensor([0, 1]))
    assert loss.tolist() == [1e4, 1e4]


def test_table_of_groups_the_worst_first():
    outputs, batch = split(7, classes=3)
    evaluation = GroupEvaluation(alpha=0.3)
    rows = evaluation.details(outputs, batch)["groups"]
    found = by_group(outputs, batch)
    assert {row["group"] for row in rows} == set(range(7))
    for row in rows:
        assert (row["size"], row["accuracy"], row["loss"]) == pytest.approx(found[row["group"]])
    assert [row["accuracy"] for row in rows] == sorted(row["accuracy"] for row in rows)
    assert sum(row["weight"] for row in rows) == pytest.approx(1)
    tail = sum(row["weight"] * row["loss"] for row in rows)
    assert tail == pytest.approx(expected(outputs, batch, 0.3)["cvar_loss"])


def test_groups_of_equal_accuracy_stand_by_their_loss():
    outputs, batch = torch.tensor([1.0, 3.0, 2.0]), {"y": torch.zeros(3).long(), "group": torch.arange(3)}
    assert [row["group"] for row in GroupEvaluation().details(outputs, batch)["groups"]] == [1, 2, 0]


# ------------------------------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"alpha": 0.0}, r"alpha must lie in \(0, 1\], got 0.0"),
        ({"alpha": 1.1}, "alpha"),
        ({"most_groups": -1}, "most_groups must be a whole number >= 0"),
    ],
)
def test_bad_arguments(arguments, match):
    with pytest.raises(ConfigError, match=match):
        GroupEvaluation(**arguments)


@pytest.mark.parametrize(
    ("outputs", "changes", "match"),
    [
        ((4,), {"group": None}, r"need a column 'group'.*\['y'\].*--model.evaluation"),
        ((4,), {"y": None}, "need a column 'y'"),
        ((4,), {"y": [0, 1, 2, 0]}, r"y must lie in 0\.\.1 .* got 2 at position 2"),
        ((4, 3), {"y": [0, 1, 3, 0]}, r"y must lie in 0\.\.2 .* got 3 at position 2"),
        ((4, 3, 2), {}, "one score per sample"),
        ((4,), {"y": [0, 1]}, r"shape \(4,\), got \(2,\)"),
        ((4,), {"group": [0, -1, 0, 1]}, "got -1 at position 1"),
        ((0,), {"y": [], "group": []}, "at least one sample"),
    ],
)
def test_bad_splits(outputs, changes, match):
    columns = {"y": [0, 1, 0, 1], "group": [0, 0, 1, 1]} | changes
    batch = {k: torch.tensor(v, dtype=torch.int64) for k, v in columns.items() if v is not None}
    with pytest.raises(DataError, match=match):
        GroupEvaluation()(torch.zeros(outputs), batch)


# ----------------------------------------------------------------------------------------------------------------- run


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_a_run_reports_its_groups(make_module, make_trainer, small_data, tmp_path, capsys):
    module = make_module(objective=GroupCrossEntropy())
    report = Report(folder=str(tmp_path / "run"))
    trainer = make_trainer(callbacks=[report])
    trainer.fit(module, small_data)
    assert isinstance(module.evaluation, GroupEvaluation)
    assert tuple(module.evaluation.group_names) == ("f", "m")
    shown = {f"train_{name}" for name in ("accuracy", "worst_group_accuracy", "worst_violation")}
    assert shown <= trainer.progress_bar_metrics.keys(), trainer.progress_bar_metrics.keys()
    assert "train_cvar_loss" not in trainer.progress_bar_metrics
    folder = tmp_path / "run"
    names = {"report.json", "group_curves.png", "groups.png", "constraints.png"}
    assert {path.name for path in folder.iterdir()} == names
    assert all(path.read_bytes().startswith(PNG) for path in folder.glob("*.png"))
    written = json.loads((folder / "report.json").read_text())

    network = module.network.eval()
    parts = [(network(b["x"]).detach(), b) for b in small_data.evaluation_loaders()["test"]]
    outputs = torch.cat([o for o, _ in parts]).squeeze()
    batch = {name: torch.cat([b[name] for _, b in parts]) for name in ("y", "group")}
    for name, value in expected(outputs, batch, 0.1).items():
        assert written["test"][name] == pytest.approx(value, rel=1e-5), name
    assert {row["name"]: row["size"] for row in written["test"]["groups"]} == {
        name: by_group(outputs, batch)[g][0] for g, name in enumerate("fm")
    }
    assert written["test"]["groups"][0]["accuracy"] == written["test"]["worst_group_accuracy"]
    assert "constraints" in written["test"]

    text = capsys.readouterr().out
    assert "accuracy, worst group " in text
    assert "group_accuracy/" not in text
    assert "Groups (test): the first 2 of 2" in text


def test_the_default_follows_the_objective(make_module):
    assert isinstance(make_module().evaluation, BinaryEvaluation)
    assert isinstance(make_module(objective=CrossEntropy()).evaluation, BinaryEvaluation)
    own = GroupEvaluation(alpha=0.2)
    assert make_module(evaluation=own).evaluation is own
    other = BinaryEvaluation()
    assert make_module(objective=GroupCrossEntropy(), evaluation=other).evaluation is other


class Shares(Evaluation):
    """The least that an evaluation must offer."""

    def __call__(self, outputs, batch):
        return {"positives": (outputs > 0).double().mean().item()}


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_an_evaluation_of_ones_own(make_module, make_trainer, small_data, tmp_path, capsys):
    report = Report(folder=str(tmp_path / "run"))
    make_trainer(callbacks=[report], max_epochs=1).fit(make_module(evaluation=Shares(), constraints=[]), small_data)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["report.json"]
    assert report.report["test"].keys() == {"positives"}
    assert "positives" in capsys.readouterr().out


def test_a_binary_job_with_other_groups_draws_no_roc_of_them(tmp_path):
    outputs, batch = split(5)
    assert BinaryEvaluation().draw([], {"test": (outputs, batch)}, tmp_path) == []
    outputs, batch = split(2)
    batch["y"][batch["group"] == 1] = 0  # a group that lacks a class
    assert BinaryEvaluation().draw([], {"test": (outputs, batch)}, tmp_path) == []
    assert BinaryEvaluation().draw([], {"test": split(2)}, tmp_path) == [Path(tmp_path / "roc_by_group.png")]


def test_two_processes_have_the_figures_of_one():
    """203 rows in parts that are not equal."""
    job = {"rows": 203, "epochs": 1, "module": {"evaluation": GroupEvaluation(alpha=0.7)}}
    (one,), (first, second) = (values(launch(jobs.fit, size, job)) for size in (1, 2))
    names = {name for name in one["logged"] if "accuracy" in name or "_loss" in name}
    assert {name.partition("_")[2] for name in names} > {"worst_group_accuracy", "cvar_loss", "group_loss/f"}
    assert first["logged"] == second["logged"]
    assert {n: first["logged"][n] for n in names} == pytest.approx({n: one["logged"][n] for n in names}, rel=1e-4)


# ---- tasks x groups


def test_tasks_by_groups_as_loops():
    outputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    batch = {"y": torch.randint(2, (60, 3), generator=torch.Generator().manual_seed(1)), "group": torch.arange(60) % 4}
    batch["group"][batch["group"] == 2] = 5  # groups 2 and 4 are absent
    cells = {}
    for t in range(3):
        for g in (0, 1, 3, 5):
            rows = batch["group"] == g
            right = ((outputs[rows, t] > 0).long() == batch["y"][rows, t]).double().mean().item()
            sign = 1 - 2 * batch["y"][rows, t]
            cells[t, g] = right, np.logaddexp(0, (sign * outputs[rows, t]).double().numpy()).mean()
    found = TaskEvaluation()(outputs, batch)
    worst = [min(cells[t, g][0] for g in (0, 1, 3, 5)) for t in range(3)]
    highest = [max(cells[t, g][1] for g in (0, 1, 3, 5)) for t in range(3)]
    assert found["worst_accuracy"] == pytest.approx(min(worst))
    assert found["worst_group_accuracy"] == pytest.approx(np.mean(worst))
    assert found["worst_group_loss"] == pytest.approx(np.mean(highest))
    assert [found[f"task_accuracy/{t}"] for t in range(3)] == pytest.approx(worst)
    with pytest.raises(DataError, match=r"one shape \(n, T\), got \(60, 3\) and \(60, 2\)"):
        TaskEvaluation()(outputs, {**batch, "y": batch["y"][:, :2]})

"""Evaluations in a run: the contents of the report and its folder."""

import json

import pytest
import torch

from fcco_lightning import ContinualEvaluation, CrossEntropy, Evaluation, GroupEvaluation
from fcco_lightning.data import TensorTable
from fcco_lightning.reports import Report
from tests.evaluation.reference import by_group, group_figures

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_a_run_reports_its_groups(make_module, make_trainer, small_data, tmp_path, capsys):
    module = make_module(objective=CrossEntropy(), evaluation=GroupEvaluation())
    report = Report(folder=str(tmp_path / "run"))
    trainer = make_trainer(callbacks=[report])
    trainer.fit(module, small_data)
    assert tuple(module.evaluation.group_names) == ("f", "m")
    shown = {f"train_{name}" for name in ("accuracy", "worst_group_accuracy", "worst_violation")}
    assert shown <= trainer.progress_bar_metrics.keys(), trainer.progress_bar_metrics.keys()
    assert "train_cvar_loss" not in trainer.progress_bar_metrics
    folder = tmp_path / "run"
    names = {"report.json", "report.html", "group_curves.png", "groups.png", "constraints.png", "calibration.png"}
    assert {path.name for path in folder.iterdir()} == names
    assert all(path.read_bytes().startswith(PNG) for path in folder.glob("*.png"))
    written = json.loads((folder / "report.json").read_text())

    network = module.network.eval()
    parts = [(network(b["x"]).detach(), b) for b in small_data.evaluation_loaders()["test"]]
    outputs = torch.cat([o for o, _ in parts]).squeeze()
    batch = {name: torch.cat([b[name] for _, b in parts]) for name in ("y", "group")}
    for name, value in group_figures(outputs, batch, 0.1).items():
        assert written["test"][name] == pytest.approx(value, rel=1e-5), name
    assert {row["name"]: row["size"] for row in written["test"]["groups"]} == {
        name: by_group(outputs, batch)[g][0] for g, name in enumerate("fm")
    }
    assert written["test"]["groups"][0]["accuracy"] == written["test"]["worst_group_accuracy"]
    assert "constraints" in written["test"]

    text = capsys.readouterr().out
    assert "accuracy, worst group " in text
    assert "group_accuracy/" not in text
    assert "Groups (test)" in text


def remembering(data):
    """Tables with the group as task (0 protected, 1 the target) and an old model that knew the class 0 only."""
    data.setup()
    for split, table in data.tables.items():
        columns = {name: column for name, column in table.columns.items() if name != "index"}
        y = columns["y"]
        columns |= {"task": -columns["group"], "old_loss": torch.full(y.shape, 0.7), "old_correct": 1 - y}
        data.tables[split] = TensorTable(columns)
    return data


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_a_run_reports_its_tasks(make_module, make_trainer, small_data, tmp_path, capsys):
    module = make_module(evaluation=ContinualEvaluation())
    trainer = make_trainer(callbacks=[Report(folder=str(tmp_path / "run"))])
    trainer.fit(module, remembering(small_data))
    shown = {"train_target_accuracy", "train_worst_change", "train_worst_violation"}
    assert shown <= trainer.progress_bar_metrics.keys()
    folder = tmp_path / "run"
    assert {path.name for path in folder.iterdir()} == {
        "report.json",
        "report.html",
        "continual.png",
        "constraints.png",
        "calibration.png",
    }
    assert all(path.read_bytes().startswith(PNG) for path in folder.glob("*.png"))
    written = json.loads((folder / "report.json").read_text())["test"]
    assert [row["name"] for row in written["tasks"]] == ["target", "f"]
    rows = small_data.tables["test"].columns
    for row, group in zip(written["tasks"], (1, 0), strict=True):
        own = rows["group"] == group
        assert row["size"] == int(own.sum())
        assert row["old_accuracy"] == pytest.approx(float((rows["y"][own] == 0).double().mean()), rel=1e-6)
    assert written["change/f"] == written["worst_change"] == written["tasks"][1]["change"]
    text = capsys.readouterr().out
    assert "Tasks (test)" in text
    assert "change/" not in text


class Shares(Evaluation):
    """The least that an evaluation must offer."""

    def __call__(self, outputs, batch):
        return {"positives": (outputs > 0).double().mean().item()}


@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_an_evaluation_of_ones_own(make_module, make_trainer, small_data, tmp_path, capsys):
    report = Report(folder=str(tmp_path / "run"))
    make_trainer(callbacks=[report], max_epochs=1).fit(make_module(evaluation=Shares(), constraints=[]), small_data)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"report.json", "report.html", "calibration.png"}
    decided = {"confusion_matrix", "rates_by_group", "brier_loss", "calibration", "calibration_error"}
    assert report.report["test"].keys() == {"positives", *decided}
    assert "positives" in capsys.readouterr().out

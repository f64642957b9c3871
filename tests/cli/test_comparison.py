"""``fcco compare`` on hand-written reports."""

import csv
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from fcco_lightning.cli import comparison, run
from fcco_lightning.cli.comparison import compare, print_rows
from fcco_lightning.errors import DataError


def write(folder, algorithm, lam, test, worst=None):
    algorithm = {"class_path": f"fcco_lightning.{algorithm}", "init_args": {"lam": lam}}
    config = {"model": {"algorithm": algorithm, "penalty": {"lam": 1}}, "report": {"folder": str(folder)}}
    train = {} if worst is None else {"worst_violation": worst}
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps({"train": train, "test": test, "config": config}))
    (folder / "metrics.csv").write_text("step,train_objective\n0,0.9\n1,0.25\n2,\n")


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("a"), "SONEX", 0.1, {"auc": 0.8, "score_min": 1, "constraints": {"h": 1}}, -0.01)
    write(Path("b"), "SOX", None, {"auc": 0.9, "accuracy": 0.5}, 0.2)
    Path("other").mkdir()
    return ["a", "b", "other"]


def test_rows_hold_what_differs_and_what_was_reached(runs):
    shared = {"objective": 0.25}
    assert compare(runs) == [
        {"run": "a", "algorithm": "SONEX", "lam": 0.1, **shared, "largest h": -0.01, "holds": "yes",
         "test_auc": 0.8, "test_accuracy": None},
        {"run": "b", "algorithm": "SOX", "lam": None, **shared, "largest h": 0.2, "holds": "no",
         "test_auc": 0.9, "test_accuracy": 0.5},
    ]  # fmt: skip
    with pytest.raises(DataError, match=r"has a report\.json"):
        compare(["other"])


def test_classes_in_a_list_are_told_by_their_arguments(runs):
    def limits(*kappas):
        return [{"class_path": "fcco_lightning.MeanAtMost", "init_args": {"kappa": kappa}} for kappa in kappas]

    for folder, kappas in {"a": [0.1], "b": [0.2], "other": [0.1, 0.3]}.items():
        config = {"model": {"constraints": limits(*kappas)}, "baseline": {"enabled": folder == "a"}}
        Path(folder, "report.json").write_text(json.dumps({"config": config}))
    a, b = compare(["a", "b"])
    assert (a["kappa"], a["baseline.enabled"], b["kappa"], b["baseline.enabled"]) == (0.1, True, 0.2, False)
    assert "constraints" not in a
    a, other = compare(["a", "other"])
    assert (a["constraints"], other["constraints"]) == ("MeanAtMost", "MeanAtMost, MeanAtMost")
    assert other["model.constraints.1.kappa"] == 0.3


def test_a_setting_of_the_name_of_a_figure_keeps_its_path(runs):
    for folder, objective in {"a": "AUC", "b": "CrossEntropy"}.items():
        config = {"model": {"objective": {"class_path": f"fcco_lightning.{objective}"}}}
        Path(folder, "report.json").write_text(json.dumps({"config": config}))
    a, b = compare(["a", "b"])
    assert (a["model.objective"], b["model.objective"]) == ("AUC", "CrossEntropy")


def test_values_of_different_objectives_stand_apart(runs):
    for folder, (name, alpha) in {"a": ("CVaRGroupDRO", 0.1), "b": ("AUC", 1), "other": ("CVaRGroupDRO", 0.2)}.items():
        objective = {"class_path": f"fcco_lightning.{name}", "init_args": {"alpha": alpha}}
        Path(folder, "report.json").write_text(json.dumps({"config": {"model": {"objective": objective}}}))
    a, b = compare(["a", "b"])
    assert (a["objective CVaRGroupDRO"], a["objective AUC"]) == (0.25, None)
    assert (b["objective CVaRGroupDRO"], b["objective AUC"]) == (None, 0.25)
    a, b, other = compare(["a", "b", "other"])
    assert (a["objective CVaRGroupDRO alpha=0.1"], a["objective CVaRGroupDRO alpha=0.2"]) == (0.25, None)
    assert (b["objective AUC"], other["objective CVaRGroupDRO alpha=0.2"]) == (0.25, None)  # it has logged none
    assert run(["compare", "a", "b"]) == 0


def test_the_command_prints_writes_and_draws(runs, capsys):
    assert run(["compare", *runs, "--out", "table.csv"]) == 0
    assert "SONEX" in capsys.readouterr().out
    with Path("table.csv").open() as file:
        assert [row["test_auc"] for row in csv.DictReader(file)] == ["0.8", "0.9"]
    with Image.open("comparison.png") as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
    assert {(0, 114, 178), (213, 94, 0)} <= colours  # a run that holds its constraints, and one that does not


def test_a_run_that_decides_all_alike_is_not_drawn_as_one_that_holds(runs):
    report = json.loads(Path("a", "report.json").read_text())
    report["train"]["vacuous"] = True
    Path("a", "report.json").write_text(json.dumps(report))
    assert [row["holds"] for row in compare(runs)] == ["vacuous", "no"]
    assert run(["compare", *runs]) == 0
    with Image.open("comparison.png") as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
    assert (0, 114, 178) not in colours


def test_a_setting_is_no_figure_of_the_test_split(runs, monkeypatch):
    drawn = []
    monkeypatch.setattr(comparison, "plot_comparison", lambda rows, figure, *_: drawn.append(figure))
    for k, folder in enumerate(runs[:2]):
        report = json.loads((Path(folder) / "report.json").read_text())
        report["config"]["data"] = {"splits": {"test_fraction": 0.2 + k / 10}}
        (Path(folder) / "report.json").write_text(json.dumps(report))
    assert run(["compare", *runs]) == 0
    assert drawn == ["test_auc"]


def test_many_settings_of_few_runs_are_a_line_each(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    print_rows([{"run": f"version_{k}"} | {f"setting_{i}": 10 * i + k for i in range(30)} for k in range(3)])
    lines = capsys.readouterr().out.splitlines()
    assert all(f"version_{k}" in lines[1] for k in range(3))
    assert [line for line in lines if "setting_17" in line and all(str(170 + k) in line for k in range(3))]


@pytest.mark.parametrize(("runs", "settings"), [(40, 4), (40, 12), (12, 40)])
def test_a_table_that_is_too_wide_comes_in_parts_without_losing_a_number(monkeypatch, capsys, runs, settings):
    monkeypatch.setenv("COLUMNS", "80")
    rows = [
        {"run": f"version_{k}"} | {f"setting_{i}": 1000 + 100 * i + k for i in range(settings)} for k in range(runs)
    ]
    print_rows(rows)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert all(re.search(rf"\b{value}\b", printed) for row in rows for value in row.values())
    assert "…" not in printed


def test_runs_without_constraints_are_a_line_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("a"), "SGD", None, {"loss": 0.5})
    assert run(["compare", "a", "--picture", "b.png"]) == 0
    assert Path("b.png").exists()


@pytest.mark.parametrize(("option", "kind"), [("--out", "csv"), ("--picture", "png")])
def test_files_of_other_formats_are_not_written(runs, option, kind, capsys):
    assert run(["compare", *runs, option, "c.xyz"]) == 2
    assert (
        f"'c.xyz': the file is written in the format .{kind}. Give the name of a .{kind} file."
        in capsys.readouterr().err
    )
    assert not Path("c.xyz").exists()


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("report.json", "[]", r"all of it is '\[\]', and must be a mapping"),
        ("report.json", '{"test": 3}', "test is '3', and must be a mapping"),
        ("report.json", '{"config": "x"}', "config is 'x', and must be a mapping"),
        ("report.json", '{"train": {"worst_violation": "x"}}', "train.worst_violation is 'x', and must be a number"),
        ("metrics.csv", "", "No columns"),
        ("metrics.csv", "a\n1,2\n1,2,3\n", ".* saw 3"),
        ("metrics.csv", "train_objective\n[red]\n", "train_objective contains text"),
    ],
)
def test_a_folder_of_a_stranger_is_refused_in_words(file, content, named, runs):
    Path("a", file).write_text(content)
    with pytest.raises(DataError, match=f"^a/{file} is no readable .*{named}"):
        compare(runs)


def test_a_whole_number_that_no_float_holds_is_infinite(runs):
    Path("a", "report.json").write_text('{"test": {"auc": 1' + "0" * 400 + "}}")
    assert compare(runs)[0]["test_auc"] == float("inf")

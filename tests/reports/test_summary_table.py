"""The report as a table and as a file."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from fcco_lightning.errors import CheckpointError
from fcco_lightning.reports.left_out import LeftOut
from fcco_lightning.reports.summary_table import (
    constraint_records,
    render_records,
    render_summary,
    table_makers,
    write_report,
)

REPORT = {
    "train": {"average_precision": 0.77, "worst_violation": -0.0014, "auc": 0.91234, "vacuous": False},
    "test": {"auc": 0.9, "worst_violation": 0.0021, "roc_gap": math.nan},
    "seconds": 93.42,
    "config": {"seed": 0, "kappa": 0.005, "nested": {"deep": 1}},
}


def tables_of(report, **how):
    return LeftOut().make_all(table_makers(report, **how))


def printed(table, width=120):
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def rows(text):
    """The cells of a printed table, row by row."""
    lines = [line for line in text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def cells(report):
    """Rows of the summary, as name -> values."""
    return {name: values for name, *values in rows(printed(render_summary(report)))}


def test_a_constraint_that_no_split_has_samples_of_is_in_the_table():
    _, records = constraint_records({"test": {"constraints": {"a": 0.1}}, "kappas": {"a": 0.2, "b": 0.2}})
    assert records == [{"constraint": "a", "h test": 0.1}, {"constraint": "b", "h test": None}]


def test_a_row_a_metric_and_a_column_a_split():
    assert cells(REPORT) == {
        "AUC": ["0.9123", "0.9000"],
        "worst violation, max h": ["-0.0014", "+0.0021"],
        "hard ROC gap": ["-", "-"],
        "constraints vacuous": ["no", "-"],
        "average_precision": ["0.7700", "-"],
    }
    assert [str(column.header) for column in render_summary(REPORT).columns] == ["metric", "train", "test"]


def test_a_violation_of_decisions_is_called_so():
    assert "worst violation, max h of decisions" in cells(REPORT | {"decisions": True})


def test_caption_holds_seconds_and_plain_settings_and_no_false_alarm():
    text = printed(render_summary(REPORT))
    assert "93.4 s, seed=0, kappa=0.005" in text
    assert "nested" not in text
    assert "Constraints vacuous" not in text


def test_vacuous_constraints_are_called_so():
    report = {**REPORT, "train": {**REPORT["train"], "vacuous": True}}
    assert "Constraints vacuous" in printed(render_summary(report))
    assert cells(report)["constraints vacuous"] == ["yes", "-"]


def test_records_are_rows():
    records = [{"name": "a", "size": 10, "accuracy": 0.5}, {"name": "b", "size": 7, "accuracy": math.nan}]
    text = printed(render_records("Groups (test)", records))
    assert rows(text) == [["a", "10", "0.5000"], ["b", "7", "-"]]
    assert "Groups (test)" in text
    assert [str(column.header) for column in render_records("", records).columns] == ["name", "size", "accuracy"]
    assert render_records("", []).columns == []


def test_constraints_with_the_largest_multipliers_come_first():
    nu = {"multipliers": {"a": 0.5, "b": 0.0, "c": 2.0}}
    one = {"h": 0.1, "low": -0.05, "high": 0.2, "noise": 0.03, "method": "binomial"}
    report = {
        "train": {"constraints": {"a": 0.1, "b": -0.2, "c": 0.0}, **nu},
        "test": {"constraints": {"a": 0.2, "b": -0.1}, "intervals": {"a": one, "b": {**one, "method": "normal"}}, **nu},
        "config": {},
    }
    title, records = constraint_records(report, most=2)
    assert title == "Constraints, largest multipliers first (2 of 3); intervals on test: exact binomial or normal"
    title, _ = constraint_records({**report, "clusters": "patient"})
    assert title.endswith("; intervals on test: exact binomial or normal, by clusters of patient")
    assert tables_of({**report, "clusters": "patient"})[-1].title.plain == title
    assert records == [
        {"constraint": "c", "h train": 0, "h test": None, "95% interval": "-", "noise floor": None, "multiplier": 2.0},
        {"constraint": "a", "h train": 0.1, "h test": 0.2, "95% interval": "[-0.0500, +0.2000]", "noise floor": 0.03,
         "multiplier": 0.5},
    ]  # fmt: skip
    assert constraint_records({"train": {"constraints": {"a": 0.1, "b": 0.2}}}) == (
        "Constraints",
        [{"constraint": "b", "h train": 0.2}, {"constraint": "a", "h train": 0.1}],
    )
    assert constraint_records({"train": {"auc": 0.5}}) == ("", [])


@pytest.mark.parametrize(("width", "parts"), [(120, 1), (90, 2), (60, 3)])
def test_constraints_that_are_too_wide_come_in_parts_without_losing_a_column(width, parts):
    of = {"constraints": {"selection rate: f - m": -0.0226}}
    shown = {"low": -0.05, "high": 0.0936, "noise": 0.019, "method": "binomial"}
    test = of | {"decided": of["constraints"], "multipliers": of["constraints"]}
    test["intervals"] = dict.fromkeys(of["constraints"], shown)
    *_, table = tables_of({"train": of, "val": of, "test": test})
    text = printed(table, width)
    assert "[-0.0500, +0.0936]" in text
    assert "h train" in text
    assert "noise floor" in text
    assert text.count("┏") == text.count("│ selection rate: f") == parts
    assert all(len(line) <= width for line in text.splitlines())


def test_violation_is_red_and_feasibility_green():
    columns = render_summary(REPORT).columns
    styles = [[str(cell.style) for cell in column.cells][1] for column in columns[1:]]
    assert styles == ["green", "red"]


@pytest.mark.parametrize("report", [{}, {"train": {}}, {"seconds": None}, {"test": {"auc": torch.tensor(0.5), "n": 7}}])
def test_any_part_may_be_absent(report):
    assert printed(render_summary(report))


def test_report_is_read_back(tmp_path):
    path = write_report(REPORT, tmp_path / "run" / "report.json")
    assert path == tmp_path / "run" / "report.json"
    expected = {**REPORT, "test": {**REPORT["test"], "roc_gap": None}}
    assert json.loads(path.read_text()) == expected
    assert [file.name for file in path.parent.iterdir()] == ["report.json"]


def test_values_of_other_libraries_become_plain_numbers(tmp_path):
    report = {
        "test": {
            "tensor": torch.tensor(0.9),
            "rates": torch.tensor([0.1, math.inf], dtype=torch.float64),
            "scalar": np.float32(0.1),
            "count": np.int64(3),
            "flag": torch.tensor(True),
            "pair": (1, -math.inf),
        },
        "config": {"lr": 0.123456789, "path": Path("data"), "off": None, 1: "x"},
    }
    assert json.loads(write_report(report, str(tmp_path / "r.json")).read_text()) == {
        "test": {
            "tensor": 0.9,
            "rates": [0.1, None],
            "scalar": 0.1,
            "count": 3,
            "flag": True,
            "pair": [1, None],
        },
        "config": {"lr": 0.123456789, "path": "data", "off": None, "1": "x"},
    }


def test_a_value_without_a_json_form_leaves_the_older_file(tmp_path):
    path = write_report({"seconds": 1.0}, tmp_path / "r.json")
    with pytest.raises(TypeError):
        write_report({"seconds": object()}, path)
    assert json.loads(path.read_text()) == {"seconds": 1.0}


def test_a_failed_replacement_leaves_the_older_file_and_no_rest(tmp_path, monkeypatch):
    path = write_report({"seconds": 1.0}, tmp_path / "r.json")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(CheckpointError, match="disk full"):
            write_report({"seconds": 2.0}, path)
    assert json.loads(path.read_text()) == {"seconds": 1.0}
    assert [file.name for file in tmp_path.iterdir()] == ["r.json"]
    assert json.loads(write_report({"seconds": 2.0}, path).read_text()) == {"seconds": 2.0}


def test_a_table_is_printed_as_one_and_fits(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    records = [{"name": f"task {k}", **{f"figure {i}": k + i / 100 for i in range(12)}} for k in range(3)]
    print(tables_of({"test": {"tasks": records}}))
    printed = capsys.readouterr().out
    assert "object at 0x" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert all(f"{k + i / 100:.4f}" in printed for k in range(3) for i in range(12))
    assert printed.count("task 2") > 1

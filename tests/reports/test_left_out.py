"""An item of a report that cannot be made is left out with a warning, and everything else is there.

Warnings are errors in the tests, so an item that is left out unexpectedly fails a test.
"""

import json
import math
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger

from fcco_lightning import FCCOModule, MeanAtMost, SoftRate, SyntheticDataModule, TabularMLP
from fcco_lightning.evaluation import BinaryEvaluation
from fcco_lightning.evaluation import pictures as all_pictures
from fcco_lightning.evaluation.pictures import (
    plot_calibration,
    plot_comparison,
    plot_constraints,
    plot_continual,
    plot_front,
    plot_group_curves,
    plot_groups,
    plot_importances,
    plot_multipliers,
    plot_objective_and_violation,
    plot_ranking,
    plot_roc_by_group,
)
from fcco_lightning.reports import Diagnostics, Report
from fcco_lightning.reports import report as reports
from fcco_lightning.reports.left_out import LeftOut
from fcco_lightning.reports.page import report_page
from fcco_lightning.reports.summary_table import print_tables, table_makers, write_report
from tests import drawing

drawn = drawing.drawn


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Pictures of few pixels: here it matters which are drawn, not how they look."""
    monkeypatch.setattr(all_pictures, "DPI", 30)


class Broken(BinaryEvaluation):
    """Whose details and one of whose pictures cannot be made."""

    def details(self, outputs, batch):
        raise ZeroDivisionError("details of nothing")

    def pictures(self, history, final):
        return {"odd.png": self.odd, **super().pictures(history, final)}

    def odd(self, path):
        raise KeyError("odd")


class Unwritable(BinaryEvaluation):
    def details(self, outputs, batch):
        return {"object": object()}


def fit(report, evaluation=None, *callbacks):
    seed_everything(0, verbose=False)
    constraint = MeanAtMost(SoftRate(), kappa=0.9)
    module = FCCOModule(TabularMLP([4]), constraints=[constraint], evaluation=evaluation)
    trainer = Trainer(
        max_epochs=1, callbacks=[report, *callbacks], logger=CSVLogger("runs", name=""), accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(module, SyntheticDataModule(num_train=400, num_test=100))
    return Path(trainer.log_dir)


def written(folder):
    return json.loads((folder / "report.json").read_text()), (folder / "report.html").read_text()


def raising(*args, **kwargs):
    raise RuntimeError("no such thing")


@pytest.mark.filterwarnings("ignore:.* is left out of the report")
@pytest.mark.parametrize("pictures", [True, False])
def test_a_run_ends_with_all_that_can_be_made(pictures, monkeypatch):
    for name in ("reports.report.intervals", "reports.diagnostics._samples"):
        monkeypatch.setattr(f"fcco_lightning.{name}", raising)
    report = Report(pictures=pictures)
    folder = fit(report, Broken(), Diagnostics(enabled=True))
    content, page = written(folder)
    of_splits = {f"{item} ({split})" for item in ("details", "intervals") for split in ("train", "test")}
    of_pictures = {"odd.png"} if pictures else set()
    assert content["left_out"].keys() == of_splits | of_pictures | {"diagnostics"}
    assert content["left_out"]["details (test)"] == "ZeroDivisionError: details of nothing"
    assert 0 < content["test"]["auc"] < 1
    assert "Summary of the run" in page
    assert all(f"{item}: " in page for item in content["left_out"])
    assert page.count("data:image/png") == len([*folder.glob("*.png")])
    assert ((folder / "constraints.png").exists(), (folder / "odd.png").exists()) == (pictures, False)


def test_details_that_json_does_not_hold_are_left_out():
    with pytest.warns(UserWarning, match=r"details \((train|test)\) is left out of the report: TypeError"):
        content, _ = written(fit(Report(table=False, pictures=False), Unwritable()))
    assert content["left_out"].keys() == {"details (train)", "details (test)"}


@pytest.mark.parametrize("item", ["figures", "the last line", "the table of the summary", "pictures"])
def test_each_item_is_left_out_by_itself(item, monkeypatch):
    place = {
        "figures": "training.FCCOModule.summarise",
        "the last line": "reports.report.verdict",
        "the table of the summary": "reports.summary_table.render_summary",
        "pictures": "evaluation.BinaryEvaluation.pictures",
    }[item]
    report = Report(pictures=item == "pictures")
    make = reports.figures_of_split if item == "figures" else None
    if make is None:
        monkeypatch.setattr(f"fcco_lightning.{place}", raising)
    else:  # of the final weights only

        def figures(module, *args):
            with monkeypatch.context() as patch:
                patch.setattr(f"fcco_lightning.{place}", raising)
                return make(module, *args)

        monkeypatch.setattr(reports, "figures_of_split", figures)
    with pytest.warns(UserWarning, match=f"{item}.* is left out of the report: RuntimeError: no such thing"):
        content, page = written(fit(report))
    assert all(name.startswith(item) for name in content["left_out"])
    assert ("auc" in content["test"]) == (item != "figures")
    assert "no such thing" in page


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="takes a device that is always full")
def test_a_full_disk_costs_what_lies_on_it(tmp_path):
    """The report's own files are written again at the end, when there may be room."""
    for name in ("constraints.png", "report.html"):
        (tmp_path / name).symlink_to("/dev/full")
    (tmp_path / "report.json").mkdir()
    report = Report(folder=str(tmp_path))
    with pytest.warns(UserWarning, match="is left out of the report") as warned:
        fit(report)
    said = " ".join(str(one.message) for one in warned)
    assert "constraints.png is left out of the report: OSError: [Errno 28] No space left on device" in said
    assert re.search("report.json is left out of the report: CheckpointError: cannot write .*: Is a directory", said)
    assert "report.html is left out of the report: OSError: [Errno 28]" in said
    assert report.left_out.keys() == {"constraints.png", "report.html", "report.json"}
    assert not (tmp_path / "constraints.png").is_file()  # nor half of one
    assert (tmp_path / "auc_and_violation.png").exists()


class Draws(Callback):
    """Draws after the report, as a callback of a user may."""

    def on_fit_end(self, trainer, pl_module):
        plot_objective_and_violation(histories([0.5], ["a"]), Path(trainer.log_dir, "of_another.png"))


def test_the_page_has_what_another_callback_draws_after_the_report():
    _, page = written(fit(Report(pictures=False), None, Draws()))
    assert "of another" in page


def test_an_interrupt_is_no_error_of_an_item():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LeftOut().make("an item", interrupted, None)


# ------------------------------------------------------------------------------------------------- degenerate values

TINY = 5e-324
COLUMNS = {  # 60 values each
    "constant": [0.7] * 60,
    "zero": [0.0] * 60,
    "nearly equal": [1.0, 1.0 + 2**-52, 1.0 + 2**-51] * 20,
    "largest": [-1.7e308, 1.7e308] * 30,
    "denormal": [0.0, TINY, 2 * TINY] * 20,
    "some NaN": [math.nan, 1.0] * 30,
    "infinite": [math.inf, -math.inf, 1.0] * 20,
    "one": [0.3],
    "none": [],
}

HOSTILE = ["", "$\\frac{x$", "a" * 300, "<b>&\udc80\x00[bold]\n" * 3]
HOSTILE_WITH = dict(zip(("one", "some NaN", "denormal", "largest"), HOSTILE, strict=True))  # the others are called "a"
QUICK = ("some NaN", "none")  # the others are slow


def histories(values, names):
    """Of all keys that a picture looks for."""
    known = ("auc", "worst_violation", "accuracy", "tail_accuracy", "loss", "cvar_loss", "delta_target")
    keys = [*known, *(f"{kind}/{name}" for kind in ("h", "nu", "change") for name in names)]
    return [
        {"epoch": epoch, "split": split, **dict.fromkeys(keys, value)}
        for epoch, value in enumerate(values)
        for split in ("train", "test")
    ]


def makers(values, names):
    """All pictures and tables of these values and names, by name."""
    column = torch.tensor(values, dtype=torch.float64)
    history, some = histories(values[:4], names), values[:3] or [0.0]
    labels, groups = torch.arange(len(column)) % 2, torch.arange(len(column)) // 2 % 2
    grouped = [{"name": name, "size": 1, "accuracy": v, "weight": v} for name in names for v in some]
    rows = [{"run": name, "point": name, "auc": v, "h": v, "test violation": v, "test auc": v}
            for name in names for v in some]  # fmt: skip
    shares = [{"predicted": v, "observed": v} for v in some]
    interval = {"low": some[0], "high": some[0], "noise": some[0], "method": "normal"}
    part = {
        "auc": some[0], "worst_violation": some[0], "vacuous": True, "groups": grouped,
        "constraints": dict.fromkeys(names, some[0]), "multipliers": dict.fromkeys(names, some[0]),
        "intervals": dict.fromkeys(names, interval),
    }  # fmt: skip
    report = {"train": part, "test": part, "seconds": some[0], "config": {"names": names}}
    pictures = {
        "objective and violation": partial(plot_objective_and_violation, history),
        "constraints": partial(plot_constraints, history),
        "multipliers": partial(plot_multipliers, history),
        "many constraints": partial(plot_constraints, histories(values[:4], [f"{names[0]}{i}" for i in range(15)])),
        "continual": partial(plot_continual, history),
        "group curves": partial(plot_group_curves, history),
        "groups": partial(plot_groups, grouped, average=some[0], split=names[0]),
        "calibration": partial(plot_calibration, {names[0]: shares}, horizon=some[0]),
        "comparison": partial(plot_comparison, rows, "auc", "h"),
        "comparison without constraints": partial(plot_comparison, rows, "auc", "none"),
        "front": partial(plot_front, rows, "auc"),
        "ranking": partial(plot_ranking, dict.fromkeys(names, (column, labels)), split=names[0]),
        "ranking of one class": partial(plot_ranking, {names[0]: (column, labels * 0)}),
        "groups' ROC": partial(plot_roc_by_group, {names[0]: (column, labels, groups)}, names=(names[0], names[0])),
    }  # fmt: skip
    return pictures, table_makers(report), report


@pytest.mark.slow
def test_no_name_keeps_a_picture_from_being_drawn(tmp_path):
    """Text that no encoding knows, as a damaged file may hold it."""
    pictures, _, _ = makers([0.25, 0.5] * 4, names := ["a\ud800$\\frac{$"])
    history, groups = histories([0.25, 0.5], [f"{names[0]}{i}" for i in range(15)]), {"name": names[0], "size": 1}
    drawn = {name: pictures[name] for name in ("constraints", "multipliers", "continual", "comparison", "front")}
    drawn["many multipliers"] = partial(plot_multipliers, history)
    drawn["groups"] = partial(plot_groups, [{**groups, "accuracy": 0.5, "weight": 1.0}], average=0.5)
    columns = [{"column": names[0], "change": 0.1, "std": 0.01}]
    drawn["importances"] = partial(plot_importances, columns, label="fall", title="Importance")
    for name, picture in drawn.items():
        assert picture(tmp_path / f"{name}.png") is not None, name


@pytest.mark.filterwarnings("ignore")  # what is left out here is what the test is about
@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in COLUMNS]
)
def test_all_is_made_or_left_out_in_words(case, tmp_path):
    values, names = COLUMNS[case], [HOSTILE_WITH.get(case, "a")]
    left_out = LeftOut()
    pictures, tables, report = makers(values, names)
    for number, (item, picture) in enumerate(pictures.items()):
        path = tmp_path / f"{number}.png"
        made = left_out.make(item, partial(picture, path), None)
        assert path.exists() == (made is not None)
        assert made is None or path.read_bytes().endswith(b"IEND\xaeB`\x82")
    found = left_out.make_all(tables)
    left_out.make("terminal", partial(print_tables, found), None)
    write_report(report, tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()).keys() == report.keys()
    page = report_page(names[0], names[0], found, sorted(tmp_path.glob("*.png")), report["config"], left_out)
    (tmp_path / "report.html").write_text(page, encoding="utf-8", errors="xmlcharrefreplace")
    assert all(left_out.values())
    named = set(left_out) & set(tables)
    assert not named  # every table can be made
    if case in ("constant", "zero", "nearly equal"):
        assert left_out.keys() <= {"ranking of one class"}

"""The command line as a user sees it: the main job, overrides, mistakes, interruptions."""

import argparse
import base64
import contextlib
import errno
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import html5lib
import pytest
import torch
import yaml
from lightning.pytorch.utilities.exceptions import SIGTERMException

import fcco_lightning.__main__
from fcco_lightning.__main__ import main
from fcco_lightning.cli import commands, run
from fcco_lightning.cli.failures import status_of
from fcco_lightning.cli.parser import ArgumentParser
from fcco_lightning.data.conditions import Where
from fcco_lightning.errors import CheckpointError
from fcco_lightning.state.checkpoint_files import read_file
from tests.launch import launch

CONFIGS = Path(__file__).parents[2] / "configs"
SYNTHETIC = CONFIGS / "roc_fairness/synthetic_alexr2.yaml"
SMALL = [
    "--data.num_train=400", "--data.num_test=400", "--data.batches.batch_size=50", "--trainer.max_epochs=2",
    "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--report.pictures=false",
]  # fmt: skip

BRIEF = ["--trainer.limit_train_batches=1", "--report.enabled=false", "--baseline.enabled=false"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]


def fit(*arguments, config=SYNTHETIC):
    return run(["fit", "--config", str(config), *SMALL, *map(str, arguments)])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The main job, done once: its folder, checkpoint, report and what it printed."""
    here, root, printed = Path.cwd(), tmp_path_factory.mktemp("fitted"), io.StringIO()
    os.chdir(root)
    try:
        with warnings.catch_warnings(), redirect_stdout(printed):
            warnings.simplefilter("ignore")
            assert fit("--report.pictures=true") == 0
    finally:
        os.chdir(here)
    (folder,) = (root / "runs").iterdir()
    (checkpoint,) = folder.rglob("last.ckpt")
    report = json.loads((folder / "report.json").read_text())
    return SimpleNamespace(folder=folder, checkpoint=checkpoint, report=report, printed=printed.getvalue())


def fails(capsys, *arguments, status=1):
    """Error text of a command that must fail without leaving a run behind."""
    try:
        code = fit(*arguments)
    except SystemExit as stop:
        code = stop.code
    text = capsys.readouterr().err
    assert code == status, text
    assert "Traceback" not in text
    assert not list(Path.cwd().rglob("report.json"))
    return text


def test_the_main_job_reports(fitted):
    report = fitted.report
    names = {p.name for p in fitted.folder.iterdir()}
    assert {"report.json", "config.yaml", "auc_and_violation.png", "constraints.png", "roc_by_group.png"} <= names
    assert report["seconds"] > 0
    assert report["config"]["model"]["algorithm"]["class_path"].endswith("ALEXR2")
    for split in ("train", "test"):
        assert {"auc", "worst_violation", "roc_gap", "vacuous"} <= set(report[split])
        assert report[split]["worst_violation"] == pytest.approx(max(report[split]["constraints"].values()), abs=1e-6)
        assert isinstance(report[split]["vacuous"], bool)
    assert "worst violation" in fitted.printed


def test_the_page_of_the_main_job_holds_all_of_it(fitted):
    text = (fitted.folder / "report.html").read_text()
    page = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)
    assert page.findtext(".//p[@class='headline']") == fitted.report["verdict"]
    embedded = {image.get("alt"): base64.b64decode(image.get("src").partition(",")[2]) for image in page.iter("img")}
    assert embedded == {p.stem.replace("_", " "): p.read_bytes() for p in fitted.folder.glob("*.png")}
    assert "roc by group" in embedded
    shown = {"".join(cell.itertext()) for cell in page.iter("th")}
    assert shown >= fitted.report["test"]["constraints"].keys()
    assert yaml.safe_load(page.findtext(".//pre"))["model"] == fitted.report["config"]["model"]
    assert not re.search(r"<script|<link|\bhttps?://|url\(", text.replace(page.findtext(".//pre"), ""))


def test_history_holds_every_epoch(fitted):
    stored = torch.load(fitted.checkpoint, weights_only=True)
    (history,) = [c["history"] for name, c in stored["callbacks"].items() if name.startswith("Report")]
    assert [(h["epoch"], h["split"]) for h in history] == [(0, "train"), (1, "train")]


@pytest.mark.slow
def test_two_runs_with_one_seed_are_equal(fitted):
    assert fit("--report.folder=b") == 0
    a, b = fitted.report, json.loads(Path("b/report.json").read_text())
    assert a["train"] == b["train"]
    assert a["test"] == b["test"]


def test_short_names_overrides_and_composition(tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(
        yaml.safe_dump({"model": {"penalty": {"class_path": "SquaredHingePenalty", "init_args": {"rho": 3}}}})
    )
    code = fit(
        "--config", other, "--model.algorithm", "SOX", "--model.algorithm.gamma", 0.3,
        "--model.constraints+=MeanAtMost", "--model.constraints.quantity=LogisticLoss",
        "--model.constraints.kappa=0.5", "--model.constraints.where={y: 1}",
    )  # fmt: skip
    assert code == 0
    report = json.loads(next(Path("runs").rglob("report.json")).read_text())
    model = report["config"]["model"]
    assert model["algorithm"]["init_args"] == {"gamma": 0.3}
    assert model["penalty"]["class_path"].endswith("SquaredHingePenalty")
    assert len(report["train"]["constraints"]) == 19


@pytest.mark.slow
def test_a_composition_without_a_name(tmp_path):
    parts = {
        "class_path": "SingleLoop",
        "init_args": {
            "estimator": {"class_path": "Average", "init_args": {"gamma": 0.5, "gamma_prime": "theory"}},
            "smoothing": {"class_path": "MoreauSmoothing", "init_args": {"lam": 0.1}},
        },
    }
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump({"model": {"algorithm": parts}}))
    assert fit("--config", own, *BRIEF) == 0


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_a_logger_that_is_not_installed_is_asked_for_by_name(capsys):
    assert fit("--logger=wandb") == 2
    assert "pip install 'fcco-lightning[loggers]'" in capsys.readouterr().err


def test_resume_and_what_was_typed_wins(fitted):
    changes = ["--trainer.max_epochs=3", "--model.algorithm.lam=0.5", "--report.folder=b"]
    assert fit("--ckpt_path", fitted.checkpoint, *changes) == 0
    report = json.loads(Path("b/report.json").read_text())
    assert report["config"]["model"]["algorithm"]["init_args"]["lam"] == 0.5
    stored = sorted(Path("runs").rglob("last.ckpt"), key=os.path.getmtime)[-1]
    assert torch.load(stored, weights_only=True)["epoch"] == 2


def test_validate_test_and_predict(fitted):
    for command in ("validate", "test", "predict"):
        code = run([command, "--config", str(SYNTHETIC), *SMALL[:3], "--ckpt_path", str(fitted.checkpoint)])
        assert code == 0, command
    (predictions,) = Path("runs").rglob("predictions.csv")
    lines = predictions.read_text().splitlines()
    assert lines[0] == "index,score"
    assert len(lines) == 401


@pytest.mark.slow
def test_evaluation_needs_a_checkpoint(capsys, fitted):
    for command in ("validate", "test", "predict"):
        assert run([command, "--config", str(SYNTHETIC), *SMALL[:3]]) == 1
        assert "needs --ckpt_path" in capsys.readouterr().err
    shutil.copy(fitted.folder / "checkpoints/last.ckpt", "alone.ckpt")
    with pytest.raises(SystemExit):
        run(["test", "--ckpt_path", "alone.ckpt"])
    assert "add --config FOLDER/config.yaml" in capsys.readouterr().err
    assert fit("--ckpt_path=last") == 1
    assert f"no last.ckpt of this job below {Path('runs').resolve()}." in capsys.readouterr().err
    assert fit("--ckpt_path=last", "--trainer.default_root_dir=x", "--preemption.folder=y") == 1
    assert f"no last.ckpt of this job below {Path('x').resolve()} or {Path('y').resolve()}." in capsys.readouterr().err
    shutil.copytree(fitted.folder.parent, "runs")
    assert fit("--ckpt_path=last", "--model.penalty.rho=5") == 1  # another job
    assert re.search(r"passed over \S+last.ckpt, which is of another job", capsys.readouterr().err)
    assert fit("--ckpt_path=last", "--trainer.max_epochs=3", *BRIEF) == 0
    newest = max(Path("runs").rglob("last.ckpt"), key=os.path.getmtime)
    assert torch.load(newest, weights_only=True)["epoch"] == 2


@pytest.mark.slow
def test_a_checkpoint_of_a_run_is_evaluated_with_its_configuration(capsys, fitted):
    checkpoint = str(fitted.folder / "checkpoints/last.ckpt")
    assert run(["validate", "--config", str(fitted.folder / "config.yaml"), "--ckpt_path", checkpoint]) == 0
    expected = [line for line in capsys.readouterr().out.splitlines() if "auc" in line]
    assert run(["validate", "--ckpt_path", checkpoint]) == 0
    said = capsys.readouterr()
    assert f"--config {fitted.folder / 'config.yaml'}" in said.err
    assert [line for line in said.out.splitlines() if "auc" in line] == expected != []
    for missing in ("runs/version_9/checkpoints/last.ckpt", "lst.ckpt"):
        assert run(["test", "--ckpt_path", missing]) == 1
        assert f"checkpoint {missing}: there is no such file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(["fit"])
    assert "Give a configuration, --config NAME" in capsys.readouterr().err
    shutil.copy(fitted.folder / "config.yaml", "config.yaml")  # of another run, beside a file that is of none
    shutil.copy(checkpoint, "alone.ckpt")
    with pytest.raises(SystemExit):
        run(["validate", "--ckpt_path", "alone.ckpt"])


@pytest.mark.slow
def test_the_last_checkpoint_holds_the_reported_weights():
    assert fit("--trainer.val_check_interval=3", "--report.folder=out") == 0
    reported = json.loads(Path("out/report.json").read_text())["train"]["auc"]
    (checkpoint,) = Path("runs").rglob("last.ckpt")
    assert run(["validate", "--config", str(SYNTHETIC), *SMALL[:3], "--ckpt_path", str(checkpoint)]) == 0
    import pandas as pd

    metrics = max(Path("runs").rglob("metrics.csv"), key=os.path.getmtime)
    assert pd.read_csv(metrics)["train_auc"].dropna().iloc[-1] == pytest.approx(reported, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "expected", "status"),
    [
        (["--model.algorithm=ALEXR3"], "ALEXR3", 2),
        (["--model.algorithm.lamm=0.1"], "'model.algorithm.lamm' is not accepted. Did you mean lam", 2),
        (["--trainer.callbacks=EarlyStoping"], "there is no class EarlyStoping. Did you mean EarlyStopping", 2),
        (["--trainer.max_epochs=few"], "--trainer.max_epochs must be a whole number or null, got 'few'.", 2),
        (["--model.network.hidden=3x"], "--model.network.hidden must be a list, got '3x'. Write a list in br", 2),
        (["--model.network.hidden", "[64,", "64]"], "A list or mapping with spaces needs quotes: '[1, 10]'.", 2),
        (["--decisions.costs", "1,10"], "--model.decisions.costs must be 'balanced', a list or null, got '1,10'. W", 2),
        (["--decisions", "blanced"], "--decisions 'blanced' is no purpose of decisions. Use -", 2),
        (["--model.algorithm.lam=0"], "lam must be a finite number > 0, got 0", 2),
        (["--model.penalty=Lagrangian", "--model.penalty.rate=0"], "fcco: ConfigError: rate must be a finite", 2),
        (
            ["--data.batches=UniformSamplng"],
            "--data.batches: there is no class UniformSamplng. Did you mean UniformSampling",
            2,
        ),
        (["--model.objective=CVaRGroupDRO"], "the option --model.objective.alpha is required", 2),
        (["--model.constraints=null"], "--model.constraints: must be a list, got null. Leave it out, or give []", 2),
        (["--model.clipping={value:1}"], "a space after each colon", 2),
        (["--data.spilts.val_fraction=0.1"], "Did you mean --data.val_fraction", 2),
        (
            ["--model.optimizer=Adam", "--model.optimizer.lr=fast"],
            "--model.optimizer.lr must be a number, got 'fast'.",
            2,
        ),
        (["--model.algorithm=DRAGO"], "it belongs to the linear models DROClassifier and DRORegressor", 2),
        (["--model.algorithm=CappedSimplex"], "a class of this package, but not of the kind that goes here", 2),
        (["--model.evaluation.split=3"], "--model.evaluation.split: this argument needs the name of a class", 2),
        (["--config=sinthetic_alexr2"], "Did you mean synthetic_alexr2", 2),
        (["--trainer.logger=false", "--logger=wandb"], "Leave one of them out", 2),
        (["--ckpt_path=nowhere.ckpt"], "nowhere.ckpt", 1),
        (["--trainer.val_check_interval=500"], "FCCO_DEBUG", 2),
        ([f"--trainer.default_root_dir={__file__}/runs"], "NotADirectoryError: [Errno 20] Not a directory", 1),
        *(  # of the same kinds as some of these
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (["--data.batches.batch_size=401"], "401", 1),
                (["--trainer.overfit_batches=2"], "--trainer.limit_train_batches", 2),
                (["--model.optimizer=torch.optim.LBFGS"], "LBFGS evaluates", 2),
                (
                    ["--model.network.hidden=[8]", "--model.optimizer=torch.optim.Adam", "--model.optimizer.lr=-1"],
                    "learning rate",
                    2,
                ),
                (["--model.objectiv=AUC"], "objectiv", 2),
                (["--model.optimizer=AdmW"], "--model.optimizer: there is no class AdmW. Did you mean AdamW", 2),
                (["--model.algorithm.lam=x"], "--model.algorithm.lam must be a number, got 'x'.", 2),
                (["--feasible.margin=x"], "--feasible.margin must be 'auto' or null, got 'x'.", 2),
                (["--trainer.max_epoch=3"], "max_epoch", 2),
                (["--data.batches.batchsize=4"], "Did you mean batch_size", 2),
                (["--data.batches.batch_size=many"], "many", 2),
                (["--data.batches=Uniformly"], "Uniformly", 2),
                (
                    ["--data.batchs.batch_size=8"],
                    "arguments: --data.batchs.batch_size=8. Did you mean --data.batches",
                    2,
                ),
                (["--model.penalti=3"], "Did you mean --model.penalty", 2),
            ]
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_mistakes(capsys, arguments, expected, status):
    assert expected in fails(capsys, *arguments, status=status)


def test_predict_is_asked_for_a_table_unless_a_run_is_named(capsys):
    with pytest.raises(SystemExit, match="0"):
        run(["predict", "--help"])
    assert "CKPT TABLE" in capsys.readouterr().out
    assert run(["predict", "--out", "z.csv", "a.ckpt", "t.csv"]) == 1
    assert "checkpoint a.ckpt: there is no such file" in capsys.readouterr().err
    Path("t.csv").write_text("a\n1\n")
    assert run(["predict", "t.csv", "a.ckpt"]) == 2
    assert "t.csv is given as the checkpoint, and a.ckpt as the table. Put a.ckpt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"modl": {}}, "Option 'modl' is not accepted. Did you mean model?"),
        ({"model": {"algoritm": {}}}, "'model.algoritm' is not accepted. Did you mean model.algorithm"),
        (
            {"model": {"constraints": [{"class_path": "ROCFairness", "init_args": {
                "thresholds": [1.0], "scale": {"class_path": "QuantileScores", "init_args": {"knot": 3}}}}]}},
            "'model.constraints.scale.knot' is not accepted. Did you mean knots?",
        ),
        (
            {"data": {"class_path": "SyntheticDataModule", "init_args": {
                "batches": {"class_path": "UniformSampling", "init_args": {"batchsize": {}}}}}},
            "'data.batches.batchsize' is not accepted. Did you mean batch_size",
        ),
        (
            {"model": {"constraints": [{"class_path": "ROCFairness", "kappa": 0.1}]}},
            "--model.constraints: ROCFairness takes its arguments below init_args, got ['kappa']",
        ),
        (
            {"data": {"class_path": "SyntheticDataModule", "init_arg": {}}},
            "--data: SyntheticDataModule takes its arguments below init_args, got ['init_arg']",
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else value.split("'")[1],
)  # fmt: skip
def test_a_misspelt_key_is_named_by_its_whole_path(capsys, config, expected, tmp_path):
    path = tmp_path / "misspelt.yaml"
    path.write_text(yaml.safe_dump(config))
    assert expected in fails(capsys, "--config", str(path), status=2)


def test_values_of_a_subset_are_texts_where_they_are_written_so(tmp_path):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--where", type=Where)
    path = tmp_path / "subset.yaml"
    path.write_text("where: {outcome: 'no', ids: ['007', \"1e3\"], age: 3, share: 0.5, kept: true}")
    expected = {"outcome": "no", "ids": ["007", "1e3"], "age": 3, "share": 0.5, "kept": True}
    assert parser.parse_args(["--config", str(path)]).where == expected
    assert parser.parse_args(["--where={outcome: 'no', y: 1}"]).where == {"outcome": "no", "y": 1}


def test_a_misspelt_command_is_told_all_of_them(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["comapre", "a"])
    assert "'comapre' is not a command. Did you mean 'compare'? The commands are fit," in capsys.readouterr().err


def test_options_without_a_command_are_told_that_it_comes_first(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--data.train", "my table.csv"])
    assert "the command is missing. It comes first, for example: fcco fit --data.train 'my t" in capsys.readouterr().err


ALONE = ["--data=TabularDataModule", "--model.network=TabularMLP", "--model.objective=AUC", "--trainer.max_epochs=1"]


@pytest.mark.slow
def test_missing_file_and_column_leave_nothing_behind(capsys, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("a,sex,label\n" + "".join(f"{i % 9},{'mf'[i % 2]},{'yn'[i // 2 % 2]}\n" for i in range(80)))
    common = ["--data=TabularDataModule", "--data.columns.positive=y", "--data.columns.favoured=m"]
    common += ["--data.columns.sensitive=sex", "--data.splits.test_fraction=0.2"]
    config = tmp_path / "c.yaml"
    whole = yaml.safe_load(SYNTHETIC.read_text())
    del whole["data"]
    config.write_text(yaml.safe_dump(whole))

    root = tmp_path / "tried"
    common += [f"--trainer.default_root_dir={root}"]

    def attempt(*arguments):
        try:
            code = run(["fit", "--config", str(config), *SMALL[3:], *common, *arguments])
        except SystemExit as stop:
            code = stop.code
        return code, capsys.readouterr().err

    code, text = attempt("--data.train=absent.csv", "--data.columns.label=label")
    assert (code, "absent.csv" in text) == (1, True), text
    code, text = attempt(f"--data.train={table}", "--data.columns.label=lable")
    assert (code, "label" in text) == (1, True), text
    three = tmp_path / "three.csv"  # what only the first batch shows, when the configuration is written already
    three.write_text("a,label\n" + "".join(f"{i % 9},{i % 3}\n" for i in range(80)))
    numbers = ["--data.columns={label: label, target: number}", "--data.splits.test_fraction=0.2"]
    code = run(["fit", *ALONE, "--data.batches.batch_size=16", f"--data.train={three}", *numbers, common[-1]])
    assert code == 1
    assert "AUC needs the labels 0 and 1" in capsys.readouterr().err
    assert not root.exists()
    right = [f"--data.train={table}", "--data.columns.label=label", "--data.batches.batch_size=16"]
    code, text = attempt(*right, "--trainer.max_epochs=1", *BRIEF)
    assert (code, root.exists()) == (0, True), text


@pytest.mark.slow
def test_a_nonconvex_outer_function_is_refused_by_dual_algorithms(capsys, tmp_path):
    own = tmp_path / "objective.py"
    own.write_text(
        "from fcco_lightning.objectives import Objective\n"
        "from fcco_lightning.outer import Log\n"
        "from fcco_lightning.objectives import Rows\n"
        "class LogObjective(Objective):\n"
        "    outer = Log()\n"
        "    def measure(self, outputs, batch):\n"
        "        return None, Rows(outputs.exp(), outputs[:, 0] == outputs[:, 0])\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        text = fails(capsys, "--model.objective=objective.LogObjective", status=2)
    finally:
        sys.path.remove(str(tmp_path))
    assert "ALEXR2 needs a convex outer function" in text


def test_checkpoints_that_do_not_fit(fitted, capsys):
    text = fails(capsys, "--ckpt_path", fitted.checkpoint, "--model.algorithm=SONEX")
    assert "written by ALEXR2, this run uses SONEX" in text
    whole = fitted.checkpoint.read_bytes()
    Path("damaged.ckpt").write_bytes(flipped(whole))
    assert "damaged.ckpt" in fails(capsys, "--ckpt_path=damaged.ckpt")
    for damaged in (whole[: len(whole) // 2], whole[:-200], b""):
        Path("damaged.ckpt").write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"damaged\.ckpt"):
            read_file("damaged.ckpt", to_continue=True)


@pytest.mark.slow
def test_checkpoints_of_something_else(fitted, capsys):
    torch.save({"weights": torch.zeros(2)}, "other.ckpt")
    assert "not written by `fcco fit`" in fails(capsys, "--ckpt_path=other.ckpt")
    text = fails(capsys, "--ckpt_path", fitted.checkpoint, "--model.network.hidden=[3]")
    assert re.search(
        r"another network: network\S+ has shape \(\d+, 21\) in the checkpoint and has shape \(3, 21\) in this network",
        text,
    )


@pytest.mark.slow
def test_auto_continues_the_job_s_own_checkpoint_only(fitted, caplog, capsys):
    shutil.copytree(fitted.folder.parent, "runs")
    (theirs,) = Path("runs").rglob("last.ckpt")
    assert fit("--ckpt_path=auto", "--model.penalty.rho=5", *BRIEF) == 0
    assert f"nothing of this job to continue, starting afresh; passed over {theirs}, which is of" in caplog.text
    (own,) = {*Path("runs").rglob("last.ckpt")} - {theirs}
    assert torch.load(own, weights_only=True)["global_step"] == 2  # it has trained, too
    caplog.clear()
    assert fit("--ckpt_path=auto", "--trainer.max_epochs=3", "--data.num_workers=0", *BRIEF) == 0
    assert f"continuing {theirs}; passed over {own}, which is of another job" in caplog.text
    caplog.clear()
    for path in Path("runs").rglob("last.ckpt"):
        path.write_bytes(path.read_bytes()[:-200])
    assert fit("--ckpt_path=last") == 1
    said = rf"no last.ckpt of this job below {Path('runs').resolve()}; passed over \S+, which cannot be read and 2 more"
    assert re.search(said, capsys.readouterr().err)
    assert run(["test", "--config", str(SYNTHETIC), *SMALL[:3], "--ckpt_path=auto", "--name=mine"]) == 1


CSV = ["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=logs", "--trainer.logger.name="]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "root", "checkpoints"),
    [
        pytest.param(["--trainer.default_root_dir=elsewhere"], "elsewhere", "elsewhere", marks=pytest.mark.slow),
        pytest.param(["--trainer.default_root_dir=elsewhere", *CSV], "logs", "logs", marks=pytest.mark.slow),
        pytest.param(
            ["--trainer.default_root_dir=elsewhere", "--trainer.logger=false"],
            "elsewhere",
            "elsewhere",
            marks=pytest.mark.slow,
        ),
        (["--trainer.default_root_dir=elsewhere", "--checkpoint.dirpath=kept"], "elsewhere", "kept"),
    ],
    ids=["root", "logger", "no logger", "dirpath"],
)
def test_a_run_lies_below_the_root_that_was_typed(arguments, root, checkpoints):
    arguments = [*arguments, "--baseline.enabled=false", "--trainer.limit_train_batches=1"]
    drawn = root == "logs"
    assert fit(*arguments, "--trainer.max_epochs=1", f"--report.pictures={str(drawn).lower()}") == 0
    assert {p.name for p in Path.cwd().iterdir()} == {root, checkpoints}
    written = {"report.json", "config.yaml", *["constraints.png"] * drawn}
    assert written <= {p.name for p in Path(root).rglob("*")}
    (first,) = Path(checkpoints).rglob("last.ckpt")
    other = Path("runs/version_7/checkpoints/last.ckpt")  # another run's, younger, that is not to be continued
    other.parent.mkdir(parents=True)
    other.write_bytes(b"")
    os.utime(first, (1, 1))
    assert fit(*arguments, "--ckpt_path=auto", "--report.enabled=false") == 0
    newest = max(Path(checkpoints).rglob("last*.ckpt"), key=os.path.getmtime)
    assert torch.load(newest, weights_only=True)["epoch"] == 1
    assert [*Path("runs").rglob("*.*")] == [other]


def test_a_quick_try_leaves_no_files():
    assert fit("--trainer.fast_dev_run=2") == 0
    assert not [path for path in Path.cwd().rglob("*") if path.is_file()]


@pytest.mark.slow
def test_checkpoints_can_be_switched_off():
    assert fit("--trainer.enable_checkpointing=false", *BRIEF) == 0
    assert not list(Path.cwd().rglob("*.ckpt"))


def flipped(content):
    """One bit of the largest file in the archive, of a tensor, is another."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        largest = max(archive.infolist(), key=lambda info: info.file_size)
    name, extra = (int.from_bytes(content[largest.header_offset + k :][:2], "little") for k in (26, 28))
    middle = largest.header_offset + 30 + name + extra + largest.file_size // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def test_the_help_of_tools_says_their_defaults():
    silent = []
    for name in commands._TOOLS:
        for action in commands.parser_of(name)._actions:
            plain = action.default in (None, False, [], argparse.SUPPRESS)
            if not plain and "%(default)s" not in (action.help or ""):
                silent.append((name, action.dest))
    assert not silent


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--version"], "fcco_lightning "),
        (["--help"], "\n  inspect "),
        (["inspect", "--help"], "--json"),
        (["convert", "--help"], "--force"),
    ],
)
def test_version_and_help_answer_without_torch(words, expected):
    code = (
        "import sys\nfrom fcco_lightning.__main__ import main\n"
        f"try:\n    main({words})\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert expected in answer.stdout


@pytest.mark.parametrize(("arguments", "buffered"), [(["list"], True), (["list"], False), (["--help"], False)])
def test_a_reader_may_have_enough(arguments, buffered):
    """As ``fcco list | head`` does: nothing is read, and nothing is complained of."""
    environment = os.environ | ({} if buffered else {"PYTHONUNBUFFERED": "1"})
    command = [sys.executable, "-m", "fcco_lightning", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, 1)


def write_to_nobody(arguments):  # in a process of its own
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, 1)
    errors = io.StringIO()
    with open(1, "w") as out, redirect_stdout(out), redirect_stderr(errors), contextlib.suppress(SystemExit):
        main(arguments)
    return errors.getvalue()


def test_a_reader_may_have_enough_of_what_the_parser_prints():
    assert launch(write_to_nobody, 1, ["fit", "--help"]) == [""]


def test_an_interrupt_while_libraries_are_loaded_is_said_in_a_line(monkeypatch, capsys):
    def loading(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(fcco_lightning.__main__, "run", loading)
    with pytest.raises(SystemExit) as stop:
        main(["fit"])
    assert (stop.value.code, capsys.readouterr().err) == (130, "fcco: interrupted.\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "c.yaml is not a configuration, but empty: it must have sections"),
        ("# all of it\n", "c.yaml is not a configuration, but empty"),
        ("AUC", "c.yaml is not a configuration, but 'AUC'"),
        (
            "model:\n\tobjective: AUC\n",
            "c.yaml, line 2, cannot be read as YAML: while scanning for the next token found character",
        ),
        (
            "model: [1\n",
            "c.yaml, line 2, cannot be read as YAML: while parsing a flow sequence did not find expected ',' or ']'",
        ),
    ],
)
def test_a_file_that_is_no_configuration_is_named(capsys, text, said):
    Path("c.yaml").write_text(text)
    assert said in fails(capsys, "--config=c.yaml", status=2)


def test_a_value_of_a_part_that_is_no_yaml_is_said_once(capsys):
    error = fails(capsys, "--model.algorithm=SONEX", "--model.algorithm.gamma=[1", status=2)
    assert error.count("cannot be read as YAML") == 1


@pytest.mark.parametrize("end", [SIGTERMException, KeyboardInterrupt])
def test_what_was_not_saved_is_not_called_so(capsys, end):
    def work():
        raise end

    assert status_of(work, trains=True) == (143 if end is SIGTERMException else 130)
    assert "; --ckpt_path auto continues what was saved before, if there is anything." in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ECONNREFUSED])
@pytest.mark.parametrize("trains", [True, False])
def test_a_failure_of_the_machine_is_said_in_a_line(trains, number, capsys):
    def work():
        raise OSError(number, os.strerror(number))

    assert status_of(work, trains=trains) == 1
    assert f"Error: [Errno {number}] {os.strerror(number)}" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_has_the_name_of_its_job():
    Path("runs/mine").mkdir(parents=True)
    quick = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=1", "--baseline.enabled=false"]
    assert fit("--name=mine", *quick) == 0
    assert Path("runs/mine_1/report.html").is_file()
    assert fit("--name=a/b", *quick) == 2


def test_help_of_a_part(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--model.algorithm.help", "SONEX"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "--model.algorithm.init_args.lam" in text or "--model.algorithm.lam" in text
    assert "outer smoothing" in text


def fit_until_told(arguments):  # in a process of its own
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Path("log").open("w") as log, redirect_stderr(log), redirect_stdout(log):
        return run(["fit", "--config", str(SYNTHETIC), *SMALL, *arguments])


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
    ids=["SIGTERM", "SIGINT"],
)
def test_interrupts_end_the_run_and_leave_whole_checkpoints(number, status):
    def tell(processes):
        deadline = time.monotonic() + 90
        while not list(Path("runs").rglob("last.ckpt")) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(processes[0], number)

    code = launch(fit_until_told, 1, ["--trainer.max_epochs=100000"], during=tell)
    text = Path("log").read_text()
    assert code == [status], text
    assert ", saved; continue with --ckpt_path auto." in text
    assert "Traceback" not in text
    assert not list(Path("runs").rglob("report.json"))
    for checkpoint in Path("runs").rglob("*.ckpt"):
        torch.load(checkpoint, weights_only=True)
    last = next(Path("runs").rglob("last.ckpt"))
    epochs = torch.load(last, weights_only=True)["epoch"] + 2
    assert fit("--ckpt_path", last, f"--trainer.max_epochs={epochs}") == 0


def with_positive(positive, folder, cells=("True", "False")):
    """A configuration for a table whose label has two values, of which ``positive`` is to be 1."""
    rows = "".join(f"{i * i % 7},{cells[i % 3 == 0]}\n" for i in range(90))
    (folder / "t.csv").write_text(f"a,y\n{rows}")
    config = folder / "own.yaml"
    config.write_text(
        f"""
        model: {{network: {{class_path: TabularMLP, init_args: {{hidden: [2]}}}}, objective: CrossEntropy}}
        data:
          class_path: TabularDataModule
          init_args:
            train: {folder / "t.csv"}
            columns: {{label: y, positive: {positive}}}
            splits: {{test_fraction: 0.3}}
            batches: {{class_path: UniformSampling, init_args: {{batch_size: 20}}}}
        trainer: {{max_epochs: 1, accelerator: cpu, default_root_dir: {folder}}}
        report: {{enabled: false}}
        """
    )
    return str(config)


@pytest.mark.slow
@pytest.mark.parametrize(
    "positive", ["true", *(pytest.param(p, marks=pytest.mark.slow) for p in ("'True'", "yes", "[true]", "1"))]
)
def test_a_truth_value_in_yaml_is_one_of_a_column(positive, tmp_path, capsys):
    """Of words, too, which YAML reads as truth values."""
    config = with_positive(positive, tmp_path, ("yes", "no") if positive == "yes" else ("True", "False"))
    assert run(["fit", "--config", config]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("positive", ["{a: 1}", "[true, {a: 1}]"])
def test_what_is_no_value_of_a_column_is_refused_in_words(positive, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        run(["fit", "--config", with_positive(positive, tmp_path)])
    said = capsys.readouterr().err
    assert "--data.columns.positive must be a text, true or false, a whole number" in said
    assert "Subtypes" not in said

"""Diagnostics on the command line, for a run and for its checkpoint, and what is refused before anything runs."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from fcco_lightning.cli import run
from tests.components import TABLE, composed

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    """A run of one epoch on 240 rows in six groups."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 300))
    frame = pd.DataFrame({"a": a, "b": b, "sex": rng.choice(["f", "m"], 300), "age": rng.choice(["x", "y", "z"], 300)})
    frame["label"] = np.where(a + 0.5 * rng.normal(size=300) > (frame["sex"] == "f"), "yes", "no")
    frame.to_csv("table.csv", index=False)
    data = {"train": "table.csv", "label": "label", "positive": "yes", "group_by": ["sex", "age"], "test_fraction": 0.2}
    data |= {"groups_per_batch": 3, "samples_per_group": 8, "eval_batch_size": 50}
    network = {"class_path": "TabularMLP", "init_args": {"hidden": [4], "batch_norm": True}}
    parts = {
        "seed_everything": 1,
        "trainer": {"max_epochs": 1, "enable_progress_bar": False, "accelerator": "cpu"},
        "data": {"class_path": "TabularDataModule", "init_args": composed(data, TABLE, plain=True)},
        "model": {
            "network": network,
            "objective": {"class_path": "CVaRGroupDRO", "init_args": {"alpha": 0.5}},
            "algorithm": {"class_path": "SONEX", "init_args": {"lam": 0.1}},
        },
        "report": {"enabled": False},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(parts))
    return path


def fcco(command, *arguments, config="config.yaml"):
    return run([command, "--config", str(config), *map(str, arguments)])


def read(folder):
    return json.loads(Path(folder, "diagnostics.json").read_text())


def test_a_run_and_its_checkpoint(capsys):
    assert fcco("fit", "--diagnostics.enabled", "true") == 0
    (folder,) = Path("runs").iterdir()
    found = read(folder)
    printed = capsys.readouterr().out
    assert "Diagnostics (train)" in printed
    assert "gram: lambda min" in printed
    assert (found["split"], found["rows"], found["width"]) == ("train", 6, 1)
    assert found["gram"]["lambda_min"] >= found["gram_network"]["lambda_min"] > 0
    sizes = found["duals"]
    assert sizes["exact"]["omega"] == pytest.approx(sizes["exact"]["active"] * 2)  # y = 1/alpha = 2
    assert (sizes["predicted"], sizes["worst_case"], sizes["alpha_n"]) == (6, 12, 3)
    assert sizes["remembered"]["rows"] == 6
    assert found["stationarity"]["at"]["lam"] == 0.1
    assert found["stationarity"]["best"]["eps"] <= found["stationarity"]["at"]["eps"]
    logged = pd.read_csv(folder / "metrics.csv")
    assert logged["diagnostics/gram/lambda_min"].dropna().item() == pytest.approx(found["gram"]["lambda_min"], rel=1e-5)
    assert not [name for name in logged if "grid" in name]

    checkpoint, *_ = Path("runs").rglob("last.ckpt")
    assert fcco("fit", "--checkpoint.dirpath=plain") == 0  # without diagnostics training is the same
    own, plain = (torch.load(p, weights_only=True)["state_dict"] for p in (checkpoint, Path("plain/last.ckpt")))
    assert own.keys() == plain.keys() > {"objective.threshold", "problem.terms.0.state.rows"}
    assert all(torch.equal(own[n], value) for n, value in plain.items() if isinstance(value, torch.Tensor))
    assert len(list(Path("runs").rglob("diagnostics.json"))) == 1
    assert fcco("validate", "--ckpt_path", checkpoint, "--diagnostics.enabled=true", "--diagnostics.folder=again") == 0
    again = read("again")
    assert again.pop("duals") == {k: v for k, v in sizes.items() if k != "remembered"}  # rows that the algorithm keeps
    assert again == {name: part for name, part in found.items() if name != "duals"}
    assert fcco("test", "--ckpt_path", checkpoint, "--diagnostics.enabled=true", "--diagnostics.split=test",
                "--diagnostics.lam=0.5", "--diagnostics.folder=other") == 0  # fmt: skip
    other = read("other")
    assert other["split"] == "test"
    assert other["stationarity"]["at"]["lam"] == 0.5
    assert other["value"] != found["value"]


@pytest.mark.slow
def test_a_max_form(tmp_path):
    assert fcco("fit", "--model.algorithm", "OOA", "--diagnostics.enabled=true", "--diagnostics.folder=a") == 0
    found = read("a")
    assert found["duals"]["exact"]["omega"] == pytest.approx(found["duals"]["predicted"])
    assert found["duals"]["remembered"]["rows"] == 6
    assert [point["lam"] for point in found["stationarity"]["grid"]] == [0]


LIMIT = ["--model.constraints+=MeanAtMost", "--model.constraints.quantity=LogisticLoss",
         "--model.constraints.kappa=0.4", "--model.constraints.where={y: 1}"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "penalty",
    [
        ["AdaptivePenalty"],
        pytest.param(["HingePenalty"], marks=pytest.mark.slow),
    ],
)
def test_the_certificate_of_a_constrained_run_and_of_its_checkpoint(penalty, capsys):
    options = [*LIMIT, "--model.penalty", *penalty, "--diagnostics.enabled=true"]
    assert fcco("fit", *options, "--diagnostics.every_epoch=true") == 0
    (folder,) = Path("runs").iterdir()
    found = read(folder)
    printed = capsys.readouterr().out
    assert "Constraints, largest multipliers first" in printed
    assert found["best"]["eps"] == max(found["best"][name] for name in ("stationarity", "complementarity", "violation"))
    assert found["own"]["violation"] == found["best"]["violation"] == found["constraints"][0]["h"]
    squares = [found[kind]["stationarity"] ** 2 + found[kind]["complementarity"] ** 2 for kind in ("best", "own")]
    assert squares[0] <= squares[1]
    logged = pd.read_csv(folder / "metrics.csv")
    values = logged["diagnostics/own/stationarity"].dropna().tolist()
    assert values == pytest.approx([found["own"]["stationarity"]] * 2, rel=1e-5)  # of the epoch, and of the end
    checkpoint, *_ = Path("runs").rglob("last.ckpt")
    assert fcco("test", "--ckpt_path", checkpoint, *options, "--diagnostics.folder=again") == 0
    again = read("again")
    assert "own" not in again
    assert again["best"] == pytest.approx(found["best"])


@pytest.mark.slow
def test_the_certificate_of_an_objective_without_groups():
    plain = ["--model.objective=CrossEntropy", "--model.algorithm=SGD"]
    assert fcco("fit", *plain, "--diagnostics.enabled=true", "--diagnostics.folder=a") == 0
    found = read("a")
    assert found["best"]["eps"] == found["best"]["gradient"] > 0
    assert found["constraints"] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--diagnostics.split=valid"], "diagnostics.split 'valid' is not evaluated, only ['test', 'train']"),
        (
            ["--model.objective=CrossEntropy", "--model.algorithm=SGD", "--diagnostics.max_values=10"],
            "gradients of 0 constraints with respect to",
        ),
    ],
)  # fmt: skip
def test_refused_before_anything_runs(arguments, message, capsys):
    assert fcco("fit", "--diagnostics.enabled=true", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(Path.cwd().rglob("*.ckpt"))

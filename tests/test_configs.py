"""Every config of the project parses and trains two batches, on a small file of the layout it was written for."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fcco_lightning.cli import run

CONFIGS = Path(__file__).parents[1] / "configs"
ALL_CONFIGS = sorted(CONFIGS.rglob("*.yaml"))

pytestmark = [
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
]


def adult(rows):
    """The columns of UCI Adult."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(17, 90, rows),
            "workclass": rng.choice(["Private", "State-gov"], rows),
            "education": rng.choice(["Bachelors", "HS-grad"], rows),
            "education-num": rng.integers(1, 16, rows),
            "hours-per-week": rng.integers(1, 99, rows),
            "sex": rng.choice(["Male", "Female"], rows),
            "income": rng.choice(["<=50K", ">50K"], rows),
        }
    )


def compas(rows):
    """The columns of ProPublica's COMPAS table."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "sex": rng.choice(["Male", "Female"], rows),
            "age": rng.integers(18, 80, rows),
            "race": rng.choice(["Caucasian", "Other"], rows),
            "priors-count": rng.integers(0, 20, rows),
            "c-charge-degree": rng.choice(["F", "M"], rows),
            "decile-score": rng.integers(1, 11, rows),
            "two-year-recid": rng.integers(0, 2, rows),
        }
    )


def data_arguments(config, folder):
    if config.stem.startswith("synthetic"):
        return ["--data.num_train=400", "--data.num_test=400"]
    make = {"adult": adult, "compas": compas}[config.stem.split("_")[0]]
    make(400).to_csv(folder / "train.csv", index=False)
    arguments = [f"--data.train={folder / 'train.csv'}"]
    if make is adult:
        make(200).to_csv(folder / "test.csv", index=False)
        arguments.append(f"--data.test={folder / 'test.csv'}")
    return arguments


def test_there_are_configs_for_every_method_and_data_set():
    methods = ("alexr2", "sonex", "sonx", "sox_squared_hinge", "sgd")
    names = {c.stem for c in ALL_CONFIGS}
    assert {f"{data}_{m}" for data in ("adult", "compas") for m in methods} | {"adult_ungameable"} <= names


@pytest.mark.parametrize("config", ALL_CONFIGS, ids=lambda c: c.stem)
def test_trains_two_batches(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=2", "--trainer.enable_progress_bar=false"]
    code = run(["fit", "--config", str(config), *arguments, *data_arguments(config, tmp_path)])
    assert code == 0
    assert list(tmp_path.rglob("report.json"))


@pytest.mark.parametrize("config", ALL_CONFIGS, ids=lambda c: c.stem)
def test_prints_a_config_that_parses_again(config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        run(["fit", "--config", str(config), "--print_config"])
    assert stop.value.code == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out)
    with pytest.raises(SystemExit) as stop:
        run(["fit", "--config", str(printed), "--print_config"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == printed.read_text()

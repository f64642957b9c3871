"""``fcco front``: points are planned, trained in order, resumed and compared; training is replaced by a stub."""

import copy
import csv
import json
from pathlib import Path

import pytest
import yaml
from PIL import Image

from fcco_lightning.cli import front as module
from fcco_lightning.cli import run
from fcco_lightning.cli.comparison import print_rows
from fcco_lightning.cli.front import front, points, print_front
from fcco_lightning.errors import ConfigError, DataError, FCCOError

CONFIG = {
    "model": {
        "constraints": [
            {"class_path": "MeanAtMost", "init_args": {"kappa": 0.1}},
            {"class_path": "NonForgetting", "init_args": {}},
        ]
    },
    "trainer": {"max_epochs": 3},
    "baseline": {"enabled": True},
}


def with_kappas(*kappas):
    config = copy.deepcopy(CONFIG)
    config["model"]["constraints"] += [{"class_path": "MeanAtMost", "init_args": {"kappa": k}} for k in kappas]
    return config


def kappas_of(config):
    return [c["init_args"]["kappa"] for c in config["model"]["constraints"] if "kappa" in c["init_args"]]


class Trained:
    """A fit that reports h = cap - kappa for a cap that follows kappa half of the way, and AUC 0.7 + kappa."""

    def __init__(self, *, breaks_at=None):
        self.configs, self.breaks_at = [], breaks_at

    def __call__(self, options):
        if options[-1] == "--print_config":
            return yaml.safe_dump(CONFIG)
        config = yaml.safe_load(Path(options[options.index("--config") + 1]).read_text())
        self.configs.append(config)
        kappa, folder = kappas_of(config)[0], Path(config["report"]["folder"])
        if kappa == self.breaks_at:
            return ""
        h = {"cap": 0.03 + 0.5 * kappa - kappa, "forgotten": -0.5}
        split = {"auc": 0.7 + kappa, "constraints": h, "worst_violation": h["cap"]}
        report = {"train": split, "test": split, "kappas": {"cap": kappa, "forgotten": 0.0}}
        (folder / "report.json").write_text(json.dumps(report))
        return ""


def test_points_are_the_kappas_from_loose_to_tight():
    planned = points(with_kappas(0.4), None, [0.5, 2, 1])
    assert {label: kappas_of(config) for label, config in planned.items()} == {
        "factor_2": [0.2, 0.8],
        "factor_1": [0.1, 0.4],
        "factor_0.5": [0.05, 0.2],
    }
    planned = points(with_kappas(0.1), [0.01, 0.3, 0.01], [])
    assert {label: kappas_of(config) for label, config in planned.items()} == {
        "kappa_0.3": [0.3, 0.3],
        "kappa_0.01": [0.01, 0.01],
    }
    assert kappas_of(CONFIG) == [0.1]


@pytest.mark.parametrize(
    ("config", "kappas", "factors", "message"),
    [
        ({**CONFIG, "model": {"constraints": []}}, [0.1], [1], "no constraint of the configuration has one"),
        ({**CONFIG, "trainer": {"enable_checkpointing": False}}, [0.1], [1], "enable_checkpointing"),
        (with_kappas(0.4), [0.1], [1], r"configuration differ: \[0.1, 0.4\].*--factors"),
        (with_kappas(0), None, [1], "kappa 0.*--kappas"),
        (CONFIG, [-0.1], [1], "kappas must be a finite number >= 0, got -0.1"),
        (CONFIG, None, [0], "factors must be a finite number > 0, got 0"),
    ],
)
def test_what_gives_no_front_is_refused(config, kappas, factors, message):
    with pytest.raises(ConfigError, match=message):
        points(config, kappas, factors)


def test_every_point_begins_where_the_last_one_ended_and_is_trained_once(capsys, monkeypatch):
    fit = Trained(breaks_at=0.1)
    monkeypatch.setattr(module, "fit_apart", fit)
    with pytest.raises(FCCOError, match=r"front/kappa_0.1 is not finished"):
        print_front([], "0.02,0.1,0.2", "1", "front")
    fit.breaks_at = None
    print_front([], "0.02,0.1,0.2", "1", "front")
    assert [kappas_of(config)[0] for config in fit.configs] == [0.2, 0.1, 0.1, 0.02]
    assert "warm_start" not in fit.configs[0]
    assert fit.configs[0]["baseline"] == {"enabled": True}
    assert fit.configs[-1]["warm_start"] == {"ckpt": "front/kappa_0.1/checkpoints/last.ckpt"}
    assert fit.configs[-1]["baseline"] == {"enabled": False}
    assert "kappa_0.02" in capsys.readouterr().out
    rows = json.loads(Path("front/front.json").read_text())
    assert [row["holds"] for row in rows] == ["yes", "yes", "no"]
    assert [row["test auc"] for row in rows] == pytest.approx([0.9, 0.8, 0.72])
    assert [row["train violation"] for row in rows] == pytest.approx([0.11, 0.06, 0.02])  # the cap less .02
    with Path("front/front.csv").open() as file:
        assert [row["point"] for row in csv.DictReader(file)] == ["kappa_0.2", "kappa_0.1", "kappa_0.02"]
    with Image.open("front/front.png") as picture:
        assert picture.size[0] > 500
    Path("front/kappa_0.1/point.yaml").write_text("trainer: {}")
    with pytest.raises(ConfigError, match=r"kappa_0.1/point.yaml holds other options"):
        print_front([], "0.02,0.1,0.2", "1", "front")


def test_a_table_needs_no_configuration(monkeypatch):
    told = []

    def fit(options):
        told.append(options)
        raise FCCOError

    monkeypatch.setattr(module, "fit_apart", fit)
    assert run(["front", "--kappas", "0.1", "--data.train", "t.csv", "--model.constraints", "EqualizedOdds"]) == 1
    assert told == [["--data.train", "t.csv", "--model.constraints", "EqualizedOdds", "--print_config"]]
    assert run(["front", "--kappas", "5%", "--data.train", "t.csv", "--model.constraints", "EqualizedOdds"]) == 2
    assert len(told) == 1  # refused before a fit is started


def test_an_option_that_fit_refuses_is_refused():
    with pytest.raises(ConfigError, match="fcco fit ended with status 2"):
        module.fit_apart(["--data.train", "t.xlsx", "--data", "t.csv"])
    with pytest.raises(FCCOError, match="fcco fit ended with status 1") as failed:
        module.fit_apart(["--data.train", "missing.csv", "--data.columns.label", "y"])
    assert not isinstance(failed.value, ConfigError)


def test_points_of_other_constraints_are_not_compared():
    for name in ("a", "b"):
        Path(name).mkdir()
        split = {"constraints": {name: 0.1}}
        Path(name, "report.json").write_text(json.dumps({"train": split, "kappas": {name: 0.1}}))
    with pytest.raises(DataError, match="different constraints"):
        front([Path("a"), Path("b")])
    with pytest.raises(DataError, match="c has no report"):
        front([Path("a"), Path("c")])


def test_a_figure_that_is_no_number_at_one_point_is_left_empty(capsys):
    for name, auc, h in (("loose", None, -0.1), ("middle", 0.7, None), ("tight", 0.6, 0.1)):
        Path(name).mkdir()
        split = {"loss": 0.5, "auc": auc, "constraints": {"cap": h}, "worst_violation": h}
        Path(name, "report.json").write_text(json.dumps({"train": split, "test": split, "kappas": {"cap": 0.1}}))
    rows = front([Path("loose"), Path("middle"), Path("tight")])
    assert [row["test auc"] for row in rows] == [None, 0.7, 0.6]
    assert [row["test violation"] for row in rows] == [-0.1, None, 0.1]
    assert [row["holds"] for row in rows] == ["yes", "no", "no"]
    print_rows(rows)
    assert "middle" in capsys.readouterr().out


def test_numbers_that_are_none_are_refused(capsys, monkeypatch):
    monkeypatch.setattr(module, "fit_apart", Trained())
    with pytest.raises(SystemExit):
        run(["front", "--config", "synthetic_sonex", "--kappas", "0.1", "--factors", "1"])
    assert "not allowed with" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"--kappas 0.1;2: numbers separated by commas"):
        print_front([], "0.1;2", "1", "front")


@pytest.mark.slow
def test_the_command_trains_the_front_of_the_embedded_problem():
    small = ["--data.num_train=1500", "--data.num_test=2000", "--trainer.max_epochs=12", "--trainer.accelerator=cpu"]
    command = ["front", "--config", "synthetic_multipliers", "--kappas", "0.9,0.02", "--baseline.enabled=false", *small]
    assert run(command) == 0
    reports = [Path(f"runs/front/kappa_{kappa}/report.json") for kappa in ("0.9", "0.02")]
    loose, tight = (json.loads(path.read_text()) for path in reports)
    assert tight["train"]["roc_gap"] < loose["train"]["roc_gap"]
    assert set(loose["kappas"].values()) == {0.9}
    written = [path.stat().st_mtime_ns for path in reports]
    assert run(command) == 0
    assert [path.stat().st_mtime_ns for path in reports] == written

"""``fcco tune``: against brute force over known figures, and on a small synthetic problem."""

import math
import shlex
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from fcco_lightning.cli import run, tuning
from fcco_lightning.cli.named_configs import named_searches
from fcco_lightning.cli.tuning import Judge, ordered, print_search, rank, read_search, search, searched_option
from fcco_lightning.errors import ConfigError, NonFiniteError
from fcco_lightning.training import FCCOModule

CONFIG = str(Path(__file__).parents[2] / "configs/roc_fairness/synthetic_alexr2.yaml")
SMALL = [
    "--config", CONFIG, "--data.num_train=200", "--data.num_test=100", "--data.val_fraction=0.4",
    "--data.batches.batch_size=40", "--trainer.max_epochs=2", "--trainer.accelerator=cpu",
]  # fmt: skip
GRID = {"a": {"choice": [1, 2, 3]}, "b": {"choice": [10, 20]}}


def figures(a, b):
    """Of a made-up problem: its value, and its largest constraint value; 3 and 20 diverge.

    At 2 and 20, which would be the best that holds, constraints are vacuous.
    """
    return 0.1 * a + 0.011 * b, 0.1 * a - 0.25, (a, b) == (2, 20)


class Known(FCCOModule):
    """Says after every validation what it was told."""

    def __init__(self, value, violation, vacuous):
        figures = {"auc": value, "worst_violation": violation, "vacuous": float(vacuous)}
        self.__dict__["last_summaries"] = {"val": figures}


@pytest.fixture
def fitted(monkeypatch):
    """Arguments of the fits that were asked for; nothing is trained."""
    calls = []

    def start(arguments, callbacks):
        calls.append(arguments)
        given = dict(argument[2:].split("=") for argument in arguments[1:] if "=" in argument)
        a, b = float(given["a"]), float(given["b"])
        if (a, b) == (3, 20):
            raise NonFiniteError("made up")
        trainer = SimpleNamespace(current_epoch=0, max_epochs=1, sanity_checking=False, callbacks=[])
        callbacks[0].on_validation_end(trainer, Known(*figures(a, b)))
        callbacks[0].on_fit_end(trainer, None)

    monkeypatch.setattr(tuning, "start", start)
    return calls


def options(space):
    return [searched_option(path, values) for path, values in space.items()]


def test_the_grid_is_searched_whole_and_the_best_feasible_comes_first(fitted):
    study = search(["--x=0"], options(GRID), 6, "t", "auc", sampler="grid", full=True)
    every = [(a, b) for a, b in product((1, 2, 3), (10, 20)) if (a, b) != (3, 20)]
    every.remove((2, 20))
    feasible = sorted((p for p in every if figures(*p)[1] <= 0), key=lambda p: -figures(*p)[0])
    broken = sorted((p for p in every if figures(*p)[1] > 0), key=lambda p: figures(*p)[1])
    assert [(t.params["a"], t.params["b"]) for t in ordered(study)] == [*feasible, *broken, (2, 20)]
    assert len(fitted) == 6
    assert all(call[:2] == ["fit", "--x=0"] for call in fitted)


def test_what_the_folder_has_is_not_done_again(fitted):
    first = search([], options(GRID), 2, "t", "auc", sampler="grid", full=True)
    assert len(fitted) == len(first.trials) == 2
    search([], options(GRID), 6, "t", "auc", sampler="grid", full=True)
    assert len({tuple(call) for call in fitted}) == len(fitted) == 6
    search([], options(GRID), 6, "t", "auc", sampler="grid", full=True)
    assert len(fitted) == 6
    with pytest.raises(ConfigError, match=r"--folder t holds a search with mode None, now it is 'min'"):
        search([], options(GRID), 7, "t", "auc", mode="min", full=True)
    with pytest.raises(ConfigError, match="trials must be a whole number >= 1, got 0"):
        search([], options(GRID), 0, "t", "auc", sampler="grid", full=True)


def test_a_search_of_which_nothing_came_gives_way_to_another(fitted, monkeypatch):
    def mistyped(*_):
        raise ConfigError("there is no such option")

    works = tuning.start
    monkeypatch.setattr(tuning, "start", mistyped)
    with pytest.raises(ConfigError, match="no such option"):
        search(["--y=0"], options(GRID), 6, "t", "auc", sampler="grid", full=True)
    monkeypatch.setattr(tuning, "start", works)
    study = search(["--x=0"], options(GRID), 6, "t", "auc", sampler="grid", full=True)
    assert len(fitted) == len(study.trials) == 6
    with pytest.raises(ConfigError, match="holds a search with fit"):
        search(["--y=0"], options(GRID), 6, "t", "auc", sampler="grid", full=True)


def test_the_table_says_how_to_train_the_best_and_what_lies_on_the_edge(fitted, capsys):
    Path("s.yaml").write_text(yaml.safe_dump(GRID))
    print_search(["--x=it's"], "s.yaml", trials=6, folder="t", figure="auc", sampler="grid", full=True)
    lines = capsys.readouterr().out.strip().splitlines()
    assert shlex.split(lines[-1]) == ["fcco", "fit", "--x=it's", "--a=1", "--b=20"]
    assert "The best value is at the edge of its range: a, b. Extend the range." in lines
    assert any("failed" in line for line in lines)


@pytest.mark.parametrize(
    ("values", "edge", "inside"),
    [
        ({"log": ["1e-3", 1]}, 1.1e-3, 0.03),
        ({"uniform": [0, 10]}, 9.8, 5.0),
        ({"int": [1, 5]}, 5, 2),
        ({"choice": [0.1, 1, 10]}, 0.1, 1),
        ({"choice": ["a", "b"]}, None, "a"),
    ],
)
def test_the_edge_of_what_is_offered(values, edge, inside):
    option = searched_option("o", values)
    assert edge is None or option.on_edge(edge)
    assert not option.on_edge(inside)


@pytest.mark.parametrize("path", named_searches().values(), ids=lambda path: path.stem)
def test_the_grids_of_the_papers_are_read(path):
    found = read_search(path.stem)
    assert {option.kind for option in found} == {"choice"}
    assert {option.path.split(".")[1] for option in found} <= {"algorithm", "optimizer", "penalty"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 3", r"search: a: 3 is not a set of values\. Give \{log"),
        ("a: {logg: [1, 2]}", "kind of a"),
        ("a: {log: [0, 2]}", r"\[LOW, HIGH\] with 0 < LOW < HIGH, got \[0, 2\]"),
        ("a: {log: [0.001, .inf]}", r"\[LOW, HIGH\] with 0 < LOW < HIGH, got \[0.001, inf\]"),
        ("a: {uniform: [-.inf, 1]}", r"\[LOW, HIGH\] with LOW < HIGH"),
        ("a: {int: [1.5, 3]}", r"\[LOW, HIGH\] of whole numbers with LOW < HIGH, got \[1.5, 3\]"),
        ("a: {choice: [[1]]}", "choice of a must be a list"),
        ("[1]", "must map paths of options to values"),
        ("a: [", "cannot be read as YAML"),
    ],
)
def test_a_search_that_cannot_be_read_is_refused(text, message):
    Path("s.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_search("s.yaml")


def test_a_number_that_is_none_ranks_last():
    nan = math.nan
    ranks = [rank(0.5, None), rank(-3.0, 0.0), rank(9.0, 0.1), rank(9.0, 3.0)]
    ranks += [rank(9.0, -1.0, vacuous=True), rank(8.0, -1.0, vacuous=True), rank(nan, nan)]
    assert ranks == sorted(ranks, reverse=True)
    assert rank(nan, -1.0) == rank(0.5, nan) < rank(-1e12, -1.0, vacuous=True) < rank(0.5, 100.0)


def test_a_trial_needs_a_validation_split_and_one_process():
    judge = Judge(None, None, 1)
    data = SimpleNamespace(val_names=["train"])
    with pytest.raises(ConfigError, match=r"--data\.splits\.val_fraction"):
        judge.on_fit_start(SimpleNamespace(world_size=1, datamodule=data), None)
    with pytest.raises(ConfigError, match="in one process, got 2"):
        judge.on_fit_start(SimpleNamespace(world_size=2, datamodule=data), None)


def test_a_trial_without_a_validation_is_refused_in_words():
    with pytest.raises(ConfigError, match=r"ended without a validation.*--trainer\.check_val_every_n_epoch"):
        Judge(None, None, None).on_fit_end(SimpleNamespace(callbacks=[]), None)


def test_optuna_is_asked_for_by_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'fcco-lightning\[tune\]'"):
        search([], options(GRID))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The number of training batches", "ignore:.*exists and is not empty")
def test_the_command_for_the_best_reaches_its_figures(capsys):
    Path("s.yaml").write_text("model.optimizer.lr: {log: [1e-3, 1]}\nmodel.algorithm.lam: {choice: [0.002, 0.02]}\n")
    assert run(["tune", "--search", "s.yaml", "--trials", "6", *SMALL, "--trainer.max_epochs=3"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    study = search([*SMALL, "--trainer.max_epochs=3"], read_search("s.yaml"), 6)  # nothing is left to do
    states = [trial.state.name for trial in study.trials]
    assert len(states) == 6
    assert {"COMPLETE", "PRUNED"} == set(states)
    assert not list(Path("tuning").rglob("*.ckpt"))
    (shown,) = [line for line in lines if line.startswith("The best is trial")]
    run([*shlex.split(lines[-1])[1:], "--report.folder=best", "--baseline.enabled=false"])
    found = yaml.safe_load(Path("best/report.json").read_text())["val"]
    assert f"validation auc {found['auc']:.4f}, largest h {found['worst_violation']:+.4f}" in shown

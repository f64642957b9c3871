"""Checkpoints with entries missing or of another type: one CheckpointError that names the file and the entry."""

import random
import shutil
import warnings
from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch.optim.lr_scheduler import ConstantLR, ExponentialLR, SequentialLR

from fcco_lightning import (
    MSVR,
    AveragePrecision,
    Baseline,
    BestFeasible,
    Checkpoints,
    Execution,
    FCCOModule,
    Report,
    Schedule,
    Splits,
    TabularMLP,
    WeightAverage,
)
from fcco_lightning.cli.checkpoint_tools import convert, describe
from fcco_lightning.errors import CheckpointError, FCCOError
from fcco_lightning.inference import export, load
from fcco_lightning.state.checkpoint_files import CHECKPOINT_VERSION, read_file
from fcco_lightning.state.parts import rows_folder
from tests.evidence import count
from tests.forgeries import VALUES, forged, paths
from tests.tables import make_data, make_frame
from tests.training.conftest import quick

DATA = {"train": make_frame(60, 0), "test": make_frame(20, 1), "batch_size": 12}
SPLIT = {"train": make_frame(200, 0), "test": make_frame(20, 1), "batch_size": 60, "splits": Splits(val_fraction=0.3)}
CONFIG = {
    "model": {"network": {"class_path": "fcco_lightning.TabularMLP", "init_args": {"hidden": [8], "dropout": 0.2}}},
    "data": {"init_args": {"columns": {"label": "y"}, "groups": {"by": ["sex"]}}},
}
"""As ``fcco fit`` would write it down."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Where the small run lies for the tests that come, once one of them has trained it."""
    return tmp_path_factory.mktemp("kept") / "whole.ckpt"


@pytest.fixture
def saved(request, make_module, make_trainer, tmp_path, kept):
    """A checkpoint in the middle of an epoch, and the ways to open one; asked for "all", of a run with all parts."""
    every_part = getattr(request, "param", "") == "all"
    arguments = SPLIT if every_part else DATA

    def chain(optimizer):
        return SequentialLR(optimizer, [ConstantLR(optimizer, 0.5), ExponentialLR(optimizer, 0.5)], [2])

    def module():
        if not every_part:
            return make_module(schedule=Schedule(lambda optimizer: ExponentialLR(optimizer, 0.5)))
        parts = {"objective": AveragePrecision(), "algorithm": MSVR(), "average": WeightAverage(decay=0.9)}
        return make_module(**parts, schedule=Schedule(chain), execution=Execution(state_layout="sharded"))

    def fit(path, steps=5):
        flags = {"max_epochs": 3, "enable_checkpointing": True, "callbacks": callbacks()} if every_part else {}
        trainer = make_trainer(max_steps=steps, **flags)
        trainer.fit(module(), make_data(**arguments), ckpt_path=path)
        return trainer

    def callbacks():
        stopping = EarlyStopping("val_auc", mode="max", patience=9, strict=False)
        beside = [Baseline(enabled=True), BestFeasible(enabled=True), Report(enabled=False)]
        return [*beside, stopping, Checkpoints(tmp_path / "run", save_last=True)]

    path, data = tmp_path / "whole.ckpt", partial(make_data, **arguments)
    if every_part or not kept.exists():
        trainer = fit(None, 3)
        trainer.lightning_module.config = CONFIG
        trainer.save_checkpoint(path if every_part else kept)
    if not every_part:
        shutil.copy(kept, path)
    width = torch.load(path, weights_only=True)["state_dict"]["network.layers.0.weight"].shape[1]
    ways = {
        "fit": fit,
        "test": lambda path: make_trainer().test(module(), data(), ckpt_path=path, verbose=False),
        "predict": lambda path: make_trainer().predict(module(), data(), ckpt_path=path),
        "inspect": describe,
        "convert": lambda path: convert(path, tmp_path / "out.npz", force=True),
        "network": load,
        "export": lambda path: export(path, tmp_path / "out.pt"),
        "load": lambda path: FCCOModule.load_from_checkpoint(
            path, network=TabularMLP(hidden=[8], dropout=0.2, in_features=width)
        ),
        "command line": partial(read_file, to_continue=True),
    }
    return path, ways


def attempt(way, path):
    """What opening leads to: the error that the package raises on purpose, or None; any other is not caught."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            way(path)
    except FCCOError as error:
        return error
    return None


def every_forgery(whole, seed):
    """All entries, each with every other value, in an order of chance; of a long list the first entries."""
    at = [path for path in paths(whole) if not (isinstance(path[-1], int) and path[-1] > 2)]
    every = [(path, kind) for path in at for kind in VALUES]
    random.Random(seed).shuffle(every)  # noqa: S311
    return every


def try_forgeries(saved, chosen, trials, seed):
    """Forge and open in every way; the number of forgeries refused."""
    path, ways = saved
    whole, target, refused = torch.load(path, weights_only=True), path.with_name("forged.ckpt"), 0
    if rows_folder(path).exists():
        shutil.copytree(rows_folder(path), rows_folder(target))
    for at, kind in every_forgery(whole, seed)[:trials]:
        torch.save(forged(whole, at, VALUES[kind]), target)
        for name in chosen:
            try:
                error = attempt(ways[name], target)
            except Exception as error:
                raise AssertionError(f"{name}, {at} {kind}: {type(error).__name__}") from error
            refused += error is not None
    return refused


def test_all_ways_open_what_was_saved(saved):
    path, ways = saved
    assert [attempt(way, path) for way in ways.values()] == [None] * len(ways)


@pytest.mark.parametrize("entry", ["fcco.classes", "encoder.columns", "encoder.columns.0.categories", "groups_by.sex"])
def test_names_that_tell_apart_are_different(saved, entry):
    path, ways = saved
    content = torch.load(path, weights_only=True)
    (data,) = (part for part in content.values() if isinstance(part, dict) and "train_split" in part)
    data["encoder"]["columns"][0] = {"name": "other", "categories": ["f", "m"]}
    column, twice = data["encoder"]["columns"][0], ["f", "f"]
    if entry == "fcco.classes":
        content["fcco"]["classes"] = twice
    elif entry == "encoder.columns":
        data["encoder"]["columns"] = [column, column]
    elif entry == "groups_by.sex":
        data["groups_by"] = {"sex": twice}
    else:
        column["categories"] = twice
    torch.save(content, path)
    for way in (ways["inspect"], ways["network"], ways["test"]):
        with pytest.raises(CheckpointError, match=rf"checkpoint {path}: .*{entry}` contains '(f|other)' twice"):
            way(path)


@pytest.mark.parametrize("content", [[1, 2], torch.ones(2), {"fcco": []}], ids=["list", "tensor", "mapping"])
def test_a_file_of_something_else_is_refused(saved, content):
    path, ways = saved
    torch.save(content, path)
    for way in ways.values():
        with pytest.raises(CheckpointError, match=f"checkpoint {path}: not written by `fcco fit`"):
            way(path)


def test_entries_may_be_taken_out_or_added(saved):
    path, ways = saved
    whole = torch.load(path, weights_only=True)
    torch.save({k: v for k, v in whole.items() if k != "optimizer_states"} | {"mine": 1}, path)
    ways["test"](path)
    assert "but not resumed" in str(attempt(ways["command line"], path))


@pytest.mark.parametrize("version", [3, CHECKPOINT_VERSION + 1])
def test_another_format_is_refused_with_both_versions_and_the_way_out(saved, version):
    """Of the same structure, so that nothing but the number tells: its rows would be misread."""
    path, ways = saved
    torch.save(forged(torch.load(path, weights_only=True), ("fcco", "version"), version), path)
    for way in ways.values():
        versions = rf"format {version}, this installation reads format {CHECKPOINT_VERSION}\."
        with pytest.raises(
            CheckpointError, match=rf"{versions} Load it with .* wrote it, or start without --ckpt_path"
        ):
            way(path)


FAST = ("inspect", "convert", "network", "export", "load", "command line")


def test_a_few_forgeries(saved):
    assert try_forgeries(saved, FAST, 8, 0) > 8


@pytest.mark.slow
def test_a_few_forgeries_that_are_continued_or_tested(saved):
    assert try_forgeries(saved, ["fit", "test"], 2, 2) > 1


@pytest.mark.parametrize("saved", ["all"], indirect=True)
def test_a_few_forgeries_of_a_run_with_all_parts(saved):
    assert try_forgeries(saved, ["fit", "convert"], 3, 3) > 2


every_way = pytest.mark.parametrize("every_way", [False, pytest.param(True, marks=pytest.mark.slow)])
"""Every forgery is opened in every way; or in three of the ways, with others for the next forgery."""


def some(ways, number, every_way):
    return [*ways.values()][slice(None) if every_way else slice(number % 3, None, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("saved", ["few", "all"], indirect=True)
def test_many_forgeries(saved):
    trials = count(60, 400)
    assert try_forgeries(saved, list(saved[1]), trials, 1) > 3 * trials


@pytest.mark.parametrize(
    ("at", "kind", "said"),
    [
        (("epoch",), "NaN", "its entry `epoch` is nan, and must be a whole number"),
        (("state_dict",), "keys that are no texts", "its entry `state_dict` has the key 5, and keys must be a text"),
        (("state_dict", "network.layers.0.bias"), "text", "network.layers.0.bias` is 'x', and must be a tensor"),
        (("fcco", "config"), "list", "its entry `fcco.config` is a list, and must be a mapping"),
        (("fcco", "config", "model", "network", "class_path"), "None", "class_path` is None, and must be a text"),
        (
            ("fcco", "random", "python", 0),
            "list of None",
            "fcco.random.python.0.0` is None, and must be a whole",
        ),
        (("fcco", "random", "torch"), "deleted", "its entry `fcco.random.torch` is missing"),
        (
            ("fcco", "engine", "algorithm"),
            "tensor",
            r"engine.algorithm` is a tensor of shape \(3, 2, 1\), and must",
        ),
        (("loops", "fit_loop"), "text", "its entry `loops.fit_loop` is 'x', and must be a mapping"),
        (
            ("optimizer_states", 0, "state"),
            "list",
            "entry `optimizer_states.0.state` is a list, and must be a mapping",
        ),
        (("optimizer_states", 0, "param_groups"), "deleted", "`optimizer_states.0.param_groups` is missing"),
        (("fcco", "engine"), "None", "its entry `fcco.engine` is None, and must be a mapping"),
        (("fcco", "states"), "list of None", "its entry `fcco.states.0` is None, and must be a text"),
        (("optimizer_states", 0, "param_groups", 0, "params"), "deleted", "param_groups.0.params` is missing"),
        (("TabularDataModule", "encoder", "columns", 0, "name"), "int", "columns.0.name` is 7, and must be a text"),
        (("pytorch-lightning_version",), "text", "its entry `pytorch-lightning_version` is 'x', not a version"),
    ],
)
@every_way
def test_what_is_there_and_what_belongs_there_are_told(saved, at, kind, said, every_way):
    path, ways = saved
    content = torch.load(path, weights_only=True)
    torch.save(forged(content, at, VALUES[kind]), path)
    for way in some(ways, len(said), every_way):
        with pytest.raises(CheckpointError, match=f"checkpoint {path}: .*{said}"):
            way(path)


@pytest.mark.parametrize("kind", quick(VALUES, "deleted", "None", "int", "tensor"))
@every_way
def test_rows_are_tables_of_numbers(saved, kind, every_way):
    path, ways = saved
    content = torch.load(path, weights_only=True)
    (name, *_) = content["fcco"]["states"]
    torch.save(forged(content, ("state_dict", f"{name}.rows"), VALUES[kind]), path)
    for way in some(ways, len(kind), every_way):
        with pytest.raises(CheckpointError, match=f"checkpoint {path}: .*{name}"):
            way(path)


def test_rows_without_values_have_files(saved):
    path, ways = saved
    content = torch.load(path, weights_only=True)
    (name, *_) = content["fcco"]["states"]
    content["state_dict"][f"{name}.rows"] = torch.empty(10**15, 1, device="meta")
    for save_id, said in ((None, "`fcco.save_id`, which names their files, is missing"), ("0", "0.part` is missing")):
        content["fcco"] |= {"save_id": save_id} if save_id else {}
        torch.save(content, path)
        with pytest.raises(CheckpointError, match=said):
            ways["inspect"](path)


@pytest.mark.parametrize("kind", ["deleted", "None", "int", "text", "tensor"])
def test_what_an_optimizer_misses_is_told_when_it_steps(saved, kind):
    """Nothing but the optimizer knows what it remembers of a parameter."""
    path, ways = saved
    content = torch.load(path, weights_only=True)
    torch.save(forged(content, ("optimizer_states", 0, "state", 0, "exp_avg"), VALUES[kind]), path)
    with pytest.raises(CheckpointError, match=r"optimizer.* cannot be loaded"):
        ways["fit"](path)

"""Whole files whose entries are missing or of another type: one CheckpointError that names the file and the entry."""

import random
from functools import partial

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR

from fcco_lightning import FCCOModule, Schedule, TabularMLP
from fcco_lightning.cli.checkpoint_tools import convert, describe
from fcco_lightning.errors import CheckpointError, FCCOError
from fcco_lightning.state.checkpoint_files import CHECKPOINT_VERSION, read_file, structure_of
from tests.evidence import count
from tests.tables import make_data, make_frame

DATA = {"train": make_frame(60, 0), "test": make_frame(20, 1), "batch_size": 12}
DELETED = object()
VALUES = {"deleted": DELETED, "None": None, "int": 7, "text": "x", "list": [], "tensor": torch.zeros(3, 2, 1)}


def paths(value, at=()):
    """Where all entries of a nested structure are."""
    if at:
        yield at
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, member in members:
        yield from paths(member, (*at, key))


def forged(value, at, other):
    """A copy with another value at one place."""
    key, *further = at
    made = dict(value) if isinstance(value, dict) else list(value)
    if further:
        made[key] = forged(value[key], further, other)
    elif other is DELETED:
        del made[key]
    else:
        made[key] = other
    return tuple(made) if isinstance(value, tuple) else made


@pytest.fixture
def saved(make_module, make_trainer, tmp_path):
    """A checkpoint in the middle of an epoch, and the ways to open one."""

    def module():
        return make_module(schedule=Schedule(lambda optimizer: ExponentialLR(optimizer, 0.5)))

    def fit(path, steps=5):
        trainer = make_trainer(max_steps=steps)
        trainer.fit(module(), make_data(**DATA), ckpt_path=path)
        return trainer

    path, data = tmp_path / "whole.ckpt", partial(make_data, **DATA)
    fit(None, 3).save_checkpoint(path)
    width = torch.load(path, weights_only=True)["state_dict"]["network.layers.0.weight"].shape[1]
    ways = {
        "fit": fit,
        "test": lambda path: make_trainer().test(module(), data(), ckpt_path=path, verbose=False),
        "predict": lambda path: make_trainer().predict(module(), data(), ckpt_path=path),
        "inspect": describe,
        "convert": lambda path: convert(path, tmp_path / "out.npz", force=True),
        "load": lambda path: FCCOModule.load_from_checkpoint(
            path, network=TabularMLP(hidden=[8], dropout=0.2, in_features=width)
        ),
        "command line": partial(read_file, to_continue=True),
    }
    return path, ways


def attempt(way, path):
    """What opening leads to: the error that the package raises on purpose, or None; any other is not caught."""
    try:
        way(path)
    except FCCOError as error:
        return error
    return None


def try_forgeries(saved, chosen, trials, seed):
    """Forge at random and open in every way; the number of forgeries refused."""
    path, ways = saved
    whole, target = torch.load(path, weights_only=True), path.with_name("forged.ckpt")
    every, chance, refused = list(paths(whole)), random.Random(seed), 0  # noqa: S311
    for _ in range(trials):
        at, kind = chance.choice(every), chance.choice(list(VALUES))
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


@pytest.mark.parametrize(
    ("at", "kind", "named"),
    [
        (("optimizer_states", 0, "param_groups"), "deleted", "optimizer_states.0.param_groups` is missing"),
        (("fcco", "engine"), "None", "fcco.engine` is NoneType, and was mapping"),
        (("loops", "fit_loop", "epoch_progress", "current", "ready"), "list", "current.ready` is list"),
        (("state_dict", "network.layers.0.weight"), "tensor", r"weight` is tensor float32 \(3, 2, 1\), and was"),
        (("fcco", "random", "python"), "int", "fcco.random.python` is int"),
        (("fcco", "structure"), "int", "fcco.structure` is int"),
    ],
)
def test_the_file_and_the_entry_are_named(saved, at, kind, named):
    path, ways = saved
    torch.save(forged(torch.load(path, weights_only=True), at, VALUES[kind]), path)
    for way in ways.values() if kind == "deleted" else (ways["fit"], ways["inspect"]):
        with pytest.raises(CheckpointError, match=rf"checkpoint {path}: its entry `.*{named}"):
            way(path)


@pytest.mark.parametrize("content", [[1, 2], torch.ones(2), {"fcco": []}], ids=["list", "tensor", "mapping"])
def test_a_file_of_something_else_is_refused(saved, content):
    path, ways = saved
    torch.save(content, path)
    for way in ways.values():
        with pytest.raises(CheckpointError, match=f"checkpoint {path}: not written by `fcco fit`"):
            way(path)


def test_entries_may_be_taken_out_or_added_and_what_is_changed_on_purpose_is_said(saved):
    path, ways = saved
    whole = torch.load(path, weights_only=True)
    torch.save({k: v for k, v in whole.items() if k != "optimizer_states"} | {"mine": 1}, path)
    ways["test"](path)
    assert "but not continued" in str(attempt(ways["command line"], path))
    torch.save(forged(whole, ("fcco", "structure"), DELETED), path)
    ways["fit"](path)


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


def test_structure_of_nested_values():
    content = {
        "t": torch.zeros(2, 3),
        "l": [1, "a", (0.5, 1.5)],
        "m": {0: {"x": None}},
        "long": [[i] for i in range(2000)],
    }
    found = structure_of(content)
    assert found["t"] == "tensor float32 (2, 3)"
    assert (found["l"], found["l.1"], found["l.2"]) == ("list", "str", "tuple of 2 float")
    assert (found["m"], found["m.0.x"]) == ("mapping", "NoneType")
    assert found["long"].startswith("list of 2000 members")
    assert structure_of(content | {"long": [[i] for i in range(1999)] + [["a"]]})["long"] != found["long"]
    assert len(found) == 9


def test_a_few_forgeries(saved):
    assert try_forgeries(saved, ["inspect", "command line"], 25, 0) > 30


@pytest.mark.slow
def test_many_forgeries(saved):
    trials = count(60, 400)
    assert try_forgeries(saved, list(saved[1]), trials, 1) > 4 * trials

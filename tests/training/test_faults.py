"""A job killed at any moment resumes with any number of processes, without loss or silent errors."""

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from fcco_lightning.state import DualState
from fcco_lightning.state.processes import Processes
from fcco_lightning.training.resuming.row_checkpoints import load
from tests import fault_jobs
from tests.jobs import whole_rows
from tests.launch import launch, values
from tests.training.conftest import quick

KILLS = quick([1, 60], 1)
SEQUENCES = quick(range(40), 0, 1)


def kill_later(path, chance, pids):
    """Kill one process, or all, some time after the next save has begun to show."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    deadline = time.monotonic() + 30
    while (path.stat().st_mtime_ns if path.exists() else 0) == before and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(chance.uniform(0, 0.08))
    for pid in chance.choice([pids[:1], pids[1:], pids]):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("kills", KILLS)
def test_killed_while_saving_an_earlier_checkpoint_is_whole(kills, tmp_path):
    path, chance, version, ends = tmp_path / "at.ckpt", random.Random(0), 0, set()  # noqa: S311
    for _ in range(kills):
        results = launch(
            fault_jobs.save_versions, 2, str(path), version, limit=40, during=lambda p: kill_later(path, chance, p)
        )
        ends |= {r.error for r in results}
        newer = fault_jobs.loaded_version(path)
        assert newer > version
        version = newer
    assert "-9" in ends
    assert ends <= {"-9", "RuntimeError", "PeerError"}, ends
    launch(fault_jobs.train, 1, str(tmp_path / "other.ckpt"), 1)
    left = [p for p in Path(f"{path}.rows").iterdir() if p.is_dir()]
    assert len(left) <= 3  # the save that counts, at most the one before, and the one that was interrupted


def save_some(path, first, count):
    """Save versions in this thread, of rows in the checkpoint (``count`` of them) or in a folder beside it."""
    state = DualState(1000, processes=Processes(alone=True), layout="sharded")
    states = {"table": state} if "rows" in path.name else {}
    for version in range(first, first + count):
        state.rows.copy_(fault_jobs.version_of_rows(version, 0, 1000))
        fault_jobs.store(states, {"state_dict": {}, "fcco": {"saved": version}}, path, state.processes)
    return count


@pytest.mark.parametrize("name", ["small.ckpt", "rows.ckpt"])
def test_two_jobs_that_save_under_one_name_leave_one_whole_checkpoint(name, tmp_path):
    path, count = tmp_path / name, 20
    abandoned = tmp_path / f".{name}.0.tmp"
    abandoned.touch()
    os.utime(abandoned, (0, 0))
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda first: save_some(path, first, count), (0, 100))) == [count, count]
    stored = fault_jobs.IO.load_checkpoint(path)
    assert stored["fcco"]["saved"] in (count - 1, 99 + count)
    if name == "rows.ckpt":
        state = DualState(1000, processes=Processes(alone=True), layout="sharded")
        load({"table": state}, stored, state.processes)
        assert torch.equal(state.rows, fault_jobs.version_of_rows(stored["fcco"]["saved"], 0, 1000))
    assert not list(tmp_path.glob(".*.tmp"))


def same(outcomes, expected, **tolerance):
    for outcome in outcomes:
        torch.testing.assert_close(outcome["weights"], expected[0]["weights"], **tolerance)
    torch.testing.assert_close(whole_rows(outcomes), whole_rows(expected), equal_nan=True, **tolerance)


@pytest.mark.parametrize("wanted", KILLS)
def test_killed_while_training_and_continued_is_uninterrupted(wanted, tmp_path):
    steps = 40 + 6 * wanted  # a killed run has come some steps further than the one before
    uninterrupted = values(launch(fault_jobs.train, 2, str(tmp_path / "whole.ckpt"), steps))
    kills, chance, run = 0, random.Random(1), 0  # noqa: S311
    while kills < wanted:
        path = tmp_path / f"killed{run}.ckpt"
        run += 1
        while True:
            kill = kills < wanted
            results = launch(
                fault_jobs.train, 2, str(path), steps, limit=60,
                during=(lambda p, path=path: kill_later(path, chance, p)) if kill else None,
            )  # fmt: skip
            if all(isinstance(r, dict) for r in results):
                break
            kills += 1
        same(results, uninterrupted, rtol=0, atol=0)


@pytest.mark.parametrize("seed", SEQUENCES)
def test_any_sequence_of_world_sizes_is_one_process(seed, tmp_path):
    chance = random.Random(seed)  # noqa: S311
    path, sizes = tmp_path / "at.ckpt", [chance.randint(1, 4) for _ in range(3)]
    ends = sorted(chance.sample(range(2, 16), 3))
    for size, end in zip(sizes, ends, strict=True):
        several = values(launch(fault_jobs.train, size, str(path), end, 1))
    one = values(launch(fault_jobs.train, 1, str(tmp_path / "one.ckpt"), ends[-1], 100))
    same(several, one, rtol=1e-11, atol=1e-12)

"""Long runs, signals at any moment, and flipped bytes."""

import os
import random
import signal
import time
from contextlib import redirect_stderr, redirect_stdout, suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

from fcco_lightning import SONEX, Execution
from fcco_lightning.cli import run
from fcco_lightning.cli.checkpoint_tools import describe, read_checkpoint
from fcco_lightning.errors import CheckpointError
from tests import jobs
from tests.cli.test_cli import SMALL, SYNTHETIC
from tests.evidence import count
from tests.tables import make_data

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Memory(Callback):
    """The bytes that the process holds, after every so many steps."""

    def __init__(self, every):
        self.every, self.held = every, []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step % self.every == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.held.append(pages * os.sysconf("SC_PAGE_SIZE"))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not say what a process holds")
def test_memory_does_not_grow(make_module, make_trainer):
    steps = count(3000, 20_000)
    memory = Memory(steps // 20)
    trainer = make_trainer(
        max_epochs=-1, max_steps=steps, callbacks=[memory], limit_val_batches=2, check_val_every_n_epoch=20
    )
    trainer.fit(make_module(algorithm=SONEX()), make_data())
    assert trainer.global_step == steps
    early, late = memory.held[len(memory.held) // 5], memory.held[-1]
    assert late < 1.01 * early, memory.held


# ------------------------------------------------------------------------------------------------------------- signals


def fit(folder, log):
    """A job that continues its own last checkpoint, as a cluster would start it again."""
    os.chdir(folder)
    torch.set_num_threads(1)
    with log.open("a") as file, redirect_stdout(file), redirect_stderr(file):
        more = [
            "--trainer.max_epochs=6",
            "--checkpoint.every_n_train_steps=3",
            "--ckpt_path=auto",
            "--baseline.enabled=false",
        ]
        status = run(["fit", "--config", str(SYNTHETIC), *SMALL, *more])
    os._exit(status)


def start(folder):
    """The job in a process that has imported everything."""
    process = get_context("fork").Process(target=fit, args=(folder, folder / "log.txt"))
    process.start()
    return process


def weights(folder):
    newest = max(folder.rglob("last*.ckpt"), key=os.path.getmtime)
    stored = torch.load(newest, weights_only=True)["state_dict"]
    return {name: value for name, value in stored.items() if isinstance(value, torch.Tensor)}


def test_a_job_told_to_end_at_any_moment_and_started_again_is_uninterrupted(tmp_path):
    whole, chance, sent = tmp_path / "whole", random.Random(0), 0  # noqa: S311
    whole.mkdir()
    began = time.monotonic()
    process = start(whole)
    process.join(120)
    took = time.monotonic() - began
    assert process.exitcode == 0, (whole / "log.txt").read_text()[-2000:]
    wanted, job = count(6, 100), 0
    while sent < wanted:
        (folder := tmp_path / str(job)).mkdir()
        job += 1
        while True:
            process = start(folder)
            process.join(chance.uniform(0.1, 1.2) * took)
            if process.exitcode is None and sent < wanted:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, chance.choice([signal.SIGTERM, signal.SIGINT, signal.SIGKILL]))
                sent += 1
            process.join(120)
            assert process.exitcode in (0, 130, 143, -signal.SIGTERM, -signal.SIGINT, -signal.SIGKILL), (
                process.exitcode,
                (folder / "log.txt").read_text()[-2000:],
            )
            if process.exitcode == 0:
                break
        found, expected = weights(folder), weights(whole)
        different = [k for k, v in expected.items() if not torch.equal(found[k].nan_to_num(), v.nan_to_num())]
        assert not different, (job, different)


# --------------------------------------------------------------------------------------------------------------- bytes


def test_a_flipped_byte_is_noticed_or_does_not_matter(make_module, make_trainer, tmp_path):
    path, chance = tmp_path / "at.ckpt", random.Random(0)  # noqa: S311
    trainer = make_trainer(max_steps=3)
    trainer.fit(make_module(algorithm=SONEX(), execution=Execution(state_layout="sharded")), make_data())
    trainer.save_checkpoint(path)
    files = [path, *jobs.rows_files(str(path))]
    expected, facts = read_checkpoint(path).weights, describe(path)
    noticed, trials = 0, count(200, 1000)
    for _ in range(trials):
        file = chance.choice(files)
        content = bytearray(whole := file.read_bytes())
        content[chance.randrange(len(content))] ^= chance.randint(1, 255)
        file.write_bytes(content)
        try:
            assert describe(path) == facts
            assert all(torch.equal(read_checkpoint(path).weights[name], w) for name, w in expected.items())
        except CheckpointError as error:
            assert str(tmp_path) in str(error)  # noqa: PT017
            noticed += 1
        file.write_bytes(whole)
    assert noticed > 0.8 * trials

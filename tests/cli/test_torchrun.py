"""The README's launch line for several processes survives a killed process."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from fcco_lightning.cli import run
from fcco_lightning.cli.failures import status_of
from fcco_lightning.state.processes import Processes, end_processes
from tests.launch import launch, values

ROOT = Path(__file__).parents[2]
LONGEST = 900  # seconds that a job may take where many others run beside it
SMALL = [
    "--data.num_train=400", "--data.num_test=200", "--data.batches.batch_size=20", "--trainer.max_epochs=12",
    "--trainer.enable_progress_bar=false", "--report.pictures=false", "--trainer.accelerator=cpu",
    "--model.execution.state_layout=sharded", "--trainer.limit_val_batches=0", "--checkpoint.every_n_train_steps=15",
]  # fmt: skip


def launch_line():
    """From the guide, for two processes and the synthetic problem."""
    text = (ROOT / "examples/guides/several_machines.md").read_text().replace("\\\n", " ")
    (line,) = re.findall(r"^(uv run torchrun --standalone .*)$", text, re.MULTILINE)
    words = shlex.split(line.replace("CONFIG", str(ROOT / "configs/roc_fairness/synthetic_sonex.yaml")))
    return [sys.executable, "-m", "torch.distributed.run", *words[3:], *SMALL]


def start(folder, log, *changes):
    folder.mkdir()
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen([*launch_line(), *changes], cwd=folder, stdout=log, stderr=log, env=environment)


def fit_here(folder, line):  # in both processes, which torchrun need not start anew
    Path(folder).mkdir(exist_ok=True)
    os.chdir(folder)
    return run(line[line.index("fcco_lightning") + 1 :])


def workers(job):
    command = ["ps", "-o", "pid=,args=", "--ppid", str(job.pid)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True)
    return [int(line.split()[0]) for line in listing.stdout.splitlines() if "fcco_lightning" in line]


def weights(folder):
    newest = max(folder.rglob("last.ckpt"), key=lambda p: p.stat().st_mtime)
    return torch.load(newest, weights_only=True)


@pytest.mark.slow
def test_a_killed_process_is_started_again_and_continues(tmp_path):
    with (tmp_path / "log").open("w") as log:
        job = start(tmp_path / "killed", log)
        try:
            deadline = time.monotonic() + LONGEST
            while not list(tmp_path.rglob("last.ckpt")) and time.monotonic() < deadline and job.poll() is None:
                time.sleep(0.02)
            os.kill(workers(job)[-1], signal.SIGKILL)
            assert job.wait(timeout=LONGEST) == 0, (tmp_path / "log").read_text()
        finally:
            job.kill()
            job.wait()
    text = (tmp_path / "log").read_text()
    assert "nothing of this job to continue, starting afresh" in text
    assert re.search(r"Restored all states from the checkpoint at runs/version_\d+/checkpoints/last.ckpt", text)
    assert values(launch(fit_here, 2, "whole", launch_line())) == [0, 0]
    killed, uninterrupted = weights(tmp_path / "killed"), weights(tmp_path / "whole")
    assert killed["global_step"] == uninterrupted["global_step"] == 12 * 10
    for name, value in uninterrupted["state_dict"].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(killed["state_dict"][name], value), name


@pytest.mark.slow
def test_many_kills(tmp_path):
    """Every one of three restarts is used up."""
    with (tmp_path / "log").open("w") as log:
        job = start(tmp_path / "killed", log, "--trainer.max_epochs=40")
        try:
            for _ in range(3):
                known = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("last.ckpt")}
                deadline = time.monotonic() + LONGEST
                while {p: p.stat().st_mtime_ns for p in tmp_path.rglob("last.ckpt")} == known:
                    assert time.monotonic() < deadline
                    assert job.poll() is None, (tmp_path / "log").read_text()
                    time.sleep(0.02)
                os.kill(workers(job)[0], signal.SIGKILL)
                time.sleep(3)
            assert job.wait(timeout=LONGEST) == 0, (tmp_path / "log").read_text()
        finally:
            job.kill()
            job.wait()
    assert weights(tmp_path / "killed")["global_step"] == 400


def test_a_process_group_ends_with_its_command():
    """What a command has made; one that was there before is its owner's, and an error has its own way out."""

    def begin():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        Processes.apart()

    assert status_of(begin) == 0
    assert not dist.is_initialized()
    begin()
    try:
        assert status_of(Processes.apart) == 0
        assert dist.is_initialized()
    finally:
        end_processes()
    assert not dist.is_initialized()

"""``fcco`` with weights divided over processes: fit, then every command that reads the checkpoint in one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fcco_lightning import FCCOModule, TabularMLP
from fcco_lightning.cli import run
from tests.jobs import rows_files
from tests.launch import launch, values

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]
ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "configs/roc_fairness/synthetic_alexr2.yaml")
SMALL = [
    "--data.num_train=400", "--data.num_test=200", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu",
    "--report.pictures=false", "--baseline.enabled=false",
]  # fmt: skip
DIVIDED = ["--trainer.devices=2", "--trainer.strategy=ModelParallelStrategy", "--data.batches.batch_size=20"]


def command(folder, *arguments):
    os.chdir(folder)
    return run([*arguments, *SMALL])


@pytest.mark.slow
def test_a_divided_job_is_read_by_every_command(tmp_path, capfd):
    fit = ["fit", "--config", CONFIG, *DIVIDED]
    assert values(launch(command, 2, tmp_path, *fit, "--trainer.max_epochs=1")) == [0, 0]
    assert values(launch(command, 2, tmp_path, *fit, "--trainer.max_epochs=2", "--ckpt_path=auto")) == [0, 0]
    last = max(tmp_path.rglob("last.ckpt"), key=lambda p: p.stat().st_mtime)
    assert len(rows_files(str(last))) == 2
    assert torch.load(last, weights_only=True)["global_step"] > 0
    evaluate = ["validate", "--config", CONFIG, f"--ckpt_path={last}"]
    assert values(launch(command, 2, tmp_path, *evaluate, *DIVIDED)) == [0, 0]
    os.chdir(tmp_path)
    assert run([*evaluate, *SMALL]) == 0
    assert run(["inspect", str(last), "--json"]) == 0
    said = capfd.readouterr().out
    assert json.loads(said[said.rindex("\n{") :])["weights"]["tensors"] > 0
    assert run(["convert", str(last), "out.safetensors"]) == 0
    weights = load_file("out.safetensors")
    assert all(torch.isfinite(value).all() for name, value in weights.items() if name.startswith("network."))
    module = FCCOModule.load_from_checkpoint(last, network=TabularMLP([64, 64], in_features=21))
    for name, value in module.network.state_dict().items():
        assert torch.equal(value, weights[f"network.{name}"])
    rows_files(str(last))[1].unlink()
    assert run(["inspect", str(last)]) == 1
    assert "last.ckpt.rows" in capfd.readouterr().err


SRUN = """#!/bin/bash
shift
for rank in 0 1; do SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" & jobs+=($!); done
for job in "${jobs[@]}"; do wait "$job" || status=1; done
exit ${status:-0}
"""


@pytest.mark.slow
def test_the_cluster_job_runs_and_goes_on(tmp_path):
    """As SLURM would start it on one node, twice; the second start continues the first."""
    srun = tmp_path / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    slurm = {"NTASKS": 2, "NTASKS_PER_NODE": 2, "JOB_NUM_NODES": 1, "JOB_ID": 4321, "JOB_NAME": "clip", "NODEID": 0}
    environment = {f"SLURM_{name}": str(value) for name, value in slurm.items()} | {"SLURM_NODELIST": "127.0.0.1"}
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, **environment, "PATH": path, "GLOO_SOCKET_IFNAME": "lo"}
    job = [str(ROOT / "examples/cluster_job.sh"), CONFIG, *SMALL, "--data.batches.batch_size=20"]
    for epochs in (1, 2):
        command = [*job, f"--trainer.max_epochs={epochs}"]
        ended = subprocess.run(command, check=False, cwd=tmp_path, env=environment, text=True, capture_output=True)
        assert ended.returncode == 0, ended.stderr[-3000:]
    assert "continuing" in ended.stderr
    newest = max(tmp_path.rglob("last.ckpt"), key=lambda p: p.stat().st_mtime)
    assert torch.load(newest, weights_only=True)["epoch"] == 2

"""``fcco`` with weights that are divided over processes: fit, then every command that reads the checkpoint alone."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fcco_lightning import FCCOModule, TabularMLP
from fcco_lightning.cli import run
from tests.jobs import rows_files
from tests.launch import launch, values

CONFIG = str(Path(__file__).parents[2] / "configs/roc_fairness/synthetic_alexr2.yaml")
SMALL = [
    "--data.num_train=400", "--data.num_test=200", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu",
    "--report.pictures=false", "--monitor.picture=false", "--baseline.enabled=false",
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

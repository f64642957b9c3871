"""Other ways to start several processes than one launcher on one machine."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fcco_lightning import Execution
from tests import jobs
from tests.launch import free_port, launch, values

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT),
}  # fmt: skip
LONGEST = 300.0  # seconds

FIT = """
import pickle, sys
from fcco_lightning import Execution
from tests import jobs

if __name__ == "__main__":
    outcome = jobs.fit(pickle.loads(bytes.fromhex(sys.argv[1])))
    pickle.dump(outcome, open(f"{jobs.rank()}.pickle", "wb"))
"""
SPAWN = """
import sys
from lightning.pytorch import Trainer, seed_everything
from fcco_lightning import CheckpointError, FCCOModule, HingePenalty, ROCFairness, SyntheticDataModule, TabularMLP
from fcco_lightning import UniformSampling

if __name__ == "__main__":
    size = int(sys.argv[1])
    seed_everything(0)
    module = FCCOModule(TabularMLP([8], in_features=21), constraints=[ROCFairness([0.0])], penalty=HingePenalty(2))
    data = SyntheticDataModule(num_train=80, num_test=40, batches=UniformSampling(40 // size))
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", devices=size, strategy="ddp_spawn" if size > 1 else "auto", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )
    trainer.fit(module, data)
    print([p.sum().item() for p in module.network.parameters()])
    try:
        trainer.save_checkpoint("after.ckpt")
    except CheckpointError:
        print("refused")
"""


def test_two_nodes_are_one(tmp_path):
    """Two groups of torchrun on the loopback, of one process each, with rows on both of them."""
    Path("job.py").write_text(FIT)
    job = {"objective": "rank", "module": {"execution": Execution(state_layout="sharded")}, "nodes": 2}
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc_per_node", "1",
        "--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{free_port()}", "--local_addr", "127.0.0.1",
        "job.py", pickle.dumps(job).hex(),
    ]  # fmt: skip
    nodes = [subprocess.Popen(command, env=ENVIRONMENT) for _ in range(2)]
    try:
        assert [node.wait(timeout=LONGEST) for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.kill()
    found = [pickle.loads(Path(f"{rank}.pickle").read_bytes()) for rank in range(2)]  # noqa: S301
    expected = values(
        launch(jobs.fit, 2, {"objective": "rank", "module": {"execution": Execution(state_layout="sharded")}})
    )
    for outcome, other in zip(found, expected, strict=True):
        torch.testing.assert_close(outcome["weights"], other["weights"], rtol=0, atol=0)
    torch.testing.assert_close(jobs.whole_rows(found), jobs.whole_rows(expected), rtol=0, atol=0, equal_nan=True)


def test_spawned_processes_are_one_and_save_during_the_fit_only():
    Path("job.py").write_text(SPAWN)
    said = []
    for size in "21":
        command = [sys.executable, "job.py", size]
        ended = subprocess.run(command, env=ENVIRONMENT, check=True, stdout=subprocess.PIPE, text=True, timeout=LONGEST)
        said.append([line for line in ended.stdout.splitlines() if line.startswith(("[", "refused"))])
    assert json.loads(said[0][0]) == pytest.approx(json.loads(said[1][0]), abs=1e-5)
    assert (said[0][1:], said[1][1:]) == (["refused"], [])

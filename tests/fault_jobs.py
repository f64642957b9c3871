"""Jobs without a Trainer that train and save continually, so that a test can kill them at any moment."""

import os
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from fcco_lightning import SONEX, Engine, HeavyBall, HingePenalty
from fcco_lightning.constraints import MeanAtMost
from fcco_lightning.objectives import LogisticLoss
from fcco_lightning.state import DualState
from fcco_lightning.state.checkpoint_files import CHECKPOINT_VERSION
from fcco_lightning.state.processes import Processes
from fcco_lightning.training.resuming.row_checkpoints import RowsCheckpointIO, load, save
from tests.jobs import SoftRank

ROWS = 300_001
SAMPLES = 203
IO = RowsCheckpointIO(
    TorchCheckpointIO(), SimpleNamespace(strategy=None, lightning_module=None, state=SimpleNamespace(fn="test"))
)


def processes():
    """The processes of this job."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return Processes(alone=True)
    dist.init_process_group("gloo")
    return Processes()


def store(states, checkpoint, path, group):
    """Write a checkpoint whose header has only the entries that a test needs."""
    header = {"version": CHECKPOINT_VERSION, "world_size": group.size, "num_samples": SAMPLES}
    header["engine"] = {"algorithm": {"name": "SONEX"}}
    header |= {"skipped_batches": 0, "optimizer": {"class": "HeavyBall"}} | checkpoint["fcco"]
    checkpoint = {"pytorch-lightning_version": "2.6.6", "epoch": 0, "global_step": 0, **checkpoint, "fcco": header}
    checkpoint["state_dict"] |= {f"{name}.rows": state.rows for name, state in states.items()}

    def write():
        if group.rank == 0:
            IO.save_checkpoint(checkpoint, path)

    save(states, checkpoint, path, write, group)


def version_of_rows(version, first, count):
    """The rows of a version; no two versions have a common row."""
    return (torch.arange(first, first + count) % 1009 + version * 1009.0).unsqueeze(1)


def save_versions(path, version):
    """Save one version after the other to the same path, without end."""
    state = DualState(ROWS, processes=(group := processes()), layout="sharded")
    while True:
        version += 1
        state.rows.copy_(version_of_rows(version, state.first, len(state.rows)))
        store({"table": state}, {"state_dict": {}, "fcco": {"saved": version}}, path, group)


def loaded_version(path):
    """The version of a checkpoint, after a check of all its rows."""
    state = DualState(ROWS, processes=Processes(alone=True), layout="sharded")
    checkpoint = IO.load_checkpoint(path)
    load({"table": state}, checkpoint, state.processes)
    version = checkpoint["fcco"]["saved"]
    assert torch.equal(state.rows, version_of_rows(version, 0, ROWS))
    return version


def union_batch(step):
    """Indices of a step's samples, some of them repeated; the number of processes does not divide their number."""
    generator = torch.Generator().manual_seed(step)
    index = torch.randint(SAMPLES, (25 + step % 3,), generator=generator)
    everything = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = everything[index]
    return {"x": x, "y": (everything[index, 0] > 0).long(), "index": index}


def train(path, until, save_every=1):
    """Start or resume the run at ``path``, train up to a number of steps, and return weights and rows."""
    group = processes()
    torch.manual_seed(0)
    network, objective = torch.nn.Linear(3, 1).double(), SoftRank()
    cap = MeanAtMost(LogisticLoss(), kappa=0.4)
    algorithm = SONEX(0.3, 0.2, lam=0.05)
    problem = algorithm.pose(
        objective,
        [cap],
        HingePenalty(2.0),
        num_samples=SAMPLES,
        dtype=torch.float64,
        processes=group,
        layout="sharded",
    )
    engine = Engine(network, problem, algorithm)
    optimizer = HeavyBall(network.parameters(), lr=0.05, beta=0.3)
    states = {name: m for name, m in problem.named_modules() if isinstance(m, DualState)}
    step = 0
    if Path(path).exists():
        checkpoint = IO.load_checkpoint(path)
        load(states, checkpoint, group)
        own = checkpoint["fcco"]
        network.load_state_dict({k: v for k, v in checkpoint["state_dict"].items() if k in ("weight", "bias")})
        optimizer.load_state_dict(own["moved"])
        engine.load_state_dict(own["engine"])
        step = own["step"]
    while step < until:
        batch = union_batch(step)
        size = len(batch["index"])
        part = slice(group.rank * size // group.size, (group.rank + 1) * size // group.size)
        engine.train_batch({name: column[part] for name, column in batch.items()}, optimizer)
        step += 1
        if step % save_every == 0:
            inside = {"step": step, "moved": optimizer.state_dict(), "engine": engine.state_dict()}
            store(states, {"state_dict": network.state_dict(), "fcco": inside}, path, group)
    rows = {name: (s.first, s.num_rows, s.rows.clone()) for name, s in states.items()}
    return {"weights": network.state_dict(), "rows": rows}

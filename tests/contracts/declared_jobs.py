"""Functions that the processes of a job run, for tests of data that differ from what was declared."""

import warnings

import torch
from lightning.pytorch import Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fcco_lightning import AUC, SGD, SOX, AveragePrecision, Criterion, FCCOModule, IndexedDataset
from tests.conftest import QUIET

N, BATCH = 200, 16
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] + 0.5 * X[:, 1] > 0.6).long()


def indexed(x=X, y=Y):
    return IndexedDataset(TensorDataset(x, y))


def trained(loader, objective=None, algorithm=None, trainer=(), ckpt_path=None, **module):
    """Train an epoch; return the module and the warnings."""
    options = QUIET | {"max_epochs": 1, "limit_val_batches": 0} | dict(trainer)
    made = FCCOModule(nn.Linear(3, 1), objective or AveragePrecision(), algorithm=algorithm or SOX(), **module)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Trainer(**options).fit(made, loader, ckpt_path=ckpt_path)
    return made, [str(w.message) for w in caught]


def fit_shared(shared: bool, objective: str, shuffle: bool = True):
    """Train on a loader with equal seeds, with or without Lightning's distributed sampler; return the warnings."""
    seed_everything(1)
    parts = {"auc": (AUC(), SGD()), "average precision": (AveragePrecision(), SOX())}[objective]
    options = {"strategy": "ddp", "devices": 2, "accelerator": "cpu", "use_distributed_sampler": shared}
    return trained(DataLoader(indexed(), BATCH, shuffle=shuffle), *parts, trainer=options)[1]


def criterion_told_of(batch_size: int, per_process: int):
    """Train on batches of one size with a criterion that was given another; all processes together."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    data, network = indexed(), nn.Linear(3, 1)
    criterion = Criterion(AveragePrecision(), SOX(), num_samples=N, sampling=data.drawn(batch_size))
    optimizer = criterion.follow(torch.optim.SGD(network.parameters(), lr=0.1))
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    for union in order.split(per_process * size):
        own = union.tensor_split(size)[rank]
        optimizer.zero_grad()
        criterion(network(X[own]), {"x": X[own], "y": Y[own], "index": own}).backward()
        optimizer.step()
    return criterion.engine.arrivals.left

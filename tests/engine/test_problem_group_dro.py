"""Group DRO on several processes equals one process with the whole batch."""

import pytest
import torch
from torch import nn

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    MSVR,
    OOA,
    SONEX,
    ChiSquareGroupDRO,
    CVaRGroupDRO,
    Engine,
    MultiLabelLoss,
    MultiTaskGroupDRO,
)
from tests.state import pool as pools

pool = pools.pool

GROUPS, STEPS, SIZE = 5, 6, 24

ALGORITHMS = {
    "SONEX": (lambda: SONEX(0.8, 0.1, lam=0.1), lambda: CVaRGroupDRO(0.4, num_groups=GROUPS)),
    "ALEXR": (lambda: ALEXR(1.0, 0.5), lambda: CVaRGroupDRO(0.4, num_groups=GROUPS)),
    "ALEXR2": (lambda: ALEXR2(K=2, eta=0.05, nu=0.5), lambda: CVaRGroupDRO(0.4, num_groups=GROUPS)),
    "MSVR": (lambda: MSVR(0.5, 0.1, b=0.3), lambda: ChiSquareGroupDRO(0.5, num_groups=GROUPS)),
    "OOA": (lambda: OOA(0.2), lambda: CVaRGroupDRO(0.4, num_groups=GROUPS)),
    "tasks": (lambda: SONEX(0.8, 0.1, lam=0.1), lambda: MultiTaskGroupDRO(3, MultiLabelLoss(), num_groups=GROUPS)),
}


def batches(tasks):
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        x = torch.randn(SIZE, 4, generator=generator, dtype=torch.float64)
        y = torch.randint(2, (SIZE, 3) if tasks else (SIZE,), generator=generator)
        yield {"x": x, "y": y, "group": torch.arange(SIZE) % GROUPS, "index": torch.arange(SIZE)}


def train(processes, name):
    make, objective = (build() for build in ALGORITHMS[name])
    generator = torch.Generator().manual_seed(1)
    network = nn.Linear(4, 3 if name == "tasks" else 1).double()
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
    problem = make.pose(objective.double(), num_samples=SIZE, dtype=torch.float64, processes=processes)
    engine = Engine(network, problem, make)
    optimizer = torch.optim.SGD(engine.params, lr=0.3)
    for batch in batches(name == "tasks"):
        bounds = [0, 7, 16, SIZE] if processes.size == 3 else [r * SIZE // processes.size for r in range(3)]
        own = slice(bounds[processes.rank], bounds[processes.rank + 1]) if processes.size > 1 else slice(None)
        engine.train_batch({k: v[own] for k, v in batch.items()}, optimizer)
    return [p.detach().clone() for p in engine.params], problem.states[0].rows.clone()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_several_processes_are_one(pool, name, size):
    [(weights, rows)] = pool.values(train, 1, name)
    for other_weights, other_rows in pool.values(train, size, name):
        torch.testing.assert_close(other_rows, rows, rtol=1e-12, atol=1e-12)
        for a, b in zip(other_weights, weights, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)

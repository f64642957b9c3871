"""Pairs and protected tasks divided among processes give the rows and gradients of one process with all of them."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from fcco_lightning import (
    BSGD,
    SONEX,
    SONX,
    SOX,
    Engine,
    GlobalContrastive,
    HeavyBall,
    HingePenalty,
    InfoNCE,
    NonForgetting,
    SquaredHingePenalty,
    ViewContrastive,
)
from fcco_lightning.models import BatchNetwork
from fcco_lightning.models.outputs import Embeddings
from fcco_lightning.state.processes import Processes
from tests.state import pool as pools

pool = pools.pool  # the fixture

N, TASKS, CLASSES = 14, 3, 4


class Towers(BatchNetwork):
    """Images and class prompts; a part without texts gives logits of the classes."""

    inputs = ("x", "text")

    def __init__(self, dtype):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.image, self.words = nn.Linear(4, 3, dtype=dtype), nn.Linear(4, 3, dtype=dtype)
        self.register_buffer("prompts", torch.randn(CLASSES, 4, generator=generator, dtype=torch.float64).to(dtype))
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))

    def forward(self, batch):
        return {name: self.outputs(columns) for name, columns in batch.items()}

    def outputs(self, batch):
        image = normalize(self.image(batch["x"]), dim=1)
        if "text" in batch:
            return Embeddings(image, normalize(self.words(batch["text"]), dim=1))
        return 5 * image @ normalize(self.words(self.prompts), dim=1).T


def make_batch(t, index, tasks, dtype):
    generator = torch.Generator().manual_seed(t)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    index, task = torch.tensor(index, dtype=torch.int64), torch.tensor(tasks, dtype=torch.int64)
    protected = {"x": draw(len(task), 4), "y": task + 1, "task": task, "protected_loss": draw(len(task)).abs() / 3}
    return {"target": {"x": draw(len(index), 4), "text": draw(len(index), 4), "index": index}, "protected": protected}


STEPS = [  # pairs and their division, tasks of the protected samples and theirs
    ([0, 1, 2, 3, 4, 5], [3, 3], [0, 1, 0, 1], [2, 2]),
    ([5, 3, 9, 8, 3], [4, 1], [2, 0, -1, 2, 2], [1, 4]),  # a pair twice; a sample of no protected task; uneven
    ([7, 10, 11, 13, 0], [5, 0], [1, 1, 0], [3, 0]),  # nothing in process 1
    ([1, 2, 12, 6], [2, 2], [0, 1, 2], [0, 3]),
]


def train(processes, objective, algorithm, penalty, layout, dtype, alone, device="cpu"):
    network, goal, limit = Towers(dtype), objective().to(dtype), NonForgetting(names=["a", "b", "c"])
    method = algorithm()
    problem = method.pose(goal, [limit], penalty(2.0), num_samples=N, processes=processes, layout=layout)
    engine = Engine(network.to(device), problem.to(device), method)
    optimizer = HeavyBall(engine.params, lr=0.02, beta=0.5)
    gradients, logged = [], []
    for t, (index, sizes, tasks, task_sizes) in enumerate(STEPS):
        batch = make_batch(t, index, tasks, dtype)
        if not alone:
            shares = {"target": sizes, "protected": task_sizes}
            batch = {
                part: {name: column.split(shares[part])[processes.rank] for name, column in columns.items()}
                for part, columns in batch.items()
            }
        estimates = engine.train_batch(batch, optimizer)
        logged.append({name: value.item() for name, value in estimates.items()})
        gradients.append(torch.cat([p.grad.reshape(-1) for p in engine.params]))
    states = [*problem.states, *([] if problem.row_parameters is None else [problem.row_parameters.state])]
    return gradients, [(s.rows.clone(), s.partial) for s in states], logged


CASES = {
    "sox": (partial(GlobalContrastive, 0.1), SOX, SquaredHingePenalty),
    "sonex": (partial(GlobalContrastive, 0.1), SONEX, HingePenalty),
    "sonx-learnt": (partial(GlobalContrastive, 0.1, learn="global"), SONX, HingePenalty),
    "per-sample": (partial(GlobalContrastive, 0.1, learn="per_sample", tau_lr=0.01), SONEX, HingePenalty),
    "bsgd": (partial(GlobalContrastive, 0.1, positive="batch"), BSGD, HingePenalty),
    "infonce": (partial(InfoNCE, 0.1, learn=True), SOX, SquaredHingePenalty),
    "views": (partial(ViewContrastive, 0.1), SONEX, HingePenalty),
    "views-per-sample": (partial(ViewContrastive, 0.1, learn="per_sample", tau_lr=0.01), SOX, SquaredHingePenalty),
}


@pytest.mark.parametrize("layout", ["replicated", "sharded"])
@pytest.mark.parametrize(("objective", "algorithm", "penalty"), CASES.values(), ids=CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-6)], ids=["f64", "f32"])
def test_two_processes_equal_one(pool, objective, algorithm, penalty, layout, dtype, tolerance):
    options = objective, algorithm, penalty, layout, dtype
    gradients, states, logged = train(Processes(), *options, True)
    results = pool.values(train, 2, *options, False)
    for own, own_states, own_logged in results:
        for t, (found, expected) in enumerate(zip(own, gradients, strict=True)):
            grown = tolerance if t == 0 else 100 * tolerance  # later steps start from weights that are rounded already
            assert (found - expected).norm() <= grown * expected.norm()
        assert own_logged[0].keys() == logged[0].keys()
        for position, (rows, _) in enumerate(states):
            held, divided = own_states[position]
            if divided:
                held = torch.cat([state[position][0] for _, state, _ in results])
            torch.testing.assert_close(
                held, rows, rtol=max(100 * tolerance, 1e-6), atol=100 * tolerance, equal_nan=True
            )
    assert all(g.norm() > 1e-3 for g in gradients)
    own_parameters = objective.keywords.get("learn") == "per_sample"
    assert len(states) == (algorithm is not BSGD) * (1 + (objective.func is not InfoNCE)) + own_parameters
    if own_parameters:
        assert states.pop()[0].nan_to_num(0.1).sub(0.1).abs().max() > 1e-3  # temperatures have moved
    assert algorithm is BSGD or states[-1][0].isfinite().all()  # every task was seen

"""The number of operators that a step dispatches beyond a plain one; a step waits for one number only.

Operators are counted instead of seconds, which differ between machines.  A change that adds operators must raise a
bound here deliberately.
"""

from collections import Counter

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils._python_dispatch import TorchDispatchMode

from fcco_lightning import (
    AUC,
    SGD,
    SONEX,
    SOX,
    AveragePrecision,
    BalancedSampling,
    CVaRPartialAUC,
    Engine,
    HingePenalty,
    KLPartialAUC,
    LogisticLoss,
    MeanAtMost,
    ROCFairness,
    TabularMLP,
    TensorDataModule,
)

WAITS = [
    f"aten.{name}.default"
    for name in ("_local_scalar_dense", "nonzero", "equal", "masked_select", "is_nonzero", "_unique2", "bincount")
]
N = 256
STEPS = {  # objective, algorithm, constraints; operators beyond a plain step
    "AUC": (AUC, SGD, [], 22),
    "AP, SOX": (AveragePrecision, lambda: SOX(0.1), [], 81),
    "AP beside cross-entropy, SOX": (lambda: AveragePrecision(cross_entropy=10), lambda: SOX(0.1), [], 98),
    "AP of raw scores, SOX": (lambda: AveragePrecision(sigmoid=False), lambda: SOX(0.1), [], 77),
    "partial AUC, SOX": (lambda: KLPartialAUC(sigmoid=False), lambda: SOX(0.1), [], 72),
    "partial AUC, own thresholds": (lambda: CVaRPartialAUC(0.3, sigmoid=False), SGD, [], 63),
    "AUC, 14 ROC constraints, SOX": (AUC, lambda: SOX(0.1), [ROCFairness()], 104),
    "AUC, 14 ROC constraints, SONEX": (AUC, lambda: SONEX(0.1, 0.1, lam=0.1), [ROCFairness()], 135),
    "AUC, 200 caps, SOX": (
        AUC,
        lambda: SOX(0.1),
        [MeanAtMost(LogisticLoss(), 0.5, {"group": k}) for k in range(200)],
        88,
    ),
}


class Operators(TorchDispatchMode):
    """Counts what is dispatched, by name."""

    def __init__(self):
        super().__init__()
        self.names = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[str(func)] += 1
        return func(*args, **(kwargs or {}))


def counted(step):
    with Operators() as operators:
        step()
    return operators.names


def plain(network, batch):
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)

    def step():
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(network(batch["x"]), batch["y"].float()).backward()
        optimizer.step()

    step()
    return counted(step)


@pytest.mark.filterwarnings("ignore:.* takes a mean over")  # of 200 subsets, some of two samples
@pytest.mark.parametrize("name", STEPS)
def test_a_step_dispatches_no_more_than_it_did(name):
    objective, algorithm, constraints, most = STEPS[name]
    draw = torch.Generator().manual_seed(0)
    columns = {
        "x": torch.randn(N, 5, generator=draw),
        "y": (torch.arange(N) % 4 == 0).long(),
        "group": torch.randperm(N, generator=draw) % (2 if len(constraints) < 2 else 200),
    }
    data = TensorDataModule({"train": columns, "test": columns}, batches=BalancedSampling(64))
    data.setup()
    network, used = TabularMLP([8], 1, 5), algorithm()
    problem = used.pose(objective(), constraints, HingePenalty(1.0), num_samples=N, sampling=data.sampling())
    engine, batch = Engine(network, problem, used), next(iter(data.train_dataloader()))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    engine.average_estimates()
    for _ in range(2):
        engine.train_batch(batch, optimizer)
    found, base = counted(lambda: engine.train_batch(batch, optimizer)), plain(TabularMLP([8], 1, 5), batch)
    assert found.total() - base.total() <= most, (found - base).most_common()
    assert sum(found[n] for n in WAITS) == 1  # is everything finite?
    engine.arrivals.left = 0  # the first batches are looked at more than once
    engine.train_batch(batch, optimizer)
    several = counted(lambda: [engine.train_batch(batch, optimizer) for _ in range(40)])
    assert sum(several[n] for n in WAITS) == 40  # also where means of an epoch are taken up

"""Later batches that differ from the first and would be misread: the engine names the cause and changes nothing."""

import pytest
import torch
from torch import nn

from fcco_lightning import (
    SOX,
    AveragePrecision,
    CrossEntropy,
    Engine,
    KLGroupDRO,
    LogisticLoss,
    MultiInstanceAUC,
    MultiTaskGroupDRO,
    NeighbourhoodComponents,
    NonForgetting,
)
from fcco_lightning.data import Drawn
from fcco_lightning.errors import DataError
from tests.plans import BagBatches, BalancedBatches, GroupBatches

N = 12
I = torch.arange(N)  # noqa: E741 - the index of a sample
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
BAG, Y, CLASS = I // 3, (I // 3 % 2), I % 3
TASKS = {"task": I // 4, "group": I % 2, "y": I % 2}
PROTECTED = {"y": I % 3, "task": I % 2, "protected_loss": torch.ones(N)}

CASES = {  # objective, constraints, outputs, columns, plan, a batch, what is wrong in the next one, message
    "a bag of another split": (
        MultiInstanceAUC,
        [],
        1,
        {"bag": BAG, "y": Y},
        BagBatches(BAG, Y, 1, 1, 2),
        [0, 1, 3, 4],
        {"bag": torch.tensor([0, 0, 9, 9])},
        "bag 9 of a batch is not among the 4 bags",
    ),
    "a task that is none": (
        lambda: MultiTaskGroupDRO(3, LogisticLoss(), num_groups=2),
        [],
        1,
        TASKS,
        None,
        [0, 1, 4, 5],
        {"task": torch.tensor([0, 0, 7, 7])},
        r"tasks must lie in 0\.\.2, got 7 at position 2",
    ),
    "a group that is none": (
        lambda: KLGroupDRO(loss=LogisticLoss(), num_groups=2),
        [],
        1,
        TASKS,
        None,
        [0, 1, 4, 5],
        {"group": torch.tensor([0, 1, 2, 0])},
        "groups? .*2",
    ),
    "a protected task that is none": (
        CrossEntropy,
        [NonForgetting(names=["a", "b"])],
        3,
        PROTECTED,
        None,
        [0, 1, 4, 5],
        {"task": torch.tensor([0, 1, 2, 0])},
        "task must be < 2",
    ),
    "one sample of a class": (
        NeighbourhoodComponents,
        [],
        2,
        {"y": CLASS},
        GroupBatches(CLASS, 2, 2, prevalence="data"),
        [0, 3, 1, 4],
        [0, 3, 6, 1],
        "a batch holds one sample of stratum 1 .* which has 4",
    ),
    "one positive": (
        AveragePrecision,
        [],
        1,
        {"y": Y},
        BalancedBatches(Y, 4),
        [3, 4, 0, 1],
        [3, 0, 1, 2],
        "a batch holds one sample of stratum .* which has 6",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_named_and_nothing_changes(name):
    make, constraints, outputs, columns, plan, good, wrong, message = CASES[name]
    columns = {"x": X, "index": I, **columns, **({} if plan is None else plan.columns())}
    sampling = None if plan is None else {"target": Drawn(columns, plan)}
    network, algorithm = nn.Linear(3, outputs), SOX(0.5)
    problem = algorithm.pose(make(), constraints, num_samples=N, sampling=sampling)
    engine = Engine(network, problem, algorithm)
    optimizer = torch.optim.SGD(engine.params, lr=0.1)
    batch = {key: column[good] for key, column in columns.items()}
    bad = batch | wrong if isinstance(wrong, dict) else {key: column[wrong] for key, column in columns.items()}
    if constraints:
        batch, bad = ({"target": batch, "protected": columns} for columns in (batch, bad))
    engine.train_batch(batch, optimizer)
    before = {key: value.clone() for key, value in state_of(network, problem).items()}
    with pytest.raises(DataError, match=message):
        engine.train_batch(bad, optimizer)
    torch.testing.assert_close(state_of(network, problem), before, rtol=0, atol=0, equal_nan=True)
    engine.train_batch(batch, optimizer)
    assert any(not torch.equal(a, b) for a, b in zip(network.state_dict().values(), before.values(), strict=False))


def state_of(network, problem):
    """Weights and rows."""
    return {**network.state_dict(), **{k: v for k, v in problem.state_dict().items() if isinstance(v, torch.Tensor)}}

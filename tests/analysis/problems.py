"""Small networks and objectives whose inner functions are known exactly."""

import torch
from torch import nn

from fcco_lightning import (
    ChiSquareGroupDRO,
    CVaRGroupDRO,
    InnerFunctions,
    KLGroupDRO,
    MultiLabelLoss,
    MultiTaskGroupDRO,
    Quantity,
    SquaredLoss,
    WorstGroupDRO,
)
from fcco_lightning.outer import Range

GROUPS, TASKS, SIZE = 5, 3, 61

OBJECTIVES = {
    "cvar": lambda: CVaRGroupDRO(0.4, threshold=0.3),
    "worst": lambda: WorstGroupDRO(threshold=0.3),
    "chi2": lambda: ChiSquareGroupDRO(0.5, threshold=0.2),
    "kl": lambda: KLGroupDRO(0.7, threshold=0.1),
    "max form": lambda: CVaRGroupDRO(0.4).max_form(),
    "tasks": lambda: MultiTaskGroupDRO(TASKS, MultiLabelLoss()),
    "task column": lambda: MultiTaskGroupDRO(TASKS, SquaredLoss()),
}


class Score(Quantity):
    """The output itself, so that differences of means are linear in the weights of a linear network."""

    def __call__(self, outputs, batch):
        return outputs.flatten()


class HardRate(Quantity):
    """1 where the score is positive."""

    range = Range(0.0, 1.0)

    def __call__(self, outputs, batch):
        return (outputs.flatten() > 0).to(outputs.dtype)


def network(outputs=1):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Dropout(0.5), nn.Linear(3, outputs)).double()


def whole(name="cvar"):
    generator = torch.Generator().manual_seed(0)
    label = (SIZE, TASKS) if name == "tasks" else (SIZE,)
    return {
        "x": torch.randn(SIZE, 4, generator=generator, dtype=torch.float64),
        "y": torch.randint(2, label, generator=generator),
        "group": torch.randint(GROUPS, (SIZE,), generator=generator),
        "task": torch.arange(SIZE) % TASKS,
    }


def cut(batch, size):
    count = len(batch["x"])
    return [{k: v[i : i + size] for k, v in batch.items()} for i in range(0, count, size)]


def make(name="cvar", groups=GROUPS):
    objective = OBJECTIVES[name]()
    objective._set_num_groups(groups)
    return InnerFunctions(network(TASKS if name == "tasks" else 1), objective.double(), [])


def linear(weights, threshold, alpha, groups):
    layer = nn.Linear(len(weights), 1, bias=False).double()
    objective = CVaRGroupDRO(alpha, SquaredLoss(), groups).double()
    with torch.no_grad():
        layer.weight.copy_(torch.as_tensor(weights))
        objective.threshold.fill_(threshold)
    return InnerFunctions(layer, objective, [])

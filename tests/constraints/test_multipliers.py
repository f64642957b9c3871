"""Multipliers of convex problems against the exact ones."""

import pytest
import torch
from torch import nn

from fcco_lightning import (
    SOX,
    AdaptivePenalty,
    AugmentedLagrangian,
    Engine,
    Lagrangian,
    NuPI,
    Objective,
)
from fcco_lightning.constraints import Constraint, DifferenceAtMost
from fcco_lightning.records import Inner

GENERATOR = torch.Generator().manual_seed(2)
A = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0], [0.3, -0.2, 0.4]], dtype=torch.float64)
B = torch.tensor([0.2, -0.1, 5.0], dtype=torch.float64)  # the third one is slack
TARGET = torch.tensor([1.0, 0.7, -0.5], dtype=torch.float64)
RULES = {
    "Lagrangian": lambda: Lagrangian(0.2),
    "NuPI": lambda: NuPI(0.2, 1.0),
    "NuPI, smoothed": lambda: NuPI(0.2, 0.5, 0.3),
    "AugmentedLagrangian": lambda: AugmentedLagrangian(1.0, 0.3),
    "AdaptivePenalty": lambda: AdaptivePenalty(0.1, 1e-3),
}


class Weights(nn.Module):
    """The weights themselves, whatever the input."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x):
        return self.w.expand(len(x), 3)


class Distance(Objective):
    """``|w - target|^2 / 2``."""

    def direct(self, outputs, batch):
        return (outputs[0] - TARGET).square().sum() / 2


class Halfspaces(Constraint):
    """``A w - b <= 0``."""

    kappa, names, width = 0.0, ["first", "second", "slack"], 1

    def inner(self, outputs, batch):
        return Inner(torch.arange(3), (A @ outputs[0] - B).unsqueeze(1))

    def outer(self, phi):
        return phi

    def violation(self, values):
        return values[:, 0]


class Slab(DifferenceAtMost):
    """``|w_1 - w_3| - kappa <= 0``."""

    kappa, names = 0.3, ["slab"]

    def inner(self, outputs, batch):
        return Inner(torch.arange(1), outputs[:1, [0, 2]])


def train(rule, constraints, steps=1500, algorithm=None, lr=0.1):
    algorithm = algorithm or SOX(1.0)
    network = Weights()
    problem = algorithm.pose(Distance(), constraints, rule, num_samples=4, dtype=torch.float64)
    engine, optimizer = Engine(network, problem, algorithm), torch.optim.SGD(network.parameters(), lr=lr)
    batch = {"x": torch.zeros(4, 1, dtype=torch.float64), "index": torch.arange(4)}
    for _ in range(steps):
        engine.train_batch(batch, optimizer)
    found = [term.multipliers.at(term.state.rows) for term in problem.all_terms]
    return network.w.detach(), torch.cat(found)


def projection():
    """The nearest point of the halfspaces and its multipliers, from the active rows."""
    active = A[:2]
    nu = torch.linalg.solve(active @ active.T, active @ TARGET - B[:2])
    return TARGET - active.T @ nu, torch.cat([nu, torch.zeros(1, dtype=torch.float64)])


@pytest.mark.parametrize("name", RULES)
def test_multipliers_of_a_projection_are_the_exact_ones(name):
    w, nu = train(RULES[name](), [Halfspaces()])
    exact, multipliers = projection()
    print(w, exact, nu, multipliers)
    torch.testing.assert_close(nu, multipliers, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(w, exact, rtol=1e-2, atol=2e-3)

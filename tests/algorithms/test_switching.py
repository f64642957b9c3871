"""The switching subgradient method: its steps by hand, and its limit on a convex problem."""

import pytest
import torch

from fcco_lightning import ConfigError, Engine, HingePenalty
from fcco_lightning.algorithms import Switching
from tests.constraints.test_multipliers import TARGET, A, B, Distance, Halfspaces, Weights, projection

BATCH = {"x": torch.zeros(4, 1, dtype=torch.float64), "index": torch.arange(4)}


def started(algorithm, w, lr):
    network = Weights()
    network.w.data = torch.as_tensor(w, dtype=torch.float64)
    problem = algorithm.pose(Distance(), [Halfspaces(0, 1), Halfspaces(2)], num_samples=4, dtype=torch.float64)
    return network, Engine(network, problem, algorithm), torch.optim.SGD(network.parameters(), lr=lr)


@pytest.mark.parametrize("tolerance", [0.0, 0.4])
def test_steps_are_those_of_the_objective_or_of_the_row_violated_most(tolerance):
    algorithm = Switching(1.0, 0.0, tolerance)
    network, engine, optimizer = started(algorithm, [0.9, 0.5, -0.3], 0.05)
    w, turns = network.w.detach().clone(), []
    rows = None  # as of the step before
    for _ in range(30):
        now = A @ w - B
        h = now if rows is None else rows
        worst = int(h.argmax())
        turns.append(worst if float(h[worst]) > tolerance else -1)
        w = w - 0.05 * (w - TARGET if turns[-1] < 0 else A[worst])
        rows = now
        engine.train_batch(BATCH, optimizer)
        torch.testing.assert_close(network.w.detach(), w, rtol=1e-12, atol=1e-12)
    assert {-1, 0, 1} == set(turns)


@pytest.mark.slow
def test_it_ends_at_the_constrained_optimum():
    network, engine, optimizer = started(Switching(1.0, 0.0), [0.0] * 3, 0.1)
    for t in range(500):
        optimizer.param_groups[0]["lr"] = 0.06 / (1 + t / 40)
        engine.train_batch(BATCH, optimizer)
    torch.testing.assert_close(network.w.detach(), projection()[0], rtol=0, atol=0.02)


def test_a_penalty_is_refused():
    with pytest.raises(ConfigError, match=r"Switching takes no penalty, got HingePenalty.*Leave penalty out"):
        Switching().pose(Distance(), [Halfspaces(0)], HingePenalty(2.0), num_samples=4)

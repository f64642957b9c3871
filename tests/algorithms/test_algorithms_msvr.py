"""MSVR's gradient estimate is unbiased: its mean over all batches is the exact gradient at the stored rows."""

import copy
from itertools import combinations

import torch
from torch import nn

from fcco_lightning import MSVR, Engine, HeavyBall, Objective
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.outer import Log

N, B = 6, 2
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class LogOfExponential(Objective):
    """``F(w) = (1/n) sum_i log exp(z_i)``, whose rows remember ``exp(z_i)``."""

    outer = Log()
    dtype = torch.float64

    def measure(self, outputs, batch):
        return None, Rows(outputs.exp(), torch.ones(len(outputs), dtype=torch.bool))


def batch_of(index):
    return {"x": X[list(index)], "index": torch.tensor(index)}


def at_rows(network, rows):
    """``(1/n) sum_i grad g_i(w) f'(u_i)`` at the u_i, by autograd."""
    value = (network(X).exp() / rows).mean()
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(network.parameters()))])


def test_the_mean_over_all_batches_is_the_recursion_of_exact_gradients():
    """``E v_t = G_t(w_t) + (1 - b)(v_{t-1} - G_{t-1}(w_{t-1}))`` with G_t at the rows of all n from before step t.

    At rows that the batch has moved itself the difference of both gradients would be another one.
    """
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    algorithm = MSVR(gamma=0.4, gamma_prime=0.7, b=0.3)
    engine = Engine(network, algorithm.pose(LogOfExponential(), num_samples=N), algorithm)
    optimizer = HeavyBall(network.parameters(), lr=0.3)
    for index in [(0, 1), (2, 3), (4, 5), (0, 3)]:
        (state,) = engine.problem.states
        before, rows = copy.deepcopy(network), state.rows.clone()
        engine.train_batch(batch_of(index), optimizer)
    v = torch.cat([one.flatten() for one in algorithm._storm.v])
    expected = at_rows(network, state.rows) + 0.7 * (v - at_rows(before, rows))
    found = []
    for index in combinations(range(N), B):
        one, steps = copy.deepcopy((engine, optimizer))
        one.train_batch(batch_of(index), steps)
        found.append(torch.cat([part.flatten() for part in one.algorithm._storm.v]))
    torch.testing.assert_close(torch.stack(found).mean(0), expected, rtol=1e-10, atol=1e-12)
    assert (torch.stack(found).std(0) > 1e-3).any()

"""Exact inner functions and their gradients against autograd, over batches and processes, and refused input."""

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

from fcco_lightning import AUC, ConfigError, DataError, InnerFunctions, NonFiniteError
from fcco_lightning.analysis import jacobian
from fcco_lightning.engine import read
from tests.analysis.problems import GROUPS, OBJECTIVES, SIZE, cut, make, network, whole
from tests.state import pool as pools

pool = pools.pool


def by_autograd(functions, batch):
    """``(g, rows, g_0, its gradient)`` of the whole split as one batch."""
    functions.eval()
    weights = {k: p.detach() for k, p in functions.trainable().items()}

    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.functions = functions

        def forward(self):
            parts = {"target": batch}
            objective = self.functions.objective
            direct, rows = objective.measure(*read(self.functions.outputs(parts), parts, objective))
            return rows.values, torch.zeros((), dtype=torch.float64) if direct is None else direct

    parts = Parts()

    def values(w):
        return functional_call(parts, {f"functions.{k}": v for k, v in w.items()}, ())

    g, direct = values(weights)
    inner, first = jacrev(values)(weights)
    flat = [torch.cat([t[k].reshape(*shape, -1) for k in weights], -1) for t, shape in ((inner, g.shape), (first, ()))]
    functions.train()
    return g, flat[0].reshape(g.numel(), -1), float(direct), flat[1]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_values_and_gradients_are_those_of_autograd(name):
    functions, batch = make(name), whole(name)
    expected = by_autograd(functions, batch)
    for size in (7, SIZE):
        found = jacobian(functions, cut(batch, size))
        for got, other in zip(found, expected, strict=False):
            torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(other), rtol=1e-10, atol=1e-12)
    assert found.num_network == sum(p.numel() for p in functions.network.parameters())


def test_nothing_is_left_behind():
    functions = make()
    functions.train()
    functions.network[1].eval()  # a layer that its owner has frozen
    state = {k: v.clone() for k, v in functions.state_dict().items()}
    random = torch.get_rng_state()
    with torch.inference_mode():
        found = jacobian(functions, cut(whole(), 7))
    assert not any(torch.as_tensor(part).is_inference() for part in found)
    assert all(torch.equal(v, state[k]) for k, v in functions.state_dict().items())
    assert all(p.grad is None for p in functions.parameters())
    assert [m.training for m in functions.network] == [True, False, True, True, True]
    assert torch.equal(random, torch.get_rng_state())


def test_frozen_layers_are_no_parameters():
    functions = make()
    functions.network[0].requires_grad_(False)
    found = jacobian(functions, [whole()])
    assert found.rows.shape == (GROUPS, 3 + 3 + 3 + 1 + 1)
    functions.requires_grad_(False)
    with pytest.raises(ConfigError, match="all parameters are frozen"):
        jacobian(functions, [whole()])


def test_refusals():
    batch = whole()
    with pytest.raises(ConfigError, match=r"the objective is AUC. Use a group objective"):
        jacobian(InnerFunctions(network(), AUC(), []), [batch])
    with pytest.raises(
        ConfigError, match=r"5 inner values with respect to 26 parameters, .* has 130 values, more than max_values=129"
    ):
        jacobian(make(), [batch], max_values=129)
    with pytest.raises(ConfigError, match="max_values must be"):
        jacobian(make(), [batch], max_values=0)
    with pytest.raises(DataError, match="inner function 5 has no sample in this split, but diagnostics need all 6"):
        jacobian(make(groups=6), [batch])
    with pytest.raises(DataError, match="needs the column `group`"):
        jacobian(make(), [{k: v for k, v in batch.items() if k != "group"}])
    with pytest.raises(NonFiniteError, match="not finite"):
        jacobian(make(), [{**batch, "x": batch["x"] * math.nan}])
    objective = make("task column").objective
    missing = {**batch, "task": torch.where(batch["group"] == 4, 0, batch["task"])}
    with pytest.raises(DataError, match=r"inner function 1 \(entry 4\) has no sample"):
        jacobian(InnerFunctions(network(), objective, []), [missing])


def of_a_share(processes, count):  # in every process
    functions, batch = make(), whole()
    own = slice(0, 9) if processes.rank == 0 else slice(9, None)
    batches = cut({k: v[own] for k, v in batch.items()}, 7) if processes.size > 1 else [batch]
    return [torch.as_tensor(part) for part in jacobian(functions, batches[: count or None], processes)]


def test_two_processes_add_up_their_shares(pool):
    [expected] = pool.values(of_a_share, 1, 0)
    for found in pool.values(of_a_share, 2, 0):
        for got, other in zip(found, expected, strict=True):
            torch.testing.assert_close(got, other, rtol=1e-10, atol=1e-12)


def test_float32_networks_keep_their_precision():
    functions = make()
    exact = jacobian(functions, [whole()])
    batch = whole()
    found = jacobian(functions.float(), [{**batch, "x": batch["x"].float()}])
    assert found.rows.dtype == torch.float32
    assert found.values.dtype == torch.float64
    torch.testing.assert_close(found.rows.double(), exact.rows, rtol=1e-4, atol=1e-5)

"""BatchNorm over several processes is torch's BatchNorm over all of their samples."""

import pytest
import torch
from torch import nn

from fcco_lightning.state.processes import Processes
from fcco_lightning.training.common_statistics import CommonStatistics
from tests.state import pool as pools

pool = pools.pool

LAYERS = {
    "1d": (nn.BatchNorm1d, {}, (3,)),
    "2d": (nn.BatchNorm2d, {"momentum": None}, (3, 4, 5)),
    "without parameters": (nn.BatchNorm2d, {"affine": False, "eps": 0.1}, (3, 2, 2)),
    "without statistics": (nn.BatchNorm1d, {"track_running_stats": False}, (3, 7)),
}
SIZES = (4, 0, 1)


def values(name):
    made, options, shape = LAYERS[name]
    draw = torch.Generator().manual_seed(0)
    layer = made(3, dtype=torch.float64, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, generator=draw)
    size = (sum(SIZES), *shape)
    return layer, torch.randn(size, generator=draw).double(), torch.randn(size, generator=draw).double()


def two_steps(layer, x, slope):
    """Outputs of two passes, gradients of the second by inputs and parameters, statistics."""
    layer(x)
    x = (2 * x + 1).requires_grad_()
    y = layer(x)
    (y * slope + 0.5 * slope * y**2).sum().backward()
    return y.detach(), x.grad, [p.grad for p in layer.parameters()], dict(layer.named_buffers())


def step_of_one(processes, name):
    layer, x, slope = values(name)
    start = sum(SIZES[: processes.rank])
    mine = slice(start, start + SIZES[processes.rank])
    CommonStatistics(processes).apply(nn.Sequential(layer))
    y, by_x, by_parameters, buffers = two_steps(layer, x[mine], slope[mine])
    return y, by_x, processes.sum_(torch.stack(by_parameters)) if by_parameters else torch.zeros(0), buffers


@pytest.mark.parametrize("name", LAYERS)
def test_as_one_layer_over_all_samples(name, pool):
    found = pool.values(step_of_one, len(SIZES), name)
    y, by_x, by_parameters, buffers = two_steps(*values(name))
    torch.testing.assert_close(torch.cat([f[0] for f in found]), y)
    torch.testing.assert_close(torch.cat([f[1] for f in found]), by_x)
    for one in found:
        torch.testing.assert_close(one[2], torch.stack(by_parameters) if by_parameters else torch.zeros(0))
        torch.testing.assert_close(one[3], buffers)


def second_derivative(layer, x, slope):
    """Of the loss above by the inputs, along a direction, as PDSCA takes one by the weights."""
    x = x.requires_grad_()
    y = layer(x)
    (by_x,) = torch.autograd.grad((y * slope + 0.5 * slope * y**2).sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad((by_x * slope).sum(), x)
    return twice


def second_of_one(processes, name):
    layer, x, slope = values(name)
    start = sum(SIZES[: processes.rank])
    mine = slice(start, start + SIZES[processes.rank])
    CommonStatistics(processes).apply(nn.Sequential(layer))
    return second_derivative(layer, x[mine], slope[mine])


@pytest.mark.parametrize("name", ["1d", "2d"])
def test_its_gradient_has_a_gradient(name, pool):
    expected = second_derivative(*values(name))
    assert expected.norm() > 1
    torch.testing.assert_close(torch.cat(pool.values(second_of_one, len(SIZES), name)), expected)


def evaluated(processes, name):
    layer, x, _ = values(name)
    network = nn.Sequential(layer)
    synchronised = CommonStatistics(processes)
    synchronised.apply(network)
    layer.eval()
    common = network(x[: processes.rank + 1])
    synchronised.revert(network)
    return torch.equal(common, layer(x[: processes.rank + 1])), "forward" in vars(layer)


def test_evaluation_and_a_layer_that_was_given_back_are_torchs(pool):
    assert pool.values(evaluated, 2, "1d") == [(True, False)] * 2


def lonely(processes):
    layer = nn.BatchNorm1d(3)
    CommonStatistics(processes).apply(layer)
    layer(torch.ones(1 - processes.rank, 3))


def test_one_value_of_all_processes_is_refused_on_each(pool):
    failures = pool.run(lonely, 2)
    assert [f.kind for f in failures] == ["DataError"] * 2
    assert "needs 2 values a channel" in failures[0].message


def test_one_process_is_torchs_layer():
    layer, x, _ = values("1d")
    expected = layer(x)
    layer.reset_running_stats()
    assert torch.equal(CommonStatistics(Processes()).apply(layer)(x), expected)

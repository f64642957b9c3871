"""The engine in a loop with Fabric takes the steps of a plain loop."""

from types import SimpleNamespace

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from fcco_lightning import SONEX, Engine, FabricBackend
from fcco_lightning.errors import ConfigError
from tests.algorithms.toy_problem import HingeMargin, N, flat, make_batches, make_network


def train(network, optimizer, backend=None):
    algorithm = SONEX()
    problem = algorithm.pose(HingeMargin(), num_samples=N, dtype=torch.float64)
    engine = Engine(network, problem, algorithm, backend)
    for batch in make_batches(4):
        engine.train_batch({**batch, "x": batch["x"].to(next(network.parameters()).dtype)}, optimizer)
    return flat(network.parameters())


def test_it_equals_a_bare_loop():
    one, other = make_network(), make_network()
    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    fabric.launch()
    own = train(*fabric.setup(one, torch.optim.SGD(one.parameters(), lr=0.1)), FabricBackend(fabric))
    assert torch.allclose(own, train(other, torch.optim.SGD(other.parameters(), lr=0.1)))


def test_mixed_precision():
    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    fabric.launch()
    network = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    weights = train(*fabric.setup(network, torch.optim.SGD(network.parameters(), lr=0.1)), FabricBackend(fabric))
    assert torch.isfinite(weights).all()
    scaling = SimpleNamespace(strategy=SimpleNamespace(precision=SimpleNamespace(scaler=object())))
    with pytest.raises(ConfigError, match="scales losses"):
        FabricBackend(scaling)

"""Batches of loaders that do not use this package: the same step as with tensors, or an error that names the column."""

from collections import UserDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from fcco_lightning import AUC, SGD, SOX, Engine
from fcco_lightning.errors import DataError, NonFiniteError
from tests.contracts.trainings import Margins

N, WIDTH = 12, 3
X = torch.randn(N, WIDTH, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1] * (N // 2))
PLAIN = {"x": X, "y": Y, "index": torch.arange(N)}
Fields = namedtuple("Fields", PLAIN)


@dataclass
class Record:
    x: object
    y: object
    index: object


class Twice(SGD):
    """Evaluates every batch twice, as algorithms with an inner iteration do."""

    def iteration(self, engine, batch):
        engine.evaluate(batch)
        super().iteration(engine, batch)


def trained(batch):
    """Weights and rows after a step."""
    torch.manual_seed(0)
    network, algorithm = nn.Sequential(nn.Linear(WIDTH, 1), nn.Flatten(0)), SOX()
    problem = algorithm.pose(Margins(), num_samples=N)
    engine = Engine(network, problem, algorithm)
    engine.train_batch(batch, torch.optim.SGD(network.parameters(), lr=0.1))
    return torch.cat([*(p.detach().flatten() for p in network.parameters()), problem.terms[0].state.rows.flatten()])


SAME = {
    "x of NumPy": {"x": X.numpy()},
    "x of NumPy, read-only": {"x": np.broadcast_to(X.numpy(), X.shape)},
    "x of NumPy, backwards": {"x": X.numpy()[:, ::-1].copy()[:, ::-1]},
    "x of NumPy, other byte order": {"x": X.numpy().astype(">f4")},
    "x of a table": {"x": pd.DataFrame(X.numpy())},
    "x of lists": {"x": X.tolist()},
    "x of arrays": {"x": list(X.numpy())},
    "x float64": {"x": X.double()},
    "x transposed in memory": {"x": X.t().contiguous().t()},
    "x sparse": {"x": X.to_sparse()},
    "y bool": {"y": Y.bool()},
    "y float64": {"y": Y.double()},
    "y int8": {"y": Y.to(torch.int8)},
    "y uint8, of which 2 y - 1 would be 255": {"y": Y.to(torch.uint8)},
    "y uint16 of NumPy, which torch hardly reckons with": {"y": Y.numpy().astype(np.uint16)},
    "y of a list": {"y": Y.tolist()},
    "y of NumPy": {"y": Y.numpy()},
    "y of single tensors": {"y": list(Y)},
    "index int32": {"index": torch.arange(N, dtype=torch.int32)},
    "index uint32 of NumPy": {"index": np.arange(N, dtype=np.uint32)},
    "index of a list": {"index": list(range(N))},
    "index of NumPy": {"index": np.arange(N)},
    "texts first": {"path": ["a"] * N, **PLAIN},
    "nothing under a name": {"meta": None},
}


@pytest.mark.parametrize("name", SAME)
def test_a_column_of_another_type_changes_nothing(name):
    batch = SAME[name] | {other: column for other, column in PLAIN.items() if other not in SAME[name]}
    torch.testing.assert_close(trained(batch), trained(PLAIN))


@pytest.mark.parametrize(
    "column",
    [lambda w: np.array(w.tolist(), dtype=object), torch.Tensor.tolist, torch.Tensor.numpy, lambda w: w[:, None]],
)
def test_weights_count_in_any_form(column):
    weight = torch.linspace(0.5, 1.5, N)
    expected = trained({**PLAIN, "weight": weight})
    assert not torch.equal(expected, trained(PLAIN))
    assert torch.equal(trained({**PLAIN, "weight": column(weight)}), expected)


@pytest.mark.parametrize("batch", [Fields(**PLAIN), Record(**PLAIN), UserDict(PLAIN), {"target": Fields(**PLAIN)}])
def test_a_batch_of_another_type_changes_nothing(batch):
    assert torch.equal(trained(batch), trained(PLAIN))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": X[:, :2]}, r"shape \(\d+, 2\): .*mat1 and mat2 shapes .* as many columns as the network has inputs"),
        ({"x": list(X)}, r"cannot process the column `x` of a batch, a list of Tensor: .*torch\.stack"),
        ({"x": [[1.0] * i for i in range(N)]}, "column `x` of a batch, a list of list"),
        ({"x": (10 * X).long()}, r"column `x` of a batch, a tensor of torch\.int64 and shape \(12, 3\): .*\.float\(\)"),
        ({"x": X + 1j * X}, r"column `x` of a batch, a tensor of torch\.complex64"),
        ({"x": ["a"] * N}, "column `x` of a batch, a list of str"),
        ({"x": X[1:]}, r"first dimension.*'x': \(11, 3\)"),
        ({"epoch": torch.tensor(3)}, r"'epoch': \(\)"),
        ({"y": ["yes", "no"] * (N // 2)}, "column `y` of a batch is a list of str.* 0 and 1"),
        ({"y": Y + 0j}, r"column `y` of a batch is a tensor of torch\.complex64"),
        ({"weight": torch.ones(N) + 0j}, r"column `weight` of a batch is a tensor of torch\.complex64"),
        ({"weight": ["1.0"] * N}, "column `weight` of a batch is a list of str.* a real number >= 0 for every sample"),
        ({"weight": torch.ones(N, 2)}, r"column `weight` of a batch has shape \(12, 2\). Give a real number"),
        (
            {"weight": torch.full((N,), torch.nan)},
            "column `weight` of the part 'target' contains nan; .* finite numbers",
        ),
        ({"weight": {"a": 1}}, "column `weight` of a batch is a dict"),
        ({"index": [f"id{i}" for i in range(N)]}, "column `index` of a batch is a list of str.* IndexedDataset"),
        ({"index": torch.arange(N)[:, None]}, r"column `index` of a batch is a .* shape \(12, 1\)"),
    ],
)
def test_a_column_that_cannot_be_read_is_named(changed, message):
    with pytest.raises(DataError, match=message):
        trained(PLAIN | changed)


@pytest.mark.parametrize("missing", ["x", "index"])
def test_a_column_that_is_missing_is_named(missing):
    with pytest.raises(DataError, match=f"no column `{missing}`"):
        trained({name: column for name, column in PLAIN.items() if name != missing})


def test_samples_whose_input_is_not_finite_are_named():
    x = X.clone()
    x[3, 1], x[7, 0] = float("nan"), float("inf")
    with pytest.raises(NonFiniteError, match=r"`x` of the samples with index 4, 8 is NaN or infinite"):
        trained(PLAIN | {"x": x, "index": (torch.arange(N) + 1) % N})


def test_weights_of_float16_are_named():
    network, algorithm = nn.Sequential(nn.Linear(WIDTH, 1), nn.Flatten(0)).half(), SOX()
    engine = Engine(network, algorithm.pose(Margins(), num_samples=N), algorithm)
    batch = PLAIN | {"x": torch.full_like(X, 6e4).half()}
    network[0].weight.data.fill_(6e4)
    with pytest.raises(NonFiniteError, match=r"float16 \(precision 16-true\).* bf16-mixed or 32-true"):
        engine.train_batch(batch, torch.optim.SGD(network.parameters(), lr=0.1))


def test_outputs_of_float16_are_said_to_overflow_under_a_loss_scaler_too():
    network, algorithm = nn.Sequential(nn.Linear(WIDTH, 1), nn.Flatten(0)), SOX()
    engine = Engine(network, algorithm.pose(Margins(), num_samples=N), algorithm)
    network[0].weight.data.fill_(6e4)
    refused = pytest.raises(NonFiniteError, match=r"autocast.* bf16-mixed\)\. A loss scaler .* the gradient alone")
    with refused, torch.autocast("cpu", torch.float16):
        engine.train_batch(PLAIN | {"x": 100 * X}, torch.optim.SGD(network.parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": torch.tensor([0, 2])}, "got 2 at position 1"),
        ({"y": torch.tensor([0.0, torch.nan])}, "got nan at position 1"),
        ({"weight": torch.tensor([1.0, -1.0])}, "`weight` .* -1"),
    ],
)
@pytest.mark.parametrize("algorithm", [SGD, Twice])
def test_columns_that_nobody_declared_are_checked_in_every_batch_of_the_first_epoch(algorithm, changed, message):
    network, algorithm = nn.Sequential(nn.Linear(WIDTH, 1), nn.Flatten(0)), algorithm()
    engine = Engine(network, algorithm.pose(AUC(), num_samples=N), algorithm)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    batches = [{name: column[i : i + 2] for name, column in PLAIN.items()} for i in range(0, N, 2)]
    for batch in batches[:-1]:
        engine.train_batch(batch, optimizer)
    before = [p.clone() for p in network.parameters()]
    with pytest.raises(DataError, match=message):
        engine.train_batch(batches[-1] | changed, optimizer)
    assert all(torch.equal(p, old) for p, old in zip(network.parameters(), before, strict=True))

"""The data set of tensor columns: batched access, collation and refused columns."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset, default_collate

from fcco_lightning.data.indexed import IndexedDataset
from fcco_lightning.data.table import LabelTable, TensorTable, collate
from fcco_lightning.errors import DataError


@pytest.fixture
def table():
    return TensorTable({"x": torch.randn(7, 3, generator=torch.Generator().manual_seed(0)), "y": torch.arange(7) % 2})


def test_batched_access_equals_torch_collation_of_single_samples(table):
    rows = [5, 0, 5, 2]
    expected = default_collate([table[i] for i in rows])
    batch = table.__getitems__(rows)
    assert batch.keys() == expected.keys() == {"x", "y", "index"}
    for name in expected:
        assert torch.equal(batch[name], expected[name])
        assert batch[name].dtype == expected[name].dtype


def test_collate_passes_mappings_and_collates_lists(table):
    batch = table.__getitems__([1, 2])
    assert collate(batch) is batch
    assert torch.equal(collate([table[1], table[2]])["x"], batch["x"])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "at least one column"),
        ({"x": torch.zeros(0, 2)}, "at least one row"),
        ({"x": torch.zeros(3, 2), "y": torch.zeros(4)}, "same number of rows.*'x': 3, 'y': 4"),
        ({"index": torch.arange(3)}, "index"),
        ({"x": torch.tensor([[0.0, 1.0], [1.0, float("nan")], [float("inf"), 0.0]])}, "'x'.*2 of 3 rows.*row 1"),
    ],
)
def test_rejects(columns, message):
    with pytest.raises(DataError, match=message):
        TensorTable(columns)


def test_a_table_may_have_no_column():
    table = TensorTable({}, size=3)
    assert table.__getitems__([2, 0])["index"].tolist() == [2, 0]
    assert len(table) == 3
    with pytest.raises(DataError):
        TensorTable({}, size=0)


@pytest.mark.parametrize(
    "column", [np.array(["yes", "no"]), ["yes", "no"], np.zeros(2)], ids=["texts", "list", "array"]
)
def test_a_column_that_is_no_tensor_is_refused_by_name(column):
    with pytest.raises(DataError, match=r"Column 'y' must be a tensor, got (ndarray of|list)"):
        TensorTable({"x": torch.zeros(2), "y": column})


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            torch.zeros(2, 3, requires_grad=True),
            r"got one that requires a gradient.*column\.detach\(\)",
        ),
        (torch.eye(2).to_sparse(), r"dense tensor .*, got one of layout torch\.sparse_coo.*column\.to_dense\(\)"),
    ],
    ids=["with a graph", "sparse"],
)
def test_columns_are_data(column, message):
    with pytest.raises(DataError, match=message):
        TensorTable({"x": column})


def test_rows_are_counted_from_the_end_too():
    y = torch.tensor([[1, 0], [0, 1]])
    for table in (LabelTable(TensorTable({"y": y})), IndexedDataset(TensorDataset(y, y))):
        last = len(table) - 1
        assert table[-1].keys() == table[last].keys()
        assert all(torch.equal(torch.as_tensor(table[-1][k]), torch.as_tensor(table[last][k])) for k in table[-1])
        with pytest.raises(IndexError):
            table[last + 1]

"""Which row a sample owns, against NumPy."""

import numpy as np
import pytest
import torch

from fcco_lightning.errors import DataError, StateIndexError
from fcco_lightning.state import RowMap


@pytest.mark.parametrize("share", [0.02, 0.5, 1.0])
@pytest.mark.parametrize("size", [1, 127, 128, 129, 1000])
def test_rows_are_numbered_in_the_order_of_their_owners(size, share):
    owners = np.random.default_rng(size).random(size) < share
    owners[-1] = True
    rows, marked = RowMap(torch.from_numpy(owners)), np.flatnonzero(owners)
    assert (rows.num_rows, rows.num_samples) == (len(marked), size)
    wanted = np.random.default_rng(1).permutation(marked)
    found = rows.rows(torch.from_numpy(wanted))
    assert found.dtype == torch.int64
    np.testing.assert_array_equal(found.numpy(), np.cumsum(owners)[wanted] - 1)
    assert rows.rows(torch.tensor([], dtype=torch.int64)).shape == (0,)


@pytest.mark.parametrize("wrong", [-1, 5, 1])
def test_a_sample_without_a_row_is_named(wrong):
    rows = RowMap(torch.tensor([True, False, True, True, False]))
    assert rows.rows(torch.tensor([3, 0])).tolist() == [2, 0]
    with pytest.raises(StateIndexError, match=rf"sample {wrong} \(batch position 1\) owns no row: 3 of the 5"):
        rows.rows(torch.tensor([0, wrong, 2]))


def test_somebody_must_own_a_row():
    with pytest.raises(DataError, match="none of the 4 training samples owns a row"):
        RowMap(torch.zeros(4, dtype=torch.bool))

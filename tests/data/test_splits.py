"""Random splits: disjoint and complete, with the shares of scikit-learn, and with units kept whole."""

import pytest
import torch
from sklearn.model_selection import StratifiedShuffleSplit

from fcco_lightning.data.splits import require_all_cells, stratified_split, whole_split
from fcco_lightning.errors import ConfigError, DataError

STRATA = torch.arange(1000) % 7 % 4


def test_the_parts_are_disjoint_sorted_and_complete():
    rest, held = stratified_split(STRATA, 0.2, 0, "test_fraction")
    assert torch.cat([rest, held]).sort().values.tolist() == list(range(1000))
    for part in (rest, held):
        assert torch.equal(part, part.sort().values)


def test_the_shares_are_those_of_scikit_learn():
    _, held = stratified_split(STRATA, 0.2, 0, "test_fraction")
    _, expected = next(StratifiedShuffleSplit(1, test_size=0.2, random_state=0).split(STRATA, STRATA))
    ours, theirs = (torch.bincount(STRATA[torch.as_tensor(rows)]) for rows in (held, expected))
    assert (ours - theirs).abs().max() <= 1  # ties in rounding


def test_rejects():
    for share in (0.0, 1.0, -0.1, 1.5):
        with pytest.raises(ConfigError, match=r"val_fraction must lie in \(0, 1\)"):
            stratified_split(STRATA, share, 0, "val_fraction")
    with pytest.raises(DataError, match=r"f=0.2 of 400 rows holds out none.*the 400 classes.*target='number'"):
        stratified_split(torch.arange(400), 0.2, 0, "f")


@pytest.mark.parametrize(
    ("y", "group", "message"),
    [
        ([0, 0, 0], [0, 1, 1], "class 'rich'"),
        ([0, 1, 1], [1, 1, 1], "group 'F'"),
        ([0, 1, 0], [0, 0, 1], "cell 'M x rich'.*'F x poor': 1"),
    ],
)
def test_empty_cells(y, group, message):
    with pytest.raises(DataError, match=message):
        require_all_cells(torch.tensor(y), torch.tensor(group), ("poor", "rich"), ("F", "M"), "test split")


def test_whole_values_stay_together():
    query = torch.arange(200) % 23
    rest, held = whole_split(query, 0.25, 0, "test_fraction")
    assert set(query[rest].tolist()).isdisjoint(query[held].tolist())
    assert torch.cat([rest, held]).sort().values.tolist() == list(range(200))
    assert len(query[held].unique()) == 6
    assert len(whole_split(query, 0.001, 0, "f")[1]) > 0  # both parts have a value
    kinds = query % 2  # of 12 and 11 queries
    rest, held = whole_split(query, 0.25, 0, "test_fraction", kinds)
    assert set(query[rest].tolist()).isdisjoint(query[held].tolist())
    assert torch.bincount(query[held].unique() % 2).tolist() == [3, 3]
    with pytest.raises(DataError, match="there is one value only"):
        whole_split(torch.zeros(9), 0.5, 0, "val_fraction")

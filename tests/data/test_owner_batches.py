"""Who is given which samples."""

from collections import Counter
from itertools import chain

import pytest
import torch

from fcco_lightning.data.loader import OrderedShare, RankBatches
from fcco_lightning.data.plans import OwnerBatches, UniformBatches
from fcco_lightning.errors import DataError
from fcco_lightning.state import shard_of

SIZES = [(24, 6, 1), (24, 6, 2), (24, 6, 3), (25, 6, 3), (23, 5, 2), (10, 4, 4), (101, 12, 4), (7, 7, 1)]
plans = pytest.mark.parametrize(("num_rows", "batch_size", "world_size"), SIZES)


def parts_of(plan, num_rows, world_size, epoch=0):
    """Batches of every process."""
    samplers = [RankBatches(range(num_rows), plan, rank, world_size) for rank in range(world_size)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
        assert len(list(sampler)) == len(sampler) == plan.num_batches
    return [list(sampler) for sampler in samplers]


# ---- OwnerBatches


@plans
def test_every_process_is_given_rows_of_its_own_shard(num_rows, batch_size, world_size):
    plan = OwnerBatches(num_rows, batch_size, seed=3, world_size=world_size)
    for epoch in range(3):
        for rank, batches in enumerate(parts_of(plan, num_rows, world_size, epoch)):
            first, count = shard_of(num_rows, rank, world_size)
            assert all(first <= i < first + count for batch in batches for i in batch)
            assert {len(batch) for batch in batches} == {
                (rank + 1) * batch_size // world_size - rank * batch_size // world_size
            }


@plans
def test_no_row_comes_twice_in_an_epoch(num_rows, batch_size, world_size):
    plan = OwnerBatches(num_rows, batch_size, world_size=world_size)
    batches = list(plan.batches(0))
    assert len(batches) == plan.num_batches > 0
    assert {batch.shape for batch in batches} == {(batch_size,)}
    assert {batch.dtype for batch in batches} == {torch.int64}
    rows = torch.cat(batches).tolist()
    assert len(set(rows)) == len(rows)


def test_an_epoch_is_as_long_as_the_smallest_shard_allows():
    assert OwnerBatches(24, 6, world_size=3).num_batches == 4
    assert sorted(torch.cat(list(OwnerBatches(24, 6, world_size=3).batches(0))).tolist()) == list(range(24))
    assert OwnerBatches(10, 4, world_size=4).num_batches == 1  # shards of 3, 3, 3 and 1
    assert OwnerBatches(25, 6, world_size=3).num_batches == 3  # shards of 9, 9 and 7


def test_rows_left_over_differ_from_epoch_to_epoch():
    plan = OwnerBatches(25, 6, world_size=3)  # 18 of 25 rows in an epoch
    counts = Counter(chain.from_iterable(torch.cat(list(plan.batches(epoch))).tolist() for epoch in range(60)))
    assert {*counts} == {*range(25)}
    for rank in range(3):
        first, count = shard_of(25, rank, 3)
        expected = 60 * 6 / count
        assert all(0.6 * expected < counts[i] < 1.4 * expected for i in range(first, first + count))


def test_shards_without_enough_rows_are_refused():
    assert OwnerBatches(12, 12, world_size=3).num_batches == 1
    with pytest.raises(
        DataError, match=r"The 5 rows lie in shards of \[2, 2, 1, 0\], a batch of 4 takes \[1, 1, 1, 1\]"
    ):
        OwnerBatches(5, 4, world_size=4)
    with pytest.raises(DataError, match=r"shards of \[4, 4, 2\], a batch of 9 takes \[3, 3, 3\].*UniformBatches"):
        OwnerBatches(10, 9, world_size=3)
    with pytest.raises(DataError, match="batch_size=11 exceeds the 10 rows"):
        OwnerBatches(10, 11, world_size=2)


# ---- RankBatches


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_an_epoch_with_a_short_last_batch_holds_every_row_once(world_size):
    parts = parts_of(UniformBatches(25, 6, drop_last=False), 25, world_size)
    assert sorted(i for batches in parts for batch in batches for i in batch) == list(range(25))


# ---- OrderedShare


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [0, 1, 3, 12, 13])
def test_evaluation_sees_everything_once_and_in_order(size, world_size):
    shares = [OrderedShare(range(size), rank, world_size) for rank in range(world_size)]
    assert list(chain.from_iterable(shares)) == list(range(size))
    assert [len(share) for share in shares] == [len(list(share)) for share in shares]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for share in shares:
        share.set_epoch(5)
    assert list(chain.from_iterable(shares)) == list(range(size))

"""Uniform, balanced and repeated batch plans: permutations of an epoch, shares of classes, numbers of batches."""

from collections import Counter

import pytest
import torch

from fcco_lightning.data.batches import UniformBatches
from fcco_lightning.errors import ConfigError, DataError
from tests.plans import BalancedBatches, GroupBatches

LABELS = (torch.arange(100) % 10 == 0).long()  # 10 positives, 90 negatives


def epoch_of(plan, epoch):
    return torch.stack(list(plan.batches(epoch)))


def test_uniform_epoch_is_a_permutation():
    whole = torch.cat(list(UniformBatches(103, 10, drop_last=False).batches(0)))
    assert whole.sort().values.tolist() == list(range(103))
    dropped = torch.cat(list(UniformBatches(103, 10).batches(0)))
    assert torch.equal(whole[:100], dropped)


def test_drop_last_makes_batches_even():
    sizes = {drop: [len(b) for b in UniformBatches(103, 10, drop_last=drop).batches(0)] for drop in (True, False)}
    assert sizes == {True: [10] * 10, False: [10] * 10 + [3]}
    assert [len(b) for b in UniformBatches(100, 10, drop_last=False).batches(0)] == [10] * 10


@pytest.mark.parametrize(("share", "count"), [(0.5, 4), (0.25, 2), (0.75, 6)])
def test_balanced_batches_have_their_share_without_repeats(share, count):
    plan = BalancedBatches(LABELS, 8, positive_fraction=share)
    for epoch in range(5):
        for batch in plan.batches(epoch):
            assert LABELS[batch].sum() == count
            assert len(set(batch.tolist())) == 8


def test_balanced_uses_the_rows_of_a_class_equally_often():
    used = Counter(torch.cat(list(BalancedBatches(LABELS, 8, positive_fraction=0.375).batches(0))).tolist())
    for label in (0, 1):
        counts = [used[i] for i in range(100) if LABELS[i] == label]
        assert max(counts) - min(counts) <= 1


def test_contiguous_parts_of_a_balanced_batch_are_balanced():
    for batch in BalancedBatches(LABELS, 20).batches(0):
        assert [int(part.sum()) for part in LABELS[batch].reshape(5, 4)] == [2] * 5


def test_repeats_only_if_allowed():
    labels = torch.tensor([1, 0, 0, 0, 0, 0, 0, 0])
    with pytest.raises(DataError, match=r"takes 4 rows with y=1, but there are 1\. Lower.*allow_repeats"):
        BalancedBatches(labels, 8)
    assert (epoch_of(BalancedBatches(labels, 8, allow_repeats=True), 0) == 0).sum() == 4


@pytest.mark.parametrize("count", [1, 4, 5, 9, 25])
def test_epochs_of_any_number_of_batches_go_through_whole_permutations(count):
    plan = UniformBatches(42, 10, seed=1).with_num_batches(count)
    batches = epoch_of(plan, 2)
    assert batches.shape == (plan.num_batches, 10) == (count, 10)
    usual = epoch_of(UniformBatches(42, 10, seed=1), 2)
    assert torch.equal(batches[:4], usual[:count])
    assert all(len(batch.unique()) == 10 for batch in batches)
    counts = torch.bincount(batches.flatten(), minlength=42)
    assert counts.max() - counts.min() <= 1


def test_rejects():
    with pytest.raises(DataError, match=r"batch_size=11 exceeds the 10 rows.*Lower"):
        UniformBatches(10, 11)
    with pytest.raises(DataError, match="batch_size=101 exceeds the 100 rows"):
        BalancedBatches(LABELS, 101)
    with pytest.raises(DataError, match=r"column 'y' with the numbers 0 and 1, but its 9 rows hold \[0\]"):
        BalancedBatches(torch.zeros(9), 2)
    with pytest.raises(ConfigError, match=r"positive_fraction=0.01 of batch_size=8 is 0 positives"):
        BalancedBatches(LABELS, 8, positive_fraction=0.01)
    with pytest.raises(ConfigError, match=r"positive_fraction=0.99 of batch_size=8 is 8 positives and 0 negatives"):
        BalancedBatches(LABELS, 8, positive_fraction=0.99)
    with pytest.raises(ConfigError, match="seed"):
        UniformBatches(10, 2, seed=-1)
    with pytest.raises(ConfigError, match="num_batches"):
        UniformBatches(10, 2).with_num_batches(0)
    assert UniformBatches(10, 10).num_batches == 1


def test_plans_of_a_plan_commute():
    """Copies, rows of a larger table, weights of samples and a second draw say the same in any order."""
    rows, own = torch.arange(0, 200, 2), torch.rand(200, generator=torch.Generator().manual_seed(0))
    plan = BalancedBatches(LABELS, 8, positive_fraction=0.375)
    one = plan.repeated(3).of_rows(rows, 200).of_weighted_samples(own).second_draw()
    other = plan.second_draw().of_rows(rows, 200).of_weighted_samples(own).repeated(3)
    assert torch.equal(epoch_of(one, 2), epoch_of(other, 2))
    assert one.columns().keys() == other.columns().keys() >= {"weight", "stratum", "stratum_size"}
    assert all(torch.equal(column, other.columns()[name]) for name, column in one.columns().items())
    counts = torch.tensor([30, 4, 90])  # of negatives, of positives, and of rows that are never drawn
    assert one.absence(counts) == other.absence(counts) == plan.absence(counts[:2])
    assert one.most(counts) == 3 * plan.most(counts[:2]) == 24
    with pytest.raises(DataError, match="Call it first"):
        one.of_rows(torch.arange(200), 200)


def test_halves_of_repeated_batches_hold_whole_copies():
    plan = GroupBatches(torch.arange(40) % 4, 2, 3)  # three rows of two groups: no half of them is known
    twice, counts = plan.repeated(2), torch.tensor([4, 0, 3, 1])
    assert (plan.halves_known, twice.halves_known) == (False, True)
    assert twice.absence(counts, 0.5) == twice.absence(counts) == plan.absence(counts)

"""Batches of B1 groups with B2 samples each: numbers, uniformity, replacement, and refused arguments."""

from collections import Counter

import pytest
import torch

from fcco_lightning.data import BalancedSampling
from fcco_lightning.errors import ConfigError, DataError
from tests.plans import GroupBatches

SIZES = [4, 9, 6, 13, 5, 30]
SHUFFLED = torch.randperm(sum(SIZES), generator=torch.Generator().manual_seed(3))
GROUPS = torch.repeat_interleave(torch.arange(6), torch.tensor(SIZES))[SHUFFLED]


def epoch_of(plan, epoch=0):
    return torch.stack(list(plan.batches(epoch)))


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize(("b1", "b2"), [(1, 1), (3, 4), (6, 2), (2, 3)])
def test_every_batch_is_b1_groups_with_b2_samples_sample_by_sample(b1, b2, replacement):
    plan = GroupBatches(GROUPS, b1, b2, seed=1, replacement=replacement)
    assert plan.batch_size == b1 * b2
    assert plan.num_batches == 67 // (b1 * b2)
    for epoch in range(5):
        for batch in plan.batches(epoch):
            assert batch.dtype == torch.int64
            rounds = GROUPS[batch].reshape(b2, b1).tolist()
            assert all(names == rounds[0] for names in rounds)
            assert len(set(rounds[0])) == b1
            assert replacement or len(set(batch.tolist())) == b1 * b2


def test_number_of_batches():
    assert GroupBatches(GROUPS, 6, 4).num_batches == 67 // 24
    assert GroupBatches(GROUPS, 6, 40, replacement=True).num_batches == 1  # 240 samples of 67 rows
    plan = GroupBatches(GROUPS, 6, 4, num_batches=1000)
    assert len(epoch_of(plan)) == plan.num_batches == 1000


def test_groups_are_drawn_uniformly_and_unordered():
    batches = epoch_of(GroupBatches(GROUPS, 2, 1, num_batches=6000))
    pairs = Counter(tuple(pair) for pair in GROUPS[batches].tolist())
    assert len(pairs) == 6 * 5
    # 6000 / 30 = 200 of each ordered pair, standard deviation 14; five of them are 70
    assert max(abs(count - 200) for count in pairs.values()) < 70


def test_without_replacement_a_group_is_gone_through_before_it_is_shuffled_anew():
    seen = {group: [] for group in range(6)}
    for batch in GroupBatches(GROUPS, 3, 4, num_batches=300).batches(0):
        for row, group in zip(batch.tolist(), GROUPS[batch].tolist(), strict=True):
            seen[group].append(row)
    for group, rows in seen.items():
        counts = Counter(rows)
        assert set(counts) == set((group == GROUPS).nonzero().flatten().tolist())
        assert max(counts.values()) - min(counts.values()) <= 1
        assert sorted(rows[: SIZES[group]]) == sorted(counts)
    orders = {tuple(seen[0][i : i + 4]) for i in range(0, 400, 4)}
    assert len(orders) == 24  # all 4! orders of the group of four turn up in 100 passes or more


def test_with_replacement_draws_are_uniform_and_independent():
    batches = epoch_of(GroupBatches(GROUPS, 6, 5, replacement=True, num_batches=4000))
    drawn = batches.reshape(4000, 5, 6)
    for group, size in enumerate(SIZES):
        rows = drawn[GROUPS[drawn] == group].reshape(4000, 5)
        frequencies = torch.bincount(rows.flatten(), minlength=67)[group == GROUPS] / 20_000
        # the frequency of one of `size` rows in 20,000 draws: standard deviation below (1 / size / 20,000)^(1/2)
        assert (frequencies - 1 / size).abs().max() < 5 * (1 / size / 20_000) ** 0.5
        repeats = (rows[:, 0] == rows[:, 1]).double().mean().item()
        assert repeats == pytest.approx(1 / size, abs=5 * (1 / size / 4000) ** 0.5)


def test_with_replacement_a_batch_may_ask_for_more_than_a_group_has():
    batch = epoch_of(GroupBatches(GROUPS, 6, 12, replacement=True))[0]
    assert Counter(GROUPS[batch].tolist()) == dict.fromkeys(range(6), 12)


def test_many_groups_and_many_samples():
    groups = torch.arange(160_000) % 1252
    for replacement in (False, True):
        plan = GroupBatches(groups, 8, 8, replacement=replacement, num_batches=200)
        batches = epoch_of(plan)
        assert batches.shape == (200, 64)
        assert (groups[batches].reshape(200, 8, 8) == groups[batches[:, None, :8]]).all()


def test_rejects():
    with pytest.raises(ConfigError, match=r"groups_per_batch=7 exceeds the 6 groups"):
        GroupBatches(GROUPS, 7, 2)
    with pytest.raises(DataError, match=r"5 rows of group 0, but there are 4\. Set replacement=True.*min_size"):
        GroupBatches(GROUPS, 2, 5)
    with pytest.raises(DataError, match=r"without gaps, but group 1 has no rows while group 2 has"):
        GroupBatches(torch.tensor([0, 2, 0]), 1, 1)
    with pytest.raises(DataError, match=r"group 0 has no rows while group 9000000000000000000 has"):
        GroupBatches(torch.tensor([9_000_000_000_000_000_000]), 1, 1)
    with pytest.raises(DataError, match=r"of which 2 are negative \(first: row 1\)"):
        GroupBatches(torch.tensor([0, -1, 0, -1]), 1, 1)
    with pytest.raises(DataError, match=r"int64 numbers 0\.\.G-1, got torch\.int32"):
        GroupBatches(torch.zeros(3, dtype=torch.int32), 1, 1)
    with pytest.raises(DataError, match=r"its shape is \(0,\)"):
        GroupBatches(torch.zeros(0, dtype=torch.int64), 1, 1)
    for name, arguments in {
        "groups_per_batch": (0, 1), "samples_per_group": (1, 0), "seed": (1, 1, -1),
    }.items():  # fmt: skip
        with pytest.raises(ConfigError, match=name):
            GroupBatches(GROUPS, *arguments)
    with pytest.raises(ConfigError, match="num_batches"):
        GroupBatches(GROUPS, 1, 1, num_batches=0)


@pytest.mark.parametrize(
    ("groups", "samples", "replacement", "known"),
    [(2, 4, False, True), (2, 4, True, True), (2, 3, False, False), (1, 3, False, True)],
)
def test_second_halves_are_known_where_they_hold_whole_slots_of_different_rows(groups, samples, replacement, known):
    """Of three samples of each of two groups a half holds one and a half."""
    plan = GroupBatches(GROUPS, groups, samples, seed=1, replacement=replacement)
    assert plan.halves_known == known


@pytest.mark.parametrize("positives", [3, 4])
def test_second_halves_are_not_known_where_rows_come_twice(positives):
    columns = {"y": (torch.arange(20) < positives).long()}
    plan = BalancedSampling(8, allow_repeats=True).plan(columns, seed=0)
    assert plan.halves_known == (positives == 4)

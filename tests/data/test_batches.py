"""How the batches of each sampling are composed, beyond the contract of every batch plan, and refused arguments."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch

from fcco_lightning.data import BagSampling, BalancedSampling, Columns, EventSampling, QuerySampling, Splits
from fcco_lightning.data.batches import UniformBatches
from fcco_lightning.data.datamodules import TabularDataModule
from fcco_lightning.errors import ConfigError, DataError
from tests.plans import BagBatches, BalancedBatches, EventBatches, GroupBatches, QueryBatches

LABELS = (torch.arange(100) % 10 == 0).long()  # 10 positives, 90 negatives
SIZES = [4, 9, 6, 13, 5, 30]
SHUFFLED = torch.randperm(sum(SIZES), generator=torch.Generator().manual_seed(3))
GROUPS = torch.repeat_interleave(torch.arange(6), torch.tensor(SIZES))[SHUFFLED]
QUERIES = torch.arange(60) // 12
RELEVANT = torch.arange(60) % 12 < 5
BAGS = torch.arange(48) // 6
ILL = (BAGS % 4 == 0).long()  # two of eight bags


def epoch_of(plan, epoch=0):
    return torch.stack(list(plan.batches(epoch)))


def test_uniform_epoch_is_a_permutation():
    whole = list(UniformBatches(103, 10, drop_last=False).batches(0))
    assert torch.cat(whole).sort().values.tolist() == list(range(103))
    assert [len(batch) for batch in whole] == [10] * 10 + [3]
    assert torch.equal(torch.stack(whole[:10]), epoch_of(UniformBatches(103, 10)))
    assert [len(b) for b in UniformBatches(100, 10, drop_last=False).batches(0)] == [10] * 10
    assert UniformBatches(10, 10).num_batches == 1


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


@pytest.mark.parametrize(("share", "count"), [(0.5, 4), (0.25, 2), (0.75, 6)])
def test_balanced_batches_have_their_share_without_repeats(share, count):
    plan = BalancedBatches(LABELS, 8, positive_fraction=share)
    for batch in torch.cat([epoch_of(plan, epoch) for epoch in range(5)]):
        assert (LABELS[batch].sum(), len(batch.unique())) == (count, 8)


def test_balanced_uses_the_rows_of_a_class_equally_often():
    used = torch.bincount(epoch_of(BalancedBatches(LABELS, 8, positive_fraction=0.375)).flatten(), minlength=100)
    for label in (0, 1):
        counts = used[label == LABELS]
        assert counts.max() - counts.min() <= 1


def test_contiguous_parts_of_a_balanced_batch_are_balanced():
    for batch in BalancedBatches(LABELS, 20).batches(0):
        assert LABELS[batch].reshape(5, 4).sum(1).tolist() == [2] * 5


def test_repeats_only_if_allowed():
    labels = torch.tensor([1, 0, 0, 0, 0, 0, 0, 0])
    with pytest.raises(DataError, match=r"takes 4 rows with y=1, but there are 1\. Lower.*allow_repeats"):
        BalancedBatches(labels, 8)
    assert (epoch_of(BalancedBatches(labels, 8, allow_repeats=True), 0) == 0).sum() == 4


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
    for wrong in (torch.zeros(100, dtype=torch.int64), rows[1:], rows - 2, rows + 2):
        with pytest.raises(DataError, match=r"rows must be 100 different numbers in 0\.\.199"):
            plan.of_rows(wrong, 200)


def test_halves_of_repeated_batches_hold_whole_copies():
    plan = GroupBatches(torch.arange(40) % 4, 2, 3)  # three rows of two groups: no half of them is known
    twice, counts = plan.repeated(2), torch.tensor([4, 0, 3, 1])
    assert (plan.halves_known, twice.halves_known) == (False, True)
    assert twice.absence(counts, 0.5) == twice.absence(counts) == plan.absence(counts)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize(("b1", "b2"), [(1, 1), (3, 4), (6, 2), (2, 3)])
def test_every_batch_is_b1_groups_with_b2_samples_sample_by_sample(b1, b2, replacement):
    plan = GroupBatches(GROUPS, b1, b2, seed=1, replacement=replacement)
    assert (plan.batch_size, plan.num_batches) == (b1 * b2, 67 // (b1 * b2))
    for batch in torch.cat([epoch_of(plan, epoch) for epoch in range(5)]):
        rounds = GROUPS[batch].reshape(b2, b1)
        assert (rounds == rounds[0]).all()
        assert len(rounds[0].unique()) == b1
        assert replacement or len(batch.unique()) == b1 * b2


def test_number_of_batches_of_groups():
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
    batches = epoch_of(GroupBatches(GROUPS, 3, 4, num_batches=300)).flatten()
    seen = [batches[GROUPS[batches] == group].tolist() for group in range(6)]
    for group, rows in enumerate(seen):
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
    more = epoch_of(GroupBatches(GROUPS, 6, 12, replacement=True))[0]  # than a group has
    assert Counter(GROUPS[more].tolist()) == dict.fromkeys(range(6), 12)


@pytest.mark.parametrize(
    ("groups", "samples", "replacement", "known"),
    [(2, 4, False, True), (2, 4, True, True), (2, 3, False, False), (1, 3, False, True)],
)
def test_second_halves_are_known_where_they_hold_whole_slots_of_different_rows(groups, samples, replacement, known):
    """Of three samples of each of two groups a half holds one and a half."""
    assert GroupBatches(GROUPS, groups, samples, seed=1, replacement=replacement).halves_known == known


@pytest.mark.parametrize("positives", [3, 4])
def test_second_halves_are_not_known_where_rows_come_twice(positives):
    plan = BalancedBatches(torch.arange(20) < positives, 8, allow_repeats=True)
    assert plan.halves_known == (positives == 4)


def test_a_batch_holds_items_of_both_kinds_of_every_query():
    plan = QueryBatches(QUERIES, RELEVANT, 2, 2, 4)
    assert (plan.batch_size, plan.num_batches) == (12, 3)
    for batch in plan.batches(0):
        table = batch.view(6, 2)  # slot by slot, one column a query
        assert (QUERIES[table] == QUERIES[table[0]]).all()
        assert RELEVANT[table].sum(0).tolist() == [2, 2]
        assert len(batch.unique()) == 12
    one_each = QueryBatches(QUERIES, RELEVANT, 1, 2, 4)
    assert sorted(int(QUERIES[batch[0]]) for batch in one_each.batches(3)) == [0, 1, 2, 3, 4]


def test_a_batch_holds_instances_of_bags_of_both_classes():
    plan = BagBatches(BAGS, ILL, 1, 3, 2)
    assert (plan.batch_size, plan.num_batches) == (8, 2)
    batches = [batch.view(2, 4) for batch in plan.batches(0)]  # slot by slot, one column a bag
    for batch in batches:
        assert (BAGS[batch[0]] == BAGS[batch[1]]).all()
        assert ILL[batch[0]].tolist() == [1, 0, 0, 0]
        assert len(batch.unique()) == 8
    assert sorted(BAGS[torch.cat(batches, dim=1)[0]].tolist()) == list(range(8))  # an epoch goes through all


def test_the_second_half_is_as_likely_to_lack_samples_as_is_said():
    plan = QueryBatches(QUERIES, RELEVANT, 2, 2, 4, seed=1)
    counts = torch.bincount(plan.strata[:3], minlength=10)  # three relevant items of query 0
    epochs = [list(plan.batches(epoch)) for epoch in range(300)]
    found = torch.tensor([[not bool((b[6:] < 3).any()) for b in batches] for batches in epochs]).double().mean()
    assert plan.absence(counts, share=0.5) == pytest.approx(1 - 2 / 5 * 3 / 5)
    assert float(found) == pytest.approx(plan.absence(counts, share=0.5), abs=0.05)
    of_bags, counts = BagBatches(BAGS, ILL, 1, 3, 4), torch.tensor([3, 0, 0, 0, 0, 0, 0, 0])
    assert of_bags.absence(counts, share=0.5) == pytest.approx(1 - 1 / 2 * (1 - 3 / 6 * 2 / 5))


def test_weights_are_exact_to_the_last_bit():
    plan = QueryBatches(QUERIES, RELEVANT, 3, 2, 4)
    expected = [Fraction(5 if r else 7, 60) * Fraction(5, 3) * Fraction(18, 2 if r else 4) for r in RELEVANT.tolist()]
    assert torch.equal(plan.weights(), torch.tensor([float(weight) for weight in expected], dtype=torch.float32))
    assert plan.columns()["stratum_size"].tolist() == [5 if r else 7 for r in RELEVANT.tolist()]


def test_samplings_count_the_rows_of_all_processes():
    columns = {"index": torch.arange(60), "query": QUERIES, "y": RELEVANT.float(), "event": RELEVANT.long()}
    plan = QuerySampling(2, 2, 3).plan(columns, seed=0, world_size=2)
    assert QUERIES[next(plan.batches(0))].unique(return_counts=True)[1].tolist() == [4 + 6] * 2
    plan = EventSampling(4, 8).plan(columns, seed=0, world_size=2)
    assert columns["event"][next(plan.batches(0))].bincount().tolist() == [16, 8]
    plan = BagSampling(1, 3, 2).plan({"index": BAGS, "bag": BAGS, "y": ILL}, seed=0, world_size=2)
    assert ILL[next(plan.batches(0)).view(4, 4)].tolist() == [[1, 0, 0, 0]] * 4  # instance by instance


def test_a_table_of_instances_is_divided_by_bags():
    table = pd.DataFrame({"x": np.linspace(0, 1, 48), "scan": BAGS + 100, "ill": ILL})
    data = TabularDataModule(
        table,
        columns=Columns("ill", positive=1, extra={"bag": "scan"}),
        splits=Splits(test_fraction=0.5, whole="bag", seed=1),
        batches=BagSampling(1, 1, 3),
    )
    data.setup()
    train, test = (data.tables[split].columns["bag"].unique().tolist() for split in ("train", "test"))
    assert sorted(train + test) == list(range(100, 108))
    batch = next(iter(data.train_dataloader()))
    assert (batch["x"].shape, batch["bag"].unique(return_counts=True)[1].tolist()) == ((6, 1), [3, 3])
    assert sorted(batch["y"].tolist()) == [0, 0, 0, 1, 1, 1]


EVENTS, INDEX = torch.arange(9) % 2, {"index": torch.arange(9)}
REFUSED = [
    (UniformBatches, (10, 11), {}, DataError, r"batch_size=11 exceeds the 10 rows.*Lower"),
    (UniformBatches, (10, 2, -1), {}, ConfigError, "seed"),
    (UniformBatches(10, 2).with_num_batches, (0,), {}, ConfigError, "num_batches"),
    (BalancedBatches, (LABELS, 101), {}, DataError, "batch_size=101 exceeds the 100 rows"),
    (BalancedBatches, (torch.zeros(9), 2), {}, DataError, r"'y' with the numbers 0 and 1, but its 9 rows hold \[0\]"),
    (BalancedBatches, (LABELS, 8), {"positive_fraction": 0.01}, ConfigError, "0.01 of batch_size=8 is 0 positives"),
    (BalancedBatches, (LABELS, 8), {"positive_fraction": 0.99}, ConfigError, "is 8 positives and 0 negatives"),
    (GroupBatches, (GROUPS, 7, 2), {}, ConfigError, "groups_per_batch=7 exceeds the 6 groups"),
    (GroupBatches, (GROUPS, 2, 5), {}, DataError, r"takes 5 rows of group 0, but there are 4\. Set replacement=True"),
    (
        GroupBatches,
        (torch.tensor([0, 2, 0]), 1, 1),
        {},
        DataError,
        "but group 1 has no rows while group 2 has",
    ),
    (GroupBatches, (torch.tensor([2**62]), 1, 1), {}, DataError, f"group 0 has no rows while group {2**62} has"),
    (GroupBatches, (torch.tensor([0, -1, 0, -1]), 1, 1), {}, DataError, r"of which 2 are negative \(first: row 1\)"),
    (GroupBatches, (EVENTS.int(), 1, 1), {}, DataError, r"int64 numbers 0\.\.G-1, got torch\.int32.* Convert them"),
    (GroupBatches, (EVENTS[:0], 1, 1), {}, DataError, r"its shape is \(0,\)"),
    (GroupBatches, (GROUPS, 0, 1), {}, ConfigError, "groups_per_batch"),
    (GroupBatches, (GROUPS, 1, 0), {}, ConfigError, "samples_per_group"),
    (GroupBatches, (GROUPS, 1, 1), {"num_batches": 0}, ConfigError, "num_batches"),
    (QueryBatches, (QUERIES, RELEVANT, 6, 2, 2), {}, ConfigError, "queries_per_batch=6 exceeds the 5 queries"),
    (
        QueryBatches,
        (QUERIES, RELEVANT, 2, 1, 4),
        {},
        DataError,
        "positives_per_query=1 .*of which 5 queries",
    ),
    (
        QueryBatches,
        (QUERIES.view(2, -1), RELEVANT, 2, 2, 4),
        {},
        DataError,
        "one number of the column 'query'",
    ),
    (QuerySampling().plan, (INDEX,), {}, ConfigError, "drawn by queries, but the training table has no whole numbers"),
    (QuerySampling().plan, (INDEX | {"query": EVENTS},), {}, ConfigError, "need the grades `y`"),
    (BagBatches, (BAGS, ILL, 3, 3, 2), {}, ConfigError, "positive_bags=3 exceeds the 2 positive bags among 8"),
    (BagBatches, (BAGS.view(2, -1), ILL, 1, 3, 2), {}, DataError, "one number of the column 'bag' for every row"),
    (BagSampling().plan, (INDEX,), {}, ConfigError, "drawn by bags, but the training table has no whole numbers"),
    (EventBatches, (torch.ones(9).long(), 2, 2), {}, DataError, r"'event' with .* but its 9 rows hold \[1\]"),
    (
        EventBatches,
        (EVENTS, 5, 2),
        {},
        DataError,
        r"takes 5 rows with event=1, but there are 4\. Lower events",
    ),
    (EventBatches, (EVENTS, 5, 5), {}, DataError, r"events_per_batch \+ censored_per_batch=10 exceeds the 9 rows"),
    (EventBatches, (EVENTS.float(), 2, 2), {}, ConfigError, r"Convert it, if its values are whole \(\.long\(\)\)"),
]


@pytest.mark.parametrize(("make", "arguments", "options", "error", "message"), REFUSED)
def test_batches_that_cannot_be_drawn(make, arguments, options, error, message):
    with pytest.raises(error, match=message):
        make(*arguments, **options)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32])
def test_labels_of_any_whole_type_are_drawn_as_int64(dtype):
    y = torch.arange(40) % 4 == 0
    plan, same = (BalancedSampling(8).plan({"y": y.to(kind)}, seed=0) for kind in (dtype, torch.int64))
    assert all(torch.equal(a, b) for a, b in zip(plan.batches(0), same.batches(0), strict=True))
    assert torch.equal(plan.strata, same.strata)

"""Properties of every batch plan."""

from itertools import chain, combinations, islice, product

import pytest
import torch

from fcco_lightning.data.batches import BatchPlan, UniformBatches, UniformSampling
from fcco_lightning.data.loader import RankBatches, ResumableLoader
from fcco_lightning.data.table import TensorTable
from fcco_lightning.errors import ConfigError, DataError
from tests.contracts.completeness import concrete_classes
from tests.contracts.registry_plans import PLANS
from tests.plans import BagBatches, BalancedBatches, GroupBatches, QueryBatches

EPOCHS = 50
every_plan = pytest.mark.parametrize("case", PLANS.values(), ids=PLANS)


def epoch_of(plan, epoch=0):
    return [batch.tolist() for batch in plan.batches(epoch)]


def counts_of(plan, marked):
    """Marked rows in every stratum."""
    strata = torch.zeros(plan.num_rows, dtype=torch.int64) if plan.strata is None else plan.strata
    return torch.bincount(strata[marked], minlength=plan.num_strata)


def drawn_rows(case_plan, epochs=3):
    return sorted({row for epoch in range(epochs) for batch in epoch_of(case_plan, epoch) for row in batch})


def within(values, expected):
    """Whether the mean of independent values is within four standard errors of what is expected."""
    values = torch.tensor(values, dtype=torch.float64)
    return abs(float(values.mean()) - expected) <= 4 * float(values.std()) / len(values) ** 0.5 + 1e-9


def test_every_kind_of_plan_is_registered():
    ours = concrete_classes(BatchPlan)
    assert ours == {type(case.tiny) for case in PLANS.values()} == {type(case.make(0)) for case in PLANS.values()}


@every_plan
def test_batches_depend_on_seed_and_epoch_only(case):
    before = torch.get_rng_state()
    first = epoch_of(case.make(5), 4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    plan = case.make(5)
    assert epoch_of(plan, 4) == epoch_of(plan, 4) == first
    assert first not in (epoch_of(plan, 5), epoch_of(case.make(6), 4))
    assert epoch_of(case.make(0), 1) != epoch_of(case.make(1), 0)  # neighbouring seeds are not shifted epochs
    assert len(first) == plan.num_batches
    assert {len(batch) for batch in first[:-1]} == {plan.batch_size}
    assert set(chain.from_iterable(first)) <= set(range(plan.num_rows))
    with pytest.raises(ConfigError, match="epoch must be a whole number >= 0, got -1"):
        epoch_of(plan, -1)


@every_plan
def test_parts_of_processes_tile_the_union_batch(case):
    plan = case.make(2)
    for world_size in (1, 2, 3, 4):
        shares = [RankBatches(range(plan.num_rows), plan, rank, world_size) for rank in range(world_size)]
        for share in shares:
            share.set_epoch(1)
            assert len(share) == plan.num_batches
        for union, *parts in zip(epoch_of(plan, 1), *shares, strict=True):
            assert list(chain.from_iterable(parts)) == union
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


@every_plan
def test_absence_is_that_of_all_possible_batches(case):
    plan, rows = case.tiny, range(case.tiny.num_rows)
    assert sum(p for p, _ in case.outcomes) == pytest.approx(1)
    for size in range(plan.num_rows + 1):
        for marked in combinations(rows, size):
            expected = sum(p for p, batch in case.outcomes if not set(batch) & set(marked))
            found = plan.absence(counts_of(plan, list(marked)))
            assert found == pytest.approx(expected, abs=1e-12)
            assert (found == 0) == (expected == 0)


@every_plan
def test_absence_is_that_of_the_batches_drawn(case):
    plan = case.make(1)
    generator = torch.Generator().manual_seed(0)
    chosen = [torch.randperm(plan.num_rows, generator=generator)[:size].tolist() for size in (1, 3, 8, 20)]
    absent = [[] for _ in chosen]
    for epoch in range(EPOCHS):
        batches = [set(batch) for batch in epoch_of(plan, epoch)]
        for marked, shares in zip(chosen, absent, strict=True):
            shares.append(sum(batch.isdisjoint(marked) for batch in batches) / len(batches))
    for marked, shares in zip(chosen, absent, strict=True):
        expected = plan.absence(counts_of(plan, marked))
        rare = 4 * (expected * (1 - expected) / EPOCHS) ** 0.5  # where none of the epochs had such a batch
        assert within(shares, expected) or (sum(shares) == 0 and expected <= rare)


@every_plan
def test_absence_of_nothing_and_of_everything(case):
    plan = case.make(0)
    assert plan.absence(counts_of(plan, [])) == 1.0
    assert plan.absence(counts_of(plan, list(range(plan.num_rows)))) == 0.0
    sizes = counts_of(plan, list(range(plan.num_rows)))
    for counts in (sizes + 1, -sizes, torch.zeros(len(sizes) + 1, dtype=torch.int64)):
        for what in (plan.absence, plan.most):
            with pytest.raises(DataError, match=r"counts must hold, for each of the \d+ strata of sizes"):
                what(counts)


def marked_at_most(batches, marked):
    return max(sum(row in marked for row in batch) for batch in batches)


@every_plan
def test_how_many_marked_rows_a_batch_holds_at_most_is_that_of_all_possible_batches(case):
    plan, batches = case.tiny, [rows for _, rows in case.outcomes]
    for size in range(plan.num_rows + 1):
        for marked in combinations(range(plan.num_rows), size):
            found, largest = plan.most(counts_of(plan, list(marked))), marked_at_most(batches, marked)
            assert found == largest if case.exact else found >= largest
            assert (found == 0) == (largest == 0)


@every_plan
def test_no_batch_that_is_drawn_holds_more_marked_rows_than_is_said(case):
    plan = case.make(1)
    generator = torch.Generator().manual_seed(0)
    for draw in (plan, plan.second_draw()):
        batches = [set_of for epoch in range(EPOCHS // 4) for set_of in epoch_of(draw, epoch)]
        for size in range(1, plan.num_rows, 3):
            marked = torch.randperm(plan.num_rows, generator=generator)[:size].tolist()
            assert marked_at_most(batches, {*marked}) <= draw.most(counts_of(plan, marked)) <= plan.batch_size


def has_twice(batch):
    return len(set(batch)) < len(batch)


@every_plan
def test_batches_whose_rows_are_distinct_hold_none_twice(case):
    twice = any(has_twice(rows) for _, rows in case.outcomes)
    assert case.tiny.distinct != twice if case.exact else not (case.tiny.distinct and twice)
    for plan in (case.tiny, case.make(2), case.make(2).second_draw()):
        drawn = [batch for epoch in range(EPOCHS // 5) for batch in epoch_of(plan, epoch)]
        assert not (plan.distinct and any(map(has_twice, drawn)))


def uniform(num_rows, batch_size, **options):
    return UniformSampling(batch_size, **options).plan({"index": torch.arange(num_rows)})


SMALL = {
    "uniform": [
        (uniform, (n, size), options)
        for n, size in product(range(1, 6), repeat=2)
        if size <= n
        for options in [{"drop_last": False}, {"drop_last": True}, {"num_batches": 1}, {"num_batches": 2 * n + 1}]
    ],
    "balanced": [
        (BalancedBatches, (torch.tensor(labels), size), {"positive_fraction": positives / size, "allow_repeats": True})
        for labels in ([0, 1], [0, 0, 1], [1, 0, 0, 1, 0], [0, 1, 0, 0, 0, 1, 1])
        for size in range(2, len(labels) + 1)
        for positives in range(1, size)
    ],
    "bags": [
        (BagBatches, (torch.tensor([0, 0, 0, 1, 1, 2, 3, 3]), torch.tensor([1, 1, 1, 0, 0, 1, 0, 0]), *drawn), {})
        for drawn in product((1, 2), (1, 2), (1, 2, 3))
    ],
    "queries": [
        (QueryBatches, (torch.tensor([0] * 5 + [1] * 4), torch.tensor([1, 1, 0, 0, 0, 1, 1, 0, 0]), *drawn), {})
        for drawn in product((1, 2), (2, 3), (2, 3, 4))
    ],
}


@pytest.mark.parametrize("kind", SMALL)
def test_what_is_said_of_batches_holds_for_all_arguments(kind):
    seen, epochs = set(), 100 if kind == "uniform" else 50  # of which the largest sets of rows are drawn, too
    for make, args, options in SMALL[kind]:
        plan = make(*args, **options)
        drawn = {tuple(sorted(batch)) for epoch in range(epochs) for batch in epoch_of(plan, epoch)}
        seen.add(plan.distinct)
        assert plan.distinct != any(map(has_twice, drawn))  # small as they are, a row that can come twice does
        for size in range(plan.num_rows + 1):
            for marked in islice(combinations(range(plan.num_rows), size), 12):
                bound, largest = plan.most(counts_of(plan, list(marked))), marked_at_most(drawn, marked)
                assert bound == largest if plan.distinct and size < 3 else bound >= largest
    assert seen == ({True} if kind == "uniform" else {True, False})


def mean_of_data(plan, values):
    """What is to be averaged: the values, or where samples have weights of their own these times the values."""
    return values if plan.sample_weight is None else values * plan.population()


@every_plan
def test_weights_make_means_unbiased(case):
    plan = case.tiny
    rows = drawn_rows(plan, epochs=20)
    values = torch.rand(plan.num_rows, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.5
    weights = plan.weights()
    weighted = values if weights is None else weights * values
    mean = sum(p * float(weighted[list(batch)].mean()) for p, batch in case.outcomes)
    assert (mean == pytest.approx(mean_of_data(plan, values)[rows].mean().item(), abs=1e-7)) == case.unbiased
    assert case.unbiased or weights is None


@every_plan
def test_weighted_means_over_batches_drawn_are_unbiased(case):
    plan = case.make(3)
    rows = drawn_rows(plan, epochs=20)
    values = torch.rand(plan.num_rows, generator=torch.Generator().manual_seed(2))
    values[rows[::3]] += 2
    weights = plan.weights()
    if weights is not None:
        assert (weights.shape, weights.dtype) == ((plan.num_rows,), torch.float32)
    weighted = values if weights is None else weights * values
    means = [torch.stack([weighted[batch].mean() for batch in plan.batches(epoch)]).mean() for epoch in range(EPOCHS)]
    if case.unbiased:
        assert within(means, mean_of_data(plan, values)[rows].mean().item())


@every_plan
def test_a_second_draw_is_independent_and_of_the_same_kind(case):
    plan = case.make(4)
    second = plan.second_draw()
    firsts, seconds = epoch_of(plan, 2), epoch_of(second, 2)
    assert firsts == epoch_of(case.make(4), 2)  # making a second draw leaves the first alone
    assert seconds == epoch_of(case.make(4).second_draw(), 2) != firsts
    assert [len(batch) for batch in firsts] == [len(batch) for batch in seconds]
    assert seconds != epoch_of(second, 3)
    if plan.strata is not None:  # the same classes and groups in the same places
        assert [plan.strata[batch].tolist() for batch in firsts] == [plan.strata[batch].tolist() for batch in seconds]
    values = torch.rand(plan.num_rows, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    strata = torch.zeros(plan.num_rows, dtype=torch.int64) if plan.strata is None else plan.strata
    sums = torch.zeros(plan.num_strata, dtype=torch.float64).index_add(0, strata, values)
    centred = values - (sums / torch.bincount(strata))[strata]  # what a batch shares is its composition only
    products = [
        float(centred[a].mean() * centred[b].mean())
        for epoch in range(EPOCHS // 2)
        for a, b in [(next(plan.batches(epoch)), next(second.batches(epoch)))]
    ]
    assert within(products, 0.0)


@every_plan
@pytest.mark.parametrize("second", [False, True])
def test_an_epoch_is_continued_in_the_middle(case, second):
    plan = case.make(9).second_draw() if second else case.make(9)
    whole = epoch_of(plan, 2)

    def loaders(processes):
        table = TensorTable({"x": torch.zeros(plan.num_rows)})
        return [ResumableLoader(table, plan, rank=rank, world_size=processes) for rank in range(processes)]

    def unions(parts):
        return [list(chain.from_iterable(batch["index"].tolist() for batch in batches)) for batches in parts]

    for before, after in ((1, 1), (1, 2), (3, 1)):
        given = loaders(before)
        for loader in given:
            loader.sampler.set_epoch(2)
        halves = [iter(loader) for loader in given]
        assert unions([[next(half) for half in halves] for _ in range(1)]) == whole[:1]
        states = [loader.state_dict() for loader in given]
        rest = loaders(after)
        for loader in rest:
            loader.load_state_dict(states[0])
        assert unions(zip(*rest, strict=True)) == whole[1:]


def test_absence_of_large_tables_is_a_probability():
    plan = UniformBatches(10_000_000, 512)
    assert plan.absence(torch.tensor([1])) == pytest.approx(1 - 512 / 10_000_000, abs=1e-7)
    assert plan.absence(torch.tensor([1_000_000])) == pytest.approx(0.9**512, rel=1e-2)
    assert plan.absence(torch.tensor([9_999_600])) == 0.0
    groups = GroupBatches(torch.arange(160_000) % 1252, 100, 8)
    chances = [groups.absence(torch.bincount(torch.arange(k) % 1252, minlength=1252)) for k in (0, 1, 1252, 80_128)]
    # each of 1252 groups of 127 or 128 rows has one marked: 800 draws of 8 in 128 miss it
    assert chances[0] == 1.0
    assert chances[1] == pytest.approx(1 - 100 / 1252 * 8 / 128, rel=1e-3)
    assert chances[2] == pytest.approx((1 - 8 / 128) ** 100, rel=2e-2)
    assert 0 < chances[3] < 1e-200


@every_plan
def test_the_population_is_what_weighted_means_over_batches_stand_for(case):
    """By enumeration; half-positive batches of a third positives count these 1.5 times and the others .75 times."""
    plan, found = case.tiny, case.tiny.population()
    expected, weights = torch.zeros(plan.num_rows, dtype=torch.float64), plan.weights()
    for chance, batch in case.outcomes:
        for row in batch:
            expected[row] += chance * plan.num_rows / len(batch) * (1.0 if weights is None else float(weights[row]))
    found = torch.ones_like(expected) if found is None else found
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


def test_second_halves_of_batches_stand_for_their_own_population():
    """Of three positives among six, which are the even places of seven or so, two come in the second half."""
    plan = BalancedBatches(torch.arange(20) % 4 == 0, 6, positive_fraction=0.5, prevalence="batch")
    counted = torch.zeros(20, dtype=torch.float64)
    for epoch in range(EPOCHS):
        for batch in plan.batches(epoch):
            counted[batch[3:]] += 20 / 3 / plan.num_batches / EPOCHS
    of_positives = counted[::4].mean()
    found = plan.population(0.5)
    assert found[0] == pytest.approx(of_positives.item())
    assert found.mean() == pytest.approx(1.0)
    assert found[0] != pytest.approx(plan.population()[0])

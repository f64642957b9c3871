"""Batches of queries and of events, beyond the contract of every batch plan."""

from fractions import Fraction

import pytest
import torch

from fcco_lightning.data import EventSampling, QuerySampling
from fcco_lightning.errors import ConfigError, DataError
from tests.plans import EventBatches, QueryBatches

QUERIES = torch.arange(60) // 12
RELEVANT = torch.arange(60) % 12 < 5


def test_a_batch_holds_items_of_both_kinds_of_every_query():
    plan = QueryBatches(QUERIES, RELEVANT, 2, 2, 4)
    assert (plan.batch_size, plan.num_batches) == (12, 3)
    for batch in plan.batches(0):
        table = batch.view(6, 2)  # slot by slot, one column a query
        assert [len(column.unique()) for column in QUERIES[table].T] == [1, 1]
        assert RELEVANT[table].sum(0).tolist() == [2, 2]
        assert len(batch.unique()) == 12


def test_an_epoch_goes_through_all_queries():
    plan = QueryBatches(QUERIES, RELEVANT, 1, 2, 4)
    assert sorted(int(QUERIES[batch[0]]) for batch in plan.batches(3)) == [0, 1, 2, 3, 4]


def test_the_second_half_is_as_likely_to_lack_items_as_is_said():
    plan = QueryBatches(QUERIES, RELEVANT, 2, 2, 4, seed=1)
    counts = torch.bincount(plan.strata[:3], minlength=10)  # three relevant items of query 0
    epochs = [list(plan.batches(epoch)) for epoch in range(300)]
    found = torch.tensor([[not bool((b[6:] < 3).any()) for b in batches] for batches in epochs]).double().mean()
    assert plan.absence(counts, share=0.5) == pytest.approx(1 - 2 / 5 * 3 / 5)
    assert float(found) == pytest.approx(plan.absence(counts, share=0.5), abs=0.05)


def test_columns_say_how_many_items_each_stands_for():
    columns = QueryBatches(QUERIES, RELEVANT, 2, 2, 4).columns()
    assert columns["stratum_size"].tolist() == [5 if r else 7 for r in RELEVANT.tolist()]
    assert columns["weight"][RELEVANT].unique().item() == pytest.approx(12 / (60 * 2 / 5 * 2 / 5))


def test_weights_are_exact_to_the_last_bit():
    plan = QueryBatches(QUERIES, RELEVANT, 3, 2, 4)
    expected = [Fraction(5 if r else 7, 60) * Fraction(5, 3) * Fraction(18, 2 if r else 4) for r in RELEVANT.tolist()]
    assert torch.equal(plan.weights(), torch.tensor([float(weight) for weight in expected], dtype=torch.float32))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((QUERIES, RELEVANT, 6, 2, 2), ConfigError, "queries_per_batch=6 exceeds the 5 queries"),
        (
            (QUERIES, RELEVANT, 2, 1, 4),
            DataError,
            "positives_per_query=1 and .*of which 5 queries have several",
        ),
        (
            (QUERIES.view(2, -1), RELEVANT, 2, 2, 4),
            DataError,
            "one number of the column 'query' for every row",
        ),
    ],
)
def test_queries_that_cannot_be_drawn(arguments, error, message):
    with pytest.raises(error, match=message):
        QueryBatches(*arguments)


def test_samplings_count_the_items_of_all_processes():
    columns = {"index": torch.arange(60), "query": QUERIES, "y": RELEVANT.float(), "event": RELEVANT.long()}
    plan = QuerySampling(2, 2, 3).plan(columns, seed=0, world_size=2)
    assert QUERIES[next(plan.batches(0))].unique(return_counts=True)[1].tolist() == [4 + 6] * 2
    plan = EventSampling(4, 8).plan(columns, seed=0, world_size=2)
    assert columns["event"][next(plan.batches(0))].bincount().tolist() == [16, 8]
    with pytest.raises(ConfigError, match="drawn by queries, but the training table has no whole numbers"):
        QuerySampling().plan({"index": columns["index"]}, 0, 1)
    with pytest.raises(ConfigError, match="need the grades `y`"):
        QuerySampling().plan({"index": columns["index"], "query": QUERIES}, 0, 1)


def test_batches_of_events_need_events_and_censored_samples():
    events = torch.arange(9) % 2
    with pytest.raises(DataError, match=r"takes 5 rows with event=1, but there are 4\. Lower events_per_batch"):
        EventBatches(events, 5, 2)
    with pytest.raises(DataError, match="events_per_batch \\+ censored_per_batch=10 exceeds the 9 rows"):
        EventBatches(events, 5, 5)
    with pytest.raises(DataError, match=r"column 'event' with the numbers 0 and 1, but its 9 rows hold \[1\]"):
        EventBatches(torch.ones(9, dtype=torch.int64), 2, 2)

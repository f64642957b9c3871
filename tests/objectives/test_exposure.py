"""The exposure of the items of ranked lists against loops, and in batches that hold whole lists."""

import math

import pytest
import torch

from fcco_lightning import DataError, Exposure
from fcco_lightning.objectives import SigmoidPair
from tests.plans import QueryBatches

QUERY = torch.tensor([5, 2, 5, 5, 2, 9, 2, 5, 9, 2])
GRADE = torch.tensor([1, 0, 0, 2, 1, 0, 0, 0, 1, 3])
SCORES = torch.randn(10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SPLIT = {"query": QUERY, "y": GRADE, "index": torch.arange(10)}
QUANTITY = Exposure(SigmoidPair(0.5))


def by_loops():
    found = []
    for i, h in enumerate(SCORES.tolist()):
        above = sum(
            1 / (1 + math.exp((h - other) / 0.5))
            for j, other in enumerate(SCORES.tolist())
            if j != i and QUERY[j] == QUERY[i]
        )
        found.append(1 / math.log2(2 + above))
    return torch.tensor(found, dtype=torch.float64)


def test_on_a_split():
    torch.testing.assert_close(QUANTITY(SCORES, SPLIT), by_loops())


def test_in_batches_that_hold_whole_lists_some_of_them_twice():
    plan = QueryBatches(QUERY, GRADE > 0, 2, 2, 2)
    columns = SPLIT | plan.columns()
    for index in plan.batches(0):
        found = QUANTITY(SCORES[index], {name: column[index] for name, column in columns.items()})
        torch.testing.assert_close(found, by_loops()[index])


def test_batches_that_do_not_say_how_they_were_drawn_are_refused():
    with pytest.raises(DataError, match=r"which part of the list a batch holds. Set `batches: QuerySampling`"):
        QUANTITY.check(SCORES, SPLIT)

"""The registry of batch plans: how each is made, and all batches that a tiny one can draw."""

import math
from collections.abc import Callable
from itertools import combinations, product
from typing import NamedTuple

import torch

from fcco_lightning.data.batches import BatchPlan, UniformBatches
from tests.plans import BagBatches, BalancedBatches, EventBatches, GroupBatches, LabelBatches, QueryBatches

Outcome = tuple[float, tuple[int, ...]]


class PlanCase(NamedTuple):
    """A class of batch plans.

    Attributes:
        make: seed -> plan of about 40 rows.
        tiny: plan of a few rows.
        outcomes: probability and rows of every batch that ``tiny`` can draw, by the definition of the class; if batches
            of an epoch differ in size, each size has its share of them.
        unbiased: whether weighted means over batches are unbiased estimates of the mean over all rows of the plan.
        exact: whether the plan of ``tiny`` knows if a batch can contain a row twice, and how many marked rows.
    """

    make: Callable[[int], BatchPlan]
    tiny: BatchPlan
    outcomes: list[Outcome]
    unbiased: bool = True
    exact: bool = True


def equally_likely(batches):
    batches = list(batches)
    return [(1 / len(batches), tuple(batch)) for batch in batches]


def both(*parts):
    """All unions of one batch of every part, drawn independently."""
    return [(math.prod(p for p, _ in chosen), sum((rows for _, rows in chosen), ())) for chosen in product(*parts)]


def of_groups(members, groups_per_batch, draw):
    """All choices of groups, with all draws from these groups."""
    choices = list(combinations(members, groups_per_batch))
    return [(p / len(choices), rows) for chosen in choices for p, rows in both(*(draw(m) for m in chosen))]


LABELS = torch.tensor([1, 0, 0, 1, 0, 0, 0, 1, 0, 0] * 4)
GROUPS = torch.tensor([0, 0, 1, 2, 1, 0, 2, 2, 3, 0, 3, 1, 0, 0, 3, 2, 2, 2, 1, 0, 0, 1, 3] * 2)
TINY_LABELS = torch.tensor([0, 1, 0, 0, 1, 0])
TINY_GROUPS = torch.tensor([0, 1, 1, 0, 2, 2, 2])
MEMBERS = [(0, 3), (1, 2), (4, 5, 6)]
ROWS = torch.tensor([30, 4, 17, 8, 9, 25, 11, 2, 13, 7])


TASKS = torch.arange(48) % 3
VALUES = torch.tensor([1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 1] * 3)[:48]
TINY_TASKS = torch.tensor([0, 1, 0, 1, 0, 1, 1, 0])
TINY_VALUES = torch.tensor([1, 0, 0, 1, 1, 1, 1, 0])
CLASSES = {0: ((0, 4), (2, 7)), 1: ((3, 5, 6), (1,))}  # label -> its positives and negatives

QUERIES = torch.tensor([5, 5, 5, 9, 9, 5, 9, 2, 2, 2, 9, 5, 7, 7, 9, 9, 2, 2, 5, 5] * 2)
RELEVANT = torch.tensor([1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1] * 2).bool()  # none for query 7
TINY_QUERIES = torch.tensor([4, 4, 4, 4, 8, 8, 8, 6, 6])
TINY_RELEVANT = torch.tensor([1, 1, 0, 0, 0, 1, 0, 0, 0]).bool()


BAGS = torch.arange(40) ** 2 % 11  # six bags of 4 to 8 rows
TINY_BAGS = torch.tensor([3, 8, 3, 5, 8, 6, 3, 9])
TINY_BAG_LABELS = torch.tensor([1, 0, 1, 1, 0, 0, 1, 0])


def two_of(members):
    return equally_likely([members * 2] if len(members) == 1 else combinations(members, 2))


def of_queries(chosen):
    """Two relevant and three irrelevant items of each query, some of them repeated if there are fewer."""
    draws = [
        both(equally_likely([(0, 1)]), equally_likely([(2, 3, 2), (2, 3, 3)])),
        both(equally_likely([(5, 5)]), equally_likely([(4, 6, 4), (4, 6, 6)])),
        equally_likely([(7, 8, 7, 8, 7), (7, 8, 7, 8, 8)]),
    ]
    choices = list(combinations(draws, chosen))
    return [(p / len(choices), rows) for some in choices for p, rows in both(*some)]


def pairs_of(members):
    return equally_likely(combinations(members, 2))


def draws_of(members):
    return equally_likely(product(members, repeat=2))


PLANS = {
    "uniform": PlanCase(
        lambda seed: UniformBatches(43, 8, seed), UniformBatches(6, 2), equally_likely(combinations(range(6), 2))
    ),
    "uniform, short last batch": PlanCase(
        lambda seed: UniformBatches(43, 8, seed, drop_last=False),
        UniformBatches(5, 2, drop_last=False),
        [(p * 2 / 3, b) for p, b in equally_likely(combinations(range(5), 2))] + [(1 / 15, (i,)) for i in range(5)],
    ),
    "uniform, more than a pass": PlanCase(
        lambda seed: UniformBatches(43, 8, seed).with_num_batches(9),
        UniformBatches(5, 3).with_num_batches(4),
        equally_likely(combinations(range(5), 3)),
    ),
    "shuffled by another loader": PlanCase(
        lambda seed: UniformBatches(43, 8, seed, certain=False),
        UniformBatches(6, 2, certain=False),
        equally_likely(combinations(range(6), 2)),
        exact=False,
    ),
    "balanced": PlanCase(
        lambda seed: BalancedBatches(LABELS, 8, seed),
        BalancedBatches(TINY_LABELS, 4),  # both positives, half of the batch but a third of the data
        both(equally_likely([(1, 4)]), equally_likely(combinations((0, 2, 3, 5), 2))),
    ),
    "balanced, repeats": PlanCase(
        lambda seed: BalancedBatches(LABELS[:20], 8, seed, allow_repeats=True, positive_fraction=0.9),
        BalancedBatches(TINY_LABELS, 5, positive_fraction=0.6, allow_repeats=True),  # both positives, one twice
        both(equally_likely([(1, 4, 1), (1, 4, 4)]), equally_likely(combinations((0, 2, 3, 5), 2))),
        exact=False,
    ),
    "balanced, prevalence of the batch": PlanCase(
        lambda seed: BalancedBatches(LABELS, 8, seed, prevalence="batch"),
        BalancedBatches(TINY_LABELS, 2, prevalence="batch"),
        both(equally_likely([(1,), (4,)]), equally_likely([(0,), (2,), (3,), (5,)])),
        unbiased=False,
    ),
    "groups": PlanCase(
        lambda seed: GroupBatches(GROUPS, 2, 3, seed, prevalence="data"),
        GroupBatches(TINY_GROUPS, 2, 2, prevalence="data"),
        of_groups(MEMBERS, 2, pairs_of),
    ),
    "groups, replacement": PlanCase(
        lambda seed: GroupBatches(GROUPS, 3, 4, seed, replacement=True, prevalence="data"),
        GroupBatches(TINY_GROUPS, 2, 2, replacement=True, prevalence="data"),
        of_groups(MEMBERS, 2, draws_of),
    ),
    "groups, one sample with replacement": PlanCase(
        lambda seed: GroupBatches(GROUPS, 3, 1, seed, replacement=True, prevalence="data"),
        GroupBatches(TINY_GROUPS, 2, 1, replacement=True, prevalence="data"),
        of_groups(MEMBERS, 2, lambda members: equally_likely((i,) for i in members)),
    ),
    "groups, prevalence of the batch": PlanCase(
        lambda seed: GroupBatches(GROUPS, 2, 3, seed),
        GroupBatches(TINY_GROUPS, 1, 2),
        of_groups(MEMBERS, 1, pairs_of),
        unbiased=False,
    ),
    "labels": PlanCase(
        lambda seed: LabelBatches(TASKS, VALUES, 2, 2, 3, seed),
        LabelBatches(TINY_TASKS, TINY_VALUES, 1, 2, 1),
        of_groups(CLASSES.values(), 1, lambda c: both(pairs_of(c[0]), equally_likely((i,) for i in c[1]))),
    ),
    "labels, all of them": PlanCase(
        lambda seed: LabelBatches(TASKS, VALUES, 3, 1, 2, seed, num_batches=7),
        LabelBatches(TINY_TASKS, TINY_VALUES, 2, 1, 1),
        both(*(equally_likely((i,) for i in rows) for c in CLASSES.values() for rows in c)),
    ),
    "weighted samples": PlanCase(
        lambda seed: UniformBatches(43, 8, seed).of_weighted_samples(torch.arange(43.0)),
        UniformBatches(6, 2).of_weighted_samples(torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0, 0.0])),
        equally_likely(combinations(range(6), 2)),
    ),
    "repeated": PlanCase(
        lambda seed: UniformBatches(43, 8, seed).repeated(3),
        UniformBatches(6, 2).repeated(2),
        equally_likely((a, b, a, b) for a, b in combinations(range(6), 2)),
    ),
    "repeated, balanced": PlanCase(
        lambda seed: BalancedBatches(LABELS, 8, seed).repeated(2),
        BalancedBatches(TINY_LABELS, 4).repeated(2),
        both(equally_likely([(1, 4, 1, 4)]), equally_likely((a, b, a, b) for a, b in combinations((0, 2, 3, 5), 2))),
    ),
    "events": PlanCase(
        lambda seed: EventBatches(LABELS, 3, 6, seed),
        EventBatches(TINY_LABELS, 2, 2),
        both(equally_likely([(1, 4)]), equally_likely(combinations((0, 2, 3, 5), 2))),
    ),
    "queries": PlanCase(
        lambda seed: QueryBatches(QUERIES, RELEVANT, 2, 3, 4, seed),
        QueryBatches(TINY_QUERIES, TINY_RELEVANT, 2, 2, 3),
        of_queries(2),
        exact=False,
    ),
    "queries, enough items": PlanCase(
        lambda seed: QueryBatches(QUERIES, RELEVANT, 2, 2, 3, seed),
        QueryBatches(torch.tensor([4] * 5 + [8] * 4), torch.tensor([1, 1, 0, 0, 0, 1, 1, 0, 0]).bool(), 1, 2, 2),
        of_groups([((0, 1), (2, 3, 4)), ((5, 6), (7, 8))], 1, lambda q: both(pairs_of(q[0]), pairs_of(q[1]))),
    ),
    "bags": PlanCase(
        lambda seed: BagBatches(BAGS, BAGS % 2, 2, 1, 3, seed),
        BagBatches(TINY_BAGS, TINY_BAG_LABELS, 1, 2, 2),
        both(of_groups([(0, 2, 6), (3,)], 1, two_of), of_groups([(1, 4), (5,), (7,)], 2, two_of)),
        exact=False,
    ),
    "bags, enough instances": PlanCase(
        lambda seed: BagBatches(BAGS, BAGS % 2, 1, 2, 4, seed),
        BagBatches(TINY_BAGS, TINY_BAG_LABELS, 1, 2, 1),
        both(
            of_groups([(0, 2, 6), (3,)], 1, lambda bag: equally_likely((i,) for i in bag)),
            of_groups([(1, 4), (5,), (7,)], 2, lambda bag: equally_likely((i,) for i in bag)),
        ),
    ),
    "rows of a table": PlanCase(
        lambda seed: BalancedBatches(LABELS[:10], 5, seed, positive_fraction=0.4).of_rows(ROWS, 40),
        BalancedBatches(TINY_LABELS, 2).of_rows(torch.tensor([7, 2, 4, 0, 1, 6]), 8),
        both(equally_likely([(2,), (1,)]), equally_likely([(7,), (4,), (0,), (6,)])),
    ),
    "rows of a table, uniform": PlanCase(
        lambda seed: UniformBatches(10, 4, seed).of_rows(ROWS, 40),
        UniformBatches(3, 2).of_rows(torch.tensor([4, 1, 2]), 5),
        equally_likely(combinations((4, 1, 2), 2)),
    ),
}

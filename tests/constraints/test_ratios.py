"""Means of constraints over samples with unequal inclusion probabilities: exact by strata, or with a warning."""

import warnings
from itertools import combinations

import pytest
import torch
from torch import nn

from fcco_lightning import (
    BalancedSampling,
    CrossEntropy,
    DemographicParity,
    Engine,
    EqualizedOdds,
    FourFifthsRule,
    GroupAUCAtLeast,
    GroupSampling,
    HingePenalty,
    MeanAtMost,
    MeanDifferenceAtMost,
    PredictiveParity,
    ROCFairness,
    SoftRate,
    UniformSampling,
)
from fcco_lightning.algorithms import SOX
from fcco_lightning.data.batches import Drawn
from tests.combinations import every_pair

N = 600
FEW = [
    (DemographicParity(), BalancedSampling(4, 0.5), "samples of a batch, which weigh .* Draw these samples alike"),
    (
        DemographicParity(against="rest", groups=["a", "b", "c"]),
        GroupSampling(2, samples_per_group=64, prevalence="data"),
        "samples of 2 groups of a batch, which weigh .*groups_per_batch",
    ),
]
RIGHT = [
    (DemographicParity(), UniformSampling(32)),
    (EqualizedOdds(), BalancedSampling(32, 0.5)),  # the samples of a class weigh the same
    (MeanAtMost(SoftRate(), 0.9), BalancedSampling(28, 0.5)),  # of everyone: equally many of each class
    (DemographicParity(), BalancedSampling(32, 0.5)),  # by strata
    (
        DemographicParity(against="rest", groups=["a", "b", "c"]),
        GroupSampling(3, samples_per_group=4, prevalence="data"),  # equally many of every group
    ),
]


def first_batch(constraint, sampling):
    torch.manual_seed(0)
    three = any("c" in name.split() for name in constraint.names)
    group = torch.rand(N).sqrt() * (3 if three else 2)
    columns = {"y": (torch.rand(N) < 0.2).long(), "group": group.long(), "index": torch.arange(N)}
    plan, algorithm, network = sampling.plan(columns), SOX(), torch.nn.Linear(3, 1)
    columns |= plan.columns()
    drawn = {"target": Drawn(columns, plan)}
    problem = algorithm.pose(CrossEntropy(), [constraint], num_samples=N, sampling=drawn)
    batch = {name: column[next(plan.batches(0))] for name, column in columns.items()}
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    Engine(network, problem, algorithm).train_batch({"x": torch.randn(len(batch["y"]), 3), **batch}, optimizer)


@pytest.mark.parametrize(("constraint", "sampling", "said"), FEW, ids=["balanced classes", "a few groups"])
def test_a_ratio_of_few_is_said(constraint, sampling, said):
    with pytest.warns(UserWarning, match=said):
        first_batch(constraint, sampling)


@pytest.mark.parametrize(("constraint", "sampling"), RIGHT)
def test_other_means_are_taken_silently(constraint, sampling):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first_batch(constraint, sampling)


SMALL = 11
Y, GROUP = torch.arange(SMALL) % 5 % 2, torch.tensor([0, 1, 1, 0, 0, 1, 0, 0, 1, 0, 1])
SEVERAL = [
    DemographicParity(),
    FourFifthsRule(),
    PredictiveParity(),
    MeanAtMost(SoftRate(), 0.5, where={"group": 1}),
    MeanDifferenceAtMost(SoftRate(), 0.1, {"group": 1, "y": 0}, {"group": 0}),
    ROCFairness(thresholds=[-0.5, 0.5]),
    GroupAUCAtLeast(0.6),
]


def all_batches(plan):
    """Every batch that a plan of two strata can draw, once."""
    strata = [(plan.strata == s).nonzero().flatten().tolist() for s in (0, 1)]
    for chosen in combinations(strata[0], int(plan.drawn[0])):
        for others in combinations(strata[1], int(plan.drawn[1])):
            yield torch.tensor([*chosen, *others])


@every_pair("constraint, by", {type(c).__name__: c for c in SEVERAL}, {"y": "y", "apart": "apart"})
def test_the_mean_over_all_batches_is_that_over_the_data(constraint, by):
    """By enumeration, whether strata are the classes or cut across everything that the constraint compares."""
    columns = {"y": Y, "group": GROUP, "apart": torch.arange(SMALL) % 3 % 2, "index": torch.arange(SMALL)}
    table = {**columns, "y": columns[by]}
    plan = BalancedSampling(6 if by == "y" else 7, 3 / 7).plan(table)
    x, network = torch.linspace(-2, 2, SMALL, dtype=torch.float64).unsqueeze(1).square(), nn.Linear(1, 1).double()
    algorithm, n = SOX(), {"num_samples": SMALL, "dtype": torch.float64}
    problem = algorithm.pose(
        CrossEntropy(), [constraint], HingePenalty(), sampling={"target": Drawn(columns, plan)}, **n
    )
    engine, found, batches = Engine(network, problem, algorithm), 0.0, list(all_batches(plan))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        for i in batches:
            batch = {"x": x[i], **{name: column[i] for name, column in {**columns, **plan.columns()}.items()}}
            (row,) = engine.measure(engine.evaluate({"target": batch}))[1]
            found += row.weight.unsqueeze(1) * row.g / len(batches)
        exact = constraint.measure(network(x), columns)[1].values
    torch.testing.assert_close(found, exact / len(exact), rtol=1e-10, atol=0)


def measured(engine, plan):
    """What the first batch says of the constraint."""
    i = next(plan.batches(0))
    columns = {"y": Y, "group": GROUP, "index": torch.arange(SMALL), **plan.columns()}
    batch = {"x": torch.linspace(-2, 2, SMALL).unsqueeze(1)[i], **{name: column[i] for name, column in columns.items()}}
    (row,) = engine.measure(engine.evaluate({"target": batch}))[1]
    return row.g.detach()


@pytest.mark.parametrize("other", [UniformSampling(6), BalancedSampling(6, 0.5, prevalence="batch")])
def test_another_problem_with_the_same_constraint_changes_nothing(other):
    """Of prevalence "batch" means are those over samples as they are drawn, so that strata play no role."""
    columns = {"y": Y, "group": GROUP, "index": torch.arange(SMALL)}
    constraint, network = DemographicParity(), nn.Linear(1, 1)

    def posed(sampling):
        plan, algorithm = sampling.plan(columns), SOX()
        drawn = {"target": Drawn(columns, plan)}
        problem = algorithm.pose(CrossEntropy(), [constraint], num_samples=SMALL, sampling=drawn)
        return Engine(network, problem, algorithm), plan

    first = posed(BalancedSampling(6, 0.5))
    expected = measured(*first)
    assert constraint.strata is not None
    measured(*posed(other))
    assert constraint.strata is None
    assert torch.equal(measured(*first), expected)


def test_a_neighbour_of_the_same_kind_changes_nothing():
    """One mean is taken by strata; another, whose subset has one sample in each, is a ratio; also where they join."""
    columns = {"y": Y, "group": GROUP, "rare": torch.isin(torch.arange(SMALL), torch.tensor([0, 6])).long()}
    columns["index"] = torch.arange(SMALL)
    plan, network = BalancedSampling(4, 0.25).plan(columns), nn.Linear(1, 1)
    columns |= plan.columns()
    x, index = torch.linspace(-2, 2, SMALL).unsqueeze(1), torch.tensor([8, 6, 0, 2, 5])
    batch = {"x": x[index], **{name: column[index] for name, column in columns.items()}}

    def rows(*constraints):
        algorithm = SOX()
        drawn = {"target": Drawn(columns, plan)}
        problem = algorithm.pose(CrossEntropy(), constraints, HingePenalty(), num_samples=SMALL, sampling=drawn)
        engine = Engine(network, problem, algorithm)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            seen = engine.evaluate({"target": batch})  # the first batch is looked at
        (row,) = engine.measure(seen)[1]
        inverse = torch.as_tensor(row.inverse_inclusion, dtype=row.g.dtype).expand(len(row.g), 1)
        return torch.cat([row.g.detach(), inverse], dim=1), problem.constraints[0].strata, len(said)

    group, rare = (MeanAtMost(SoftRate(), 0.5, {name: 1}) for name in ("group", "rare"))
    (alone, by_strata, silent), (apart, none, warned) = rows(group), rows(rare)
    assert by_strata is not None
    assert none is None
    assert (silent, warned) == (0, 1)
    torch.testing.assert_close(rows(group, rare)[0], torch.cat([alone, apart]))
    torch.testing.assert_close(rows(rare, group)[0], torch.cat([apart, alone]))
    assert rows(rare, group)[2] == 1

"""Means of constraints over samples that weigh differently are ratios, and a warning says where that matters."""

import warnings

import pytest
import torch

from fcco_lightning import (
    BalancedSampling,
    CrossEntropy,
    DemographicParity,
    Engine,
    EqualizedOdds,
    GroupSampling,
    MeanAtMost,
    SoftRate,
    UniformSampling,
)
from fcco_lightning.algorithms import SOX
from fcco_lightning.data.plans import Drawn

N = 600
FEW = [
    (DemographicParity(), BalancedSampling(32, 0.5), "samples of a batch, which weigh .* Draw these samples alike"),
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
    (DemographicParity(), BalancedSampling(256, 0.5)),  # many
    (
        DemographicParity(against="rest", groups=["a", "b", "c"]),
        GroupSampling(3, samples_per_group=4, prevalence="data"),  # equally many of every group
    ),
]


def first_batch(constraint, sampling):
    torch.manual_seed(0)
    three = getattr(getattr(constraint, "comparisons", None), "names", []) == ["a", "b", "c"]
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

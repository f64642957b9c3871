"""Gradients of a sum over positives, by enumeration of all batches, if parts of batches differ in composition."""

from itertools import permutations, product

import pytest
import torch

from fcco_lightning import (
    ALEXR,
    MSVR,
    SONEX,
    SOX,
    BalancedSampling,
    CVaRGroupDRO,
    Engine,
    GroupSampling,
    PNormPush,
    RecallAtK,
    SquaredHingePair,
    UniformSampling,
)
from fcco_lightning.data.batches import Drawn
from fcco_lightning.errors import ConfigError, DataError

POWER = 3.0


def push(scores, positive):
    """Inner values and F of the push over positives with squared hinges, as the formula says."""
    values = (1 - (scores[positive][:, None] - scores[~positive])).relu().square().mean(1)
    return values, (values**POWER).mean()


def expected_gradient(algorithm, plan, positive, batches):
    """Mean over batches of the gradient at exact rows, and the exact gradient."""
    n, generator = len(positive), torch.Generator().manual_seed(0)
    columns = {"y": positive.long(), "index": torch.arange(n), **plan.columns()}
    x = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    network = torch.nn.Linear(3, 1, bias=False, dtype=torch.float64)
    weight = next(network.parameters())
    values, objective = push(network(x).squeeze(1), positive)
    (exact,) = torch.autograd.grad(objective, weight)
    problem = algorithm.pose(
        PNormPush(POWER, "positives", SquaredHingePair()),
        num_samples=n,
        sampling={"target": Drawn(columns, plan)},
        dtype=torch.float64,
    )
    engine, optimizer, found = Engine(network, problem, algorithm), torch.optim.SGD([weight], lr=0.0), []
    for batch in batches:
        index = torch.tensor(batch)
        problem.states[0].scatter_(None, values.detach().unsqueeze(1))
        engine.train_batch({"x": x[index], **{name: c[index] for name, c in columns.items()}}, optimizer)
        found.append(torch.zeros_like(weight) if weight.grad is None else weight.grad.clone())
    return torch.stack(found).mean(0), exact


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_short_last_batch_leaves_the_gradient_as_it_is(drop_last):
    positive = torch.arange(5) < 2
    plan = UniformSampling(3, drop_last=drop_last).plan({"index": torch.arange(5)})
    cut = (slice(0, 3),) if drop_last else (slice(0, 3), slice(3, 5))
    batches = [order[part] for order in permutations(range(5)) for part in cut]
    mean, exact = expected_gradient(SOX(), plan, positive, batches)
    torch.testing.assert_close(mean, exact, rtol=1e-9, atol=0)


@pytest.mark.parametrize(("positives", "negatives", "size"), [(3, 4, 6), (4, 4, 6), (3, 3, 5)])
def test_halves_with_another_share_of_positives_leave_the_gradient_as_it_is(positives, negatives, size):
    positive = torch.arange(positives + negatives) < positives
    plan = BalancedSampling(size, 0.5).plan({"y": positive.long(), "index": torch.arange(len(positive))})
    layout = positive[next(plan.batches(0))].tolist()
    drawn = sum(layout)
    ordered = product(
        permutations(range(positives), drawn), permutations(range(positives, len(positive)), size - drawn)
    )
    batches = []
    for own, others in ordered:
        of_class = {True: iter(own), False: iter(others)}
        batches.append([next(of_class[place]) for place in layout])
    algorithm = ALEXR(tau=1e12, theta=0.0, mirror=True, jacobian="halves")  # rows stay
    mean, exact = expected_gradient(algorithm, plan, positive, batches)
    torch.testing.assert_close(mean, exact, rtol=1e-6, atol=0)  # weights are float32


def test_halves_of_which_the_chances_are_not_known_are_refused():
    columns = {"y": torch.arange(12) % 2, "group": torch.arange(12) // 6, "index": torch.arange(12)}
    sampling = {"target": Drawn(columns, GroupSampling(2, samples_per_group=3).plan(columns))}
    with pytest.raises(ConfigError, match=r"PNormPush needs the probability that half of a batch"):
        ALEXR().pose(PNormPush(), num_samples=12, sampling=sampling)
    ALEXR(jacobian="part").pose(PNormPush(), num_samples=12, sampling=sampling)


def test_what_a_half_of_a_batch_lacks_is_said():
    columns = {"y": (torch.arange(12) < 4).long(), "index": torch.arange(12)}
    plan = BalancedSampling(8, 0.25).plan(columns)
    columns |= plan.columns()
    problem = ALEXR().pose(RecallAtK(3), num_samples=12, sampling={"target": Drawn(columns, plan)})
    network, algorithm = torch.nn.Linear(2, 1), ALEXR()
    engine, batch = Engine(network, problem, algorithm), next(plan.batches(0))
    with pytest.raises(DataError, match="one sample"):
        engine.train_batch(
            {"x": torch.randn(8, 2), **{name: column[batch] for name, column in columns.items()}},
            torch.optim.SGD(network.parameters(), lr=0.1),
        )


@pytest.mark.parametrize(
    "algorithm", [MSVR(gamma=0.3, gamma_prime=0.5), ALEXR(), SONEX()], ids=lambda algorithm: algorithm.name
)
def test_batches_and_halves_far_smaller_than_the_number_of_groups_follow_larger_ones(algorithm):
    # rows are those of all groups, or where a batch is far smaller those of its samples: 14 > 4 * 3, 14 <= 4 * 4
    columns = {"y": torch.arange(52) % 2, "group": torch.arange(52) % 14, "index": torch.arange(52)}
    plan = UniformSampling(7, drop_last=False).plan(columns)  # the last one has three
    drawn, network = {"target": Drawn(columns, plan)}, torch.nn.Linear(3, 1)
    objective = CVaRGroupDRO(0.5, num_groups=14)
    problem = algorithm.pose(objective, num_samples=52, sampling=drawn)
    engine = Engine(network, problem, algorithm)
    optimizer = torch.optim.SGD([*network.parameters(), *objective.parameters()], lr=0.1)
    for batch in [*plan.batches(0), *plan.batches(1)]:
        engine.train_batch({"x": torch.randn(len(batch), 3), **{n: c[batch] for n, c in columns.items()}}, optimizer)
    assert problem.states[0].rows.isfinite().any()

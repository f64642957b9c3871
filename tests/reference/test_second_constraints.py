"""Constraints in the package against their second implementation, step by step."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from fcco_lightning import (
    ALEXR2,
    SONEX,
    SOX,
    AdaptivePenalty,
    AugmentedLagrangian,
    CrossEntropy,
    Engine,
    HeavyBall,
    HingePenalty,
    MeanAtMost,
    MeanDifferenceAtMost,
    NuPI,
    QuantileScores,
    ROCFairness,
    SoftRate,
)
from fcco_lightning.data.batches import Drawn, UniformBatches

from . import algorithms as single
from . import primal_dual as dual
from . import second_constraints as second
from .networks import Data, Linear
from .outer import GapHinge, Hinge
from .probabilities import Uniform
from .second_constraints import LevelGap
from .toy import MeanLogistic, MeanRate, Part, Problem, RateGap

N, SIZE, STEPS = 30, 6, 30
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
LEVEL, TEMPERATURE = 0.2, 0.5
START = np.array([0.5, -0.3, 0.2, 0.1])


def table():
    """Groups of 2 and 4 of 30 samples, which most batches of 6 lack."""
    rng = np.random.default_rng(0)
    group = rng.permutation(np.repeat([0, 1, 2], [2, 4, 24]))
    label = (rng.random(N) < 0.4).astype(np.int64)
    x = rng.normal(size=(N, 3)) + label[:, None]
    return Data(x, x, label, group)


RULES = {
    "AdaptivePenalty": (AdaptivePenalty(0.1, 0.05), second.Adaptive(0.1, 0.05)),
    "falling to the least": (AdaptivePenalty(0.9, 0.05, least=0.3), second.Adaptive(0.9, 0.05, least=0.3)),
    "NuPI": (NuPI(0.3, 0.7), second.Controller(0.3, 0.7)),
    "NuPI, smoothed": (NuPI(0.3, 0.5, 0.4), second.Controller(0.3, 0.5, 0.4)),
    "AugmentedLagrangian": (AugmentedLagrangian(2.0, 0.3), second.Augmented(2.0, 0.3)),
}
CAPS = {0: 0.1, 1: 0.95, 2: 0.3}  # of the mean rate of every group


def constraints():
    rate = SoftRate(LEVEL, TEMPERATURE)
    caps = [MeanAtMost(rate, kappa, {"group": g}, name=f"cap {g}") for g, kappa in CAPS.items()]
    gap = MeanDifferenceAtMost(rate, 0.05, {"group": 1}, {"group": 2}, name="gap")
    return [*caps, gap]


def terms(data):
    unused = Hinge(1.0)
    caps = [MeanRate(data, data.members(g), unused, LEVEL, TEMPERATURE) for g in CAPS]
    return [*caps, RateGap(data, data.members(1), data.members(2), unused, LEVEL, TEMPERATURE)]


def posed_problem(data, sampler):
    """The caps and the gap, every row with its probability, below the mean logistic loss."""
    caps = [[data.members(g)] for g in CAPS]
    chance = [sampler.present(*subset) for subset in caps] + [sampler.both(data.members(1), data.members(2))]
    parts = tuple(Part(term, np.array([p])) for term, p in zip(terms(data), chance, strict=True))
    return Problem(Linear(data), N, parts, ((MeanLogistic(data), 1.0),))


class Package:
    """The same in the package."""

    def __init__(self, data, w, objective, constraints, enforcement, algorithm, plan, micro_batch=None):
        self.columns = {
            "x": torch.from_numpy(data.x),
            "y": torch.from_numpy(data.labels),
            "group": torch.from_numpy(data.groups),
            "index": torch.arange(N),
        }
        self.linear = nn.Linear(3, 1).double()
        with torch.no_grad():
            self.linear.weight.copy_(torch.from_numpy(w[None, :3]))
            self.linear.bias.copy_(torch.from_numpy(w[3:]))
        network = nn.Sequential(self.linear, nn.Flatten(0))
        drawn = {"target": Drawn({k: c for k, c in self.columns.items() if k != "x"}, plan)}
        self.problem = algorithm.pose(
            objective, constraints, enforcement, num_samples=N, sampling=drawn, dtype=torch.float64
        )
        self.engine = Engine(network, self.problem, algorithm, micro_batch=micro_batch)

    def step(self, index, optimizer):
        self.engine.train_batch({name: column[index] for name, column in self.columns.items()}, optimizer)

    @property
    def w(self):
        return torch.cat([self.linear.weight.detach()[0], self.linear.bias.detach()]).numpy()

    @property
    def rows(self):
        return torch.cat([state.rows.flatten() for state in self.problem.states]).numpy()


def drawn_batches(plan):
    return [batch for epoch in range(STEPS) for batch in plan.batches(epoch)][:STEPS]


@pytest.mark.parametrize("name", RULES)
def test_multipliers_follow_remembered_rows(name):
    data, plan, (rule, other) = table(), UniformBatches(N, SIZE), RULES[name]
    one = Package(data, START, CrossEntropy(), constraints(), rule, SOX(0.4), plan)
    problem = posed_problem(data, Uniform(N, SIZE))
    two = second.Constrained(problem, [*CAPS.values(), 0.05], other, START, gamma=0.4, lr=0.05)
    optimizer, visits = torch.optim.SGD(one.linear.parameters(), lr=0.05), []
    for t, index in enumerate(drawn_batches(plan)):
        one.step(index, optimizer)
        visits.append(two.step(index.numpy()))
        np.testing.assert_allclose(one.w, two.w, **CLOSE, err_msg=f"weights after step {t}")
        np.testing.assert_allclose(one.rows, two.values(), **CLOSE, err_msg=f"rows after step {t}")
        found = list(one.problem.multipliers().values())
        np.testing.assert_allclose(found, two.multipliers(), **CLOSE, err_msg=f"multipliers after step {t}")
    assert {0, 1} <= {len(CAPS) + 1 - count for count in visits}  # some batches lack a subset
    assert np.abs(two.w - START).max() > 1e-2


FAVOURED = 1
THRESHOLDS, WIDTH, RHO, LAM, KAPPA = (0.2, 0.5, 0.8), 0.3, 3.0, 0.05, 0.02
FAIR = {
    "scores": (lambda: ROCFairness(THRESHOLDS, KAPPA, WIDTH), RateGap, ()),
    "quantiles": (lambda: ROCFairness(THRESHOLDS, KAPPA, WIDTH, QuantileScores(knots=5)), LevelGap, (5,)),
}
BOXES = {
    "SONEX": (
        lambda: SONEX(0.4, 0.2, lam=LAM),
        lambda problem, step: single.SONEX(problem, START, step, gamma=0.4, correction=0.2),
    ),
    "ALEXR2": (
        lambda: ALEXR2(K=3, eta=0.2, nu=0.4, lam=LAM, gamma=0.4, gamma_prime=0.2),
        lambda problem, step: dual.ALEXR2(
            problem, START, step, gamma=0.4, theta=0.5, inner_steps=3, eta=0.2, nu=0.4, pair="old"
        ),
    ),
}


@pytest.mark.parametrize("name", BOXES)
@pytest.mark.parametrize("scale", FAIR)
def test_equal_rates_at_thresholds_and_at_quantiles_in_micro_batches(name, scale):
    """Two groups of 8 and 22 in batches of 9: true positive rates, then false ones, at three levels."""
    data, plan, sampler = table(), UniformBatches(N, 9), Uniform(N, 9)
    data = replace(data, groups=(data.x[:, 1] > 0.8).astype(np.int64))
    make, term, more = FAIR[scale]
    parts = []
    for label, level in product((1, 0), THRESHOLDS):
        pair = [np.flatnonzero((data.labels == label) & (data.groups == group)) for group in (FAVOURED, 1 - FAVOURED)]
        gap = term(data, *pair, GapHinge(RHO, KAPPA, LAM), level, WIDTH, *more)
        parts.append(Part(gap, np.array([sampler.both(*pair)]), 1 / 6))
    problem = Problem(Linear(data), N, tuple(parts), ((MeanLogistic(data), 1.0),))
    algorithm, box = BOXES[name]
    two = box(problem, single.HeavyBall(0.05, 0.3))
    one = Package(data, START, CrossEntropy(), [make()], HingePenalty(RHO), algorithm(), plan, micro_batch=5)
    optimizer, lacking = HeavyBall(one.linear.parameters(), lr=0.05, beta=0.3), 0
    for t, index in enumerate(drawn_batches(plan)):
        one.step(index, optimizer)
        two.step(index.numpy())
        np.testing.assert_allclose(one.w, two.w, **CLOSE, err_msg=f"weights after step {t}")
        known = [np.where(seen[:, None], rows, np.nan) for rows, seen in zip(two.rows, two.seen, strict=True)]
        np.testing.assert_allclose(one.rows, np.concatenate(known).ravel(), **CLOSE, err_msg=f"rows after step {t}")
        lacking += any(not part.term.measure(problem.at(START), index.numpy()).rows.size for part in parts)
    assert 0 < lacking < STEPS
    assert np.abs(two.w - START).max() > 1e-2

"""The terms of a problem: what is logged, which rows are allocated, and which functions are smoothed."""

import pytest
import torch
from torch import nn

from fcco_lightning import (
    BSGD,
    SGD,
    SONEX,
    SOX,
    Constraint,
    Engine,
    HingePenalty,
    MeanAtMost,
    Objective,
    ROCFairness,
    RowDomain,
    SoftRate,
)
from fcco_lightning.algorithms import SingleLoop
from fcco_lightning.errors import ConfigError, StateIndexError
from fcco_lightning.estimators import Average, ScaledAverage
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.outer import Absolute, Linear, SmoothedHinge, Square

ROUNDING = 1e-12  # sums of at most 20 numbers of order one, float64
N = 8


class Squares(Objective):
    outer = Square(0.5)

    def measure(self, outputs, batch):
        return outputs.mean(), Rows(outputs.unsqueeze(1), torch.ones(len(outputs), dtype=torch.bool))


class Groups(Squares):
    """One row per group instead of per sample."""

    def row_domain(self, num_samples, columns):
        return RowDomain(2)

    def measure(self, outputs, batch):
        means = torch.stack([outputs[batch["group"] == g].mean() for g in (0, 1)]).unsqueeze(1)
        return outputs.mean(), Rows(means, torch.ones(2, dtype=torch.bool))


def constraints():
    return [ROCFairness((0.0, 1.0), kappa=0.0), MeanAtMost(SoftRate(), kappa=0.1)]


def full_batch():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=generator, dtype=torch.float64)
    return {"x": x, "y": torch.arange(N) % 2, "group": torch.arange(N) // 2 % 2, "index": torch.arange(N)}


def make(algorithm, objective=None, penalty=None, rows=torch.float64):
    network = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, -0.5]]))
        network[0].bias.fill_(0.3)
    objective = objective or Squares()
    problem = algorithm.pose(objective, constraints(), penalty, num_samples=N, dtype=rows)
    return network, Engine(network, problem, algorithm)


def one_step(network, engine):
    return engine.train_batch(full_batch(), torch.optim.SGD(network.parameters(), lr=1e-300))


def test_what_is_logged_are_the_parts_of_the_objective_function():
    network, engine = make(BSGD(), penalty=HingePenalty(4.0))
    batch = full_batch()
    estimates = one_step(network, engine)
    outputs = network(batch["x"])
    penalties = []
    for c in constraints():
        penalties += (4.0 * c.violation(c.measure(outputs, batch)[1].values).clamp(min=0)).tolist()
    assert len(penalties) == 5  # (1/m) sum over all m rows
    assert estimates["objective"].item() == pytest.approx((outputs + 0.5 * outputs**2).mean().item(), abs=ROUNDING)
    assert estimates["penalty"].item() == pytest.approx(sum(penalties) / 5, abs=ROUNDING)
    assert not any(e.requires_grad for e in estimates.values())


def test_rows_are_allocated_where_they_are_remembered():
    assert [tuple(s.rows.shape) for s in make(SOX())[1].problem.states] == [(N, 1), (4, 2), (1, 1)]
    assert [tuple(s.rows.shape) for s in make(SOX(), Groups())[1].problem.states] == [(2, 1), (4, 2), (1, 1)]
    assert make(BSGD())[1].problem.states == []
    assert make(SOX(), rows=torch.float32)[1].problem.states[0].rows.dtype == torch.float32


def test_rows_per_group_are_written_per_group():
    network, engine = make(SOX(), Groups())
    batch = full_batch()
    engine.train_batch(batch, torch.optim.SGD(network.parameters(), lr=1e-300))
    outputs = network(batch["x"])
    means = [outputs[batch["group"] == g].mean().item() for g in (0, 1)]
    assert engine.problem.states[0].rows[:, 0].tolist() == pytest.approx(means, abs=ROUNDING)


@pytest.mark.parametrize(("algorithm", "penalty"), [(SGD(), None), (SOX(), HingePenalty(0.0))], ids=["SGD", "rho=0"])
def test_constraints_are_left_out_where_they_are_not_used(algorithm, penalty):
    network, engine = make(algorithm, penalty=penalty)
    assert engine.problem.constraints == []
    assert one_step(network, engine).keys() == {"objective"}


def test_only_what_is_not_smooth_is_smoothed():
    algorithm = SONEX(lam=0.2)
    outers = [
        algorithm.smoothing(term.outer) for term in make(algorithm, penalty=HingePenalty(10.0))[1].problem.all_terms
    ]
    assert outers[0] == Square(0.5)
    assert outers[2] == SmoothedHinge(10.0, 0.1, lam=0.2)
    assert outers[1] == Linear(Absolute(SmoothedHinge(10.0, 0.0, lam=0.4)), (1.0, -1.0))


def test_a_problem_of_constraints_only_needs_no_objective_function():
    class Nothing(Objective):
        def measure(self, outputs, batch):
            return None, None

    problem = SOX().pose(Nothing(), constraints(), num_samples=N)
    assert isinstance(problem.constraints[0], Constraint)
    assert len(problem.states) == 2


def test_only_terms_that_are_corrected_are_measured_at_previous_weights():
    """An average of the objective beside corrected constraints: its rows leave the interval on purpose, or never do."""
    algorithm = SingleLoop(Average(0.9, 0.1), objective_estimator=ScaledAverage(0.9))
    _, engine = make(algorithm, penalty=HingePenalty(10.0))
    previous = [p.detach() + 1 for p in engine.params]
    _, (own, *others) = engine.measure(engine.evaluate(engine.received(full_batch()), previous))
    assert own.before is None
    assert all(seen.before is not None for seen in others)


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (torch.tensor([0, 1, 2]), ConfigError, r"Named measured 2 rows, but the `index` of its Rows has 3 entries"),
        (
            torch.tensor([0, 2]),
            StateIndexError,
            r"indices 0\.\.1, got index 2 at batch position 1",
        ),
    ],
)
def test_names_of_rows_that_do_not_fit_are_refused(index, error, message):
    class Named(Groups):
        def measure(self, outputs, batch):
            g0, rows = super().measure(outputs, batch)
            return g0, rows._replace(index=index)

    network, engine = make(SOX(), Named())
    with pytest.raises(error, match=message):
        one_step(network, engine)
    assert bool(engine.problem.all_terms[0].state.rows.isnan().all())


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (RowDomain(N, per_sample=True), "Some measured 2 rows for a batch of 8 samples, each of which has a row"),
        (RowDomain(3), "Some measured 2 rows, but its `row_domain` declares 3"),
    ],
)
def test_rows_that_are_not_those_of_the_domain_are_refused(domain, message):
    class Some(Groups):
        def row_domain(self, num_samples, columns):
            return domain

    network, engine = make(SOX(), Some())
    with pytest.raises(ConfigError, match=message):
        one_step(network, engine)

"""Multipliers of convex problems against the exact ones."""

import itertools
import math
import warnings
from inspect import isabstract

import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.optim.lr_scheduler import CyclicLR, LinearLR, OneCycleLR, ReduceLROnPlateau

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    AUC,
    BSGD,
    MOAP,
    MSVR,
    SOAP,
    SONEX,
    SONX,
    SOX,
    AdaptivePenalty,
    AugmentedLagrangian,
    CrossEntropy,
    Engine,
    EqualizedOdds,
    Lagrangian,
    MeanAtMost,
    NuPI,
    Objective,
    SoftRate,
    SquaredPair,
    UniformSampling,
)
from fcco_lightning.constraints import Comparison, Constraint, Multipliers
from fcco_lightning.data.batches import Drawn
from fcco_lightning.errors import ConfigError
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.outer import Multiplied, slopes
from tests.contracts.completeness import concrete_classes

A = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0], [0.3, -0.2, 0.4]], dtype=torch.float64)
B = torch.tensor([0.2, -0.1, 5.0], dtype=torch.float64)  # the third one is slack
TARGET = torch.tensor([1.0, 0.7, -0.5], dtype=torch.float64)
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SIGN = (X[:, 0] + 0.5 * X[:, 1].sin() > 0).double() * 2 - 1
CLOSE = {"rtol": 1e-2, "atol": 1e-3}
RULES = {
    "Lagrangian": lambda: Lagrangian(0.2),
    "NuPI": lambda: NuPI(0.2, 0.7),
    "NuPI, smoothed": lambda: NuPI(0.2, 0.5, 0.3),
    "AugmentedLagrangian": lambda: AugmentedLagrangian(1.0, 0.3),
    "AdaptivePenalty": lambda: AdaptivePenalty(0.1, 0.5),
}
ALGORITHMS = {
    "SONEX": lambda: SONEX(0.5, "theory"),
    "SONX": lambda: SONX(0.5, 0.5),
    "MSVR": lambda: MSVR(0.5, 0.5, b=0.5),
    "SOAP": lambda: SOAP(0.5),
    "MOAP": lambda: MOAP(0.5),
    "BSGD": BSGD,
    "ALEXR, mirror": lambda: ALEXR(1.0, 0.0, mirror=True, jacobian="reuse"),
    "ALEXR2": lambda: ALEXR2(K=3, eta=0.5, nu=0.5),
}


def test_every_rule_has_a_case():
    made = {type(make()) for make in RULES.values()}
    assert {c for c in concrete_classes(Multipliers) if not isabstract(c)} == made


class Weights(nn.Module):
    """The weights themselves, whatever the input."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x):
        return self.w.expand(len(x), 3)


class Distance(Objective):
    """``|w - target|^2 / 2``."""

    def measure(self, outputs, batch):
        return (outputs[0] - TARGET).square().sum() / 2, None


class Logistic(Objective):
    """``1000 (mean log(1 + exp(-sign <w, x>)) + |w|^2 / 5)``: in a unit of its own."""

    def measure(self, outputs, batch):
        loss = nn.functional.softplus(-SIGN * (X @ outputs[0])).mean()
        return 1000 * (loss + 0.2 * outputs[0].square().sum()), None


class Halfspaces(Constraint):
    """``A w - b <= 0`` with some of the rows."""

    kappa, width = 0.0, 1

    def __init__(self, *rows):
        self.rows = list(rows)
        self.names = [f"row {i}" for i in rows]

    def measure(self, outputs, batch):
        values = (A @ outputs[0] - B)[self.rows].unsqueeze(1)
        return None, Rows(values, torch.ones(len(self.rows), dtype=torch.bool))

    def outer(self, phi):
        return phi

    def violation(self, values):
        return values[:, 0]


class Slab(Constraint):
    """``|w_1 - w_3| - kappa <= 0``."""

    comparison = Comparison((1, -1), sides=2)
    kappa, names = 0.15, ["slab"]

    def measure(self, outputs, batch):
        return None, Rows(outputs[:1, [0, 2]], torch.ones(1, dtype=torch.bool))


def train(rule, constraints, objective=Distance, algorithm=None, steps=200, lr=0.3):
    """The weights and the multipliers of all rows."""
    algorithm = algorithm or SOX(1.0)
    network = Weights()
    problem = algorithm.pose(objective(), constraints, rule, num_samples=4, dtype=torch.float64)
    engine, optimizer = Engine(network, problem, algorithm), torch.optim.SGD(network.parameters(), lr=lr)
    batch = {"x": torch.zeros(4, 1, dtype=torch.float64), "index": torch.arange(4)}
    for _ in range(steps):
        engine.train_batch(batch, optimizer)
    return network.w.detach(), torch.tensor(list(problem.multipliers().values()), dtype=torch.float64)


def projection():
    """The nearest point of the halfspaces and its multipliers, from the active rows."""
    active = A[:2]
    nu = torch.linalg.solve(active @ active.T, active @ TARGET - B[:2])
    return TARGET - active.T @ nu, torch.cat([nu, torch.zeros(1, dtype=torch.float64)])


@pytest.mark.parametrize("name", RULES)
def test_multipliers_of_a_projection_are_the_exact_ones(name):
    w, nu = train(RULES[name](), [Halfspaces(0, 1, 2)])
    exact, multipliers = projection()
    torch.testing.assert_close(nu, multipliers, **CLOSE)
    torch.testing.assert_close(w, exact, **CLOSE)


def quickly(*names):
    """Those of all names; the others are slow."""
    return lambda name: name if name in names else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*map(quickly("SONEX", "ALEXR, mirror", "ALEXR2"), ALGORITHMS)])
def test_every_algorithm_finds_the_same_multipliers(name):
    rate = 0.1 if name == "ALEXR2" else 0.3
    w, nu = train(AugmentedLagrangian(1.0, rate), [Halfspaces(0, 1, 2)], algorithm=ALGORITHMS[name](), steps=200)
    exact, multipliers = projection()
    torch.testing.assert_close(nu, multipliers, **CLOSE)
    torch.testing.assert_close(w, exact, **CLOSE)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*map(quickly("AdaptivePenalty"), RULES)])
def test_a_constrained_logistic_regression_in_another_unit(name):
    """One multiplier is that of a side of a slab, h = |w_1 - w_3| - .15."""
    w, nu = train(RULES[name](), [Halfspaces(0, 2), Slab()], Logistic, lr=3e-4, steps=400)

    def value(w):
        return float(Logistic().measure(torch.as_tensor(w).expand(1, 3), None)[0]) / 1000

    rows = [{"type": "ineq", "fun": lambda w, i=i: float(B[i] - A[i] @ torch.as_tensor(w))} for i in (0, 2)]
    rows += [{"type": "ineq", "fun": lambda w, s=s: 0.15 - s * (w[0] - w[2])} for s in (1, -1)]
    best = minimize(value, [0.0] * 3, constraints=rows, method="SLSQP", options={"ftol": 1e-14, "maxiter": 200})
    exact = torch.from_numpy(best.x)
    assert value(w) == pytest.approx(best.fun, rel=1e-2)
    torch.testing.assert_close(w, exact, **CLOSE)
    # the multipliers of the active rows make the gradient vanish
    point = exact.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(Logistic().measure(point.expand(1, 3), None)[0], point)
    normals = torch.cat([A[[0, 2]], (exact[0] - exact[2]).sign() * torch.tensor([[1.0, 0.0, -1.0]])]).double()
    active = torch.cat([(A @ exact - B)[[0, 2]], ((exact[0] - exact[2]).abs() - 0.15).view(1)]) > -1e-6
    expected = torch.zeros(3, dtype=torch.float64)
    expected[active] = torch.linalg.lstsq(normals[active].T, -gradient).solution
    assert active.tolist() == [True, False, True]
    torch.testing.assert_close(nu, expected, rtol=1e-2, atol=0.5)


@pytest.mark.parametrize("name", RULES)
def test_a_slack_constraint_changes_nothing(name):
    class Far(Halfspaces):
        def measure(self, outputs, batch):
            _, rows = super().measure(outputs, batch)
            return None, rows._replace(values=rows.values - 100)

    alone, with_slack = (train(RULES[name](), limits, steps=20) for limits in ([Slab()], [Slab(), Far(0, 1, 2)]))
    assert torch.equal(alone[0], with_slack[0])
    assert torch.equal(with_slack[1], torch.cat([alone[1], torch.zeros(3, dtype=torch.float64)]))


def test_the_dual_steps_follow_the_schedule_of_the_learning_rate():
    network, algorithm = Weights(), SOX(1.0)
    problem = algorithm.pose(Distance(), [Halfspaces(0)], Lagrangian(1.0), num_samples=4, dtype=torch.float64)
    engine, optimizer = Engine(network, problem, algorithm), torch.optim.SGD(network.parameters(), lr=0.0)
    optimizer.param_groups[0] |= {"initial_lr": 0.4, "lr": 0.1}  # as a schedule leaves them
    batch = {"x": torch.zeros(4, 1, dtype=torch.float64), "index": torch.arange(4)}
    network.w.data.fill_(1.0)
    h, size = 1.5 - 0.2, 0.5 * (0.3**2 + 1.5**2)  # of the constraint and of the objective
    for steps in (1, 2):
        engine.train_batch(batch, optimizer)
        network.w.data.fill_(1.0)
        assert problem.multipliers()["row 0"] == pytest.approx(size * 0.25 * h * steps)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: OneCycleLR(optimizer, 0.1, 20),
        lambda optimizer: CyclicLR(optimizer, 0.001, 0.1, 5, cycle_momentum=False),
        lambda optimizer: LinearLR(optimizer, 0.1, total_iters=5),
        lambda optimizer: ReduceLROnPlateau(optimizer, patience=0, threshold=1.0),
    ],
)
def test_dual_steps_are_shares_of_the_largest_learning_rate_so_far(schedule):
    """Never more than one, whatever a schedule begins with, and the same in a run that is continued."""

    def made():
        network, algorithm = Weights(), SOX(1.0)
        problem = algorithm.pose(Distance(), [Halfspaces(0)], Lagrangian(1.0), num_samples=4, dtype=torch.float64)
        return problem, Engine(network, problem, algorithm), torch.optim.SGD(network.parameters(), lr=0.1)

    problem, engine, optimizer = made()
    follows, batch = schedule(optimizer), {"x": torch.zeros(4, 1, dtype=torch.float64), "index": torch.arange(4)}
    base, largest, paces = optimizer.param_groups[0].get("initial_lr", 0.0), 0.0, []
    for _ in range(15):
        rate = optimizer.param_groups[0]["lr"]
        largest = max(largest, base, rate)
        engine.train_batch(batch, optimizer)
        (rows,) = problem.multipliers_of_terms
        paces.append(rows.pace.item())
        assert paces[-1] == pytest.approx(rate / largest)
        follows.step(*([1.0] if isinstance(follows, ReduceLROnPlateau) else []))
    again, _, other = made()
    again.load_state_dict(problem.state_dict())
    other.param_groups[0]["lr"] = rate
    again.multipliers_of_terms[0].follow(other)
    assert again.multipliers_of_terms[0].pace.item() == pytest.approx(rate / largest)
    assert min(paces) < 1


def test_the_unit_is_that_of_a_batch_which_says_something_of_the_objective():
    """Rare positives: a batch without any says nothing of the AUC, and the unit is not that of 1/p batches."""
    columns = {"y": (torch.arange(400) % 50 == 0).long(), "index": torch.arange(400)}
    x = 10 * torch.randn(400, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plan, units = UniformSampling(20).plan(columns, seed=0), []
    network, algorithm, objective = torch.nn.Linear(2, 1, dtype=torch.float64), SOX(), AUC(SquaredPair())
    constraint, given = MeanAtMost(SoftRate(), 0.4), {"target": Drawn(columns, plan)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = algorithm.pose(objective, [constraint], num_samples=400, sampling=given, dtype=torch.float64)
    engine, optimizer = Engine(network, problem, algorithm), torch.optim.SGD(network.parameters(), lr=1e-12)
    expected = torch.tensor(float("nan"), dtype=torch.float64)
    for batch in itertools.islice(plan.batches(1), 12):
        of_batch = {"x": x[batch], **{name: column[batch] for name, column in columns.items()}}
        engine.train_batch(of_batch, optimizer)
        if of_batch["y"].any() and expected.isnan():
            expected = objective.measure(network(of_batch["x"]).squeeze(1), of_batch)[0].detach()
        units.append(problem.multipliers_of_terms[0].unit.item())
        torch.testing.assert_close(problem.multipliers_of_terms[0].unit, expected, equal_nan=True)
    assert math.isnan(units[0])
    assert units[-1] > 1


@pytest.mark.parametrize("rows", [[0], [0, 1, 2]])
def test_the_rows_of_a_constraint_start_with_one_weight_together(rows):
    constraints, rule = [Halfspaces(*rows), Halfspaces(0, 1)], AdaptivePenalty(start=0.6)
    problem = SOX(1.0).pose(Distance(), constraints, rule, num_samples=4, dtype=torch.float64)
    nu = torch.cat([term.multipliers.state.rows.flatten() for term in problem.all_terms])
    torch.testing.assert_close(nu, torch.tensor([0.6 / len(rows)] * len(rows) + [0.3] * 2, dtype=torch.float64))


def test_dual_steps_by_hand():
    memory = torch.tensor([[[0.5, 0.1]]], dtype=torch.float64)  # one row of two sides
    excess = torch.tensor([[0.2, -0.4]], dtype=torch.float64)

    def after(rule, memory=memory):
        return rule.moved(memory, excess, 0.5).flatten().tolist()

    assert after(Lagrangian(1.0)) == pytest.approx([0.6, 0.0])
    assert after(AugmentedLagrangian(2.0, 0.5)) == pytest.approx([0.5 + 0.25 * 0.4, 0.75 * 0.1])
    with_error = torch.cat([memory, torch.tensor([[[0.1, -0.5]]], dtype=torch.float64)], 1)
    smoothed = [0.25 * 0.1 + 0.75 * 0.2, 0.25 * -0.5 + 0.75 * -0.4]
    expected = [0.5 + 0.1 + 2 * (smoothed[0] - 0.1), 0.1 - 0.2 + 2 * (smoothed[1] + 0.5), *smoothed]
    assert after(NuPI(1.0, 2.0, 0.25), with_error) == pytest.approx([max(0, v) for v in expected[:2]] + smoothed)
    grown = [0.5 * 2.718281828**0.25, 0.1 * 2.718281828**-0.5]
    assert after(AdaptivePenalty(1.0, 0.4)) == pytest.approx(grown)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Multiplied(torch.ones(2)), r"multiplier must have shape \(b, 1\) or \(b, 2\), got \(2,\)"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_dual_variables_of_their_own_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"ALEXR stores dual variables.*mirror=True"):
        ALEXR().pose(Distance(), [Halfspaces(0)], num_samples=4)


@pytest.mark.parametrize(
    ("excess", "share"), [(-0.5, 0.0), (-0.01, 0.5), (0.0, 1.0), (0.01, 1.5), (0.02, 2.0), (0.5, 2.0)]
)
def test_an_adaptive_penalty_pushes_by_what_is_left_of_a_width(excess, share):
    """``y = nu (1 + clamp(h / width, -1, 1))``."""
    nu = torch.tensor([[0.3], [1.7]])
    t = torch.full((2, 1), 0.1 + excess)
    slope = slopes(AdaptivePenalty(width=0.02).outer(nu.unsqueeze(1), 0.1, torch.ones(())), t)
    torch.testing.assert_close(slope, share * nu, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "rule",
    [AdaptivePenalty(), AugmentedLagrangian(), Lagrangian(), NuPI(smoothing=0.5)],
    ids=lambda r: type(r).__name__,
)
def test_multipliers_move_in_rows_of_single_precision(rule):
    network, algorithm = torch.nn.Linear(2, 1), SOX()
    problem = algorithm.pose(CrossEntropy(), [EqualizedOdds()], rule, num_samples=8)
    engine, optimizer = Engine(network, problem, algorithm), torch.optim.SGD(network.parameters(), lr=0.1)
    columns = {"y": torch.arange(8) % 2, "group": torch.arange(8) // 2 % 2, "index": torch.arange(8)}
    for _ in range(3):
        engine.train_batch({"x": torch.randn(8, 2), **columns}, optimizer)
    assert {state.rows.dtype for state in problem.numbered_states()} == {torch.float32}
    assert all(map(math.isfinite, problem.multipliers().values()))

"""Algorithms reach the optimum that scipy finds for the exact, unsmoothed problem."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    SONEX,
    SONX,
    SOX,
    Constraint,
    Engine,
    HeavyBall,
    Objective,
    ProximalSGD,
)
from fcco_lightning.constraints import HingePenalty
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.outer import Hinge, Shifted

GAP = 1e-3  # relative gap of F asked of every method


class Point(nn.Module):
    """The weights themselves are the output."""

    def __init__(self, size):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, x):
        return self.w


# ------------------------------------------------------------------- a quadratic program: min |w - c|^2/2, A w <= b

CENTRE = np.array([2.0, 1.0])
A, B = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([1.0, 1.2])
PENALTY = 20.0


class Distance(Objective):
    def measure(self, outputs, batch):
        return (outputs - torch.from_numpy(CENTRE)).square().sum() / 2, None


class HalfPlanes(Constraint):
    width, kappa, names = 1, 0.0, ["first", "second"]

    def measure(self, outputs, batch):
        values = (torch.from_numpy(A) @ outputs - torch.from_numpy(B)).unsqueeze(1)
        return None, Rows(values, torch.ones(2, dtype=torch.bool))

    def outer(self, phi):
        return phi

    def violation(self, values):
        return values[:, 0]


def quadratic_program(algorithm, steps, lr, *, beta=1.0, last=1.0):
    """Weights after ``steps`` batches of both constraint rows; the learning rate falls to ``last`` of lr."""
    point = Point(2)
    problem = algorithm.pose(Distance(), [HalfPlanes()], HingePenalty(PENALTY), num_samples=2, dtype=torch.float64)
    engine = Engine(point, problem, algorithm)
    optimizer = HeavyBall(point.parameters(), lr=lr, beta=beta)
    rows = torch.arange(2)
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = lr * last ** (t / steps)
        engine.train_batch({"x": rows, "index": rows}, optimizer)
    return point.w.detach().numpy()


def distance(w):
    return ((w - CENTRE) ** 2).sum() / 2


@pytest.fixture(scope="module")
def qp_optimum():
    found = minimize(distance, np.zeros(2), constraints={"type": "ineq", "fun": lambda w: B - A @ w})
    assert found.x == pytest.approx([1.0, 0.2])
    return found.fun


QP = {  # the values are exact, so one draw does; algorithm, steps, learning rate, options
    "SONEX": (lambda: SONEX(0.8, 0.1, lam=4e-4), 1500, 1e-2, {"last": 3e-3, "beta": 0.5}),
    "SONX": (lambda: SONX(0.8, 0.1), 1500, 3e-2, {"last": 1e-4}),
    "SOX": (lambda: SOX(0.9), 1500, 3e-2, {"last": 1e-4}),
    "ALEXR": (lambda: ALEXR(tau=1.0, theta=1.0, jacobian="reuse"), 800, 2e-2, {"last": 1.0}),
    "ALEXR2": (
        lambda: ALEXR2(K=5, eta=2e-4, nu=0.1, lam=3e-4, gamma=0.8, gamma_prime=0.1, jacobian="reuse"),
        1800,
        0.5,
        {"last": 1.0, "beta": 0.3},
    ),
}


@pytest.mark.parametrize("name", [n if n == "ALEXR" else pytest.param(n, marks=pytest.mark.slow) for n in QP])
def test_constrained_quadratic(name, qp_optimum):
    make, steps, lr, options = QP[name]
    w = quadratic_program(make(), steps, lr, **options)
    assert abs(distance(w) - qp_optimum) <= GAP * qp_optimum
    assert (A @ w - B).max() <= GAP


@pytest.mark.parametrize(
    ("eps", "steps"), [(1e-1, 300), *(pytest.param(eps, 1500, marks=pytest.mark.slow) for eps in (1e-2, 1e-3))]
)
def test_stationary_points_of_the_smoothed_penalty_are_nearly_kkt(eps, steps):
    # SONEX paper, Proposition 5.2: with lam = eps/rho a stationary point has max g <= eps and |nu_i g_i| = O(eps)
    lam = eps / PENALTY
    w = quadratic_program(SONEX(1.0, 0.0, lam=lam, fresh=True), steps, 30 * lam, beta=0.05, last=1.0)
    g = A @ w - B
    multipliers = np.clip(g / lam, 0, PENALTY) / 2
    assert np.abs(w - CENTRE + A.T @ multipliers).max() <= eps  # stationary
    assert g.max() <= eps
    assert np.abs(multipliers * g).max() <= 10 * eps


# ------------------------------------------------------------------------ CVaR of squared losses, threshold trained too

N, TAIL = 40, 0.25
X = np.random.default_rng(0).normal(size=(N, 2))
Y = X @ np.array([1.0, -0.5]) + np.random.default_rng(1).normal(size=N) * 0.4


class CVaR(Objective):
    """``s + (1/n) sum_i (1/r) [l_i(w) - s]_+`` with l_i the squared error; s is a parameter of the objective."""

    def __init__(self):
        super().__init__()
        self.threshold = nn.Parameter(torch.zeros((), dtype=torch.float64))

    @property
    def outer(self):
        return Shifted(Hinge(1 / TAIL), self.threshold)

    def measure(self, outputs, batch):
        losses = (outputs[:, 0] - batch["y"]).square().unsqueeze(1)
        return self.threshold, Rows(losses, torch.ones(len(losses), dtype=torch.bool), self.outer)


def worst_losses(w):
    """F at the best threshold: the mean of the r n largest losses."""
    return np.sort((X @ w - Y) ** 2)[-int(TAIL * N) :].mean()


@pytest.fixture(scope="module")
def cvar_optimum():
    def excess(v):
        return v[3:] + v[2] - (X @ v[:2] - Y) ** 2

    start = np.concatenate([np.zeros(3), Y**2])
    constraints = [{"type": "ineq", "fun": excess}, {"type": "ineq", "fun": lambda v: v[3:]}]
    found = minimize(
        lambda v: v[2] + v[3:].mean() / TAIL, start, constraints=constraints, options={"maxiter": 500, "ftol": 1e-12}
    )
    assert worst_losses(found.x[:2]) == pytest.approx(found.fun, rel=1e-6)
    return found.fun


METHODS = {
    "SONEX": (lambda: SONEX(0.8, 0.1, lam=0.003), HeavyBall, {"beta": 0.5}, 0.02, 700),
    "ALEXR2": (
        lambda: ALEXR2(K=5, eta=0.01, nu=0.5, lam=0.003, gamma=0.8, gamma_prime=0.1),
        HeavyBall,
        {"beta": 1.0},
        0.5,
        2500,
    ),
    "ALEXR": (lambda: ALEXR(tau=1.0, theta=0.1), ProximalSGD, {}, 0.02, 1500),
    "SOX": (lambda: SOX(0.8), HeavyBall, {"beta": 0.5}, 0.02, 1500),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [n if n == "SONEX" else pytest.param(n, marks=pytest.mark.slow) for n in METHODS])
def test_cvar_with_a_trained_threshold(name, cvar_optimum):
    batch_size = N if name.startswith("ALEXR") else 20
    make, optimizer_class, options, lr, steps = METHODS[name]
    network, objective = nn.Linear(2, 1, bias=False).double(), CVaR()
    with torch.no_grad():
        network.weight.zero_()
    algorithm = make()
    engine = Engine(network, algorithm.pose(objective, num_samples=N, dtype=torch.float64), algorithm)
    assert len(engine.params) == 2  # the threshold is trained
    optimizer = optimizer_class(engine.params, lr=lr, **options)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = lr * 0.01 ** (t / steps)
        i = torch.randperm(N, generator=generator)[:batch_size]
        engine.train_batch({"x": x[i], "y": y[i], "index": i}, optimizer)
    w = network.weight.detach().numpy()[0]
    assert worst_losses(w) - cvar_optimum <= GAP * cvar_optimum
    losses = (X @ w - Y) ** 2
    value = objective.threshold.item() + np.maximum(losses - objective.threshold.item(), 0).mean() / TAIL
    assert value - cvar_optimum <= 3 * GAP * cvar_optimum

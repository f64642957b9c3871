"""PG-SMD, PG-SVRG and Alter-SGD reach the optima that scipy finds for convex problems."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from scipy.special import logsumexp
from torch import nn

from fcco_lightning import (
    OOA,
    PGSMD,
    PGSVRG,
    CrossEntropy,
    Engine,
    EqualStages,
    KLGroupDRO,
    KLPenalty,
    SampleDRO,
    StronglyConcaveStages,
)
from fcco_lightning.data.batches import Drawn, UniformBatches
from fcco_lightning.errors import ConfigError
from fcco_lightning.objectives import Quantity

N, THETA = 12, 0.5
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(N, 2))
Y = X @ np.array([1.0, -0.5]) + 0.5 * RANDOM.normal(size=N)


class Squares(Quantity):
    """Half the squared error."""

    def __call__(self, outputs, batch):
        return (outputs[:, 0] - batch["y"]).square() / 2


class Absolute(Quantity):
    """The absolute error."""

    def __call__(self, outputs, batch):
        return (outputs[:, 0] - batch["y"]).abs()


def train(algorithm, objective, batches, lr=1.0):
    """Weights and rows after so many uniform batches of 4 of the 12 samples, three to a permutation."""
    network = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(network.weight)
    problem = algorithm.pose(objective, num_samples=N, dtype=torch.float64)
    engine, draw = Engine(network, problem, algorithm), np.random.default_rng(0)
    optimizer = torch.optim.SGD(engine.params, lr=lr)
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    for _ in range(batches // 3):
        for index in torch.from_numpy(draw.permutation(N)).split(4):
            engine.train_batch({"x": x[index], "y": y[index], "index": index}, optimizer)
    return network.weight.detach().numpy()[0], problem.states[0].rows[:, 0].numpy()


def penalised(w):
    losses = (X @ w - Y) ** 2 / 2
    return THETA * (logsumexp(losses / THETA) - np.log(N))


def best_penalised():
    return minimize(penalised, np.zeros(2), tol=1e-12).x


def test_pg_svrg_reaches_the_saddle_point():
    best = best_penalised()
    algorithm = PGSVRG(gamma=20.0, eta=0.2, eta_dual=2.0, J=13, K=3)
    w, q = train(algorithm, SampleDRO(None, KLPenalty(THETA), Squares()), 450)
    np.testing.assert_allclose(w, best, atol=5e-4)
    losses = (X @ best - Y) ** 2 / 2 / THETA
    np.testing.assert_allclose(q, np.exp(losses - logsumexp(losses)), atol=5e-4)


@pytest.mark.parametrize(
    ("given", "scale", "J", "K"),  # by hand: Lambda; 1 + 162 log 4 = 225.6; 1 + 4 log 486 = 25.7; and so on
    [
        ((1, 0.5, 1.0, 1.0, 1.0, 1.0), 53.5, 226, 26),
        ((10, 2.0, 0.5, 0.5, 2.0, 1.0), 209.5, 875, 49),
        ((3, 1.0, 1.0, 0.0, 1.0, 2.0), 833.5, 3470, 45),  # 52 4^2 + 3/2; 1 + 2502 log 4; 1 + 4 log(81 417 1.5)
    ],
)
def test_constants_of_pg_svrgs_theory(given, scale, J, K):
    algorithm = PGSVRG.theory(*given)
    _, gamma, _, mu, *_ = given
    assert (algorithm.J, algorithm.K) == (J, K)
    assert algorithm.eta == pytest.approx(2 * gamma / scale)
    assert algorithm.eta_dual == pytest.approx(1 / ((mu or 1 / 4) * scale))
    with pytest.raises(ConfigError, match="mu must be a finite number >= 0"):
        PGSVRG.theory(1, 1.0, 1.0, -1.0, 1.0, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gamma", "stages", "batches"),
    [(0.5, StronglyConcaveStages(0.3), 900), (5.0, EqualStages(100, 0.1, 0.1, best_start=True), 450)],
)
def test_pg_smd_reaches_the_minimum(gamma, stages, batches):
    w, _ = train(PGSMD(gamma, stages), SampleDRO(None, KLPenalty(THETA), Squares()), batches)
    least = penalised(best_penalised())
    assert penalised(np.zeros(2)) > 1.1 * least
    assert penalised(w) < 1.01 * least


@pytest.mark.slow
def test_the_largest_error_is_that_of_the_linear_program():
    """``min_{w, s} s`` subject to ``-s <= x_i w - y_i <= s``."""
    ones = -np.ones((N, 1))
    rows = np.block([[X, ones], [-X, ones]])
    program = linprog([0, 0, 1], A_ub=rows, b_ub=np.concatenate([Y, -Y]), bounds=[(None, None)] * 3)
    w, _ = train(PGSMD(5.0, EqualStages(200, 0.05, 0.1)), SampleDRO(loss=Absolute()), 450)
    assert np.abs(Y).max() > 1.3 * program.fun
    assert np.abs(X @ w - Y).max() < 1.03 * program.fun


def test_alternating_steps_come_close_to_the_minimum():
    w, _ = train(OOA(0.05), SampleDRO(None, KLPenalty(THETA), Squares()), 150, lr=0.1)
    assert penalised(w) < 1.01 * penalised(best_penalised())


def test_stages_of_case_d2_need_a_penalty():
    with pytest.raises(ConfigError, match="StronglyConcaveStages needs an objective with a penalty on q"):
        PGSMD(1.0, StronglyConcaveStages()).pose(SampleDRO(), num_samples=N)


@pytest.mark.parametrize("algorithm", [PGSMD(geometry="euclidean"), OOA(geometry="euclidean")])
def test_a_geometry_that_is_not_that_of_the_penalty(algorithm):
    with pytest.raises(ConfigError, match=r"geometry='euclidean' has no closed-form step for KLPenalty\(nu=2"):
        algorithm.pose(KLGroupDRO(2.0, num_groups=3), num_samples=N)


def test_what_is_no_maximum_over_weights():
    with pytest.raises(ConfigError, match="CrossEntropy is not a maximum over weights"):
        PGSVRG().pose(CrossEntropy(), num_samples=N)


@pytest.mark.filterwarnings("ignore:no batch contains samples of all subsets")
@pytest.mark.parametrize(
    "algorithm", [PGSVRG(J=2), PGSMD(stages=StronglyConcaveStages())], ids=lambda a: type(a).__name__
)
def test_a_pass_does_not_wait_for_a_group_that_no_batch_measures(algorithm):
    columns = {"group": torch.arange(N) % 3, "y": torch.arange(N) % 2}
    plan = UniformBatches(N, N).of_weighted_samples((columns["group"] < 2).float())
    objective = KLGroupDRO(1.0, num_groups=3)
    problem = algorithm.pose(objective, num_samples=N, sampling={"target": Drawn(columns, plan)})
    network = nn.Linear(2, 1)
    engine = Engine(network, problem, algorithm)
    batch = columns | {"x": torch.from_numpy(X).float(), "index": torch.arange(N), "weight": plan.weights()}
    optimizer = torch.optim.SGD(engine.params, lr=1.0)
    for _ in range(6):
        engine.train_batch(batch, optimizer)
    state = algorithm.state_dict()
    assert state["stage"] + state["inner_count"] > 1

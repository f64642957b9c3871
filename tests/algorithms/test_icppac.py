"""ICPPAC: its steps against a second implementation in NumPy, and its limits against known KKT points."""

import numpy as np
import pytest
import torch
from torch import nn

from fcco_lightning import ConfigError, CrossEntropy, Engine, HingePenalty, MeanNear, Range, SoftRate
from fcco_lightning.algorithms import ICPPAC
from fcco_lightning.constraints import Constraint
from fcco_lightning.models import BatchNetwork
from fcco_lightning.objectives import AveragePrecision, Objective, Rows
from tests.constraints.test_multipliers import Distance, Halfspaces


class Point(BatchNetwork):
    """Gives its weights."""

    def __init__(self, start):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, batch):
        return {"target": self.w.expand(len(batch["target"]["index"]), -1)}


class Smooth(Objective):
    """``f_0(w) + <noise, w>``; the noise is a column of the batch, of mean 0."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def measure(self, outputs, batch):
        return self.f(outputs[0]) + batch["noise"].mean(0)[:2] @ outputs[0], None


class Bounded(Constraint):
    """``h(w) + noise <= 0``."""

    names, kappa, range = ["h"], 0.0, Range()

    def __init__(self, h):
        self.h = h

    def subsets(self, columns):
        return [[torch.ones_like(columns["index"], dtype=torch.bool)]]

    def measure(self, outputs, batch):
        value = self.h(outputs[0]) + batch["noise"].mean(0)[2] + batch["noise"].mean(0)[3:] @ outputs[0]
        return None, Rows(value.view(1, 1), torch.ones(1, dtype=torch.bool))


PROBLEMS = {
    "convex": (lambda w: (w - w.new_tensor([2.0, 1.0])).square().sum(), lambda w: w @ w - 1, [0.1, -0.3]),
    "weakly convex": (lambda w: -w[0], lambda w: w[0] + 0.3 * torch.sin(3 * w[0]) + w[1] ** 2 - 0.5, [-0.5, 0.4]),
}


def engine_of(name, algorithm):
    f, h, start = PROBLEMS[name]
    network = Point(start)
    problem = algorithm.pose(Smooth(f), [Bounded(h)], num_samples=4, dtype=torch.float64)
    engine = Engine(network, problem, algorithm)
    return network, engine, torch.optim.SGD(network.parameters(), lr=1.0)


def batches(count, noise, seed=0):
    random = np.random.default_rng(seed)
    return [noise * random.standard_normal((4, 5)) for _ in range(count)]


def as_batch(noise):
    return {"x": torch.zeros(4, 1), "index": torch.arange(4), "noise": torch.from_numpy(noise)}


def slope(f, w):
    point = torch.tensor(w, requires_grad=True)
    value = f(point)
    return value.item(), torch.autograd.grad(value, point)[0].numpy()


def second(name, given, *, mu, eta, tau, theta, K):
    """The method in NumPy, from the source's formulas; the weights after each stage."""
    f, h, start = PROBLEMS[name]
    x, found, given = np.array(start), [], iter(given)

    def noisy(e, z):
        return slope(h, z)[0] + e[2] + e[3:] @ z, slope(h, z)[1] + e[3:], slope(f, z)[1] + e[:2]

    while True:
        try:
            first = next(given).mean(0)
            z, y = x.copy(), 0.0
            ahead = before = noisy(first, x)[0]
            for _ in range(K):
                value, jacobian, gradient = noisy(next(given).mean(0), z)
                y = max(0, y + ((1 + theta) * ahead - theta * before + mu * np.sum((z - x) ** 2)) / tau)
                pull = 2 * (1 + y) * mu
                new = (z / eta + pull * x - gradient - y * jacobian) / (1 / eta + pull)
                ahead, before, z = value + jacobian @ (new - z), ahead, new
        except StopIteration:
            return found
        x = z
        found.append(x)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_steps_are_those_of_the_second_implementation(name, noise):
    options = {"mu": 0.3, "eta": 0.05, "tau": 5.0, "theta": 0.4, "K": 7}
    given = batches(8 * 5, noise)
    network, engine, optimizer = engine_of(name, ICPPAC(**options))
    seen = []
    for number, columns in enumerate(given, 1):
        engine.train_batch(as_batch(columns), optimizer)
        if number % 8 == 0:
            seen.append(network.w.detach().numpy().copy())
    np.testing.assert_allclose(seen, second(name, given, **options), rtol=1e-11, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "stages"),
    [
        ("convex", {"mu": 0.01, "eta": 0.1, "tau": 10.0, "theta": 0.1, "K": 200}, 4),
        pytest.param(
            "weakly convex", {"mu": 1.5, "eta": 0.05, "tau": 5.0, "theta": 0.1, "K": 100}, 25, marks=pytest.mark.slow
        ),
    ],
)
def test_it_ends_at_a_kkt_point(name, options, stages):
    f, h, _ = PROBLEMS[name]
    network, engine, optimizer = engine_of(name, ICPPAC(**options))
    columns = as_batch(np.zeros((4, 5)))
    for _ in range(stages * (options["K"] + 1) - 1):  # before the last stage ends, when its multipliers are there
        engine.train_batch(columns, optimizer)
    (multiplier,) = engine.algorithm._y[0].flatten().tolist()
    engine.train_batch(columns, optimizer)
    w = network.w.detach().numpy()
    value, normal = slope(h, w)
    assert value == pytest.approx(0, abs=2e-3)
    assert multiplier > 0.1
    np.testing.assert_allclose(slope(f, w)[1] + multiplier * normal, 0, atol=5e-3)
    if name == "convex":
        np.testing.assert_allclose(w, np.array([2, 1]) / np.sqrt(5), atol=2e-3)
        assert multiplier == pytest.approx(np.sqrt(5) - 1, abs=5e-3)


def test_a_multiplier_moves_once_a_batch_contains_its_group():
    """Scores are 0 and rates 1/2, so that h = -.1 holds on both sides."""
    network = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)).double()
    for p in network.parameters():
        nn.init.zeros_(p)
    algorithm, limit = ICPPAC(mu=1e-9, eta=1e-9, tau=1.0, K=9), MeanNear(SoftRate(), 0.5, 0.1, {"group": 0})
    problem = algorithm.pose(CrossEntropy(), [limit], num_samples=4, dtype=torch.float64)
    engine, optimizer = Engine(network, problem, algorithm), torch.optim.SGD(network.parameters(), lr=1.0)
    batch = {"x": torch.ones(4, 2).double(), "y": torch.tensor([0, 1, 0, 1]), "index": torch.arange(4)}

    def multipliers(group):
        engine.train_batch({**batch, "group": torch.full((4,), group)}, optimizer)
        return algorithm._y[0].tolist()

    assert [multipliers(1) for _ in range(4)] == [[[0.0, 0.0]]] * 4
    with torch.no_grad():
        network[0].bias.fill_(100.0)  # all are positive: h = .4 on one side
    algorithm._point.restart()
    multipliers(0)
    assert multipliers(1) == [[pytest.approx(0.4), 0.0]]


def test_probabilities_that_nobody_knows_are_those_of_counting():
    """Three of five batches contain group 0, two of them inner ones; the first and the fourth begin a stage."""
    network = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)).double()
    algorithm, limit = ICPPAC(mu=1e-9, eta=1e-9, tau=1.0, K=2), MeanNear(SoftRate(), 0.5, 0.1, {"group": 0})
    problem = algorithm.pose(CrossEntropy(), [limit], num_samples=4, dtype=torch.float64)
    engine, optimizer = Engine(network, problem, algorithm), torch.optim.SGD(network.parameters(), lr=1.0)
    batch = {"x": torch.ones(4, 2).double(), "y": torch.tensor([0, 1, 0, 1]), "index": torch.arange(4)}
    counted = []
    for group in (1, 0, 0, 0, 1):
        engine.train_batch({**batch, "group": torch.full((4,), group)}, optimizer)
        counted.append(problem.all_terms[0].counts.tolist())
    assert counted == [[0, 1], [1, 2], [2, 3], [3, 4], [3, 5]]


def test_what_it_does_not_take():
    with pytest.raises(ConfigError, match=r"ICPPAC takes no penalty, got HingePenalty.*Leave penalty out"):
        ICPPAC().pose(Distance(), [Halfspaces(0)], HingePenalty(2.0), num_samples=4)
    with pytest.raises(ConfigError, match=r"there are none\. Add one, or use SGD"):
        ICPPAC().pose(Distance(), [], num_samples=4)
    with pytest.raises(ConfigError, match="which AveragePrecision needs"):
        ICPPAC().pose(AveragePrecision(), [Halfspaces(0)], num_samples=4)
    for wrong in ({"mu": 0.0}, {"eta": -1.0}, {"tau": 0.0}, {"theta": -0.1}, {"K": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            ICPPAC(**wrong)

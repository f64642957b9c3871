"""Contrastive losses against brute force, open_clip's loss, and the whole data set."""

import copy
import itertools
import math

import numpy as np
import open_clip
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn
from torch.nn.functional import normalize

from fcco_lightning import (
    ALEXR2,
    BSGD,
    MSVR,
    SOAP,
    SOX,
    Engine,
    GlobalContrastive,
    HeavyBall,
    InfoNCE,
    ViewContrastive,
)
from fcco_lightning.algorithms import SOXBoost
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models import BatchNetwork
from fcco_lightning.models.outputs import Embeddings
from tests.contracts.registry_algorithms import ALGORITHMS

N, D = 7, 3


def embeddings(n=N, d=D, seed=0, dtype=torch.float64):
    draw = torch.randn(2, n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Embeddings(*(normalize(e, dim=1).to(dtype) for e in draw))


def some_of(pairs, index):
    return Embeddings(pairs.image[index], pairs.text[index])


def by_hand(pairs, tau):
    """g_i1 and g_i2 of all pairs, by loops."""
    image, text = (e.numpy() for e in pairs)
    found = np.zeros((len(image), 2))
    for i, j in itertools.product(range(len(image)), repeat=2):
        found[i, 0] += math.exp((image[i] @ text[j] - image[i] @ text[i]) / tau) / len(image)
        found[i, 1] += math.exp((image[j] @ text[i] - image[i] @ text[i]) / tau) / len(image)
    return torch.from_numpy(found)


@pytest.mark.filterwarnings("ignore:tau=0.0")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tau", [0.004, 0.01, 0.07, 1.0])
def test_no_temperature_overflows(tau, dtype):
    """Opposite embeddings: inner values reach exp(2 / tau), the gradient stays of the order of one."""
    sign = torch.tensor([1.0, -1.0, 1.0, -1.0])
    image = torch.stack([sign, torch.zeros(4)], 1).to(dtype).requires_grad_()
    text = (-image).detach().clone().requires_grad_()
    objective = GlobalContrastive(tau)
    objective.num_samples = 4
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        values = objective.measure(Embeddings(image, text), {"index": torch.arange(4)})[1].values
    assert torch.isfinite(values).all()
    exact = by_hand(Embeddings(image.detach().double(), text.detach().double()), tau)
    torch.testing.assert_close(values, exact, rtol=1e-3 if tau < 0.01 else 1e-4, atol=0)
    objective.outer(values).mean().backward()
    assert image.grad.isfinite().all()
    assert 0.1 < image.grad.abs().max() < 10


@pytest.mark.filterwarnings("ignore:tau=0.0")
def test_similarities_keep_their_digits_under_autocast():
    """In bf16 a similarity has an error of 1/256, which a temperature of 0.01 makes 0.4 of an exponent."""
    pairs = embeddings(16, 32, dtype=torch.float32)
    objective = GlobalContrastive(0.01, positive="batch")
    plain = objective.measure(pairs, {"index": torch.arange(16)})[1].values
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (pairs.image @ pairs.text.T).dtype == torch.bfloat16
        mixed = objective.measure(pairs, {"index": torch.arange(16)})[1].values
    assert torch.equal(plain, mixed)


class TwoTowers(BatchNetwork):
    inputs = ("x", "text")

    def __init__(self, d_in=4, d=D, seed=0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.image, self.words = nn.Linear(d_in, d, dtype=torch.float64), nn.Linear(d_in, d, dtype=torch.float64)

    def forward(self, batch):
        return {name: self.pairs(columns) for name, columns in batch.items()}

    def pairs(self, columns):
        return Embeddings(normalize(self.image(columns["x"]), dim=1), normalize(self.words(columns["text"]), dim=1))


def samples(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, 2, 4, generator=generator, dtype=torch.float64)
    return {"x": hidden[:, 0], "text": hidden[:, 0] + 0.5 * hidden[:, 1], "index": torch.arange(n)}


def engine_of(objective, algorithm, n, seed=0):
    network = TwoTowers(seed=seed)
    return Engine(network, algorithm.pose(objective, num_samples=n), algorithm)


def gradient(engine, batch):
    """Of one step from rows as they are."""
    optimizer = torch.optim.SGD(engine.params, lr=0.0)
    engine.train_batch(batch, optimizer)
    return torch.cat([p.grad.reshape(-1) for p in engine.params])


def batch_of(data, index):
    return {name: column[index] for name, column in data.items()}


def clip_gradient(network, batch, tau):
    pairs = network.pairs(batch)
    loss = open_clip.loss.ClipLoss()(pairs.image, pairs.text, 1 / tau)
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(network.parameters()))])


def test_without_memory_it_is_the_loss_of_clip():
    data, tau = samples(12), 0.1
    for objective in (GlobalContrastive(tau, positive="batch"), InfoNCE(tau)):
        engine = engine_of(objective, BSGD(), 12)
        expected = 2 * tau * clip_gradient(engine.functions.network, data, tau)
        torch.testing.assert_close(gradient(engine, data), expected)


def test_a_learnt_temperature_without_memory_is_that_of_clip():
    data, objective = samples(12), InfoNCE(0.1, learn=True)
    engine = engine_of(objective, BSGD(), 12)
    found = gradient(engine, data)
    torch.testing.assert_close(found[:-1], clip_gradient(engine.functions.network, data, 0.1))
    pairs = engine.functions.network.pairs(data)

    def loss(tau):
        return open_clip.loss.ClipLoss()(pairs.image, pairs.text, 1 / tau).item()

    slope = (loss(0.1 + 1e-6) - loss(0.1 - 1e-6)) / 2e-6  # by theta: times d tau / d theta = 0.1 - 0.005
    assert found[-1].item() == pytest.approx(slope * 0.095, rel=1e-5)


def full_loss(network, data, tau):
    pairs = network.pairs(data)
    scaled = (pairs.image @ pairs.text.T) / tau
    both = scaled.logsumexp(1) + scaled.logsumexp(0) - 2 * scaled.diagonal() - 2 * math.log(len(scaled))
    return tau * both.mean()


def test_the_size_of_a_batch_biases_a_loss_without_memory_only():
    """The expectation over all batches of 3: SogCLR's claim, at fixed weights whose rows are known."""
    n, tau = 8, 0.1
    data = samples(n, seed=3)
    batches = [torch.tensor(b) for b in itertools.combinations(range(n), 3)]

    def error(algorithm, positive):
        engine = engine_of(GlobalContrastive(tau, positive=positive), algorithm, n)
        loss = full_loss(engine.functions.network, data, tau)
        exact = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, engine.params)])
        gradient(engine, data)  # a first visit makes all rows exact
        mean = torch.stack([gradient(engine, batch_of(data, b)) for b in batches]).mean(0)
        return ((mean - exact).norm() / exact.norm()).item()

    assert error(SOX(gamma=1e-12), "dataset") < 1e-9
    assert error(BSGD(), "dataset") > 0.1
    assert error(BSGD(), "batch") > 0.1


@pytest.mark.slow
def test_a_learnt_temperature_descends_to_the_minimum():
    """At fixed embeddings F(tau) is convex; scipy knows its minimum."""
    data, rho = samples(20), 0.8
    objective = GlobalContrastive(0.3, learn="global", rho=rho, tau_min=0.01)
    engine = engine_of(objective, SOX(gamma=1.0), 20)
    network = engine.functions.network

    def loss(tau):
        return full_loss(network, data, tau).item() + 2 * rho * tau

    best = minimize_scalar(loss, bounds=(0.01, 2), method="bounded", options={"xatol": 1e-10})
    assert 0.02 < best.x < 1.5
    optimizer = torch.optim.SGD(
        [{"params": network.parameters(), "lr": 0.0}, {"params": objective.parameters(), "lr": 0.2}]
    )
    for _ in range(400):
        estimates = engine.train_batch(data, optimizer)
    assert objective.temperature().item() == pytest.approx(best.x, rel=1e-4)
    assert estimates["objective"].item() == pytest.approx(best.fun, rel=1e-6)


@pytest.mark.slow  # as that of all samples, which is quick
def test_temperatures_of_samples_descend_to_their_minima():
    """At fixed embeddings every text and image has a convex problem of its own, which scipy solves."""
    n, rho = 9, 0.8
    data = samples(n, seed=4)
    objective = GlobalContrastive(0.3, learn="per_sample", rho=rho, tau_min=0.05, tau_max=0.6, tau_lr=0.2)
    engine = engine_of(objective, SOAP(gamma=1.0), n)
    optimizer = torch.optim.SGD(engine.params, lr=0.0)
    for _ in range(1500):
        estimates = engine.train_batch(data, optimizer)
    found = engine.problem.row_parameters.state.rows.double()
    pairs = engine.functions.network.pairs(data)
    s = (pairs.image @ pairs.text.T).detach()
    total, inside = 0.0, 0
    for i in range(n):
        for side, against in enumerate((s[i], s[:, i])):

            def loss(tau, against=against, own=s[i, i]):
                return tau * (((against - own) / tau).exp().mean().log().item() + rho)

            best = minimize_scalar(loss, bounds=(0.05, 0.6), method="bounded", options={"xatol": 1e-9})
            assert found[i, side].item() == pytest.approx(best.x, abs=2e-3)
            total, inside = total + best.fun / n, inside + (0.06 < best.x < 0.59)
    assert inside > 3
    assert estimates["objective"].item() == pytest.approx(total, rel=1e-4)


def test_only_temperatures_of_the_batch_move_and_repeats_count_once():
    data = samples(8)
    batch = batch_of(data, torch.tensor([2, 5, 7]))

    def temperatures(batch):
        engine = engine_of(GlobalContrastive(0.3, learn="per_sample", rho=0.8, tau_lr=0.01, positive="none"), SOX(), 8)
        engine.train_batch(batch, torch.optim.SGD(engine.params, lr=0.0))
        return engine.problem.row_parameters.state.rows

    rows = temperatures(batch)
    assert rows.isfinite().all(1).nonzero().flatten().tolist() == [2, 5, 7]
    assert (rows[[2, 5, 7]] - 0.3).abs().min() > 1e-4
    twice = temperatures(batch_of(data, torch.tensor([2, 5, 7, 2, 5, 7])))
    engine = engine_of(GlobalContrastive(0.3, positive="none"), SOX(), 8)
    assert engine.problem.row_parameters is None
    # a repeated pair is a negative of itself, so only the samples' sum of slopes is compared, by hand
    pairs = engine.functions.network.pairs(batch_of(data, torch.tensor([2, 5, 7, 2, 5, 7])))
    s = (pairs.image @ pairs.text.T).detach()
    tau = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    scaled = (s[0] / tau)[[1, 2, 3, 4, 5]]
    (tau * ((scaled - s[0, 0] / tau).exp().mean().log() + 0.8)).backward()
    assert twice[2, 0].item() == pytest.approx(0.3 - 0.01 * tau.grad.item(), rel=1e-5)


def test_the_temperature_never_falls_to_its_bound():
    objective = GlobalContrastive(0.05, learn="global", tau_min=0.01)
    with torch.no_grad():
        objective.temperature.theta.fill_(-80.0)
    assert objective.temperature().item() == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tau": 0.005, "learn": "global"}, "tau must be a finite number > 0.005"),
        ({"learn": "yes"}, "learn must be"),
        ({"learn": "per_sample", "tau_lr": 0.0}, "tau_lr must be"),
        ({"learn": "per_sample", "tau_max": 0.01}, "tau_max must be a finite number >= 0.05"),
        ({"positive": "all"}, "positive must be"),
        ({"learn": "global", "tau_min": 0.001}, "tau_min must be"),
    ],
)
def test_bad_arguments(arguments, message):
    GlobalContrastive()
    with pytest.raises(ConfigError, match=message):
        GlobalContrastive(**arguments)


def test_bad_outputs():
    objective = GlobalContrastive(positive="batch")
    index = {"index": torch.arange(N)}
    for outputs in (torch.zeros(N, D), (torch.zeros(N, D), torch.zeros(N, D + 1)), (torch.zeros(N), torch.zeros(N))):
        with pytest.raises(DataError, match="embeddings of images and texts"):
            objective.measure(outputs, index)
    for loss in (InfoNCE().measure, objective.measure):
        with pytest.raises(DataError, match="at least 2 pairs"):
            loss(some_of(embeddings(), torch.tensor([0])), {"index": torch.tensor([0])})
    with pytest.raises(ConfigError, match="needs the number of samples"):
        GlobalContrastive().measure(embeddings(), index)


def test_inner_values_are_bounded_below_by_what_they_can_be():
    """By 1/n where a pair is its own negative; else by exp(-2 / tau) of the smallest tau."""
    for arguments, least in (
        ({"positive": "none"}, math.exp(-2 / 0.05)),
        ({"positive": "none", "learn": "global", "tau_min": 0.01}, math.exp(-2 / 0.01)),
        ({"positive": "dataset", "learn": "per_sample"}, 1 / 50),
    ):
        objective = GlobalContrastive(0.05, **arguments)
        objective.num_samples = 50
        assert objective.outer.floor == pytest.approx(least)


def test_rows_are_in_double_precision():
    engine = engine_of(GlobalContrastive(0.05), SOX(), 5)
    assert engine.problem.states[0].rows.dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"tau": 0.005}, "Raise tau to 0.02 or more, lower the learning rate or gamma'"),
        ({"tau": 0.07, "learn": "per_sample", "tau_lr": 0.01}, "Lower tau_lr, or raise tau or tau_min"),
    ],
)
def test_temperatures_with_which_gradients_can_overflow_are_named(options, match):
    with pytest.warns(UserWarning, match=match):
        GlobalContrastive(**options)


def of_logarithms(name):
    """Whether an algorithm trains a contrastive loss; "PDSCA" needs scores."""
    member = ALGORITHMS[name]
    return member.compositional and not (member.convex or member.max_form or "PDSCA" in name)


TRAINED = [name for name in ALGORITHMS if of_logarithms(name)]


OTHERS = {"MSVR, default": MSVR, "ALEXR2, averaged": lambda: ALEXR2(3, 0.2, 0.4, objective_gamma=0.4)}


def trained(objective, algorithm, *, steps, lr=0.01):
    """The network after some steps on 16 of 64 random pairs each, and a function for F before and after them."""
    n = 64
    engine = engine_of(objective, algorithm, n)
    network = engine.functions.network.float()
    data = {name: column.float() if column.is_floating_point() else column for name, column in samples(n).items()}
    momentum = isinstance(algorithm, SOXBoost)
    optimizer = HeavyBall(engine.params, 0.03, 0.5) if momentum else torch.optim.Adam(engine.params, lr)
    generator = torch.Generator().manual_seed(0)
    before = copy.deepcopy(network)
    for _ in range(steps):
        engine.train_batch(batch_of(data, torch.randperm(n, generator=generator)[:16]), optimizer)

    @torch.no_grad()
    def value(of):
        return objective.outer(objective.measure(of.pairs(data), data)[1].values).mean().item()

    return network, lambda: (value(before), value(network))


@pytest.mark.filterwarnings("ignore:tau")
@pytest.mark.parametrize("options", [{"tau": 0.005}, {"tau": 0.07, "learn": "per_sample", "tau_lr": 0.01}])
@pytest.mark.parametrize("name", TRAINED)
def test_every_algorithm_takes_steps_at_a_small_temperature(name, options):
    """MSVR, at the previous weights, and SCENT, whose rows fall geometrically, overflowed within ten of them."""
    network, _ = trained(GlobalContrastive(**options), ALGORITHMS[name].make(), steps=15)
    assert all(p.isfinite().all() for p in network.parameters())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:tau")
@pytest.mark.parametrize("tau", [0.005, 0.01])
@pytest.mark.parametrize("objective", [GlobalContrastive, ViewContrastive])
@pytest.mark.parametrize("name", [*TRAINED, *OTHERS])
def test_every_algorithm_trains_at_small_temperatures(objective, tau, name):
    algorithm = OTHERS[name]() if name in OTHERS else ALGORITHMS[name].make()
    before, after = trained(objective(tau), algorithm, steps=200)[1]()
    assert after < 0.8 * before


def test_the_bound_of_rows_changes_nothing_where_no_row_is_wrong_by_as_much(monkeypatch):
    bounded, _ = trained(GlobalContrastive(0.3), MSVR(0.4, 0.2), steps=20, lr=0.001)
    monkeypatch.setattr(GlobalContrastive, "growth", None)
    free, _ = trained(GlobalContrastive(0.3), MSVR(0.4, 0.2), steps=20, lr=0.001)
    assert all(torch.equal(a, b) for a, b in zip(bounded.parameters(), free.parameters(), strict=True))


def test_pdsca_refuses_embeddings_by_name():
    with pytest.raises(
        DataError, match=r"CrossEntropyLoss with respect to scores, but the network returns Embeddings\."
    ):
        trained(GlobalContrastive(0.3), ALGORITHMS["PDSCA"].make(), steps=1)


def test_the_least_inner_value_of_views_is_attained_where_all_others_are_far():
    """By the formula it is 1/(2n - 1), the share of the view's own partner, and not 1/n as of pairs."""
    n, tau = 6, 0.02
    objective = ViewContrastive(tau)
    objective.num_samples = n
    views = torch.eye(n, dtype=torch.float64)
    _, rows = objective.measure(Embeddings(views, views), {"index": torch.arange(n)})
    least = objective.row_domain(n, None).range.least
    torch.testing.assert_close(rows.values, torch.full_like(rows.values, 1 / (2 * n - 1)))
    assert least == pytest.approx(1 / (2 * n - 1))

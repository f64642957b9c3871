"""Second implementations of algorithms in NumPy against whole runs under a Trainer: the weights after every batch.

The network is linear and the losses are logistic or Cox's, so that gradients are written by hand.  Samples have weights
and are drawn with replacement: a batch may hold one twice.  Nothing is shared with the package.
"""

from functools import partial

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch import nn

from fcco_lightning import (
    ALEXR2,
    ICPPAC,
    PGSMD,
    SCENT,
    CoxPartialLikelihood,
    CrossEntropy,
    EqualStages,
    FCCOModule,
    GroupMaxForm,
    GroupSampling,
    HeavyBall,
    HingePenalty,
    KLPenalty,
    LogisticLoss,
    MeanAtMost,
    SOXBoost,
    Switching,
    TensorDataModule,
    UniformSampling,
)
from tests.conftest import QUIET

N, BATCHES, EPOCHS = 60, 12, 3
rng = np.random.default_rng(1)
X = np.c_[rng.normal(size=(N, 3)), np.ones(N)]
Y = (X[:, 0] + rng.normal(size=N) > 0).astype(int)
GROUP = rng.permutation(np.arange(N) % 4)
WEIGHT = rng.uniform(0.5, 2, N)
WEIGHT /= WEIGHT.mean()
TIME = rng.exponential(size=N)
EVENT = (rng.random(N) < 0.7).astype(int)
KAPPA = np.array([0.75, 0.8, 0.7, 0.72])
pytestmark = pytest.mark.filterwarnings("ignore:.*which weigh differently")
SGD = partial(torch.optim.SGD, lr=1.0)


class Watch(Callback):
    """Keeps the samples of every batch, and the weights behind it."""

    def __init__(self):
        self.batches, self.weights = [], []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.batches.append(batch["index"].numpy())

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.weights.append(vector(module))


def vector(module):
    return nn.utils.parameters_to_vector(module.network.parameters()).detach().numpy().copy()


def run(algorithm, objective, optimizer, batches, constraints=(), penalty=None, epochs=EPOCHS):
    """The weights at the start, what a :class:`Watch` saw, the trained module and its datamodule."""
    torch.manual_seed(0)
    columns = {"x": X[:, :3], "y": Y, "group": GROUP, "time": TIME, "event": EVENT}
    if constraints or isinstance(objective, GroupMaxForm):
        columns["weight"] = WEIGHT
    columns = {name: torch.from_numpy(column) for name, column in columns.items()}
    data = TensorDataModule({"train": columns, "test": columns}, batches=batches, num_groups=4)
    network = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)).double()
    module = FCCOModule(network, objective, constraints, penalty, algorithm, optimizer, pretrain=None)
    start, watch = vector(module), Watch()
    Trainer(max_epochs=epochs, accelerator="cpu", precision="64-true", callbacks=[watch], **QUIET).fit(module, data)
    return start, watch, module, data


def run_groups(algorithm, groups, optimizer, objective=None, penalty=None):
    caps = [MeanAtMost(LogisticLoss(), float(kappa), {"group": g}, name=f"{g}") for g, kappa in enumerate(KAPPA)]
    batches = GroupSampling(groups, 6, replacement=True, num_batches=BATCHES)
    return run(algorithm, objective or CrossEntropy(), optimizer, batches, [] if objective else caps, penalty)


def require_same(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert np.abs(found[-1] - found[0]).max() > 0.1


def losses(w, batch):
    """Logistic losses of the samples of a batch, (B,), and their gradients, (B, 4)."""
    sign = 2 * Y[batch] - 1
    margin = sign * (X[batch] @ w)
    return np.logaddexp(0, -margin), (-sign / (1 + np.exp(margin)))[:, None] * X[batch]


def objective(w, batch):
    """The gradient of the mean loss, weights having the mean 1 over the data."""
    return WEIGHT[batch] @ losses(w, batch)[1] / len(batch)


def risks(w, batch):
    """The groups of a batch, their mean losses and the gradients of these."""
    values, gradients = losses(w, batch)
    groups = np.unique(GROUP[batch])
    shares = WEIGHT[batch] * (GROUP[batch] == groups[:, None])
    shares /= shares.sum(axis=1, keepdims=True)
    return groups, shares @ values, shares @ gradients


def partial_likelihood(w, batch):
    """The events of a batch, their inner values estimated from it, and the gradients of these."""
    at_risk = (TIME[batch] >= TIME[batch][:, None]) & ~np.eye(len(batch), dtype=bool)
    scores = X[batch, :3] @ w[:3]
    terms = np.exp(scores - scores[:, None]) * at_risk * (N - 1) / (len(batch) - 1)
    gradients = terms @ X[batch] - terms.sum(axis=1)[:, None] * X[batch]
    own = EVENT[batch] == 1
    return batch[own], 1 + terms.sum(axis=1)[own], gradients[own]


@pytest.mark.parametrize("groups", [None, 2])
def test_switching_subgradient(groups):
    start, watch, *_ = run_groups(Switching(0.3, 0.5, 0.02), groups, lambda p: HeavyBall(p, lr=0.3, beta=1.0))
    w, before, u, expected, turns = start, start, np.full(4, np.nan), [], []
    for batch in watch.batches:
        rows, values, gradients = risks(w, batch)
        old, correction = u[rows], values - risks(before, batch)[1]
        first = np.isnan(old)
        u[rows] = np.where(first, values, 0.7 * old + 0.3 * values + 0.5 * correction)
        h = np.where(first, values, old) - KAPPA[rows]
        turns.append(h.max() > 0.02)
        before, w = w, w - 0.3 * (gradients[h.argmax()] if turns[-1] else objective(w, batch))
        expected.append(w)
    require_same(watch.weights, expected)
    assert 0 < np.mean(turns) < 1


def inner_iteration(w, z, before, u, batch, groups, jacobian):
    """One inner iteration of ALEXR2 with K = 5, eta .2, nu .7, lam .05, gamma .6, gamma' .2 and rho 3."""
    moving, measured = np.split(batch, 2) if jacobian == "halves" else (batch, batch)
    rows, values, _ = risks(z, moving)
    new, correction = u.copy(), values - risks(before, moving)[1]
    new[rows] = np.where(np.isnan(u[rows]), values, 0.4 * u[rows] + 0.6 * values + 0.2 * correction)
    at = np.where(np.isnan(u), new, u) if jacobian == "old" else new
    there, _, gradients = risks(z, measured)
    slopes = np.clip((at - KAPPA) / 0.05, 0, 3)[there] / 4 * (4 / (groups or 4))
    gradient = objective(z, batch) + slopes @ gradients
    return (0.7 * z + 0.2 * w - 0.2 * 0.7 * gradient) / (0.2 + 0.7), new


@pytest.mark.parametrize(("groups", "jacobian", "steps"), [(2, "old", 7), (None, "halves", 15), (2, "reuse", 1)])
def test_alexr2_and_its_recovery(groups, jacobian, steps):
    """The inner loop is cut off at the end of an epoch; batches of the recovery are those of the epochs that follow."""
    algorithm = ALEXR2(5, 0.2, 0.7, 0.05, 0.6, 0.2, recovery_steps=steps, jacobian=jacobian)
    optimizer = partial(HeavyBall, lr=0.6, beta=0.5)
    start, watch, module, data = run_groups(algorithm, groups, optimizer, penalty=HingePenalty(3.0))
    w = z = before = start
    u, velocity, count, expected = np.full(4, np.nan), None, 0, []
    for t, batch in enumerate(watch.batches, 1):
        (z, u), before, count = inner_iteration(w, z, before, u, batch, groups, jacobian), z, count + 1
        if count == 5 or t % BATCHES == 0:
            gradient = (w - z) / 0.7
            velocity = gradient if velocity is None else 0.5 * velocity + 0.5 * gradient
            z = before = w = w - 0.6 * velocity
            count = 0
        expected.append(w)
    require_same(watch.weights, expected)
    loader, batches = data.train_dataloader(), []
    for epoch in range(EPOCHS, EPOCHS + 2):
        loader.sampler.set_epoch(epoch)
        batches += [batch["index"].numpy() for batch in loader]
    for batch in batches[:steps]:
        (z, u), before = inner_iteration(w, z, before, u, batch, groups, jacobian), z
    np.testing.assert_allclose(vector(module), z, rtol=0, atol=1e-12)
    assert np.abs(z - w).max() > 1e-3


@pytest.mark.parametrize("groups", [None, 2])
def test_icppac(groups):
    """A row that a batch lacks keeps its linearised value; until it is measured its multiplier stays 0."""
    mu, eta, tau, theta, length = 0.3, 0.4, 0.5, 0.2, 5
    start, watch, *_ = run_groups(ICPPAC(mu, eta, tau, theta, length), groups, SGD)
    w, count, expected = start, 0, []
    for batch in watch.batches:
        if count == 0:
            z, y, line = w, np.zeros(4), np.full(4, np.nan)
            older = line
        rows, values, gradients = risks(z, batch)
        if count:
            s = (1 + theta) * line - theta * np.where(np.isnan(older), line, older)
            y = np.where(np.isnan(s), 0, np.maximum(0, y + (s + mu * ((z - w) ** 2).sum()) / tau))
            gradient = objective(z, batch) + y[rows] / ((groups or 4) / 4) @ gradients
            pull = 2 * mu * (1 + y.sum())
            moved = (z / eta + pull * w - gradient) / (1 / eta + pull)
        else:
            moved = z
        older, line = line, line.copy()
        line[rows] = values - KAPPA[rows] + gradients @ (moved - z)
        z, count = moved, count + 1
        if count == length + 1:
            w, count = z, 0
        expected.append(w)
    require_same(watch.weights, expected)


@pytest.mark.parametrize("radius", [0.1, 0.05])
@pytest.mark.parametrize("groups", [None, 2])
def test_pg_smd_in_a_ball(groups, radius):
    eta, eta_dual, gamma, theta, length = 0.5, 0.4, 1.5, 0.3, 5
    algorithm = PGSMD(gamma, EqualStages(length, eta, eta_dual), radius=radius)
    form = GroupMaxForm(None, LogisticLoss(), 4, KLPenalty(theta))
    with pytest.warns(
        UserWarning, match=r"radius=0\.\d+: 2 of 2 tensors began outside, the largest with norm 0\.\d+, and were pro"
    ):
        start, watch, *_ = run_groups(algorithm, groups, SGD, form)
    start = np.concatenate([part * min(1, radius / np.linalg.norm(part)) for part in np.split(start, [3])])
    w, points, share, expected, cut = start, [start], (groups or 4) / 4, [], 0
    q = np.full(4, 0.25)
    for batch in watch.batches:
        rows, values, gradients = risks(points[-1], batch)
        free = (points[-1] / eta + w / gamma - q[rows] / share @ gradients) / (1 / eta + 1 / gamma)
        tensors = np.split(free, [3])  # the weights, and the bias
        z = np.concatenate([part * min(1, radius / np.linalg.norm(part)) for part in tensors])
        cut += not np.allclose(z, free)
        risk = np.zeros(4)
        risk[rows] = values / share
        logits = (risk + np.log(q) / eta_dual + theta * np.log(0.25)) / (theta + 1 / eta_dual)
        q = np.exp(logits) / np.exp(logits).sum()
        points.append(z)
        if len(points) == length:
            w, q = np.mean(points, axis=0), np.full(4, 0.25)
            points = [w]
        expected.append(w)
    np.testing.assert_allclose(watch.weights, expected, rtol=0, atol=1e-12)
    assert cut > 10


@pytest.mark.parametrize("fresh", [True, False])
def test_scent(fresh):
    optimizer = partial(HeavyBall, lr=0.3, beta=1.0)
    algorithm, batches = SCENT(0.5, fresh=fresh), UniformSampling(16)
    w, watch, *_ = run(algorithm, CoxPartialLikelihood("breslow"), optimizer, batches, epochs=6)
    u, expected = np.full(N, np.nan), []
    for batch in watch.batches:
        events, values, gradients = partial_likelihood(w, batch)
        old = u[events]
        u[events] = np.where(np.isnan(old), values, old * (1 + 0.5 * values) / (1 + 0.5 * old))
        at = u[events] if fresh or not len(old) else np.where(np.isnan(old), values, old)
        w = w - 0.3 * N / (len(batch) * EVENT.sum()) * (1 / at) @ gradients
        expected.append(w)
    require_same(watch.weights, expected)


def test_sox_boost_goes_on_from_one_iterate_of_a_stage():
    """Which one is drawn: the one with the weights that are handed on; its u and v are handed on with them."""
    gamma, beta, lr, length = 0.6, 0.8, 0.4, 3
    optimizer, batches = partial(HeavyBall, lr=lr, beta=beta), UniformSampling(16)
    w, watch, *_ = run(SOXBoost(gamma, length), CoxPartialLikelihood("breslow"), optimizer, batches, epochs=12)
    u, velocity, iterates, expected = np.full(N, np.nan), None, [], []
    for batch, found in zip(watch.batches, watch.weights, strict=True):
        events, values, gradients = partial_likelihood(w, batch)
        old = np.where(np.isnan(u[events]), values, u[events])
        u = u.copy()
        u[events] = old + gamma * (values - old)
        gradient = N / (len(batch) * EVENT.sum()) * (1 / old) @ gradients
        velocity = gradient if velocity is None else (1 - beta) * velocity + beta * gradient
        w = w - lr * velocity
        iterates.append((w, u, velocity))
        if len(iterates) == length:
            w, u, velocity = min(iterates, key=lambda one: np.abs(one[0] - found).max())
            gamma, beta, lr, length, iterates = gamma / 2, beta / 2, lr / 2, 2 * length, []
        expected.append(w)
    require_same(watch.weights, expected)
    assert length == 24  # three stages have ended

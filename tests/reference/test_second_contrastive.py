"""A second implementation of the global contrastive loss and its learnt temperatures in NumPy.

SogCLR, with one temperature that is trained, and iSogCLR; the two encoders are linear, so that gradients are written by
hand.  Batches may hold a pair twice.  Nothing is shared with the package.
"""

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn

from fcco_lightning import (
    SOX,
    Engine,
    FCCOModule,
    GlobalContrastive,
    GroupSampling,
    HeavyBall,
    TensorDataModule,
)
from fcco_lightning.evaluation import Evaluation
from tests.conftest import QUIET
from tests.reference.test_second_algorithms import Watch, vector

N, SIZE, WIDTH, LENGTH = 32, 8, 4, 3  # pairs, batch, inputs of an encoder, entries of an embedding
GAMMA, LR, BETA, START, LEAST, MOST, TAU_LR = 0.4, 0.1, 0.6, 0.6, 0.3, 0.9, 0.02
X = np.random.default_rng(5).normal(size=(N, 2 * WIDTH))
GROUP = np.repeat([0, 1], [8, 24])  # their weights in batches of as many of either are exact in float32
pytestmark = pytest.mark.filterwarnings("ignore:.*is most of what lies between")


class Pairs(Evaluation):
    """There are no labels to tell figures of."""

    merit = "pairs"

    def __call__(self, outputs, batch):
        return {"pairs": float(len(batch["index"]))}


class Encoders(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = (nn.Linear(WIDTH, LENGTH, bias=False) for _ in range(2))

    def forward(self, x):
        return tuple(nn.functional.normalize(part(x[:, at : at + WIDTH]), dim=1) for part, at in self.parts)

    @property
    def parts(self):
        return (self.image, 0), (self.text, WIDTH)


def alike(batch):
    """The mean over a batch of which nothing is known, in which every pair counts once.

    Returns: the shares of its entries in F, (B,), and the weights with which the others are compared, (B, B).
    """
    size, same = len(batch), batch[:, None] == batch
    shares = 1 / same.sum(1) / len(np.unique(batch))
    return shares, (1 - np.eye(size)) / (size - 1)


def by_group(batch):
    """The same for as many pairs of either group, each drawn independently.

    A batch of m draws among N_s holds a pair with the probability p = 1 - (1 - 1/N_s)^m, and if it does, m / (N_s p)
    copies on average.
    """
    group, same = GROUP[batch], batch[:, None] == batch
    sizes, drawn = np.bincount(GROUP), np.bincount(group)
    probability = 1 - (1 - 1 / sizes) ** drawn
    within = (sizes - 1) / (drawn - drawn / sizes / probability)
    weights = np.where(group[:, None] == group, within[group], (sizes / drawn)[group]) * ~same
    return 1 / same.sum(1) / (N * probability[group]), weights / (N - 1)


def embedded(weights, x):
    """Unit embeddings, and the Jacobian's action: from gradients (B, LENGTH) to one of the weights."""
    raw = x @ weights.T
    norms = np.linalg.norm(raw, axis=1, keepdims=True)
    unit = raw / norms
    return unit, lambda g: (((g - (g * unit).sum(1, keepdims=True) * unit) / norms).T @ x).ravel()


def by_hand(start, batches, drawn, learn, positive, rho):
    """Weights, and temperatures of all pairs, behind every batch."""
    w, u, taus, theta, velocity = start, np.full((N, 2), np.nan), np.full((N, 2), START), 0.0, None
    rho = 0 if learn == "no" else rho
    for batch in batches:
        size, half = len(batch), WIDTH * LENGTH
        image, image_back = embedded(w[:half].reshape(LENGTH, WIDTH), X[batch, :WIDTH])
        text, text_back = embedded(w[half:].reshape(LENGTH, WIDTH), X[batch, WIDTH:])
        shares, mean = drawn(batch)
        itself, others = {
            "dataset": (1 / N, (N - 1) / N * mean),
            "none": (0, mean),
            "batch": (0, np.full((size, size), 1 / size)),
        }[positive]
        tau = taus[batch] if learn == "per_sample" else np.full((size, 2), LEAST + (START - LEAST) * np.exp(theta))
        similarity, to_similarity = image @ text.T, np.zeros((size, size))
        rows, slopes = np.zeros((size, 2)), np.zeros((size, 2))  # slopes: of F with respect to tau, per pair
        for side, table in enumerate((similarity, similarity.T)):
            excess = table - np.diag(table)[:, None]
            terms = others * np.exp(excess / tau[:, [side]])
            fresh = itself + terms.sum(1)
            old = np.where(np.isnan(u[batch, side]), fresh, u[batch, side])
            slopes[:, side] = np.log(old) + rho - (terms * excess).sum(1) / old / tau[:, side]
            gradient = (shares / old)[:, None] * (terms - np.diag(terms.sum(1)))
            to_similarity += gradient.T if side else gradient
            rows[:, side] = old + GAMMA * (fresh - old)
        to_theta = (shares @ slopes).sum() * (START - LEAST) * np.exp(theta)
        gradient = np.r_[image_back(to_similarity @ text), text_back(to_similarity.T @ image), to_theta]
        velocity = gradient if velocity is None else (1 - BETA) * velocity + BETA * gradient
        w = w - LR * velocity[:-1]
        theta -= LR * velocity[-1] * (learn == "global")
        steps = np.zeros((N, 2))
        steps[batch] = slopes  # copies have the same
        taus = np.clip(taus - TAU_LR * steps * (learn == "per_sample"), LEAST, MOST)
        u[batch] = rows
        yield w, taus, theta


def require_same(found, expected, objective, learn):
    weights, taus, thetas = zip(*expected, strict=True)
    np.testing.assert_allclose(found, weights, rtol=0, atol=1e-12)
    if learn == "global":
        assert objective.temperature.theta.item() == pytest.approx(thetas[-1], abs=1e-12)
        assert abs(thetas[-1]) > 0.01
    assert np.abs(taus[-1] - START).max() > (0.01 if learn == "per_sample" else -1)


LEARN = pytest.mark.parametrize("learn", ["no", "global", "per_sample"])
POSITIVE = pytest.mark.parametrize("positive", ["dataset", "none", "batch"])


@LEARN
@POSITIVE
@pytest.mark.parametrize("rho", [0.5, 6.5])
@pytest.mark.parametrize("repeats", [False, True])
def test_batches_of_which_nothing_is_known(learn, positive, rho, repeats):
    rng = np.random.default_rng(3)
    batches = [rng.choice(N, SIZE, replace=repeats) for _ in range(10)]
    assert repeats == any(len(np.unique(batch)) < SIZE for batch in batches)
    torch.manual_seed(0)
    network = Encoders().double()
    objective = GlobalContrastive(START, learn, rho, LEAST, MOST, TAU_LR, positive).double()
    algorithm = SOX(GAMMA)
    engine = Engine(network, algorithm.pose(objective, num_samples=N, dtype=torch.float64), algorithm)
    optimizer = HeavyBall([*network.parameters(), *objective.parameters()], lr=LR, beta=BETA)
    expected, found = by_hand(vector_of(network), batches, alike, learn, positive, rho), []
    for batch in batches:
        engine.train_batch({"x": torch.from_numpy(X[batch]), "index": torch.from_numpy(batch)}, optimizer)
        found.append(vector_of(network))
    require_same(found, expected, objective, learn)


@LEARN
@pytest.mark.parametrize("positive", ["dataset", "none"])
def test_pairs_that_are_drawn_with_replacement(learn, positive):
    columns = {"x": torch.from_numpy(X), "group": torch.from_numpy(GROUP)}
    batches = GroupSampling(None, SIZE // 2, replacement=True, num_batches=10, prevalence="data")
    data = TensorDataModule({"train": columns, "test": columns}, batches=batches, num_groups=2)
    torch.manual_seed(0)
    objective = GlobalContrastive(START, learn, 1.5, LEAST, MOST, TAU_LR, positive)
    optimizer, watch = lambda params: HeavyBall(params, lr=LR, beta=BETA), Watch()
    parts = {"algorithm": SOX(GAMMA), "optimizer": optimizer, "evaluation": Pairs()}
    module = FCCOModule(Encoders().double(), objective, **parts)
    start = vector(module)
    Trainer(max_epochs=1, accelerator="cpu", precision="64-true", callbacks=[watch], **QUIET).fit(module, data)
    assert any(len(np.unique(batch)) < SIZE for batch in watch.batches)
    require_same(watch.weights, by_hand(start, watch.batches, by_group, learn, positive, 1.5), objective, learn)


def vector_of(network):
    return nn.utils.parameters_to_vector(network.parameters()).detach().numpy().copy()

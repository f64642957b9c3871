"""Batches that pass through the network in parts: memory, random numbers and averages."""

import weakref

import pytest
import torch
from torch import nn

from fcco_lightning import AUC, SGD, SONEX, Engine, GlobalContrastive
from fcco_lightning.engine.micro_batches import micro_batches
from fcco_lightning.errors import ConfigError
from fcco_lightning.models import BatchNetwork
from fcco_lightning.models.outputs import Embeddings

SIZE = 24


def batch_of(size=SIZE, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 5, generator=generator, dtype=torch.float64)
    return {"x": x, "y": (torch.arange(size) % 3 == 0).long(), "index": torch.arange(size)}


def trained(network, micro_batch, steps=3, *, algorithm=None, objective=None, lr=0.1, batch=batch_of):
    """Train, and return the engine."""
    torch.manual_seed(5)
    algorithm = algorithm or SGD()
    problem = algorithm.pose(objective or AUC(), num_samples=SIZE, dtype=torch.float64)
    engine = Engine(network.double(), problem, algorithm, micro_batch=micro_batch)
    optimizer = torch.optim.SGD(engine.params, lr=lr)
    for t in range(steps):
        engine.train_batch(batch(seed=t), optimizer)
    return engine


def layers(*between):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 6), *between, nn.Linear(6, 1))


# ------------------------------------------------------------------------------------------------------------- cutting


@pytest.mark.parametrize(
    ("lengths", "size", "expected"),
    [
        ((10,), 10, [(10,)]),
        ((10,), 4, [(3,), (3,), (4,)]),
        ((7,), 1, [(1,)] * 7),
        ((8, 3), 4, [(4, 1), (4, 2)]),
        ((8, 2), 1, [(4, 1), (4, 1)]),  # no part is left without samples
    ],
)
def test_every_sample_is_in_one_micro_batch(lengths, size, expected):
    batch = {f"part {i}": {"x": torch.arange(n)} for i, n in enumerate(lengths)}
    pieces = micro_batches(batch, size)
    assert [tuple(len(piece[name]["x"]) for name in batch) for piece in pieces] == expected
    for name, columns in batch.items():
        assert torch.equal(torch.cat([piece[name]["x"] for piece in pieces]), columns["x"])


# -------------------------------------------------------------------------------------------------------------- memory


class Watched(nn.Module):
    """The square, which counts the samples of which its output is alive."""

    def __init__(self):
        super().__init__()
        self.alive, self.most = [], 0

    def forward(self, x):
        y = x.square()
        self.alive = [r for r in self.alive if r() is not None] + [weakref.ref(y)]
        if torch.is_grad_enabled():
            self.most = max(self.most, sum(len(r()) for r in self.alive))
        return y


@pytest.mark.parametrize(("micro_batch", "most"), [(None, SIZE), (4, 4), (1, 1)])
def test_activations_of_one_micro_batch_are_in_memory(micro_batch, most):
    watched = Watched()
    trained(layers(watched, nn.Tanh()), micro_batch)
    assert watched.most == most


# ------------------------------------------------------------------------------------------- dropout, batch statistics


class Drawn(nn.Module):
    """Dropout that remembers its masks."""

    def __init__(self):
        super().__init__()
        self.masks = []

    def forward(self, x):
        mask = (torch.rand(x.shape, dtype=x.dtype) > 0.4).to(x.dtype)
        self.masks.append(mask)
        return x * mask


def test_both_passes_draw_the_same_masks():
    drawn = Drawn()
    trained(layers(drawn, nn.Tanh()), 8, steps=1)
    first, second = drawn.masks[:3], drawn.masks[3:]  # the second ones in the order of the backward pass
    assert len(second) == 3
    assert sorted(m.sum().item() for m in first) == sorted(m.sum().item() for m in second)
    assert all(any(torch.equal(a, b) for b in second) for a in first)
    assert not torch.equal(first[0], first[1])


def test_the_masks_are_those_of_the_previous_weights_too():
    """Where weights stand still, g(w_t) - g(w_{t-1}) is 0, so that the correction changes nothing."""
    rows = []
    for gamma_prime in (0.0, 0.7):
        algorithm, network = SONEX(0.4, gamma_prime), Towers(nn.Dropout(0.3))
        engine = trained(network, 5, algorithm=algorithm, objective=GlobalContrastive(), lr=0.0, batch=pairs_of)
        rows.append(engine.problem.states[0].rows)
    torch.testing.assert_close(*rows)


def test_batch_norm_counts_a_micro_batch_once():
    normalised, by_hand = layers(nn.BatchNorm1d(6, momentum=0.2)), layers(nn.BatchNorm1d(6, momentum=0.2)).double()
    trained(normalised, 8, steps=1)
    for x in batch_of()["x"].split(8):
        by_hand(x)
    assert normalised[1].num_batches_tracked == 3
    assert normalised[1].momentum == 0.2
    torch.testing.assert_close(normalised[1].running_mean, by_hand[1].running_mean)
    torch.testing.assert_close(normalised[1].running_var, by_hand[1].running_var)


class Counted(nn.Module):
    """Counts its passes in two buffers: in place, and by another one."""

    def __init__(self):
        super().__init__()
        self.register_buffer("moved", torch.zeros(()))
        self.register_buffer("assigned", torch.zeros(()))

    def forward(self, x):
        self.moved += 1
        self.assigned = self.assigned + 1
        return x


def test_any_buffer_moves_in_the_first_pass_only():
    counted = Counted()
    trained(layers(counted, nn.Tanh()), 8, steps=2)
    assert counted.moved == counted.assigned == 6


# -------------------------------------------------------------------------------------------------------- whole batches


class Towers(BatchNetwork):
    """Pairs of vectors of length 1."""

    inputs = ("x", "other")

    def __init__(self, *between):
        super().__init__()
        torch.manual_seed(2)
        self.one, self.two = nn.Sequential(nn.Linear(5, 4), *between), nn.Sequential(nn.Linear(5, 4), *between)

    def forward(self, batch):
        return {
            name: Embeddings(*(nn.functional.normalize(t, dim=1) for t in (self.one(c["x"]), self.two(c["other"]))))
            for name, c in batch.items()
        }


def pairs_of(size=SIZE, seed=0):
    batch = batch_of(size, seed)
    return {"x": batch["x"], "other": batch["x"].flip(1), "index": batch["index"]}


def test_pairs_of_a_whole_batch_are_contrasted():
    """A network of the whole batch, whose outputs are records."""
    engines = [
        trained(Towers(), size, algorithm=SONEX(), objective=GlobalContrastive(), batch=pairs_of) for size in (None, 7)
    ]
    for a, b in zip(engines[0].params, engines[1].params, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(engines[0].problem.states[0].rows, engines[1].problem.states[0].rows)


@pytest.mark.parametrize("size", [0, -3, 1.5])
def test_a_size_that_is_none(size):
    with pytest.raises(ConfigError, match="micro_batch must be"):
        trained(layers(), size)

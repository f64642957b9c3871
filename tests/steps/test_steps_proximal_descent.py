"""The inner iteration around a centre, and the double loop made of it, on a quadratic function."""

import pytest
import torch
from torch import nn

from fcco_lightning import Engine, Objective
from fcco_lightning.algorithms import DoubleLoop
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import Minibatch
from fcco_lightning.steps import ProximalDescent

CONVERGED = 1e-9  # 400 contractions by at most 0.95
EXACT = 1e-14  # the same arithmetic in another order, float64

A = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)  # F(z) = z'Az/2 - b'z
B = torch.tensor([1.0, -2.0], dtype=torch.float64)
START = torch.tensor([1.0, 3.0], dtype=torch.float64)
BATCH = {"x": torch.zeros(2, 1), "index": torch.arange(2)}


class Point(nn.Module):
    """The weights themselves, whatever the sample."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(START.clone())

    def forward(self, x):
        return self.w.expand(len(x), 2)


class Quadratic(Objective):
    def direct(self, outputs, batch):
        return outputs[0] @ A @ outputs[0] / 2 - B @ outputs[0]


class Record(torch.optim.SGD):
    """Plain descent that keeps the gradients it was given."""

    def __init__(self, params, lr):
        super().__init__(params, lr=lr)
        self.given = []

    def step(self, closure=None):
        self.given.append(self.param_groups[0]["params"][0].grad.clone())
        return super().step(closure)


def double_loop(lr=0.3, **settings):
    algorithm, network = DoubleLoop(Minibatch(), jacobian="reuse", **settings), Point()
    engine = Engine(network, algorithm.pose(Quadratic(), num_samples=2, dtype=torch.float64), algorithm)
    return engine, network.w, Record(network.parameters(), lr)


def box(z, w, eta, nu):
    return (nu * z + eta * w - eta * nu * (A @ z - B)) / (eta + nu)


def test_a_step_minimises_its_model():
    eta, nu, w = 0.3, 0.7, torch.tensor([0.5, -1.0], dtype=torch.float64)
    z, still = (nn.Parameter(START.clone()) for _ in range(2))
    z.grad = g = A @ START - B
    step = ProximalDescent([z, still], eta, nu)
    step.centre = [w, w]
    step.step()
    torch.testing.assert_close(g + (z - w) / nu + (z - START) / eta, torch.zeros_like(w), atol=EXACT, rtol=0)
    pulled = (still - w) / nu + (still - START) / eta  # without a gradient
    torch.testing.assert_close(pulled, torch.zeros_like(w), atol=EXACT, rtol=0)


@pytest.mark.parametrize(("eta", "nu"), [(0.1, 0.4), (0.3, 2.0)])
def test_the_outer_gradient_tends_to_that_of_the_moreau_envelope(eta, nu):
    engine, w, optimizer = double_loop(K=400, eta=eta, nu=nu)
    for _ in range(400):
        assert optimizer.given == []
        assert torch.equal(w, START)  # outside, the parameters hold w
        engine.train_batch(BATCH, optimizer)
    prox = torch.linalg.solve(A + torch.eye(2, dtype=torch.float64) / nu, B + START / nu)
    assert torch.allclose(optimizer.given[0], (START - prox) / nu, atol=CONVERGED, rtol=0)


def test_inner_iterates_are_those_of_the_box_and_the_next_loop_starts_at_the_new_centre():
    eta, nu = 0.2, 0.5
    engine, w, optimizer = double_loop(K=3, eta=eta, nu=nu)
    centre, lengths = START, [3, 3, 2, 3]
    for length in lengths:  # the third is closed by the end of an epoch
        z = centre
        for k in range(length):
            z = box(z, centre, eta, nu)
            engine.train_batch(BATCH, optimizer, last_batch=k == 1 and length == 2)
        assert torch.allclose(optimizer.given[-1], (centre - z) / nu, atol=EXACT, rtol=0)
        centre = centre - 0.3 * (centre - z) / nu
        assert torch.allclose(w, centre, atol=EXACT, rtol=0)
        centre = w.detach().clone()
    assert len(optimizer.given) == engine.updates == 4


def test_a_loop_that_has_begun_can_be_closed_without_a_batch():
    engine, w, optimizer = double_loop(K=5, eta=0.2, nu=0.5)
    engine.close_inner_loop(optimizer)
    assert optimizer.given == []
    engine.train_batch(BATCH, optimizer)
    engine.close_inner_loop(optimizer)
    assert torch.allclose(w, START - 0.3 * (START - box(START, START, 0.2, 0.5)) / 0.5, atol=EXACT, rtol=0)


def test_parameters_hold_w_after_an_exception_inside():
    engine, w, optimizer = double_loop(K=2, eta=0.2, nu=0.5)
    engine.train_batch(BATCH, optimizer)
    with pytest.raises(KeyError):
        engine.train_batch({"index": torch.arange(2)}, optimizer)
    assert torch.equal(w, START)
    engine.train_batch(BATCH, optimizer)  # and the iterate is not lost
    z = box(box(START, START, 0.2, 0.5), START, 0.2, 0.5)
    assert torch.allclose(optimizer.given[0], (START - z) / 0.5, atol=EXACT, rtol=0)


@pytest.mark.parametrize("steps", [0, 7])
def test_the_recovery_step_takes_the_iterate_as_the_weights(steps):
    engine, w, optimizer = double_loop(K=2, eta=0.2, nu=0.5, recovery_steps=steps)
    z = START
    for _ in range(steps):
        z = box(z, START, 0.2, 0.5)
    assert engine.finish(iter([BATCH] * 9), optimizer) is (steps > 0)
    assert torch.allclose(w, z, atol=EXACT, rtol=0)
    assert optimizer.given == []


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"K": 0}, "K must be a whole number >= 1"),
        ({"K": 2.5}, "K must be a whole number >= 1"),
        ({"eta": 0.0}, "eta must be a finite number > 0"),
        ({"nu": -1.0}, "nu must be a finite number > 0"),
        ({"nu": float("nan")}, "nu must be a finite number > 0"),
        ({"recovery_steps": -1}, "recovery_steps must be"),
        ({"recovery_steps": 2.5}, "recovery_steps must be"),
        ({"clip": "none"}, "clip"),
    ],
)
def test_bad_arguments_are_refused(bad, message):
    DoubleLoop(Minibatch(), K=1, eta=1e-6, nu=1e-6, recovery_steps=0, clip="both")
    with pytest.raises(ConfigError, match=message):
        DoubleLoop(Minibatch(), **bad)

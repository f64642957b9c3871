"""Identities between algorithms, and between their gradient estimates and the gradient of F."""

import pytest
import torch

from fcco_lightning import ALEXR, ALEXR2, BSGD, SOAP, SONEX, SOX, Objective
from fcco_lightning.algorithms import DoubleLoop, SingleLoop
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import Average, DualProx, Minibatch
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.outer import Log, LogSumExp, Power, Ratio, Softplus, Square
from tests.algorithms.toy_problem import (
    N,
    flat,
    make_batches,
    make_constraints,
    make_engine,
    make_network,
    train,
)

SAME = {"rtol": 1e-10, "atol": 1e-12}  # the same arithmetic in another order, float64
BATCHES = make_batches(30)


def same(a, b):
    rows = all(torch.allclose(x, y, **SAME) for x, y in zip(a[1], b[1], strict=True))
    return torch.allclose(a[0], b[0], **SAME) and rows


def test_alexr_in_mirror_form_without_extrapolation_is_soap_and_not_sox():
    tau = 1.5
    alexr = train(ALEXR(tau, theta=0.0, mirror=True, jacobian="reuse"), BATCHES)
    assert same(alexr, train(SOAP(1 / (1 + tau)), BATCHES))
    assert not torch.allclose(alexr[0], train(SOX(1 / (1 + tau)), BATCHES)[0], atol=1e-3)  # erratum ALEXR-13


def test_alexr_is_a_single_loop_with_dual_steps_on_half_of_a_batch():
    alexr = train(ALEXR(1.5, 0.5), BATCHES)
    assert same(alexr, train(SingleLoop(DualProx(1.5, 0.5), jacobian="halves"), BATCHES))


@pytest.mark.parametrize("jacobian", ["halves", "old", "reuse"])
def test_averages_at_old_rows_use_the_whole_batch_wherever_the_jacobian_comes_from(jacobian):
    algorithm = SingleLoop(Average(0.4), jacobian=jacobian)
    assert (algorithm.objective_share, algorithm.constraint_share) == (1.0, 1.0)
    assert same(train(algorithm, BATCHES), train(SOX(0.4), BATCHES))


def test_a_double_loop_of_averages_uses_the_whole_batch_by_default():
    whole = train(DoubleLoop(Average(0.4), K=3, jacobian="reuse"), BATCHES)
    assert same(train(DoubleLoop(Average(0.4), K=3), BATCHES), whole)


def test_sonex_without_correction_and_smoothing_is_sox():
    assert same(train(SONEX(0.4, 0.0, lam=1e-12), BATCHES), train(SOX(0.4), BATCHES))
    assert not torch.allclose(train(SONEX(0.4, 0.0, lam=0.1), BATCHES)[0], train(SOX(0.4), BATCHES)[0], atol=1e-3)


def test_bsgd_is_soap_with_gamma_one():
    assert torch.allclose(train(BSGD(), BATCHES)[0], train(SOAP(1.0), BATCHES)[0], **SAME)


def test_smoothing_leaves_smooth_functions_alone():
    class Smooth(Objective):
        outer = Softplus()

        def measure(self, outputs, batch):
            return None, Rows(outputs.unsqueeze(1), torch.ones_like(outputs, dtype=torch.bool))

    def weights(algorithm):
        network = make_network()
        engine = make_engine(algorithm, network, Smooth(), [])
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for batch in BATCHES:
            engine.train_batch(batch, optimizer)
        return flat(network.parameters())

    assert torch.equal(weights(SONEX(0.4, 0.0, lam=0.5)), weights(SOX(0.4)))


def full_gradient(algorithm, network, objective, constraints, batch):
    """G of a first step, every row of which is visited for the first time."""
    engine = make_engine(algorithm, network, objective, constraints)
    engine.train_batch(batch, torch.optim.SGD(network.parameters(), lr=0.0))
    out = flat(p.grad for p in network.parameters())
    network.zero_grad()
    return out


class Wide(Objective):
    """Inner values of width 2 under any outer function, kept in (0.5, 1.5)."""

    width = 2

    def __init__(self, outer):
        super().__init__()
        self.outer = outer

    def measure(self, outputs, batch):
        values = torch.stack([0.5 + torch.sigmoid(outputs), 1 - 0.5 * torch.tanh(outputs)], dim=1)
        return None, Rows(values, torch.ones_like(outputs, dtype=torch.bool))


@pytest.mark.parametrize("outer", [Square(), Power(3.0), Log(0.5), Ratio(), LogSumExp(0.3)], ids=repr)
def test_full_batch_gradient_of_any_outer_function_is_exact(outer):
    (batch,) = make_batches(1, size=N)
    network = make_network()
    values = Wide(outer).measure(network(batch["x"]), batch)[1].values
    outer(values).mean().backward()
    expected = flat(p.grad for p in network.parameters())
    network.zero_grad()
    assert torch.allclose(full_gradient(SOX(1.0), network, Wide(outer), [], batch), expected, **SAME)


def test_alexr2_averages_an_objective_that_is_not_convex():
    ALEXR2(objective_gamma=0.5).pose(Wide(Ratio()), num_samples=N)  # without a dual step
    with pytest.raises(ConfigError, match=r"objective_gamma_prime=0\.1 needs objective_gamma"):
        ALEXR2(objective_gamma_prime=0.1)
    parts = SingleLoop(Average(0.8, 0.1, fresh=True, convex_only=True), objective_estimator=Minibatch())
    parts.pose(Wide(Ratio()), make_constraints(), num_samples=N)


@pytest.mark.parametrize("theta", [0.0, 0.5])
def test_skipping_the_second_forward_changes_nothing_but_its_cost(theta):
    forwards = 0

    def count(*_):
        nonlocal forwards
        forwards += 1

    network = make_network()
    network.register_forward_hook(count)
    engine = make_engine(ALEXR(1.5, theta), network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for batch in BATCHES[:5]:
        engine.train_batch(batch, optimizer)
    assert forwards == (5 if theta == 0 else 9)  # there is no previous point at the first batch

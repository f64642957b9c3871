"""Arguments of algorithms: which are refused, constants of the theory, and the stages of SOX-boost."""

import pytest
import torch

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    MSVR,
    SONEX,
    AdamType,
    HeavyBall,
    SOXBoost,
)
from fcco_lightning.errors import ConfigError
from tests.algorithms.toy_problem import HingeMargin, make_batches, make_engine, make_network


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SONEX(gamma=1.0, gamma_prime="theory"), "use gamma < 1"),
        (lambda: MSVR(gamma=1.0), "use gamma < 1"),
        (lambda: ALEXR(theta=-0.1), "theta must lie in"),
        (lambda: ALEXR(theta=1.5), "theta must lie in"),
        (lambda: ALEXR2.theory(0.4, 1.0, 1.0, 1.0), "theta=0.4 must be at least 1/2"),
        (lambda: ALEXR2.theory(0.8, 0.1, 1.0, 1.0), r"above 1 - sampled = 0.9, and below 1. Use theta=0.95"),
    ],
)
def test_bad_arguments_are_refused_by_name(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
    assert ALEXR(theta=0.0, mirror=True).name == ALEXR(theta=1.0).name == "ALEXR"


def test_constants_of_alexr2s_theory_satisfy_what_its_proof_asks():
    """``(1/eta + b)/(1/eta + 1/nu)`` and, of the step in y, ``(tau + 1 - B_1/n)/(tau + 1)`` are theta."""
    theta, sampled, lipschitz, weak, width = 0.95, 0.2, 3.0, 0.7, 4
    algorithm, bound = ALEXR2.theory(theta, sampled, lipschitz, weak, width, K=7, lam=0.1), 2 * lipschitz * weak
    assert algorithm.nu * 4 * bound == pytest.approx(1)
    assert (1 / algorithm.eta + bound) / (1 / algorithm.eta + 1 / algorithm.nu) == pytest.approx(theta)
    estimator = algorithm.estimator
    tau = 1 / estimator.gamma - 1
    assert (tau + 1 - sampled) / (tau + 1) == pytest.approx(theta)
    assert estimator.gamma_prime == pytest.approx(estimator.gamma * theta)
    assert algorithm.K == 7


def test_sox_boost_needs_whole_rows():
    SOXBoost().pose(HingeMargin(), num_samples=8, layout="replicated")
    with pytest.raises(ConfigError, match="state_layout replicated"):
        SOXBoost().pose(HingeMargin(), num_samples=8, layout="sharded")


@pytest.mark.parametrize("optimizer", [AdamType, torch.optim.RMSprop])
def test_sox_boost_refuses_an_optimizer_without_dampening(optimizer):
    network = make_network()
    engine, (batch,) = make_engine(SOXBoost(), network), make_batches(1)
    with pytest.raises(ConfigError, match="Use HeavyBall"):
        engine.train_batch(batch, optimizer(network.parameters(), lr=0.05))


def test_a_stage_of_sox_boost_goes_back_to_weights_that_were_trained_then():
    """A layer that is unfrozen behind the iterate that is kept stays as it is; only its momentum was zero."""
    network, algorithm = make_network(), SOXBoost(first_stage=4)
    engine, (batch,) = make_engine(algorithm, network), make_batches(1)
    algorithm._keep_at = 1
    first, *others = network.parameters()
    optimizer = HeavyBall(others, lr=0.01, beta=0.5)
    before = first.detach().clone()
    first.requires_grad_(False)
    engine.follow_parameters()
    for step in range(4):
        if step == 2:
            first.requires_grad_(True)
            optimizer.add_param_group({"params": [first]})
            engine.follow_parameters()
        engine.train_batch(batch, optimizer)
    assert algorithm.stage == 1
    assert 0 < (first - before).norm() < 0.5 * before.norm()

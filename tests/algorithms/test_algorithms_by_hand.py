"""Updates of algorithms against toy_problem.py, for cases that tests/reference/test_package.py does not cover."""

import pytest
import torch

from fcco_lightning import ALEXR2, SGD, SONEX, SOXBoost
from tests.algorithms.toy_problem import (
    Average,
    flat,
    gradient,
    hand_double_loop,
    hand_single_loop,
    make_batches,
    make_network,
    measure,
    slope,
    table,
    train,
)

SAME = {"rtol": 1e-10, "atol": 1e-12}  # 40 steps of the same arithmetic in another order, float64
BATCHES = make_batches(40)

SINGLE_LOOP = {
    "SONEX-fresh": (SONEX(0.4, 0.2, lam=0.1, fresh=True), lambda: Average(0.4, 0.2, lam=0.1, fresh=True)),
    "SONEX-theory": (SONEX(0.4, "theory", lam=0.1), lambda: Average(0.4, "theory", lam=0.1)),
}


def assert_same(package, hand):
    assert torch.allclose(package[0], hand[0], **SAME)
    assert len(package[1]) == 3
    assert all(torch.allclose(a, b, **SAME) for a, b in zip(package[1], hand[1], strict=True))


@pytest.mark.parametrize("name", SINGLE_LOOP)
def test_single_loop(name):
    algorithm, tracker = SINGLE_LOOP[name]
    package = train(algorithm, BATCHES)
    assert (flat(make_network().parameters()) - package[0]).norm() > 0.1  # something happened
    assert_same(package, hand_single_loop(tracker(), BATCHES))


def test_alexr2():
    closing = (10, 25)
    loop = {"inner": 3, "eta": 0.2, "nu": 0.4, "closing": closing}
    hand = hand_double_loop(Average(0.4, 0.2, fresh=True, lam=0.1), BATCHES, **loop)
    assert_same(
        train(
            ALEXR2(K=3, eta=0.2, nu=0.4, lam=0.1, gamma=0.4, gamma_prime=0.2, jacobian="reuse"),
            BATCHES,
            closing=closing,
        ),
        hand,
    )


def test_sgd_leaves_the_constraints_out():
    w, v = flat(make_network().parameters()), None
    for batch in BATCHES:
        margins = measure(w, batch)[1][0]
        g = gradient(w, batch, [{i: slope(0, m.detach(), 0.0) for i, m in margins.items()}])
        v = g if v is None else 0.7 * v + 0.3 * g
        w = w - 0.05 * v
    package, rows = train(SGD(), BATCHES)
    assert torch.allclose(package, w, **SAME)
    assert rows == []


def test_an_objective_may_have_rates_of_its_own():
    class Mixed(Average):
        def weights(self, now, before):
            out = []
            for term, gamma in enumerate((0.7, 0.4, 0.4)):
                self.gamma, self.correction = gamma, 0.3 if term == 0 else 0.2
                only = [values if t == term else {} for t, values in enumerate(now)]
                out.append(super().weights(only, before)[term])
            return out

    algorithm = SONEX(0.4, 0.2, lam=0.1, objective_gamma=0.7, objective_gamma_prime=0.3)
    assert_same(train(algorithm, BATCHES), hand_single_loop(Mixed(0.4, lam=0.1), BATCHES))


def test_sox_boost_halves_and_hands_on_a_random_iterate():
    first, seed, lr, beta, gamma = 4, 3, 0.05, 0.3, 0.4
    draw = torch.Generator().manual_seed(seed)
    tracker, w, v = Average(gamma), flat(make_network().parameters()), None
    length, updates = first, 0
    keep_at, handed_on = int(torch.randint(1, length + 1, (), generator=draw)), []
    for batch in BATCHES:
        g = gradient(w, batch, tracker.weights(measure(w, batch)[1], None))
        v = g if v is None else (1 - beta) * v + beta * g
        w = w - lr * v
        updates += 1
        if updates == keep_at:
            kept = (w, v, [dict(rows) for rows in tracker.rows])
        if updates == length:
            w, v, tracker.rows = kept
            handed_on.append(keep_at)
            lr, beta, tracker.gamma = lr / 2, beta / 2, tracker.gamma / 2
            length, updates = 2 * length, 0
            keep_at = int(torch.randint(1, length + 1, (), generator=draw))
    assert len(handed_on) == 3  # stages of 4, 8, 16
    package = train(SOXBoost(gamma, first_stage=first, seed=seed), BATCHES, lr=0.05, beta=0.3)
    assert_same(package, (w, table(tracker.rows)))


def test_sox_boost_draws_every_iterate_of_a_stage():
    kept = {SOXBoost(first_stage=4, seed=s)._keep_at for s in range(60)}
    assert kept == {1, 2, 3, 4}

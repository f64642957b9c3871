"""Properties of every ambiguity set: members, worst case, projections and best responses.

A maximiser q of a concave function over Q is recognised by its gradient g there: ``max_{p in Q} <g, p> = <g, q>``.
"""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fcco_lightning.ambiguity import (
    CappedSimplex,
    ChiSquareBall,
    ChiSquarePenalty,
    EuclideanPenalty,
    KLBall,
    KLPenalty,
    Simplex,
    SpectralRisk,
)
from fcco_lightning.errors import ConfigError
from tests.contracts.looks import Looks
from tests.contracts.registry_ambiguity import MEMBERS, PENALTIES

SIZES = [1, 2, 12]
TINY = 1e-300
MAPS = ["worst_case", "project", "project_kl"]


def random(n, scale=1.0):
    return np.random.default_rng(n).normal(size=n) * scale


def gradient(kind, nu, q):
    """Of ``nu D(q, 1/n)``, written a second time."""
    n = len(q)
    if kind == "kl":
        return nu * (np.log(np.maximum(n * q, TINY)) + 1)
    return (2 * n * nu if kind == "chi-square" else nu) * (q - 1 / n)


def divergence(kind, nu, q):
    n = len(q)
    if kind == "kl":
        return nu * float(np.sum(q * np.log(np.maximum(n * q, TINY))))
    square = float(np.sum((q - 1 / n) ** 2))
    return nu * n * square if kind == "chi-square" else nu * square / 2


def is_member(name, q, rounding=1e-12):
    q = np.asarray(q)
    assert q.min() >= 0
    assert q.sum() == pytest.approx(1, abs=1e-12 + rounding)
    assert MEMBERS[name].excess(q) <= 1e-11 + rounding


def is_best(name, q, slope, rounding=1e-9):
    """No member gains on q along the slope of the objective at q."""
    scale = max(1.0, np.abs(slope).max())
    assert MEMBERS[name].support(slope / scale) - (slope / scale) @ q <= rounding


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", MEMBERS)
def test_worst_case(name, n):
    if name == "capped simplex" and n < 4:
        n += 10
    for losses in (random(n), np.zeros(n), np.full(n, -1e6), random(n, 1e6), np.round(random(n))):
        q = MEMBERS[name].make().worst_case(torch.from_numpy(losses)).numpy()
        is_member(name, q)
        is_best(name, q, losses)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("kind", PENALTIES)
def test_best_response(name, n, kind):
    if name == "capped simplex" and n < 4:
        n += 10
    for losses in (random(n), random(n) + 1e6, random(n, 1e6), np.zeros(n), np.round(2 * random(n))):
        for nu in (1e-3, 1.0) if n > 2 else (0.1,):
            found = MEMBERS[name].make().best_response(torch.from_numpy(losses), PENALTIES[kind](nu))
            q = found.q.numpy()
            is_member(name, q, 1e-10)
            is_best(name, q, losses - losses.max() - gradient(kind, nu, q), 1e-7 if kind == "kl" else 1e-9)
            assert float(found.value) == pytest.approx(q @ losses - divergence(kind, nu, q), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", MEMBERS)
def test_projections(name):
    random_numbers, ambiguity = np.random.default_rng(0), MEMBERS[name].make()
    for scale in (0.01, 1.0, 100.0):
        v = random_numbers.normal(size=12) * scale
        q = ambiguity.project(torch.from_numpy(v)).numpy()
        is_member(name, q, 1e-10)
        is_best(name, q, v - q)
        log_p = random_numbers.normal(size=12) * scale + 3.0
        q = ambiguity.project_kl(torch.from_numpy(log_p)).numpy()
        is_member(name, q, 1e-10)
        is_best(name, q, log_p - np.log(np.maximum(q, TINY)), 1e-7)


@pytest.mark.parametrize("name", MEMBERS)
def test_a_member_is_its_own_projection(name):
    ambiguity = MEMBERS[name].make()
    q = ambiguity.project(torch.from_numpy(random(12)))
    torch.testing.assert_close(ambiguity.project(q), q, rtol=0, atol=1e-10)
    torch.testing.assert_close(ambiguity.project_kl(q.clamp(min=TINY).log()), q, rtol=0, atol=1e-7)
    uniform = torch.full((12,), 1 / 12, dtype=torch.float64)
    torch.testing.assert_close(ambiguity.best_response(torch.zeros_like(q), KLPenalty(1.0)).q, uniform)


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("kind", PENALTIES)
def test_prox(name, kind):
    """The proximal step maximises ``<p, v> - nu D(p, 1/n) - pull Delta(p, q)``, with and without a penalty."""
    ambiguity, pull = MEMBERS[name].make(), 1.0
    q = ambiguity.best_response(torch.from_numpy(random(9)), PENALTIES[kind](1.0)).q.clamp(min=1e-12)
    v = np.random.default_rng(1).normal(size=9)
    for nu in (0.4, 0.0):
        p = ambiguity.prox(torch.from_numpy(v), q, PENALTIES[kind](nu), pull).numpy()
        is_member(name, p, 1e-10)
        back = gradient(kind, pull, p) - gradient(kind, pull, q.numpy())
        is_best(name, p, v - gradient(kind, nu, p) - back, 1e-7)
    same = ambiguity.prox(torch.from_numpy(v), q, PENALTIES[kind](0.4), 0.0)
    torch.testing.assert_close(same, ambiguity.best_response(torch.from_numpy(v), PENALTIES[kind](0.4)).q)


@pytest.mark.parametrize("name", ["chi-square ball", "KL ball", "extremile", "capped simplex"])
@pytest.mark.parametrize("kind", PENALTIES)
def test_best_response_of_seven_by_slsqp(name, kind):
    losses, nu = random(7), 0.05
    constraints = [{"type": "eq", "fun": lambda q: q.sum() - 1}]
    if name == "extremile":  # every sum of k weights is at most that of the k largest sigma
        largest = np.sort(SpectralRisk("extremile", 2.5).sigma(7))[::-1].cumsum()
        order = np.argsort(-losses)  # the best weights have the order of the losses
        constraints += [{"type": "ineq", "fun": lambda q, k=k: largest[k] - q[order[: k + 1]].sum()} for k in range(6)]
    else:
        constraints.append({"type": "ineq", "fun": lambda q: -MEMBERS[name].excess(q)})
    found = minimize(
        lambda q: divergence(kind, nu, q) - losses @ q,
        np.full(7, 1 / 7),
        jac=lambda q: gradient(kind, nu, q) - losses,
        bounds=[(1e-12, 1)] * 7,
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    ours = MEMBERS[name].make().best_response(torch.from_numpy(losses), PENALTIES[kind](nu))
    assert float(ours.value) == pytest.approx(-found.fun, abs=1e-8)


ON_HOST = {"KLBall": MAPS, "SpectralRisk": MAPS, "ChiSquareBall": ["project_kl"]}  # by iterations, or by scipy


@pytest.mark.parametrize("name", MEMBERS)
def test_maps_look_at_no_number_unless_they_are_computed_on_the_host(name):
    ambiguity, v = MEMBERS[name].make(), torch.from_numpy(random(12, 3.0))
    for of in MAPS:
        there = of in ON_HOST.get(type(ambiguity).__name__, ())
        assert there == hasattr(getattr(ambiguity, of), "__wrapped__")
        with Looks() as looks:
            getattr(ambiguity, of)(v)
        assert there or looks.found == []


@pytest.mark.parametrize("pull", [0.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MEMBERS)
def test_a_weight_that_was_rounded_to_zero_takes_part_in_a_step(name, dtype, pull):
    v, q = torch.tensor([-1.0, 3000.0, 0.5, 0.2], dtype=dtype), torch.tensor([0.5, 0.0, 0.25, 0.25], dtype=dtype)
    found = MEMBERS[name].make().prox(v, q, KLPenalty(1.0), pull)
    assert found.sum().item() == pytest.approx(1, abs=1e-6)
    assert found[1] == found.max()  # 3000 is more than what was rounded away


@pytest.mark.parametrize("name", MEMBERS)
def test_float32_and_float64_agree(name):
    losses = torch.from_numpy(random(40))
    for penalty in (ChiSquarePenalty(0.1), KLPenalty(0.1)):
        wide = MEMBERS[name].make().best_response(losses, penalty)
        narrow = MEMBERS[name].make().best_response(losses.float(), penalty)
        assert narrow.q.dtype == torch.float32
        torch.testing.assert_close(narrow.q.double(), wide.q, rtol=0, atol=1e-4)


@pytest.mark.parametrize("ball", [KLBall, ChiSquareBall])
def test_float32_weights_in_a_tiny_ball_are_finite(ball):
    for scale in (1.0, 1e4):
        for of in MAPS:
            q = getattr(ball(1e-12), of)(torch.from_numpy(random(1000, scale)).float())
            assert q.dtype == torch.float32
            torch.testing.assert_close(q, torch.full_like(q, 1e-3), rtol=1e-4, atol=0)


@pytest.mark.parametrize("ball", [KLBall, ChiSquareBall])
def test_weights_of_whole_numbers_are_no_whole_numbers(ball):
    losses = torch.tensor([0, 1, 3])
    torch.testing.assert_close(ball(0.1).worst_case(losses), ball(0.1).worst_case(losses.float()))


@pytest.mark.parametrize("ball", [KLBall, ChiSquareBall])
@pytest.mark.parametrize("rho", [1e-12, 1e-6, 0.1])
def test_float32_weights_are_those_of_float64(ball, rho):
    for n in (2, 12, 1000):
        losses = torch.from_numpy(random(n)).float()
        for of in MAPS:
            narrow, exact = (getattr(ball(rho), of)(given) for given in (losses, losses.double()))
            torch.testing.assert_close(narrow, exact.float(), rtol=2e-7, atol=0)


def test_the_two_quadratic_conventions_differ_by_2n():
    losses = torch.from_numpy(random(9))
    one = Simplex().best_response(losses, ChiSquarePenalty(0.1))
    other = Simplex().best_response(losses, EuclideanPenalty(2 * 9 * 0.1))
    torch.testing.assert_close(one.q, other.q)
    torch.testing.assert_close(one.value, other.value)


def test_the_two_ways_to_cvar_agree_and_small_penalties_meet_the_worst_case():
    losses = torch.from_numpy(random(40))
    for penalty in (ChiSquarePenalty(0.3), KLPenalty(0.3), KLPenalty(1e-3), ChiSquarePenalty(0.0)):
        a = MEMBERS["spectral CVaR"].make().best_response(losses, penalty)
        b = CappedSimplex(0.45).best_response(losses, penalty)
        torch.testing.assert_close(a.q, b.q, rtol=0, atol=1e-9)
    assert float(a.value) == pytest.approx(float((a.q * losses).sum()))


@pytest.mark.parametrize(("spectrum", "r"), [("extremile", 0.5), ("esrm", 0), ("cvar", 1.5), ("cvar", 0)])
def test_parameters_of_spectra_outside_their_interval_are_refused(spectrum, r):
    with pytest.raises(ConfigError, match="r must"):
        SpectralRisk(spectrum, r)
    with pytest.raises(ConfigError, match="spectrum must be one of"):
        SpectralRisk("mean", 1.0)
    with pytest.raises(ConfigError, match="of one, must be at least one"):
        SpectralRisk("cvar", 0.1).check(5)

"""The Wasserstein ball of a linear classifier: against linear programs, and scipy's minimum."""

import numpy as np
import pytest
from scipy.optimize import LinearConstraint, linprog, minimize
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from fcco_lightning import CappedSimplex, DROClassifier, WassersteinBall
from fcco_lightning.dro import ProximalGradient
from fcco_lightning.errors import ConfigError

NORMS = ["l2", "l1", "linf"]
DUAL = {"l2": 2, "l1": np.inf, "linf": 1}
ROWS = 80


def table():
    x, y = load_breast_cancer(return_X_y=True)
    return StandardScaler().fit_transform(x)[:ROWS, :6], y[:ROWS]


def losses(x, signs, w, b=0.0):
    return np.logaddexp(0, -signs * (x @ w + b))


def model(norm, rho=0.1, **options):
    made = {"mu": 0.01, "tol": 1e-10, "ambiguity": CappedSimplex(1.0), "max_passes": 20_000} | options
    return DROClassifier(wasserstein=WassersteinBall(rho, norm), **made)


@pytest.mark.parametrize("norm", NORMS)
def test_moved_samples_reach_the_norm_and_none_exceed_it(norm):
    """The worst case by linear programming: shares of every sample that go to points along the worst direction."""
    rng = np.random.default_rng(1)
    x, w, rho = rng.normal(size=(5, 3)), rng.normal(size=3), 0.2
    signs, size = rng.choice([-1.0, 1.0], 5), np.linalg.norm(w, DUAL[norm])
    steps = np.array([0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 3000.0])
    values = np.logaddexp(0, -(signs * (x @ w))[:, None] + steps * size)
    share = np.kron(np.eye(5), np.ones(len(steps)))
    found = linprog(-values.ravel() / 5, A_ub=[np.tile(steps, 5) / 5], b_ub=[rho], A_eq=share, b_eq=np.ones(5))
    bound = losses(x, signs, w).mean() + WassersteinBall(rho, norm).value(w)
    assert -found.fun <= bound + 1e-9
    assert -found.fun == pytest.approx(bound, abs=2e-3)


@pytest.mark.parametrize("norm", NORMS)
def test_prox_is_the_argmin(norm):
    rng, ball = np.random.default_rng(2), WassersteinBall(0.7, norm)
    for v in [*rng.normal(size=(6, 4)), np.zeros(4), np.full(4, 0.01)]:
        w = ball.prox(v, 0.5)
        value = 0.5 * ball.value(w) + ((w - v) ** 2).sum() / 2
        around = w + rng.normal(size=(400, 4)) * 10.0 ** rng.uniform(-4, 0, (400, 1))
        others = [0.5 * ball.value(u) + ((u - v) ** 2).sum() / 2 for u in around]
        assert value <= min(others) + 1e-12
    assert np.array_equal(WassersteinBall(0.0, norm).prox(v, 0.5), v)


def smooth_problem(norm, x, signs, mu, rho):
    """The minimum by scipy, with a variable t for the norm."""
    d = x.shape[1]

    def value(p):
        return losses(x, signs, p[:d], p[d]).mean() + mu / 2 * (p[: d + 1] ** 2).sum() + rho * p[d + 1 :].sum()

    eye, zero = np.eye(d), np.zeros((d, 1))
    ts = np.eye(d) if norm == "linf" else np.ones((d, 1))
    bounds = [LinearConstraint(np.hstack([sign * eye, zero, ts]), 0, np.inf) for sign in (1, -1)]
    start = np.concatenate([np.full(d, 0.1), [0.0], np.ones(ts.shape[1])])
    return minimize(value, start, method="SLSQP", constraints=bounds, options={"maxiter": 3000, "ftol": 1e-13}).fun


@pytest.mark.parametrize("norm", ["l1", "linf"])
def test_fit_reaches_scipys_minimum(norm):
    x, y = table()
    ours = model(norm, 0.05, mu=0.1).fit(x, y)
    assert ours.objective_ == pytest.approx(smooth_problem(norm, x, 2.0 * y - 1, 0.1, 0.05), abs=1e-6)
    assert ours.duality_gap_ <= 1e-9


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("ambiguity", [CappedSimplex(1.0), CappedSimplex(0.3)])
def test_gap_bounds_what_can_be_gained(norm, ambiguity):
    x, y = table()
    best = model(norm, ambiguity=ambiguity).fit(x, y)
    with pytest.warns(match="the duality gap is"):
        early = model(norm, ambiguity=ambiguity, max_passes=6).fit(x, y)
    assert 0 < early.objective_ - best.objective_ <= early.duality_gap_ + 1e-9
    assert best.q_.sum() == pytest.approx(1)
    w, b = best.coef_[0], best.intercept_[0]
    level = best.q_ @ losses(x, 2.0 * y - 1, w, b) - ROWS * ((best.q_ - 1 / ROWS) ** 2).sum()
    whole = level + 0.1 * np.linalg.norm(w, DUAL[norm]) + 0.005 * (w @ w + b * b)
    assert best.objective_ == pytest.approx(whole, rel=1e-9)


def test_without_a_radius_it_is_logistic_regression():
    x, y = table()
    ours = model("l2", 0.0, fit_intercept=False).fit(x, y)
    ridge = LogisticRegression(C=1 / (0.01 * ROWS), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(x, y)
    np.testing.assert_allclose(ours.coef_, ridge.coef_, atol=1e-3)


def test_a_large_radius_leaves_only_the_constant():
    x, y = table()
    ours = model("linf", 5.0).fit(x, y)
    assert np.array_equal(ours.coef_, np.zeros((1, 6)))
    assert ours.intercept_[0] != 0


def test_moves_of_every_feature_at_once_choose_features():
    x, y = table()
    assert (model("linf", 0.05).fit(x, y).coef_ == 0).sum() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "multinomial"}, "wasserstein needs the logistic loss"),
        ({"loss": "hinge"}, "wasserstein needs the logistic loss"),
        ({"solver": "lbfgs"}, "cannot handle the norm of w"),
        ({"mu": 0.0}, "needs mu > 0"),
        ({"nu": 0.0}, "needs nu > 0"),
        ({"wasserstein": 0.1}, "must be a WassersteinBall"),
    ],
)
def test_what_does_not_go_with_a_ball_is_refused(options, message):
    given = {"wasserstein": WassersteinBall(0.1)} | options
    with pytest.raises(ConfigError, match=message):
        DROClassifier(**given).fit(*table())


def test_bad_balls_are_refused_and_the_solver_works_without_one():
    with pytest.raises(ConfigError, match="rho must be"):
        WassersteinBall(-1.0)
    with pytest.raises(ConfigError, match="norm must be one of"):
        WassersteinBall(1.0, "l3")
    x, y = table()
    plain, proximal = (DROClassifier(solver=s, tol=1e-9).fit(x, y) for s in ("lbfgs", ProximalGradient()))
    np.testing.assert_allclose(plain.coef_, proximal.coef_, atol=1e-4)

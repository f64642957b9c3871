"""The estimators behind scikit-learn's interface."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fcco_lightning import CappedSimplex, ChiSquareBall, DROClassifier, DRORegressor, KLBall, Simplex, SpectralRisk
from fcco_lightning.dro import DRAGO, LSVRG
from fcco_lightning.errors import ConfigError, DataError

DIABETES = load_diabetes(return_X_y=True)
TABLE = StandardScaler().fit_transform(DIABETES[0])[:120], DIABETES[1][:120] / 50
SOLVERS = ["lbfgs", "drago", "lsvrg", "subgradient"]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([DRORegressor(), DROClassifier()])
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("solver", SOLVERS)
def test_all_solvers_find_the_same_weights(solver):
    best = DRORegressor(tol=1e-9).fit(*TABLE)
    found = DRORegressor(solver=solver, tol=1e-4, random_state=0, max_passes=5000).fit(*TABLE)
    np.testing.assert_allclose(found.coef_, best.coef_, atol=0.05)
    assert found.objective_ - best.objective_ <= found.duality_gap_ + 1e-8 <= 1e-3
    assert found.q_.sum() == pytest.approx(1)
    assert len(found.history_) == found.n_iter_ >= 1
    assert found.n_oracle_calls_ >= 120


def test_alpha_one_is_ridge_regression():
    x, y = TABLE
    ours = DRORegressor(CappedSimplex(1.0), mu=0.3, tol=1e-12, fit_intercept=False).fit(x, y)
    ridge = Ridge(alpha=0.3 * len(y), fit_intercept=False, solver="cholesky").fit(x, y)
    np.testing.assert_allclose(ours.coef_, ridge.coef_, atol=1e-4)
    np.testing.assert_allclose(ours.q_, 1 / len(y), atol=1e-12)


@pytest.mark.parametrize("solver", ["lbfgs", DRAGO(7)])
@pytest.mark.parametrize("divergence", ["kl", "chi_square", "euclidean"])
def test_a_huge_nu_is_ridge_regression(solver, divergence):
    """The divergence of weights that are nearly uniform is tiny, and times nu it is not: no digit may be lost."""
    x, y = TABLE
    common = {"ambiguity": Simplex(), "mu": 0.3, "fit_intercept": False, "tol": 1e-12}
    ours = DRORegressor(divergence=divergence, nu=1e16, solver=solver, **common).fit(x, y)
    ridge = Ridge(alpha=0.3 * len(y), fit_intercept=False, solver="cholesky").fit(x, y)
    np.testing.assert_allclose(ours.coef_, ridge.coef_, atol=1e-4)
    least = np.mean((x @ ridge.coef_ - y) ** 2) / 2 + 0.15 * ridge.coef_ @ ridge.coef_
    assert ours.objective_ == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("ambiguity", [Simplex(), ChiSquareBall(1.0), KLBall(0.3), SpectralRisk("esrm", 2.0)])
def test_the_worst_case_is_better_than_ridge_regressions(ambiguity):
    x, y = TABLE
    ours = DRORegressor(ambiguity, nu=0.05, mu=0.1).fit(x, y)
    ridge = Ridge(alpha=0.1 * len(y)).fit(x, y)

    def worst(model):
        losses = (model.predict(x) - y) ** 2 / 2
        return float(ours.q_ @ losses), float(losses.max())

    assert worst(ours)[0] < worst(ridge)[0] or worst(ours)[1] < worst(ridge)[1]
    assert ours.duality_gap_ <= 1e-6 * max(1.0, ours.history_[0]["objective"]) + 1e-12


@pytest.mark.parametrize("solver", [*SOLVERS, "sgd", "multilevel"])
def test_sparse_and_dense_features_give_the_same(solver):
    x, y = TABLE
    x = np.where(np.abs(x) > 1, x, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        dense, thin = (
            DRORegressor(solver=solver, max_passes=40, random_state=0).fit(z, y) for z in (x, sparse.csr_matrix(x))
        )
    np.testing.assert_allclose(dense.coef_, thin.coef_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(dense.predict(x), thin.predict(sparse.csr_array(x)), atol=1e-8)


def test_classification():
    x, y = load_breast_cancer(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    names = np.array(["malignant", "benign"])[y]
    logistic = DROClassifier(mu=0.01, tol=1e-9).fit(x, names)
    assert logistic.score(x, names) > 0.95
    assert logistic.coef_.shape == (1, 30)
    np.testing.assert_allclose(logistic.predict_proba(x).sum(1), 1)
    assert (logistic.predict_proba(x)[:, 1] > 0.5).tolist() == (logistic.predict(x) == logistic.classes_[1]).tolist()
    softmax = DROClassifier("multinomial", mu=0.02, tol=1e-9).fit(x, names)  # half the penalty on each of two columns
    np.testing.assert_allclose(softmax.decision_function(x), logistic.decision_function(x), atol=2e-3)
    hinge = DROClassifier("hinge", mu=0.1, tol=1e-2).fit(x, names)
    assert hinge.score(x, names) > 0.95
    assert not hasattr(hinge, "predict_proba")
    with pytest.raises(AttributeError, match="has no attribute 'predict_proba'") as error:
        hinge.predict_proba(x)
    assert "gives no probabilities. Use loss='logistic'" in str(error.value.__cause__)


def test_three_classes():
    x, y = load_iris(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    model = DROClassifier(mu=0.1, solver="drago").fit(x, y)
    assert model.coef_.shape == (3, 4)
    assert model.score(x, y) > 0.9
    assert model.predict_proba(x[:5]).shape == (5, 3)


def test_grid_search_and_clone():
    search = GridSearchCV(
        DRORegressor(), {"nu": [0.1, 1.0], "ambiguity": [CappedSimplex(0.2), CappedSimplex(0.8)]}, cv=2
    )
    assert search.fit(*TABLE).best_score_ > 0
    made = clone(DRORegressor(CappedSimplex(0.2), solver=DRAGO(16)))
    assert made.solver == DRAGO(16)
    assert made.ambiguity == CappedSimplex(0.2)


def test_awkward_data():
    x, y = TABLE
    constant = np.column_stack([x, np.full(len(x), 3.0), np.zeros(len(x))])
    for solver in ("lbfgs", "drago"):
        model = DRORegressor(solver=solver).fit(constant, y)
        assert model.coef_[-1] == 0
        assert np.isfinite(model.predict(constant)).all()
    wide = DRORegressor(solver="drago").fit(x[:5], y[:5])  # n < d
    assert wide.duality_gap_ < 1e-4
    assert DRORegressor(solver=DRAGO(7)).fit(x, y).duality_gap_ < 1e-4  # does not divide 120
    assert (DRORegressor().fit(x, np.full(len(x), 2.0)).predict(x) == 2.0).all()
    assert DRORegressor(solver="drago").fit(np.zeros((4, 2)), np.ones(4)).coef_.tolist() == [0, 0]


BAD = [
    ({"ambiguity": CappedSimplex(0.001)}, "alpha=0.001 of 120 groups"),
    ({"ambiguity": "cvar"}, "ambiguity must be an AmbiguitySet"),
    ({"nu": -1.0}, "nu must be a finite number >= 0"),
    ({"mu": -1.0}, "mu must be a finite number >= 0"),
    ({"mu": 0.0, "solver": "subgradient"}, "needs mu > 0, got Squared, mu=0.0"),
    ({"mu": 0.0, "solver": DRAGO(alpha=0.1)}, "alpha=0.1 and start='practice' apply only to mu > 0 and nu > 0"),
    ({"nu": 0.0, "solver": DRAGO(start="theory")}, "alpha=None and start='theory' apply only to mu > 0 and nu > 0"),
    ({"tol": 0.0}, "tol must be a finite number > 0"),
    ({"max_passes": 0}, "max_passes must be a whole number >= 1"),
    ({"divergence": "tv"}, "divergence must be one of"),
    ({"solver": "adam"}, "solver must be one of"),
    ({"solver": 3}, "solver must be one of"),
    ({"solver": "lbfgs", "nu": 0.0}, "needs nu > 0, got Squared"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda v: str(v)[:30])
def test_bad_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        DRORegressor(**arguments).fit(*TABLE)


def test_bad_data():
    x, y = TABLE
    with pytest.raises(ValueError, match="NaN"):
        DRORegressor().fit(x, np.where(y > y.mean(), np.nan, y))
    with pytest.raises(ValueError, match="infinity"):
        DRORegressor().fit(x, np.where(y > y.mean(), np.inf, y))
    with (
        pytest.raises(DataError, match=r"for targets of up to 1e\+200. Scale the targets down"),
        np.errstate(over="ignore"),
    ):
        DRORegressor(fit_intercept=False).fit(x, np.where(y > y.mean(), 1e200, y))
    with pytest.raises(DataError, match="y has one class"):
        DROClassifier().fit(x, np.ones(len(x)))
    with pytest.raises(DataError, match="is for two classes, y has 3"):
        DROClassifier("hinge").fit(x, np.arange(len(x)) % 3)
    with pytest.raises(ConfigError, match="needs a smooth loss"):
        DROClassifier("hinge", solver="lbfgs").fit(x, np.arange(len(x)) % 2)
    with pytest.raises(ConfigError, match=r"mu=0 is supported for .* the multinomial loss only, .* got Hinge"):
        DROClassifier("hinge", mu=0.0).fit(x, np.arange(len(x)) % 2)
    with pytest.raises(ConfigError, match="loss must be one of"):
        DROClassifier("squared").fit(x, np.arange(len(x)) % 2)
    with pytest.raises(ConfigError, match="rho must be"):
        ChiSquareBall(-1.0)


def test_a_gap_that_stays_is_warned_of():
    with pytest.warns(ConvergenceWarning, match="the duality gap is"):
        DRORegressor(solver=LSVRG(), max_passes=3, tol=1e-12).fit(*TABLE)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 16, 331])
def test_drago_without_a_step_size_on_a_table_whose_loss_is_steep_beside_mu(size):
    x, y = load_diabetes(return_X_y=True)
    x, y = StandardScaler().fit_transform(x)[:331], ((y - y.mean()) / y.std())[:331]
    robust = DRORegressor(CappedSimplex(0.1), nu=1.0, mu=1.0, tol=1e-7)
    found = clone(robust).set_params(solver=DRAGO(size)).fit(x, y)
    assert found.duality_gap_ <= 1e-7
    # a gap bounds mu/2 times the squared distance to the solution, for either fit
    np.testing.assert_allclose(found.coef_, robust.fit(x, y).coef_, atol=2 * (2 * 1e-7) ** 0.5)


def test_a_step_size_that_was_given_is_kept_through_the_first_rise():
    x, y = load_diabetes(return_X_y=True)
    x, y = StandardScaler().fit_transform(x)[:331], ((y - y.mean()) / y.std())[:331]
    solver = DRAGO(331, alpha=0.01)
    robust = DRORegressor(CappedSimplex(0.1), nu=1.0, mu=1.0, tol=1e-6, max_passes=3000, solver=solver).fit(x, y)
    assert max(record["objective"] for record in robust.history_) > 1e7
    assert robust.duality_gap_ <= 1e-6

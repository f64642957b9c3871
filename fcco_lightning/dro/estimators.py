"""Distributionally robust linear models with scikit-learn's interface."""

import warnings
from contextlib import suppress
from typing import Any, Literal, Self, get_args

import numpy as np
from scipy import sparse
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fcco_lightning.ambiguity import (
    AmbiguitySet,
    CappedSimplex,
    ChiSquarePenalty,
    EuclideanPenalty,
    KLPenalty,
    Simplex,
)
from fcco_lightning.checks import at_least, non_negative, one_of, positive
from fcco_lightning.dro.drago import DRAGO
from fcco_lightning.dro.losses import Array, Hinge, Logistic, Loss, Multinomial, Squared
from fcco_lightning.dro.problem import Done, LinearProblem, Progress, Solver
from fcco_lightning.dro.sgd import LSVRG, MinibatchSGD, MultilevelSGD
from fcco_lightning.dro.wasserstein import WassersteinBall
from fcco_lightning.dro.whole_passes import LBFGS, ProximalGradient, Subgradient
from fcco_lightning.errors import ConfigError, DataError

Divergence = Literal["chi_square", "euclidean", "kl"]
PENALTIES: dict[str, type[Any]] = {"chi_square": ChiSquarePenalty, "euclidean": EuclideanPenalty, "kl": KLPenalty}
SOLVERS: dict[str, type[Any]] = {
    "drago": DRAGO,
    "lsvrg": LSVRG,
    "sgd": MinibatchSGD,
    "multilevel": MultilevelSGD,
    "lbfgs": LBFGS,
    "subgradient": Subgradient,
    "proximal": ProximalGradient,
}
_AUTO = ["lbfgs", "drago", "subgradient"]  # the first suitable one is used
_HALF = CappedSimplex(0.5)


class _DROLinearModel(BaseEstimator):  # type: ignore[misc]
    """Base class of the regressor and the classifier."""

    def __init__(
        self,
        ambiguity: AmbiguitySet | None = None,
        divergence: Divergence = "chi_square",
        nu: float = 1.0,
        mu: float = 1.0,
        solver: str | Solver = "auto",
        fit_intercept: bool = True,
        tol: float = 1e-6,
        max_passes: int = 1000,
        random_state: Any = None,
    ) -> None:
        self.ambiguity = ambiguity
        self.divergence = divergence
        self.nu = nu
        self.mu = mu
        self.solver = solver
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_passes = max_passes
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _solve(self, x: Any, y: Array, loss: Loss, ball: WassersteinBall | None = None) -> Array:
        """Weights of the features, (d,) or (d, k), and of the constant if there is one; sets the fitted attributes."""
        problem = self._problem(x, y, loss)
        problem.norm, problem.features = ball, x.shape[1]
        solver = self._solver(problem)
        random = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        at_zero = problem.point(problem.zeros()).value
        if not np.isfinite(at_zero):
            raise DataError(
                f"the losses at w = 0 overflow, for targets of up to {np.abs(y).max():.3g}. Scale the targets down."
            )
        tol = positive("tol", self.tol) * max(1.0, abs(at_zero))
        progress = Progress(problem, tol, at_least("max_passes", self.max_passes, 1))
        with suppress(Done):
            solver.solve(problem, progress, random)
        if progress.gap > tol:
            fixed = isinstance(solver, DRAGO) and solver.alpha is not None
            slower = "give DRAGO a smaller alpha, " if fixed else ""
            smooth = np.isfinite(problem.loss.curvature) and problem.penalty.nu > 0 and ball is None
            other = "solver='lbfgs'" if smooth and not isinstance(solver, LBFGS) else "another solver"
            warnings.warn(
                f"the duality gap is {progress.gap:.3g} after {progress.calls / problem.n:.0f} passes over the data, "
                f"not {tol:.3g}. Raise max_passes or tol, standardise the features, {slower}or use {other}.",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.q_ = problem.point(progress.w).q
        self.objective_, self.duality_gap_ = progress.value, progress.gap
        self.n_oracle_calls_, self.history_ = progress.calls, progress.history
        self.n_iter_ = len(progress.history)
        return progress.w

    def _problem(self, x: Any, y: Array, loss: Loss) -> LinearProblem:
        make = PENALTIES[one_of("divergence", self.divergence, get_args(Divergence))]
        ambiguity = self.ambiguity or (_HALF if len(y) > 1 else Simplex())
        if not isinstance(ambiguity, AmbiguitySet):
            raise ConfigError(
                f"ambiguity must be an AmbiguitySet or None, got {ambiguity!r}. For CVaR: CappedSimplex(.5)."
            )
        ambiguity.check(len(y))
        x = with_constant(x) if self.fit_intercept else x
        return LinearProblem(x, y, loss, ambiguity, make(non_negative("nu", self.nu)), non_negative("mu", self.mu))

    def _solver(self, problem: LinearProblem) -> Solver:
        has = {"a smooth loss": np.isfinite(problem.loss.curvature), "mu > 0": problem.mu > 0}
        has["nu > 0"] = problem.penalty.nu > 0
        if isinstance(self.solver, str):
            name = one_of("solver", self.solver, ["auto", *SOLVERS])
            able = _AUTO if problem.norm is None else ["proximal"]
            fitting = (other for other in able if all(has[requirement] for requirement in SOLVERS[other].needs))
            solver = SOLVERS[next(fitting, able[0]) if name == "auto" else name]()
        else:
            solver = self.solver
        if not hasattr(solver, "solve"):
            raise ConfigError(f"solver must be one of {['auto', *SOLVERS]} or a solver, got {solver!r}.")
        missing = sorted(requirement for requirement in solver.needs if not has[requirement])
        if missing:
            way_out = "Use solver='auto'." if problem.norm is None else "A Wasserstein ball has no other solver."
            raise ConfigError(
                f"solver={self.solver!r} needs {' and '.join(missing)}, got {type(problem.loss).__name__}, "
                f"mu={self.mu!r} and nu={self.nu!r}. {way_out}"
            )
        if problem.norm is not None and not isinstance(solver, ProximalGradient):
            raise ConfigError(
                f"solver={self.solver!r} cannot handle the norm of w that a Wasserstein ball adds. Use solver='auto'."
            )
        return solver  # type: ignore[no-any-return]


class DRORegressor(RegressorMixin, _DROLinearModel):  # type: ignore[misc]
    r"""Linear regression for the worst weighting of the samples.

    ``min_w max_{q in Q} sum_i q_i (x_i w + b - y_i)^2 / 2 - nu D(q, 1/n) + (mu/2) (|w|^2 + (b - mean y)^2)``

    The fit stops when the duality gap, an upper bound of the suboptimality, is small; the bound is valid for every
    solver.  Features should be standardised.  Data may be dense or sparse.

    Args:
        ambiguity: Q; None for ``CappedSimplex(0.5)``, the mean over the worst half of the samples.
        divergence: D: "chi_square" for ``n |q - 1/n|^2``, "euclidean" for ``|q - 1/n|^2 / 2``, "kl".
        nu: weight of D, >= 0, in the unit of the loss; 0 needs another solver than "lbfgs" and "lsvrg".
        mu: weight of the ridge penalty, >= 0; 0 needs another solver than "subgradient", and the gap is then infinite
            while w is far from a minimum.
        solver: "lbfgs", "drago", "lsvrg", "sgd" (biased), "multilevel" (unbiased), "subgradient", an object such as
            ``DRAGO(block_size=16)``, or "auto" for the first suitable one of L-BFGS (smooth objectives), DRAGO (smooth
            losses) and subgradients.
        fit_intercept: whether to fit b, which is penalised as in the formula.
        tol: the fit stops at a gap of tol times the larger of 1 and the objective at w = 0.
        max_passes: the fit stops after this number of passes over the data, with a warning.
        random_state: seed of the solvers that draw samples.

    Attributes:
        coef_: w, (d,).
        intercept_: b.
        q_: the worst weights of the samples at w, (n,), sum 1.
        objective_: the objective at the solution.
        duality_gap_: upper bound of the difference between ``objective_`` and the minimum.
        n_oracle_calls_: number of evaluations of the loss or gradient of one sample by the solver.
        history_: list of dicts with ``oracle_calls``, ``seconds``, ``objective``, ``gap``.
        n_iter_: number of evaluations of the objective, the length of the history.

    Raises:
        ConfigError: if an argument is out of range or does not fit the data.
        DataError: if a loss overflows at w = 0.
        ValueError: if the data is not finite or of a wrong shape.
    Source: DRAGO paper, eq. (2).
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to features (n, d) and targets (n,)."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, y_numeric=True)
        y = np.asarray(y, dtype=np.float64)
        centre = float(y.mean()) if self.fit_intercept else 0.0
        w = self._solve(X, y - centre, Squared())
        d = X.shape[1]
        self.coef_, self.intercept_ = w[:d], centre + float(w[d]) if self.fit_intercept else 0.0
        return self

    def predict(self, X: Any) -> Array:
        """``x w + b`` for features (m, d): (m,)."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        return np.asarray(X @ self.coef_ + self.intercept_)


def _has_log_odds(model: "DROClassifier") -> bool:
    if model.loss == "hinge":
        raise AttributeError("loss='hinge' gives no probabilities. Use loss='logistic', or decision_function.")
    return True


class DROClassifier(ClassifierMixin, _DROLinearModel):  # type: ignore[misc]
    r"""Linear classification for the worst weighting of the samples.

    ``min_w max_{q in Q} sum_i q_i phi(x_i w + b, y_i) - nu D(q, 1/n) + (mu/2) (|w|^2 + |b|^2)``

    With ``wasserstein`` the objective is also the worst case over shifts of the samples' features, which adds a norm of
    w.  Everything else is as in :class:`DRORegressor`.

    Args:
        loss: "logistic", which is the multinomial loss for more than two classes; "multinomial", with one column of
            weights per class also for two classes; "hinge" for two classes, which is not smooth and needs the solver
            "subgradient", "auto" or "sgd".
        ambiguity: Q; None for ``CappedSimplex(0.5)``.
        divergence: D: "chi_square", "euclidean" or "kl".
        nu: weight of D, >= 0.
        mu: weight of the ridge penalty, >= 0; 0 needs a smooth loss and classes that no hyperplane separates, and the
            gap is then infinite while w is far from a minimum.
        solver: as in :class:`DRORegressor`.
        fit_intercept: whether to fit b, which is penalised like w.
        tol: as in :class:`DRORegressor`.
        max_passes: as in :class:`DRORegressor`.
        random_state: seed of the solvers that draw samples.
        wasserstein: a :class:`WassersteinBall` of shifts of the samples, for the logistic loss with two classes, mu > 0
            and the solver "proximal", which "auto" then selects.  With ``ambiguity=CappedSimplex(1.0)`` the
            weights are 1/n, as in its source.  None for no shifts.

    Attributes:
        classes_: the labels, sorted.
        coef_: w, (1, d) for two classes with one column, else (number of classes, d).
        intercept_: b, (1,) or (number of classes,).
        q_: the worst weights of the samples, (n,).
        objective_, duality_gap_, n_oracle_calls_, history_, n_iter_: as in :class:`DRORegressor`.

    Raises:
        ConfigError: if an argument is out of range or does not fit the data.
        DataError: if there is only one class, or more than two for the hinge loss.
    """

    def __init__(
        self,
        loss: Literal["logistic", "multinomial", "hinge"] = "logistic",
        ambiguity: AmbiguitySet | None = None,
        divergence: Divergence = "chi_square",
        nu: float = 1.0,
        mu: float = 1.0,
        solver: str | Solver = "auto",
        fit_intercept: bool = True,
        tol: float = 1e-6,
        max_passes: int = 1000,
        random_state: Any = None,
        wasserstein: WassersteinBall | None = None,
    ) -> None:
        super().__init__(ambiguity, divergence, nu, mu, solver, fit_intercept, tol, max_passes, random_state)
        self.loss = loss
        self.wasserstein = wasserstein

    def fit(self, X: Any, y: Any) -> Self:
        """Fit to features (n, d) and labels (n,)."""
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        self.classes_, code = np.unique(y, return_inverse=True)
        targets, loss = self._encoded(code)
        self._require_a_norm(loss)
        w = self._solve(X, targets, loss, self.wasserstein).T.reshape(-1, X.shape[1] + bool(self.fit_intercept))
        d = X.shape[1]
        self.coef_ = w[:, :d]
        self.intercept_ = w[:, d] if self.fit_intercept else np.zeros(len(w))
        return self

    def _require_a_norm(self, loss: Loss) -> None:
        """Refuse a Wasserstein ball with a loss for which it is not equivalent to a norm of w."""
        if self.wasserstein is None:
            return
        if not isinstance(self.wasserstein, WassersteinBall):
            raise ConfigError(f"wasserstein must be a WassersteinBall or None, got {self.wasserstein!r}.")
        if not isinstance(loss, Logistic):
            raise ConfigError(
                "wasserstein needs the logistic loss of two classes, for which the ball adds a norm of w to the "
                f"objective, got {type(loss).__name__}. Leave it out, or predict one class against the others."
            )

    def _encoded(self, code: np.ndarray) -> tuple[Array, Loss]:
        """Targets (n,) with values -1 and 1, or (n, k) with values 0 and 1, and the loss for them."""
        one_of("loss", self.loss, ["logistic", "multinomial", "hinge"])
        k = len(self.classes_)
        if k < 2:
            raise DataError(f"y has one class, {self.classes_[0]!r}; a classifier needs two classes or more.")
        if self.loss == "hinge" and k > 2:
            raise DataError(f"loss='hinge' is for two classes, y has {k}. Use loss='multinomial'.")
        if self.loss == "multinomial" or k > 2:
            return np.eye(k)[code], Multinomial()
        return 2.0 * code - 1, Hinge() if self.loss == "hinge" else Logistic()

    def decision_function(self, X: Any) -> Array:
        """Scores: (m,) with one column of weights, else (m, number of classes)."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        scores = np.asarray(X @ self.coef_.T + self.intercept_)
        if len(self.classes_) == 2 and scores.shape[1] == 2:
            return np.asarray(scores[:, 1] - scores[:, 0])
        return np.asarray(scores[:, 0]) if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> Any:
        """Labels (m,)."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    @available_if(_has_log_odds)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Array:
        """Probabilities (m, number of classes), in the order of ``classes_``.

        Raises:
            AttributeError: with the hinge loss, whose scores are no log-odds.
        """
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
        return np.asarray(softmax(scores, axis=1))


def with_constant(x: Any) -> Any:
    """Features with a last column of ones."""
    ones = np.ones((x.shape[0], 1))
    return sparse.hstack([x, ones], format="csr") if sparse.issparse(x) else np.hstack([x, ones])

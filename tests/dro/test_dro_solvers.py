"""Solvers reach the optimum of a general solver, and the certificate equals a loop over the samples."""

from contextlib import suppress
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning

from fcco_lightning.ambiguity import (
    CappedSimplex,
    ChiSquareBall,
    ChiSquarePenalty,
    EuclideanPenalty,
    KLPenalty,
    Simplex,
    SpectralRisk,
)
from fcco_lightning.dro import DRAGO, LBFGS, LSVRG, MinibatchSGD, MultilevelSGD, Subgradient, drago
from fcco_lightning.dro.dual import DualSteps
from fcco_lightning.dro.kernel import LOOKS, next_look
from fcco_lightning.dro.losses import Hinge, Logistic, Multinomial, Squared
from fcco_lightning.dro.paces import default_alpha, expected_passes
from fcco_lightning.dro.problem import Done, LinearProblem, Progress, blocks_of
from fcco_lightning.dro.sgd import Levels, worst
from fcco_lightning.errors import ConfigError, NonFiniteError

N, D = 42, 3
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(N, D))
Y = X @ np.array([1.0, -0.5, 0.2]) + 0.5 * RANDOM.normal(size=N)
SIGNS = np.where(X[:, 0] + RANDOM.normal(size=N) > 0, 1.0, -1.0)
CLASSES = np.eye(3)[RANDOM.integers(3, size=N)]
TARGETS = {Squared: Y, Logistic: SIGNS, Multinomial: CLASSES, Hinge: SIGNS}


def problem(loss=Squared, ambiguity=None, penalty=None, mu=0.5):
    return LinearProblem(
        X, TARGETS[loss], loss(), ambiguity or CappedSimplex(0.4), penalty or ChiSquarePenalty(0.5), mu
    )


def solve(solver, posed, tol=1e-10, passes=5000, seed=0):
    progress = Progress(posed, tol, passes)
    with suppress(Done):
        solver.solve(posed, progress, np.random.default_rng(seed))
    return progress


def slow_losses(loss, w):
    """The losses of all samples, by loops."""
    out = []
    for x, y in zip(X, TARGETS[loss], strict=True):
        z = x @ w
        if loss is Squared:
            out.append((z - y) ** 2 / 2)
        elif loss is Logistic:
            out.append(np.log(1 + np.exp(-y * z)))
        elif loss is Multinomial:
            out.append(logsumexp(z) - z[int(np.argmax(y))])
        else:
            out.append(max(0.0, 1 - y * z))
    return np.array(out)


@pytest.mark.parametrize("loss", TARGETS)
def test_losses_and_slopes(loss):
    w = RANDOM.normal(size=(D, 3) if loss is Multinomial else D)
    z = X @ w
    losses, slopes = loss()(z, TARGETS[loss])
    np.testing.assert_allclose(losses, slow_losses(loss, w), rtol=1e-12)
    step = 1e-6 * RANDOM.normal(size=z.shape)
    ahead, back = loss()(z + step, TARGETS[loss])[0], loss()(z - step, TARGETS[loss])[0]
    along = (slopes * step).reshape(N, -1).sum(1)
    np.testing.assert_allclose((ahead - back) / 2, along, atol=1e-14, rtol=1e-6)
    far, _ = loss()(1e6 * z, TARGETS[loss])
    assert np.isfinite(far).all()


@pytest.mark.parametrize("ambiguity", [Simplex(), CappedSimplex(0.05), CappedSimplex(0.4), CappedSimplex(1.0)])
def test_dual_steps_are_those_of_the_set(ambiguity):
    """Also with the threshold of a problem far away to start from, and where no weight is between its bounds."""
    for penalty in (ChiSquarePenalty(0.01), ChiSquarePenalty(1e-9), EuclideanPenalty(0.3), KLPenalty(0.1)):
        steps, q = DualSteps(ambiguity, penalty, N), np.full(N, 1 / N)
        for scale in (1.0, 1e4, 1e-3, 1.0, 0.0):
            losses = scale * RANDOM.normal(size=N) ** 2
            found = ambiguity.best_response(torch.from_numpy(losses), penalty)
            value, best = steps.respond(losses)
            assert value == pytest.approx(float(found.value), rel=1e-9, abs=1e-12)
            np.testing.assert_allclose(best, found.q, atol=1e-9)
            expected = ambiguity.prox(torch.from_numpy(losses), torch.from_numpy(q), penalty, 2.0)
            q = steps.prox(losses, q, 2.0)
            np.testing.assert_allclose(q, expected, atol=1e-9)


def test_newtons_method_ends_from_a_threshold_far_away():
    """From where all weights are at one bound; else every step would be left to the slower set."""
    steps, losses = DualSteps(CappedSimplex(0.4), ChiSquarePenalty(0.5), N), RANDOM.normal(size=N) ** 2
    for start in (-1e3, -1.0, 0.5, 1e3):
        steps.at_response = start
        q = steps.respond(losses)[1]
        assert steps.at_response is not None
        assert q.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("size", [1, 16, N // D, N])
@pytest.mark.parametrize("start", ["practice", "theory"])
def test_drago_converges_linearly_for_every_block_size(size, start):
    """16 does not divide 42."""
    posed = problem()
    found = solve(DRAGO(size, start=start), posed)
    assert found.gap <= 1e-10
    best = solve(LBFGS(), posed, 1e-13).w
    np.testing.assert_allclose(found.w, best, atol=2e-5)
    gaps = [(record["oracle_calls"], record["gap"]) for record in found.history]
    first = next(calls for calls, gap in gaps if gap < 1e-4)
    assert gaps[-1][0] - first < 4 * first + 20 * N  # as many digits again take no more than a few times as long


@pytest.mark.parametrize("loss", [Logistic, Multinomial])
@pytest.mark.parametrize("penalty", [ChiSquarePenalty(0.2), KLPenalty(0.3)])
def test_drago_with_other_losses_and_penalties(loss, penalty):
    assert solve(DRAGO(7), problem(loss, SpectralRisk("extremile", 2.0), penalty), 1e-9).gap <= 1e-9


@pytest.mark.parametrize(("loss", "nu", "mu", "goes_round"), [(Squared, 0.1, 0.5, True), (Logistic, 0.01, 0.05, False)])
def test_dragos_default_step_where_kl_lets_few_samples_weigh_all(loss, nu, mu, goes_round):
    """The step that follows from uniform weights goes round for ever, at objectives that stay small.

    With logistic losses it depends on the last digits whether it ever stops, and machines differ.
    """
    posed = problem(loss, Simplex(), KLPenalty(nu), mu)
    first = default_alpha(posed, N // D)
    assert not goes_round or solve(DRAGO(alpha=first), posed, 1e-6, 500).gap > 1e-2
    found = solve(DRAGO(), posed, 1e-6, 3000)
    assert found.gap <= 1e-6
    value = lambda w: nu * (logsumexp(slow_losses(loss, w) / nu) - np.log(N)) + posed.mu / 2 * w @ w  # noqa: E731
    best = minimize(value, np.zeros(D), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14, "maxiter": 4000})
    assert found.value == pytest.approx(best.fun, abs=2e-6)


@pytest.mark.parametrize("make", [LSVRG, lambda: LSVRG(8), LBFGS])
def test_other_solvers(make):
    assert solve(make(), problem(), 1e-8, 2000).gap <= 1e-8


OPTIMA = {
    "KL, all weights": (Simplex(), KLPenalty(0.3), lambda a: 0.3 * (logsumexp(a / 0.3) - np.log(N))),
    "chi-square ball": (
        ChiSquareBall(0.05),
        ChiSquarePenalty(1e-6),
        lambda a: a.mean() + np.sqrt(0.05 * a.var()),  # no weight is 0 here
    ),
    "extremile of two": (  # the mean of the larger of two losses
        SpectralRisk("extremile", 2.0),
        ChiSquarePenalty(1e-6),
        lambda a: np.maximum(a[:, None], a[None, :]).mean(),
    ),
}


@pytest.mark.parametrize("name", OPTIMA)
def test_optimum_against_closed_forms_of_the_worst_case(name):
    ambiguity, penalty, worst = OPTIMA[name]
    posed = problem(Logistic, ambiguity, penalty)
    value = lambda w: worst(slow_losses(Logistic, w)) + posed.mu / 2 * w @ w  # noqa: E731
    best = minimize(value, np.zeros(D), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14, "maxiter": 4000})
    found = solve(LBFGS(), posed, 1e-9, 500)
    assert found.value == pytest.approx(best.fun, abs=1e-8 if penalty.nu > 1e-3 else 1e-5)
    assert found.lower <= best.fun + 1e-8


@pytest.mark.parametrize("loss", TARGETS)
def test_gap_is_fenchels_and_bounds_what_can_be_gained(loss):
    """The dual function at q and the slopes, by loops."""
    posed = problem(loss)
    w = 0.3 * RANDOM.normal(size=posed.zeros().shape)
    point = posed.point(w)
    scores = X @ w
    slopes = loss()(scores, TARGETS[loss])[1].reshape(N, -1)
    dual, total = 0.0, np.zeros((D, slopes.shape[1]))
    for i, value in enumerate(slow_losses(loss, w)):
        dual += point.q[i] * (value - slopes[i] @ scores.reshape(N, -1)[i])  # minus the conjugate of the loss
        total += point.q[i] * np.outer(X[i], slopes[i])
    dual -= 0.5 * N * ((point.q - 1 / N) ** 2).sum() + (total**2).sum() / (2 * posed.mu)
    assert point.lower == pytest.approx(dual, rel=1e-10)
    assert point.value - point.lower == pytest.approx(
        ((point.gradient + posed.mu * w) ** 2).sum() / (2 * posed.mu), rel=1e-8
    )
    best = solve(LBFGS() if loss is not Hinge else Subgradient(), posed, 1e-9 if loss is not Hinge else 1e-3)
    assert point.lower <= best.value <= point.value + 1e-12
    assert best.value - best.lower <= 1e-3


def test_hinge_and_no_penalty_are_solved_with_a_proof():
    found = solve(Subgradient(), problem(Hinge, penalty=ChiSquarePenalty(0.0)), 3e-3, 20_000)
    assert found.gap <= 3e-3
    value = lambda w: np.sort(slow_losses(Hinge, w))[::-1]  # noqa: E731
    cap = 1 / (0.4 * N)
    weights = np.clip(1 - cap * np.arange(N), 0, cap)
    best = min(
        minimize(lambda w: weights @ value(w) + 0.25 * w @ w, found.w + s, method="Nelder-Mead",
                 options={"xatol": 1e-8, "fatol": 1e-12, "maxiter": 4000}).fun
        for s in (0.0, 0.05)
    )  # fmt: skip
    assert found.lower - 1e-9 <= best <= found.value + 1e-9


@pytest.mark.slow
def test_minibatch_sgd_stays_above_the_minimum():
    """The mean over batches of the worst case within a batch is another function."""
    posed = problem(penalty=ChiSquarePenalty(0.01))
    small, large = (solve(MinibatchSGD(b), posed, 1e-10, 300) for b in (4, N))
    best = solve(LBFGS(), posed, 1e-12).value
    assert small.value - best > 1e-5
    assert large.value - best < 1e-6
    with pytest.raises(ConfigError, match="of one, must be at least one"):
        solve(MinibatchSGD(2), posed)


ENUMERATED = [
    (5, 1, Simplex(), KLPenalty(0.3)),
    (5, 1, ChiSquareBall(0.5), EuclideanPenalty(0.1)),
    (5, 2, CappedSimplex(0.5), ChiSquarePenalty(0.0)),
    (4, 1, SpectralRisk("extremile", 2.0), ChiSquarePenalty(0.2)),
    (3, 2, CappedSimplex(0.5), ChiSquarePenalty(0.2)),  # one level
]


@pytest.mark.parametrize(("n", "b", "ambiguity", "penalty"), ENUMERATED)
def test_the_multilevel_estimate_has_no_bias(n, b, ambiguity, penalty):
    """Its mean over all levels and all orders of the samples is the gradient of the worst case, a batch's is not."""
    posed = LinearProblem(X[:n], Y[:n], Squared(), ambiguity, penalty, 0.5)
    w, levels = np.array([0.5, 1.0, -1.0]), Levels(n, b)
    losses, slopes = posed.loss(X[:n] @ w, Y[:n])
    assert sum(levels.probabilities) == pytest.approx(1)
    assert levels.sizes[-1] == n
    exact, mean, small = posed.point(w).gradient, 0.0, 0.0
    orders = [np.array(order) for order in permutations(range(n))]
    for order in orders:
        for level, chance in enumerate(levels.probabilities):
            drawn = order[: levels.sizes[level]]
            if chance > 0:
                weights = levels.weights(posed, level, losses[drawn])
                mean += chance * X[drawn].T @ (weights * slopes[drawn]) / len(orders)
        drawn = order[: levels.sizes[0]]
        small += X[drawn].T @ (worst(posed, losses[drawn]) * slopes[drawn]) / len(orders)
    np.testing.assert_allclose(mean, exact, atol=1e-7)
    assert np.abs(small - exact).max() > 0.01 or levels.sizes == [n]


def test_multilevel_sgd_comes_near_the_minimum_and_counts_its_calls():
    posed = problem(penalty=ChiSquarePenalty(0.01))
    found = solve(MultilevelSGD(4), posed, 1e-10, 40)
    assert found.value - solve(LBFGS(), posed, 1e-12).value < 0.01
    sizes, chances = Levels(N, 4).sizes, Levels(N, 4).probabilities
    assert sizes == [4, 8, 16, N]
    assert chances == [0, 0.5, 0.25, 0.25]
    counts = np.diff([0, *(record["oracle_calls"] for record in found.history)])
    assert counts[1:].min() >= N  # one look a pass
    assert counts.max() < 2 * N
    with pytest.raises(ConfigError, match="of one, must be at least one"):
        solve(MultilevelSGD(2), posed)


def test_history_counts_calls():
    found = solve(DRAGO(N), problem(), 1e-6)
    calls = [record["oracle_calls"] for record in found.history]
    assert calls == sorted(calls)
    assert calls[0] == N
    assert (np.array(calls) % N == 0).all()  # with b = n an iteration is one pass
    assert set(found.history[0]) == {"oracle_calls", "seconds", "objective", "gap"}
    first, second = (solve(DRAGO(5), problem(), 1e-6, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.w, second.w)


def test_the_next_look_is_halfway_to_the_gap_that_is_wanted():
    """At the mean rate so far; at most as many iterations again, and no more than are left."""
    fallen = {"t": 40, "blocks": 1, "gap": 1e-4, "first": 1.0, "tol": 1e-6, "budget": 1e9}  # two of six digits to go
    assert next_look(**fallen) == 50
    assert next_look(**fallen | {"tol": 1e-30}) == 80
    assert next_look(**fallen | {"budget": 7.5}) == 47
    for nothing_known in ({"budget": 2.0}, {"tol": 0.0}, {"gap": 2.0}, {"gap": np.inf}, {"first": np.inf}):
        assert next_look(**fallen | nothing_known) == 45  # an eighth
    assert next_look(**fallen | {"blocks": 30}) == 70
    assert next_look(**fallen | {"t": 0}) == 1


@pytest.mark.parametrize("size", [1, 5, N])
def test_a_budget_ends_a_run_after_a_few_blocks_more(size):
    found = solve(DRAGO(size), problem(), 1e-14, 17)
    assert 17 * N <= found.calls <= 17 * N * (1 + 1 / LOOKS) + 4 * N


@pytest.mark.parametrize("solver", [DRAGO(5), DRAGO(16), DRAGO(N), LSVRG(5), MultilevelSGD(4)])
def test_a_longer_run_goes_through_the_points_of_a_shorter_one(solver):
    """Bit for bit, wherever the shorter one was stopped: in an epoch and between two visits of a block.

    With no gap to reach, both look after the same iterations.
    """
    long = solve(solver, problem(), 0.0, 40)
    for passes in (3, 7.3, 19.9):
        short = solve(solver, problem(), 0.0, passes)
        begun = [(r["oracle_calls"], r["objective"]) for r in short.history]
        assert begun == [(r["oracle_calls"], r["objective"]) for r in long.history[: len(begun)]]


@pytest.mark.parametrize(("n", "d", "error"), [(50, 3, 1e-12), (1500, 3, 0.1), (50, 90, 0.1)])
def test_the_spread_of_the_features(n, d, error):
    """Exact for few features and samples; of the squared length of the longest axis."""
    x = np.random.default_rng(0).normal(size=(n, d)) * np.linspace(1, 3, d)
    posed = LinearProblem(x, x[:, 0], Squared(), Simplex(), ChiSquarePenalty(1.0), 1.0)
    assert posed.largest_eigenvalue() == pytest.approx(np.linalg.norm(x, 2) ** 2 / n, rel=error)
    posed.x = 0 * x
    assert posed.largest_eigenvalue() == 0


@pytest.mark.parametrize(("n", "size", "sizes"), [(10, 5, [5, 5]), (10, 4, [3, 4, 3]), (10, 10, [10]), (3, 1, [1] * 3)])
def test_blocks(n, size, sizes):
    blocks = blocks_of(n, size)
    assert sorted(b.stop - b.start for b in blocks) == sorted(sizes)
    assert np.concatenate([np.arange(n)[b] for b in blocks]).tolist() == list(range(n))


def test_bad_arguments_of_solvers():
    with pytest.raises(ConfigError, match="start must be one of"):
        DRAGO(start="paper")
    with pytest.raises(ConfigError, match=r"block_size=43 is larger than the number of samples, 42"):
        solve(DRAGO(43), problem())
    with pytest.raises(NonFiniteError, match="the solver's step is too large"), np.errstate(all="ignore"):
        solve(DRAGO(N, alpha=1e6), LinearProblem(100 * X, Y, Squared(), Simplex(), ChiSquarePenalty(1.0), 1e-3))


@pytest.mark.parametrize(("mu", "nu"), [(0.0, 0.5), (0.3, 0.0), (0.0, 0.0)])
@pytest.mark.parametrize(("loss", "size"), [(Squared, 7), (Squared, N), (Logistic, 14), (Multinomial, N)])
def test_drago_without_a_penalty_reaches_the_optimum_of_slsqp(mu, nu, loss, size):
    posed = problem(loss, CappedSimplex(0.6), ChiSquarePenalty(nu), mu)
    found = solve(DRAGO(size), posed, 1e-5, 3000)
    best = epigraph(posed)
    assert found.gap <= 1e-5
    assert found.lower - 1e-7 <= best <= found.value + 1e-7


def epigraph(posed):
    """Minimise by SLSQP over w, a threshold t and s >= 0, s >= l - t: CVaR is ``t + sum s / (alpha n)`` at its best.

    With a penalty ``max_q`` is over 0 <= q <= cap once sum q = 1 has its multiplier t, and known sample by sample.
    """
    n, cap, curvature = posed.n, 1 / (0.6 * posed.n), posed.dual.curvature
    size = posed.zeros().size

    def ridge(v):
        return posed.mu / 2 * v[:size] @ v[:size]

    def ahead(v):
        return posed.loss(posed.x @ v[:size].reshape(posed.zeros().shape), posed.y)[0] - v[size]

    def value(v):
        q = np.clip(ahead(v) / curvature + 1 / n, 0, cap)
        return v[size] + q @ ahead(v) - curvature / 2 * ((q - 1 / n) ** 2).sum() + ridge(v)

    if curvature > 0:
        return minimize(value, np.zeros(size + 1), method="BFGS", options={"gtol": 1e-9}).fun
    room = {"type": "ineq", "fun": lambda v: v[size + 1 :] - ahead(v)}
    found = minimize(
        lambda v: v[size] + cap * v[size + 1 :].sum() + ridge(v),
        np.concatenate([np.zeros(size + 1), np.full(n, 5.0)]),
        method="SLSQP",
        bounds=[(None, None)] * (size + 1) + [(0, None)] * n,
        constraints=room,
        options={"maxiter": 500, "ftol": 1e-13},
    )
    return found.fun


@pytest.mark.parametrize("loss", [Squared, Multinomial])
@pytest.mark.parametrize("solver", [LBFGS(), LSVRG(4)])
def test_other_solvers_without_a_ridge_have_a_gap(solver, loss):
    assert solve(solver, problem(loss, mu=0.0), 1e-7, 1000).gap <= 1e-7


@pytest.mark.slow
def test_the_bound_without_a_ridge():
    """It is exact for the squared loss, and for others it is below the minimum over w and near it at its place."""
    posed, q = problem(mu=0.0), np.full(N, 1 / N)
    w = np.linalg.lstsq(X, Y, rcond=None)[0]
    assert posed.point(np.ones(D), q_of_bound=q).lower == pytest.approx(((X @ w - Y) ** 2).mean() / 2, rel=1e-12)
    for loss in (Logistic, Multinomial):
        posed = problem(loss, mu=0.0)
        shape = posed.zeros().shape
        best = minimize(lambda v, of=loss, k=shape: slow_losses(of, v.reshape(k)).mean(), np.zeros(np.prod(shape)))
        aside = np.random.default_rng(1).normal(size=shape)
        for step in (0.1, 1e-3):
            lower = posed.point(best.x.reshape(shape) + step * aside, q_of_bound=q).lower
            assert best.fun - step**2 < lower < best.fun + 1e-9
        assert posed.point(50 * aside, q_of_bound=q).lower == -np.inf


def test_without_a_ridge_what_has_no_minimum_has_no_proof():
    """A plane separates these; and more features than samples, constant and empty columns do no harm."""
    apart = LinearProblem(
        X, np.where(X[:, 0] > 0, 1.0, -1.0), Logistic(), CappedSimplex(0.6), ChiSquarePenalty(0.5), 0.0
    )
    found = solve(DRAGO(14), apart, 1e-6, 100)
    assert found.lower <= 1e-9
    wide = np.hstack([X, X**2, np.ones((N, 3)), np.zeros((N, 2))])[:6]
    for nu in (0.5, 0.0):
        posed = LinearProblem(wide, Y[:6], Squared(), Simplex(), ChiSquarePenalty(nu), 0.0)
        found = solve(DRAGO(6), posed, 1e-3, 200)
        assert found.lower <= 1e-9 <= found.value < 0.1  # all six are fitted at the minimum, 0
    nothing = LinearProblem(np.zeros((4, 2)), np.ones(4), Squared(), Simplex(), ChiSquarePenalty(0.0), 0.0)
    assert solve(DRAGO(), nothing, 1e-9, 50).value == pytest.approx(0.5)


def published(posed, b, alpha, draws, start):
    """The iterates w_1, w_2, ... of the paper's Algorithm 1, with every table of every iteration kept whole.

    The dual step for the chi-square penalty on the simplex is a projection, by sorting.
    """
    n, mu, nu, blocks = N, posed.mu, posed.penalty.nu, [range(N)[k : k + b] for k in range(0, N, b)]
    m = len(blocks)
    losses = lambda w: (X @ w - Y) ** 2 / 2  # noqa: E731
    gradients = lambda w: (X @ w - Y)[:, None] * X  # noqa: E731
    w, q = [np.zeros(D)] * m, [np.full(n, 1 / n)]  # w: also w_{-1}, w_{-2}, ..., all of them 0
    lhat, ghat, qhat = [losses(w[-1])], [gradients(w[-1])], [q[0]]
    a = [0.0, *((1 + alpha) ** t for t in range(len(draws)))]
    for t, (i, j) in enumerate(draws, 1):
        r, beta = a[t - 1] / a[t], sum(a[1:t]) / a[t]
        if start == "steady":  # what both tend to
            r, beta = 1 / (1 + alpha), 1 / alpha
        c = min(1 / (16 * alpha * (1 + alpha) * (m - 1) ** 2), beta / (m - 1)) if m > 1 else 0.0
        v = ghat[-1].T @ qhat[-1]
        now, older = gradients(w[-1]), max(len(ghat) - 2, 0)
        v = v + r * m * sum((q[-1][s] * now[s] - qhat[older][s] * ghat[older][s] for s in blocks[i]), np.zeros(D))
        others = w[-m:-1]  # w_{t-M}, ..., w_{t-2}
        anchor = (beta - c * (m - 1)) * w[-1] + c * sum(others, np.zeros(D))
        w.append((mu * anchor - v) / (mu * (1 + beta)))
        block = list(blocks[t % m])
        lhat.append(lhat[-1].copy())
        ghat.append(ghat[-1].copy())
        lhat[-1][block], ghat[-1][block] = losses(w[-1])[block], gradients(w[-1])[block]
        v = lhat[-1].copy()
        for s in blocks[j]:
            v[s] += r * m * (losses(w[-1])[s] - lhat[-2][s])
        u = (v / (2 * n * nu) + 1 / n + beta * q[-1]) / (1 + beta)
        ordered = np.sort(u)[::-1]
        levels = (np.cumsum(ordered) - 1) / np.arange(1, n + 1)
        q.append(np.maximum(u - levels[(ordered > levels).nonzero()[0][-1]], 0))
        qhat.append(qhat[-1].copy())
        qhat[-1][block] = q[-1][block]
    return np.stack(w[m:])


@pytest.mark.parametrize(("start", "mu", "alpha"), [("steady", 1e-3, 1e-4), ("practice", 0.5, 0.02)])
@pytest.mark.parametrize("b", [7, 14, N])
def test_drago_takes_the_steps_of_the_published_algorithm_on_the_whole_simplex(b, start, mu, alpha, monkeypatch):
    posed, steps, found = problem(ambiguity=Simplex(), penalty=ChiSquarePenalty(1.0), mu=mu), 60, []
    keep = drago._Window.keep
    monkeypatch.setattr(drago._Window, "keep", lambda self, k, w: (found.append(w.copy()), keep(self, k, w)))
    solver = DRAGO(b, alpha=alpha, start=start)
    with suppress(Done):
        solver.solve(posed, Progress(posed, 0.0, 10.0 * steps), np.random.default_rng(0))
    random = np.random.default_rng(0)
    draws = [random.integers(-(-N // b), size=2).tolist() for _ in range(steps)]
    expected = published(posed, b, alpha, draws, start)
    np.testing.assert_allclose(np.stack(found[:steps]), expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("b", [N // D, N])
def test_drago_says_before_that_a_small_mu_takes_too_many_passes_and_lbfgs_does_not(b):
    posed = problem(ambiguity=Simplex(), penalty=ChiSquarePenalty(1.0), mu=1e-4)
    with pytest.warns(ConvergenceWarning, match=r"DRAGO will need about [\d,]+ passes .*mu=0.0001.* solver='lbfgs'"):
        slow = solve(DRAGO(b), posed, 1e-9, 50)
    best = solve(LBFGS(), posed, 1e-9, 100)
    assert best.gap <= 1e-9
    assert slow.gap > 1e-6
    assert slow.value >= best.lower


@pytest.mark.parametrize("mu", [0.3, 0.03])
@pytest.mark.parametrize("b", [N // D, N])
def test_the_passes_that_drago_is_said_to_take(mu, b, recwarn):
    """A badly conditioned table, whose least curvature is far below mu."""
    x = np.concatenate([X, 1e-3 * X[:, :1] ** 2], axis=1)
    posed = LinearProblem(x, Y, Squared(), Simplex(), ChiSquarePenalty(1.0), mu)
    at_zero = posed.point(posed.zeros())
    expected = expected_passes(posed, b, default_alpha(posed, b), (at_zero.value - at_zero.lower) / 1e-9)
    found = solve(DRAGO(b), posed, 1e-9, 2 * expected)
    assert found.gap <= 1e-9
    assert expected / 3 < found.calls / N < 2 * expected
    assert not recwarn.list

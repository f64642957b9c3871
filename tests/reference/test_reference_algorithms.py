"""The algorithms of the reference: identities between them, and the points to which they must lead."""

import numpy as np
import pytest
from scipy.optimize import minimize

from .algorithms import BSGD, MOAP, MSVR, SGD, SOAP, SONEX, SONX, SOX, HeavyBall, Method, PlainSGD, theory_correction
from .cases import CASES, Case, make_case
from .networks import Linear, make_data
from .outer import Hinge
from .primal_dual import ALEXR, ALEXR2, OOA, SMD, SOXBoost, alternating
from .toy import GroupRisks, MeanLogistic, MeanRate, Part, Problem

EXACT = {"rtol": 1e-9, "atol": 1e-12}


def same(first: Method, second: Method, case: Case, steps: int = 25) -> None:
    """The same weights and rows after every one of 25 steps."""
    for batch in case.batches(steps):
        first.step(batch)
        second.step(batch)
        np.testing.assert_allclose(first.w, second.w, **EXACT)
        for one, other in zip(first.rows, second.rows, strict=True):
            np.testing.assert_allclose(one, other, **EXACT)
    assert np.linalg.norm(first.w - case.w) > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_identities(name):
    """BSGD is SOAP at gamma 1, SONEX without correction SOX, MSVR at b = 1 SONX, and so on."""
    case = make_case(name)
    problem, w, sgd = case.problem, case.w, PlainSGD(0.05)
    same(BSGD(problem, w, sgd), SOAP(problem, w, sgd, 1.0), case)
    same(SONEX(problem, w, HeavyBall(0.05), 0.3, 0.0), SOX(problem, w, HeavyBall(0.05), 0.3), case)
    same(MSVR(problem, w, sgd, 0.3, 0.2, 1.0), SONX(problem, w, sgd, 0.3, 0.2), case)
    same(ALEXR(problem, w, sgd, gamma=0.3, pair="reuse"), SOAP(problem, w, sgd, 0.3), case)
    same(ALEXR(problem, w, sgd, gamma=0.3, pair="old"), SOX(problem, w, sgd, 0.3), case)
    same(ALEXR(problem, w, sgd, gamma=0.3, theta=0.5, pair="old"), SONX(problem, w, sgd, 0.3, 0.15), case)
    same(HeavyBallBySum(problem, w, 0.05), SOX(problem, w, HeavyBall(0.05, 0.2, zero_start=True), 0.3), case)


class HeavyBallBySum(SOX):
    """``v_t = beta sum_k (1 - beta)^(t - k) G_k``, the sum written out."""

    def __init__(self, problem, w, lr):
        super().__init__(problem, w, PlainSGD(0.0), 0.3)
        self.rate, self.gradients = lr, []

    def _move(self):
        self.gradients.append(self.gradient)
        newest = len(self.gradients) - 1
        self.w = self.w - self.rate * sum(0.2 * 0.8 ** (newest - k) * g for k, g in enumerate(self.gradients))


@pytest.mark.parametrize("name", CASES)
def test_independent_parts_are_halves(name):
    """Two batches, laid side by side and halved again; the rows of the first have moved, the others have not."""
    case = make_case(name, halved=True)
    batches = case.batches(30)
    halves = ALEXR(case.problem, case.w, PlainSGD(0.02), gamma=0.4, theta=0.3, split=alternating)
    part = ALEXR(case.problem, case.w, PlainSGD(0.02), gamma=0.4, theta=0.3, pair="part")
    for batch in batches:
        before = [rows.copy() for rows in halves.rows]
        point = case.problem.at(halves.w)
        halves.step(batch)
        part.step(batch[1::2], batch[::2])
        np.testing.assert_allclose(halves.w, part.w, **EXACT)
        for k, one in enumerate(case.problem.parts):
            spoken = one.term.measure(point, batch[::2]).rows
            silent = np.setdiff1d(np.arange(one.term.n_rows), spoken)
            np.testing.assert_array_equal(halves.rows[k][silent], before[k][silent])


def test_the_two_forms_of_alexr_agree_inside_the_smoothed_range():
    """While ``kappa < u < kappa + lam rho``: the quadratic psi with tau = lam (1/gamma - 1) is the u-form."""
    data = make_data()
    members, lam, gamma = data.members(0), 10.0, 0.3
    problem = Problem(Linear(data), len(data), (Part(MeanRate(data, members, Hinge(1.0, -1.0, lam)), np.ones(1)),))
    w = np.array([0.3, 0.1, -0.2, 0.4])
    by_value = ALEXR(problem, w, PlainSGD(0.1), gamma=gamma, theta=0.5, pair="reuse")
    by_slope = ALEXR(problem, w, PlainSGD(0.1), tau=lam * (1 / gamma - 1), theta=0.5, pair="reuse")
    exact = problem.exact_rows(w)
    by_value.set_rows(exact)
    by_slope.set_rows([problem.parts[0].term.slopes(w, exact[0])])
    rng = np.random.default_rng(0)
    for _ in range(20):
        batch = members[rng.integers(0, len(members), 8)]
        by_value.step(batch)
        by_slope.step(batch)
        np.testing.assert_allclose(by_value.w, by_slope.w, **EXACT)
        np.testing.assert_allclose((by_value.rows[0] + 1.0) / lam, by_slope.rows[0], **EXACT)


def test_first_visits_corrections_and_shrinking_by_hand():
    """Rows of single steps, written out for one group that is present and one that is not."""
    case = make_case("groups")
    problem, w, data = case.problem, case.w, case.data
    term, first = problem.parts[0].term, np.array([*data.members(0)[:3], *data.members(1)[:2]])
    at_start = term.measure(problem.at(w), first).values[:, 0]
    for method in (SOX(problem, w, PlainSGD(0.1), 0.3), SONX(problem, w, PlainSGD(0.1), 0.3, 0.7)):
        method.step(first)
        np.testing.assert_allclose(method.rows[0][:, 0], [*at_start, 0, 0], rtol=1e-14)
        assert method.seen[0].tolist() == [True, True, False, False]
    middle, second = method.w, data.members(0)[5:9]
    now, earlier = (term.measure(problem.at(v), second).values[0, 0] for v in (middle, w))
    method.step(second)
    assert method.rows[0][0, 0] == pytest.approx(0.7 * at_start[0] + 0.3 * now + 0.7 * (now - earlier), rel=1e-13)
    assert method.rows[0][1, 0] == pytest.approx(at_start[1], rel=1e-14)
    moap = MOAP(problem, w, PlainSGD(0.1), 0.3)
    moap.step(first)
    now = term.measure(problem.at(moap.w), second).values[0, 0]
    moap.step(second)
    scaled = 0.7 * at_start[0] + 0.3 * now / problem.parts[0].presence[0]
    np.testing.assert_allclose(moap.rows[0][:, 0], [scaled, 0.7 * at_start[1], 0, 0], rtol=1e-13)
    assert theory_correction(0.1, np.array(8 / 30)) == pytest.approx(22 / (8 * 0.9) + 0.9)


def test_storm_gradient_by_hand():
    """The third step of MSVR: ``z_2 = G(w_2; rows before it) + (1 - b)(z_1 - G(w_1; rows before the second))``."""
    case = make_case("groups", lam=2.0)
    problem, (part,) = case.problem, case.problem.parts
    method = MSVR(problem, case.w, PlainSGD(0.1), 0.3, 0.2, 0.4)
    first, second, third = case.batches(3)
    method.step(first)
    w1, rows1, seen1 = method.w, method.rows[0].copy(), method.seen[0].copy()
    at_w1 = part.term.measure(problem.at(w1), second)
    method.step(second)
    z1, w2, rows2 = method.gradient, method.w, method.rows[0].copy()
    assert method.seen[0].all()
    assert not seen1[at_w1.rows].all()  # for one that the second step has first seen stands what was seen then
    two_steps_ago = rows2.copy()
    two_steps_ago[at_w1.rows] = np.where(seen1[at_w1.rows][:, None], rows1[at_w1.rows], at_w1.values)
    assert np.abs(two_steps_ago - rows2).max() > 1e-3
    method.step(third)
    now, before = part.term.measure(problem.at(w2), third), part.term.measure(problem.at(w1), third)
    g_now = part.gradient(w2, now, part.term.slopes(w2, rows2[now.rows]))
    g_before = part.gradient(w1, before, part.term.slopes(w1, two_steps_ago[before.rows]))
    np.testing.assert_allclose(method.gradient, g_now + 0.6 * (z1 - g_before), rtol=1e-12)


def full(case: Case) -> Case:
    """The same problem with every row present for certain."""
    parts = tuple(Part(part.term, np.ones(part.term.n_rows), part.share) for part in case.problem.parts)
    direct = tuple((one, 1.0) for one, _ in case.problem.direct)
    problem = Problem(case.problem.network, len(case.data), parts, direct)
    return Case(case.data, problem, case.sampler, case.w)


@pytest.mark.parametrize("name", CASES)
def test_whole_data_gives_the_exact_gradient(name):
    """The first step on all samples, first visits everywhere: G is the gradient of F for every method."""
    case = full(make_case(name))
    problem, w, sgd, everything = case.problem, case.w, PlainSGD(0.1), case.problem.everything
    exact = problem.exact_gradient(w)
    methods = [SOX(problem, w, sgd, 0.2), SOAP(problem, w, sgd, 0.2), MOAP(problem, w, sgd, 0.2), BSGD(problem, w, sgd)]
    methods += [SONX(problem, w, sgd, 0.2, 0.1), MSVR(problem, w, sgd, 0.2, 0.1, 0.3)]
    methods += [ALEXR(problem, w, sgd, gamma=0.2, pair=pair) for pair in ("reuse", "old")]
    methods += [ALEXR2(problem, w, sgd, inner_steps=3, nu=0.2, eta=0.1, gamma=0.2, theta=0.1, pair="old")]
    for method in methods:
        method.step(everything)
        np.testing.assert_allclose(method.gradient, exact, rtol=1e-10, atol=1e-12)


def test_alexr2_steps_along_the_gradient_of_the_nested_envelope():
    """Many inner steps reach ``prox_{nu F}(w)``, found by scipy; then the centre moves by ``lr (w - prox)/nu``."""
    case = full(make_case("groups", linear=True, lam=0.5))
    problem, nu = case.problem, 0.5
    best = minimize(
        lambda z: problem.exact_value(z) + ((z - case.w) ** 2).sum() / (2 * nu),
        case.w,
        jac=lambda z: problem.exact_gradient(z) + (z - case.w) / nu,
        method="BFGS",
        options={"gtol": 1e-10},
    ).x
    method = ALEXR2(problem, case.w, PlainSGD(0.3), inner_steps=400, nu=nu, eta=0.2, gamma=0.8, theta=0.1, pair="old")
    for _ in range(400):
        np.testing.assert_array_equal(method.w, case.w)
        method.step(problem.everything)
    np.testing.assert_allclose(method.outer_gradient, (case.w - best) / nu, atol=1e-6)
    np.testing.assert_allclose(method.w, case.w - 0.3 * (case.w - best) / nu, atol=1e-6)
    np.testing.assert_array_equal(method.z, method.w)


def test_dual_ascent_finds_the_cvar_of_the_groups():
    """OOA with sampled groups and SMD with all: the CVaR of the risks comes close to its minimum, found by scipy."""
    data, alpha = make_data((60, 40, 20, 10)), 0.5
    network = Linear(data, extra=1)
    smooth = Problem(network, len(data), (Part(GroupRisks(data, Hinge(1 / alpha, 0.0, 1e-3), 4), np.ones(4)),))
    best = minimize(
        smooth.exact_value, np.zeros(5), jac=smooth.exact_gradient, method="BFGS", options={"maxiter": 500}
    ).fun
    risks = Problem(network, len(data), (Part(GroupRisks(data, Hinge(1 / alpha), None), np.ones(4)),))

    def cvar(w):
        return np.sort(risks.exact_rows(w)[0][:, 0])[-2:].mean()  # the 2 = alpha n largest

    average, method = np.zeros(5), SMD(risks, np.zeros(5), PlainSGD(0.3), alpha, 0.1)
    assert cvar(method.w) > best + 0.05
    for _ in range(1500):
        method.step(risks.everything)
        average += method.w / 1500
    assert cvar(average) == pytest.approx(best, abs=0.01)
    rng, half = np.random.default_rng(0), Problem(network, len(data), (Part(risks.parts[0].term, np.full(4, 0.5)),))
    average, method = np.zeros(5), OOA(half, np.zeros(5), PlainSGD(0.05), alpha, 0.01)
    for _ in range(4000):
        chosen = rng.permutation(4)[:2]
        method.step(np.concatenate([data.members(g) for g in chosen]))
        average += method.w / 4000
        assert method.q.max() <= method.cap * (1 + 1e-12)
    assert cvar(average) == pytest.approx(best, abs=0.03)
    with pytest.raises(ValueError, match="all groups"):
        SMD(risks, np.zeros(5), PlainSGD(0.3), alpha, 0.1).step(data.members(0))


def test_stages_halve_and_hand_on_the_picked_iterate():
    case = make_case("groups")
    method = SOXBoost(case.problem, case.w, HeavyBall(0.1, 0.4), 0.6, first_steps=4, picks=(1, 7))
    plain = SOX(case.problem, case.w, HeavyBall(0.1, 0.4), 0.6)
    batches = case.batches(12)
    history = [w for w, _ in plain.run(batches[:4])]
    for batch in batches[:4]:
        method.step(batch)
    np.testing.assert_array_equal(method.w, history[1])
    assert (method.optimizer.lr, method.optimizer.beta, method.gamma, method.steps_left) == (0.05, 0.2, 0.3, 8)
    for batch in batches[4:]:
        method.step(batch)
    assert (method.stage, method.gamma, method.steps_left) == (2, 0.15, 16)


def test_sgd_minimises_the_mean_loss_and_refuses_rows():
    data = make_data()
    problem = Problem(Linear(data), len(data), direct=((MeanLogistic(data), 1.0),))
    method = SGD(problem, np.zeros(4), PlainSGD(0.5))
    for _ in range(3000):
        method.step(problem.everything)
    np.testing.assert_allclose(problem.exact_gradient(method.w), 0.0, atol=1e-6)
    with pytest.raises(ValueError, match="without rows"):
        SGD(make_case("groups").problem, make_case("groups").w, PlainSGD(0.5)).step([0])

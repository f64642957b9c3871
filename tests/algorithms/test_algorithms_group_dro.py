"""Group DRO on a convex problem whose optimum scipy finds, and primal-dual steps against explicit loops."""

from math import comb

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from torch import nn

from fcco_lightning import (
    ALEXR,
    ALEXR2,
    BSGD,
    MOAP,
    MSVR,
    OOA,
    SMD,
    SOAP,
    SONEX,
    SONX,
    SOX,
    ChiSquareGroupDRO,
    CVaRGroupDRO,
    DataError,
    Engine,
    HeavyBall,
    HingePenalty,
    KLGroupDRO,
    LogisticLoss,
    MoreauSmoothing,
    NonFiniteError,
    ProximalSGD,
    Quantity,
    ROCFairness,
    SOXBoost,
    WorstGroupDRO,
)
from fcco_lightning.data.batches import BatchDraws, Drawn

GAP = 1e-3  # relative gap of F asked of every method
QUICK = 3e-3  # the same of a sixth of the steps
GROUPS, EACH, ALPHA, RIDGE = 12, 15, 0.3, 0.1
RANDOM = np.random.default_rng(3)
CENTRES = RANDOM.normal(size=(GROUPS, 3))
X = (CENTRES[:, None] + RANDOM.normal(size=(GROUPS, EACH, 3))).reshape(-1, 3)
GROUP = np.repeat(np.arange(GROUPS), EACH)
DIRECTIONS = np.array([1.5, -1.0, 0.5]) + 0.9 * RANDOM.normal(size=(GROUPS, 3))
Y = ((X * DIRECTIONS[GROUP]).sum(1) > 0).astype(int)


class RidgeLogistic(Quantity):
    """``log(1 + exp(-+s)) + (ridge/2) |w|^2``; the network's last three outputs are its weights."""

    def __call__(self, outputs, batch):
        sign = 1 - 2 * batch["y"]
        return torch.nn.functional.softplus(sign * outputs[:, 0]) + RIDGE / 2 * outputs[:, 1:].square().sum(1)


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x):
        return torch.cat([(x @ self.w).unsqueeze(1), self.w.expand(len(x), 3)], 1)


def risks(w):
    losses = np.logaddexp(0, (1 - 2 * Y) * (X @ w)) + RIDGE / 2 * w @ w
    return losses.reshape(GROUPS, EACH).mean(1)


def cvar(w, alpha=ALPHA):
    q = linprog(-risks(w), A_eq=np.ones((1, GROUPS)), b_eq=[1], bounds=[(0, 1 / (alpha * GROUPS))] * GROUPS)
    return -q.fun


def chi_square(w, lam0=0.5):
    r = risks(w)
    from scipy.optimize import minimize_scalar

    return minimize_scalar(lambda c: c + lam0 * (np.maximum((r - c) / lam0 + 1, 0) ** 2 / 2 - 0.5).mean()).fun


def kl(w, lam0=0.5):
    return lam0 * np.log(np.exp(risks(w) / lam0).mean())


def optimum(value):
    """Least value over w: SLSQP on the epigraph for CVaR, BFGS for what is smooth."""
    if value in (chi_square, kl):
        return minimize(value, np.zeros(3), method="BFGS").fun
    alpha = ALPHA if value is cvar else 1 / GROUPS
    found = minimize(
        lambda v: v[3] + v[4:].mean() / alpha,
        np.concatenate([np.zeros(4), np.ones(GROUPS)]),
        bounds=[(None, None)] * 4 + [(0, None)] * GROUPS,
        constraints={"type": "ineq", "fun": lambda v: v[4:] + v[3] - risks(v[:3])},
        options={"maxiter": 1000, "ftol": 1e-13},
    )
    assert value(found.x[:3]) == pytest.approx(found.fun, rel=1e-6)
    return found.fun


def worst(w):
    return risks(w).max()


def batches(groups_per_batch, seed=0):
    """All samples of some groups."""
    generator = torch.Generator().manual_seed(seed)
    x, y, group = (torch.from_numpy(a) for a in (X, Y, GROUP))
    while True:
        chosen = torch.randperm(GROUPS, generator=generator)[:groups_per_batch]
        rows = (chosen.unsqueeze(1) * EACH + torch.arange(EACH)).flatten()
        yield {"x": x[rows], "y": y[rows], "group": group[rows], "index": rows}


class GroupDraws(BatchDraws):
    """All samples of some of the groups."""

    def __init__(self, groups):
        self.groups = groups

    def absence(self, counts, share=1.0):
        others = GROUPS - int(counts) // EACH
        return comb(others, self.groups) / comb(GROUPS, self.groups)


def engine_for(algorithm, objective, groups=GROUPS):
    drawn = Drawn({"group": torch.from_numpy(GROUP)}, GroupDraws(groups))
    problem = algorithm.pose(objective.double(), num_samples=len(X), sampling={"target": drawn}, dtype=torch.float64)
    return Engine(Linear(), problem, algorithm)


def train(algorithm, objective, steps, lr, groups_per_batch, optimizer_class=HeavyBall, last=1e-3, **options):
    engine = engine_for(algorithm, objective, groups_per_batch)
    optimizer = optimizer_class(engine.params, lr=lr, **options)
    stream = batches(groups_per_batch)
    average, count = torch.zeros(3, dtype=torch.float64), 0
    for t in range(steps):
        if not isinstance(algorithm, SOXBoost):
            optimizer.param_groups[0]["lr"] = lr * last ** (t / steps)
        engine.train_batch(next(stream), optimizer)
        if t >= steps // 2:
            count += 1
            average.lerp_(engine.params[0].detach(), 1 / count)
    return engine.params[0].detach().numpy(), average.numpy()  # and the mean of the second half


@pytest.fixture(scope="module")
def best():
    return {value: optimum(value) for value in (cvar, worst, chi_square, kl)}


METHODS = {  # algorithm, steps, learning rate, groups in a batch, options
    "SONEX": (lambda: SONEX(0.8, 0.1, lam=0.003), 3000, 0.1, 6, {"beta": 0.3}),
    "SONX": (lambda: SONX(0.8, 0.1), 3000, 0.2, 6, {"beta": 1.0}),
    "ALEXR": (lambda: ALEXR(1.0, 0.1, jacobian="old"), 3000, 0.1, 6, {"optimizer_class": ProximalSGD}),
    "ALEXR, psi = f*": (lambda: ALEXR(0.25, 0.1, mirror=True, jacobian="old"), 3000, 0.2, 6, {"beta": 1.0}),
    "ALEXR2": (
        lambda: ALEXR2(K=5, eta=0.02, nu=0.5, lam=0.001, jacobian="old"),
        4000,
        0.5,
        12,
        {"beta": 1.0, "last": 1e-2},
    ),
    "SOX": (lambda: SOX(0.9), 3000, 0.2, 6, {"beta": 0.3}),
    "SOAP": (lambda: SOAP(0.9), 3000, 0.2, 6, {"beta": 1.0}),
    "MSVR": (lambda: MSVR(0.9, 0.1, b=0.5), 3000, 0.2, 12, {"beta": 1.0}),
    "MOAP, all groups": (lambda: MOAP(0.9), 3000, 0.2, 12, {"beta": 0.3}),
    "BSGD": (BSGD, 3000, 0.2, 6, {"beta": 1.0}),
    "OOA": (lambda: OOA(0.03), 9000, 0.1, 11, {"beta": 1.0, "last": 1.0}),
    "OOA, Euclidean": (lambda: OOA(0.004, "euclidean"), 9000, 0.1, 11, {"beta": 1.0, "last": 1.0}),
    "SMD": (lambda: SMD(0.5), 2000, 0.5, 12, {"beta": 1.0}),
    "SMD, Euclidean": (lambda: SMD(0.05, "euclidean"), 2000, 0.5, 12, {"beta": 1.0}),
}


@pytest.mark.parametrize("name", ["SONEX", "SMD"])
def test_methods_of_both_kinds_come_near_the_least_cvar(name, best):
    make, steps, lr, groups, options = METHODS[name]
    w, average = train(make(), CVaRGroupDRO(ALPHA, RidgeLogistic(), GROUPS), steps // 6, lr, groups, **options)
    assert -1e-6 <= min(cvar(w), cvar(average)) / best[cvar] - 1 <= QUICK


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_reaches_the_least_cvar(name, best):
    make, steps, lr, groups, options = METHODS[name]
    w, average = train(make(), CVaRGroupDRO(ALPHA, RidgeLogistic(), GROUPS), steps, lr, groups, **options)
    assert -1e-6 <= min(cvar(w), cvar(average)) / best[cvar] - 1 <= GAP


def test_the_mean_is_not_the_least_cvar(best):
    found = minimize(lambda w: risks(w).mean(), np.zeros(3)).x
    assert cvar(found) > 1.01 * best[cvar]  # so the methods above have done something


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "objective", "value"),
    [
        (lambda: SOX(0.9), lambda: ChiSquareGroupDRO(0.5, loss=RidgeLogistic(), num_groups=GROUPS), chi_square),
        (lambda: SOXBoost(0.9, 100), lambda: KLGroupDRO(0.5, RidgeLogistic(), GROUPS), kl),
    ],
    ids=["chi-square", "KL"],
)
def test_smooth_divergences(algorithm, objective, value, best):
    w, _ = train(algorithm(), objective(), 400, 0.3, 8, beta=0.5)
    assert value(w) <= best[value] * (1 + GAP)


@pytest.mark.slow
def test_the_worst_group(best):
    make, steps, _, groups, options = METHODS["SMD"]
    w, average = train(make(), WorstGroupDRO(RidgeLogistic(), GROUPS), steps // 4, 0.1, groups, **options)
    assert min(worst(w), worst(average)) <= best[worst] * (1 + 4 * GAP)


# ---- primal-dual steps by hand


@pytest.mark.parametrize("geometry", ["kl", "euclidean"])
@pytest.mark.parametrize("groups", [4, GROUPS])
def test_ooa_is_the_written_out_step(geometry, groups):
    algorithm = (SMD if groups == GROUPS else OOA)(0.3, geometry)
    engine = engine_for(algorithm, CVaRGroupDRO(ALPHA, RidgeLogistic(), GROUPS), groups)
    optimizer = torch.optim.SGD(engine.params, lr=0.2)
    stream, w, q, cap = batches(groups), np.zeros(3), np.full(GROUPS, 1 / GROUPS), 1 / (ALPHA * GROUPS)
    for _ in range(8):
        batch = next(stream)
        chosen = sorted(set(batch["group"].tolist()))
        h = np.zeros(GROUPS)
        h[chosen] = GROUPS / groups * risks(w)[chosen]
        target = q * np.exp(0.3 * h) if geometry == "kl" else q + 0.3 * h
        low, high = -50.0, 50.0  # the multiplier of sum q = 1, by bisection
        for _ in range(200):
            t = (low + high) / 2
            q = np.minimum(target * np.exp(-t), cap) if geometry == "kl" else np.clip(target - t, 0, cap)
            low, high = (t, high) if q.sum() > 1 else (low, t)
        gradient = np.zeros(3)
        for i in chosen:
            x, sign = X[i == GROUP], 1 - 2 * Y[i == GROUP]
            slope = sign / (1 + np.exp(-sign * (x @ w)))
            gradient += GROUPS / groups * q[i] * ((slope[:, None] * x).mean(0) + RIDGE * w)
        w = w - 0.2 * gradient
        estimate = engine.train_batch(batch, optimizer)["objective"]
        assert engine.params[0].detach().numpy() == pytest.approx(w, abs=1e-12)
        assert engine.problem.states[0].rows[:, 0].numpy() == pytest.approx(q, abs=1e-12)
        assert torch.isfinite(estimate)


def test_estimate_of_a_primal_dual_method_is_the_weighted_risk():
    engine = engine_for(SMD(0.3), CVaRGroupDRO(ALPHA, RidgeLogistic(), GROUPS))
    estimates = engine.train_batch(next(batches(GROUPS)), torch.optim.SGD(engine.params, lr=0.2))
    q = engine.problem.states[0].rows[:, 0].numpy()
    assert estimates["objective"].item() == pytest.approx(q @ risks(np.zeros(3)))


# ---- refusals


def test_smd_needs_all_groups():
    engine = engine_for(SMD(), CVaRGroupDRO(ALPHA, RidgeLogistic(), GROUPS))
    with pytest.raises(DataError, match="needs samples of all 12 groups in every batch, this batch contains 5"):
        engine.train_batch(next(batches(5)), torch.optim.SGD(engine.params, lr=0.1))
    assert engine.problem.states[0].rows.isnan().all()


@pytest.mark.parametrize("algorithm", [SONEX, OOA, ALEXR])
def test_nan_in_one_group_is_named_and_changes_nothing(algorithm):
    engine = engine_for(algorithm(), CVaRGroupDRO(ALPHA, RidgeLogistic(), GROUPS))
    optimizer = torch.optim.SGD(engine.params, lr=0.1)
    engine.train_batch(next(batches(GROUPS)), optimizer)
    before = [t.clone() for t in (*engine.params, engine.problem.states[0].rows)]
    batch = next(batches(GROUPS))
    batch["x"] = torch.where((batch["group"] == 7).unsqueeze(1), torch.nan, batch["x"])
    with pytest.raises(NonFiniteError, match="value of row 7 of the objective is not finite"):
        engine.train_batch(batch, optimizer)
    after = (*engine.params, engine.problem.states[0].rows)  # rows not yet visited are NaN
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, after, strict=True))


SETTLES = {
    "SONEX": (lambda: SONEX(lam=0.1), True),
    "SONX": (SONX, True),
    "SOX": (SOX, True),
    "SOAP": (SOAP, True),
    "MSVR": (MSVR, True),
    "ALEXR2": (lambda: ALEXR2(K=2), True),
    "ALEXR in u": (lambda: ALEXR(mirror=True), True),
    "ALEXR": (ALEXR, False),  # rows are dual variables
    "BSGD": (BSGD, False),  # none are remembered
    "MOAP": (MOAP, False),  # right on average alone
}


@pytest.mark.parametrize("start", [None, 0.25])
@pytest.mark.parametrize("name", SETTLES)
def test_a_threshold_is_the_best_one_for_the_rows_where_these_are_risks_and_none_is_given(name, start):
    make, settles = SETTLES[name]
    algorithm, network = make(), nn.Linear(3, 1)
    objective = CVaRGroupDRO(0.5, num_groups=3, threshold=start)
    objective.recommended = True
    problem = algorithm.pose(objective, num_samples=len(X))
    engine = Engine(network, problem, algorithm)
    optimizer = torch.optim.SGD(engine.params, lr=0.05)
    for group in ([0, 1, 0, 1], [1, 2, 2, 1], [2, 0, 1, 0]):
        index = torch.arange(4)
        batch = {"x": torch.from_numpy(X[:4]).float(), "y": torch.tensor([0, 1, 1, 0])}
        engine.train_batch({**batch, "group": torch.tensor(group), "index": index}, optimizer)
    for _ in range(20 if problem.settles else 0):  # as of further updates that move no row
        problem.settle()
    term, found = problem.all_terms[0], objective.threshold.item()
    assert objective.threshold in set(optimizer.param_groups[0]["params"])
    if not settles or start is not None:
        assert not problem.settles
        return
    values = []
    for shift in (-1e-3, 0.0, 1e-3):
        with torch.no_grad():
            objective.threshold.fill_(found + shift)
            values.append(found + shift + term.smoothed(term.state.rows.double()).mean().item())
    assert values[1] <= min(values) + 1e-6


@pytest.mark.parametrize("objective", [KLGroupDRO(0.02, LogisticLoss(), 2), WorstGroupDRO(LogisticLoss(), 2)])
@pytest.mark.parametrize("make", [lambda: OOA(1.0), lambda: SMD(1.0)])
def test_a_group_whose_weight_was_rounded_to_zero_can_become_the_worst(make, objective):
    """Weights of groups are kept in single precision, which has none below e^-103."""
    algorithm, network = make(), nn.Linear(1, 1, bias=False)
    nn.init.ones_(network.weight)
    engine = Engine(network, algorithm.pose(objective, num_samples=2), algorithm)
    optimizer = torch.optim.SGD(engine.params, lr=0.0)
    columns = {"y": torch.tensor([0, 0]), "group": torch.tensor([0, 1]), "index": torch.tensor([0, 1])}
    for worst in (0, 1):
        x = torch.full((2, 1), -10.0)
        x[worst] = 10.0
        for _ in range(80):
            engine.train_batch({**columns, "x": x}, optimizer)
        q = engine.problem.states[0].rows[:, 0]
        assert q[worst].item() == pytest.approx(1, abs=1e-6)
        assert q[1 - worst].item() < 1e-30


def test_sonex_smooths_by_what_the_objective_recommends_unless_it_is_told_otherwise():
    def lam(algorithm, objective):
        outer = algorithm.pose(objective, num_samples=4).all_terms[0].smoothed
        return outer.phi.lam

    for alpha in (0.1, 0.5):
        objective = CVaRGroupDRO(alpha, num_groups=20)
        assert lam(SONEX(), objective) == 0.01
        objective.recommended = True
        assert lam(SONEX(), objective) == pytest.approx(alpha / 2)
        assert lam(SONEX(lam=0.02), objective) == 0.02
        assert lam(ALEXR2(), objective) == 0.002
    worst = WorstGroupDRO(num_groups=20)
    worst.recommended = True
    assert lam(SONEX(), worst) == pytest.approx(0.5 / 20)
    assert KLGroupDRO(num_groups=20).recommended_lam is None  # it is smooth


def test_the_smoothing_that_a_group_objective_recommends_is_not_that_of_constraints():
    algorithm = SONEX()
    objective = CVaRGroupDRO(0.5, num_groups=3)
    objective.recommended = True
    problem = algorithm.pose(objective, [ROCFairness()], HingePenalty(1.0), num_samples=4)
    of_objective, of_constraint = (algorithm.smoothing_of(term.measurable) for term in problem.all_terms)
    assert (of_objective, of_constraint) == (MoreauSmoothing(0.25), MoreauSmoothing(0.01))

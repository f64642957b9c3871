"""Averaged over all batches, G is the gradient of F, or of ``sum <y, g>`` with the y that the algorithm uses.

The data are six samples, two of which have rows of the objective and form the rare subset of the constraint.
"""

import math
from itertools import combinations, product

import pytest
import torch

from fcco_lightning import CVaRGroupDRO, MeanAtMost, SoftRate
from fcco_lightning.algorithms import PGSMD, DoubleLoop
from fcco_lightning.constraints import Multipliers
from fcco_lightning.objectives import CrossEntropyLoss

from .registry_algorithms import ALGORITHMS, PENALTY
from .trainings import Drawn, ListedDraws, OwnedMargins, Training

N, SIZE = 6, 4
Y, GROUP = torch.tensor([1, 0, 0, 1, 0, 0]), torch.tensor([0, 0, 0, 1, 1, 2])
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
RARE = Y == 1
CLOSE = {"rtol": 1e-9, "atol": 1e-11}  # a mean of 225 gradients, float64
WHOLE = list(combinations(range(N), SIZE))
HALVES = [a + b for a, b in product(combinations(range(N), SIZE // 2), repeat=2)]  # two independent draws
KAPPA = {"objective": 0.2, "penalty": 0.6}
RHO = {"objective": 1.5, "penalty": PENALTY}
NU = 0.7  # multiplier of the constraint
Q = torch.tensor([[0.5], [0.3], [0.2]], dtype=torch.float64)


def columns(index):
    index = torch.tensor(index)
    return {"x": X[index], "y": Y[index], "group": GROUP[index], "index": index}


def batches_of(member, name):
    """The batches, all equally likely, and the plan that the weights of rows follow."""
    if member.jacobian == "halves":
        return [columns(b) for b in HALVES], HALVES
    if member.jacobian == "part":
        return [{"target": columns(a), "dual": columns(b)} for a, b in product(WHOLE, repeat=2)], WHOLE
    plan = [b for b in WHOLE if name != "SMD" or len(set(GROUP[list(b)].tolist())) == 3]
    return [columns(b) for b in plan], plan


def mean_gradient(member, name, objective, limits, rows):
    """Mean of G over all batches, every time from these rows and the same weights; and the training."""
    batches, plan = batches_of(member, name)
    drawn = Drawn({"y": Y, "group": GROUP}, ListedDraws(plan, N))
    training = Training(member._replace(make=member.gamma_one), objective=objective, limits=limits, drawn=drawn)
    algorithm, engine = training.algorithm, training.engine
    training.optimizer.param_groups[0]["lr"] = 0.0
    total = 0.0
    for batch in batches:
        for term, values in zip(training.problem.all_terms, rows(training), strict=True):
            if term.state is not None:
                term.state.write(torch.arange(term.num_rows), values)
            if term.multipliers is not None:
                term.multipliers.unit.fill_(1.0)
                term.multipliers.state.write(torch.arange(1), torch.full_like(term.multipliers.state.rows, NU))
        engine.train_batch(batch, training.optimizer, last_batch=True)
        total = total + gradient(engine)
    return total / len(batches) / share_of_gradient(algorithm), training


def share_of_gradient(algorithm):
    """What the optimizer is given where an inner loop has one step, by G."""
    if isinstance(algorithm, DoubleLoop):  # (w - z)/nu = eta/(eta + nu) G
        return algorithm.eta / (algorithm.eta + algorithm.nu)
    if isinstance(algorithm, PGSMD):  # w less the mean of w and z
        eta, gamma = algorithm.stages.eta, algorithm.gamma
        return eta * gamma / (eta + gamma) / 2
    return 1.0


def gradient(engine):
    return torch.cat([p.grad.flatten() for p in engine.params])


def inner_values(network, index=range(N)):
    """By term, in NumPy-like formulas: what a batch says of the rows, NaN where it is silent; with graph."""
    index = torch.tensor(index)
    s = network(X)
    present = torch.zeros(N, dtype=torch.bool).index_fill(0, index, True)
    margins = torch.where(present[RARE], (1 - s)[RARE], torch.nan).unsqueeze(1)
    chosen = s[RARE & present]
    return {"objective": margins, "penalty": torch.sigmoid(chosen / 0.5).mean().reshape(1, 1)}


def slope(term, u, lam, multiplied=None):
    if term == "penalty" and multiplied is not None:
        return (NU + getattr(multiplied, "curvature", 0.0) * (u - KAPPA[term])).clamp(min=0)
    rho, kappa = RHO[term], KAPPA[term]
    return rho * (u > kappa).double() if lam == 0 else ((u - kappa) / lam).clamp(0, rho)


def gradient_with(network, y):
    """Gradient of ``0.05 mean s^2 + mean_i <y_i, g_i> + <y, rate>`` over all of the data."""
    values = inner_values(network)
    total = 0.05 * network(X).square().mean()
    for term, weights in y.items():
        total = total + (weights.detach() * values[term]).mean(0).sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(total, list(network.parameters()))])


def smoothing(algorithm):
    return getattr(algorithm.smoothing, "lam", 0.0)


def exact_rows(training):
    """u_i = g_i(w), or y_i = grad f(g_i(w)) for estimators that remember y."""
    values = inner_values(training.network)
    return [
        slope(term.name, values[term.name].detach(), 0.0)
        if hasattr(training.algorithm.estimator_of(term), "tau")
        else values[term.name].detach()
        for term in training.problem.all_terms
    ]


def limit():
    return MeanAtMost(SoftRate(temperature=0.5), kappa=KAPPA["penalty"], where={"y": 1})


PLAIN = [n for n, m in ALGORITHMS.items() if m.exact_rows and not m.logarithm and not m.max_form]
STALE = [n for n in PLAIN if ALGORITHMS[n].jacobian in (None, "old")]


@pytest.mark.parametrize("name", STALE)
def test_with_exact_rows_the_gradient_is_that_of_f(name):
    found, training = mean_gradient(ALGORITHMS[name], name, OwnedMargins(), [limit()], exact_rows)
    lam, values = smoothing(training.algorithm), inner_values(training.network)
    rule = training.problem.penalty if isinstance(training.problem.penalty, Multipliers) else None
    y = {term: slope(term, values[term], lam, rule) for term in values} if ALGORITHMS[name].compositional else {}
    if name == "SGD":  # constraints are left out
        y = {"objective": slope("objective", values["objective"], 0.0)}
    torch.testing.assert_close(found, gradient_with(training.network, y), **CLOSE)


@pytest.mark.parametrize("name", [n for n, m in ALGORITHMS.items() if not m.exact_rows and not m.logarithm and m.inner])
def test_with_exact_values_the_gradient_is_that_of_f(name):
    found, training = mean_gradient(ALGORITHMS[name], name, OwnedMargins(), [], exact_rows)
    lam = smoothing(training.algorithm)
    y = {"objective": slope("objective", inner_values(training.network)["objective"], lam)}
    torch.testing.assert_close(found, gradient_with(training.network, y), **CLOSE)


def middle_rows(training):
    """As :func:`exact_rows`, but y half way up, so that batches move it up and down."""
    values = inner_values(training.network)
    return [
        torch.full_like(values[term.name], RHO[term.name] / 2)
        if hasattr(training.algorithm.estimator_of(term), "tau")
        else values[term.name].detach()
        for term in training.problem.all_terms
    ]


def mean_y(training, draws):
    """Mean over the draws that move y of the y that is used; a row of which a draw is silent keeps its own."""
    total = {"objective": 0.0, "penalty": 0.0}
    old = dict(zip(total, middle_rows(training), strict=True))
    for draw in draws:
        for term, g in inner_values(training.network, draw).items():
            estimator = training.algorithm.estimator
            if hasattr(estimator, "tau"):
                silent, y = old[term], (old[term] + (g - KAPPA[term]) / estimator.tau).clamp(0, RHO[term])
            else:  # gamma = 1: u_i is the new value
                lam = smoothing(training.algorithm)
                silent, y = slope(term, old[term], lam), slope(term, g, lam)
            total[term] = total[term] + torch.where(g.isnan(), silent, y).detach() / len(draws)
    return total


TWO = [n for n, m in ALGORITHMS.items() if m.jacobian in ("halves", "part", "reuse")]
ALIKE = ("ALEXR, part", "ALEXR2")  # each of the others has their form of the estimate, or their draws


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in ALIKE)) for n in TWO])
def test_two_independent_draws_are_unbiased_and_one_is_not(name):
    member = ALGORITHMS[name]
    found, training = mean_gradient(member, name, OwnedMargins(), [limit()], middle_rows)
    draws = list(combinations(range(N), SIZE // 2)) if member.jacobian == "halves" else WHOLE
    expected = gradient_with(training.network, mean_y(training, draws))
    if member.jacobian == "reuse":
        assert (found - expected).norm() > 1e-2 * expected.norm()
    else:
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)  # the mirror form has gamma = 1 - 1e-9


ONE_STEP = [n for n, m in ALGORITHMS.items() if m.max_form and m.objective is None and not n.startswith("PGSVRG")]


@pytest.mark.parametrize("name", ONE_STEP)
def test_a_primal_dual_gradient_is_that_of_the_weighted_risks(name):
    objective = CVaRGroupDRO(0.5, num_groups=3).double()
    found, training = mean_gradient(ALGORITHMS[name], name, objective, [limit()], lambda _: [Q])
    losses = CrossEntropyLoss()(training.network(X), {"y": Y, "group": GROUP})
    weights = torch.full((3,), 1 / 3, dtype=torch.float64) if ALGORITHMS[name].restarts else Q.flatten()
    risk = sum(q * losses[g == GROUP].mean() for g, q in enumerate(weights.tolist()))
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(risk, list(training.network.parameters()))])
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)  # the dual step is 1e-12


def test_the_problem_is_no_easy_one():
    """The constraint is not spoken of in every batch, its value varies around kappa."""
    training = Training(ALGORITHMS["SOX"])
    rates = [inner_values(training.network, draw)["penalty"].item() for draw in combinations(range(N), 2)]
    spoken = [r for r in rates if not math.isnan(r)]
    assert 0 < len(spoken) < len(rates)
    assert len({round(r, 6) for r in spoken}) == 3
    assert min(spoken) < KAPPA["penalty"] < max(spoken)

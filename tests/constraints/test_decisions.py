"""Rates of decisions beside smooth rates, and multipliers that follow decisions."""

import itertools

import numpy as np
import pytest
import torch

from fcco_lightning import (
    ALEXR,
    MSVR,
    SOAP,
    SONEX,
    SONX,
    SOX,
    AdaptivePenalty,
    AugmentedLagrangian,
    ConfigError,
    CrossEntropy,
    DemographicParity,
    Engine,
    EqualizedOdds,
    ErrorProbability,
    FourFifthsRule,
    GroupAUCAtLeast,
    Lagrangian,
    LogisticLoss,
    MeanAtMost,
    MeanDifferenceAtMost,
    MeanNear,
    NuPI,
    PredictiveParity,
    QuantileScores,
    ROCFairness,
    SoftRate,
    TopShare,
)
from fcco_lightning.outer import slopes
from tests.combinations import every_nth

TINY = 1e-6  # a temperature at which a smooth rate of the scores below is the rate of decisions
SMOOTH = {
    "parity": lambda t: DemographicParity(rate=SoftRate(0.3, t)),
    "odds": lambda t: EqualizedOdds(rate=SoftRate(temperature=t)),
    "four fifths": lambda t: FourFifthsRule(rate=SoftRate(temperature=t)),
    "precision": lambda t: PredictiveParity(rate=SoftRate(temperature=t)),
    "budget": lambda t: DemographicParity(rate=TopShare(0.25, t, QuantileScores(7))),
    "cap": lambda t: MeanAtMost(SoftRate(temperature=t), 0.2, {"y": 0}),
    "difference": lambda t: MeanDifferenceAtMost(SoftRate(temperature=t), 0.1, {"group": 0}, {"group": 1}),
    "near": lambda t: MeanNear(ErrorProbability(t), 0.2),
    "curves": lambda t: ROCFairness(thresholds=[-0.5, 0.1, 0.7], temperature=t),
    "quantiles": lambda t: ROCFairness(thresholds=[0.2, 0.8], temperature=t, scale=QuantileScores(9)),
}


def batch(seed=0, size=48):
    g = torch.Generator().manual_seed(seed)
    columns = {"y": torch.arange(size) % 2, "group": torch.arange(size) // 2 % 2, "index": torch.arange(size)}
    return torch.randn(size, generator=g, dtype=torch.float64), columns


@pytest.mark.parametrize("name", SMOOTH)
def test_decisions_are_what_is_smoothed(name):
    scores, columns = batch()
    constraint = SMOOTH[name](TINY)
    assert constraint.smooths
    decided = constraint.decided(scores.requires_grad_(), columns)
    assert not decided.requires_grad
    torch.testing.assert_close(decided, constraint.measure(scores, columns)[1].values.detach(), rtol=0, atol=1e-9)
    # at a usual temperature the smooth rates are others, and the decisions the same
    usual = SMOOTH[name](0.5)
    torch.testing.assert_close(usual.decided(scores, columns), decided, rtol=0, atol=0)
    assert (usual.measure(scores, columns)[1].values - decided).abs().max() > 0.01


def test_decisions_by_counting():
    scores, columns = batch(3)
    s, y, a = scores.numpy(), columns["y"].numpy(), columns["group"].numpy()
    rates = [np.mean(s[(y == label) & (a == side)] > 0) for label in (1, 0) for side in (0, 1)]
    found = EqualizedOdds().decided(scores, columns).numpy()
    np.testing.assert_allclose(np.abs(np.diff(found)).flatten(), np.abs(np.diff(np.reshape(rates, (2, 2)))).flatten())
    np.testing.assert_allclose(np.sort(found.flatten()), np.sort(rates))


def test_what_smooths_nothing():
    for constraint in (MeanAtMost(LogisticLoss(), 0.5), GroupAUCAtLeast(0.6)):
        assert not constraint.smooths


def trained(rule, algorithm, steps=6):
    """Weights, batches, and an engine after some steps on a linear model."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0)).double()
    constraint = DemographicParity(kappa=0.05)
    engine = Engine(
        network, algorithm.pose(CrossEntropy(), [constraint], rule, num_samples=48, dtype=torch.float64), algorithm
    )
    optimizer, g, seen = torch.optim.SGD(network.parameters(), lr=0.5), torch.Generator().manual_seed(1), []
    for step in range(steps):
        x = torch.randn(48, 3, generator=g, dtype=torch.float64)
        given = batch(step)[1] | {"x": x}
        with torch.no_grad():
            seen.append((network(x).numpy(), network[0].weight.clone(), given))
        engine.train_batch(given, optimizer)
    return engine, seen


def test_the_multiplier_follows_the_mean_of_decisions():
    """By hand: ``u <- (1 - gamma) u + gamma (rate of group a, of group b)`` of decisions, nu by projected ascent."""
    gamma, rate = 0.3, 0.2
    engine, seen = trained(Lagrangian(rate, decisions=True), SOX(gamma))
    u, nu, unit = None, np.zeros(2), None
    for scores, _, given in seen:
        a, y = given["group"].numpy(), given["y"].numpy()
        fresh = np.array([np.mean(scores[a == side] > 0) for side in (0, 1)])
        unit = np.mean(np.log1p(np.exp(-(2 * y - 1) * scores))) if unit is None else unit
        u = fresh if u is None else (1 - gamma) * u + gamma * fresh
        s = u[0] - u[1]
        nu = np.maximum(nu + rate * np.array([s - 0.05, -s - 0.05]), 0)
    (term,) = engine.problem.all_terms
    held = term.multipliers.state.rows.flatten().numpy()
    np.testing.assert_allclose(np.sort(held), np.sort(nu), rtol=1e-12)
    assert nu.max() > 0
    decided = term.state.rows + term.multipliers.decisions.rows  # both are means with one gamma
    np.testing.assert_allclose(np.sort(decided.flatten().numpy()), np.sort(u), rtol=1e-12)


def test_the_gradient_is_that_of_the_smooth_rate():
    """While no multiplier has moved the weights, following decisions or smooth rates gives the same weights."""
    hard, soft = (trained(Lagrangian(0.2, decisions=which), SOX(0.3))[1] for which in (True, False))
    same = [torch.equal(a[1], b[1]) for a, b in zip(hard, soft, strict=True)]
    assert same[:2] == [
        True,
        True,
    ]  # the first batch moves the multipliers, and the weights without them
    assert not all(same)


@pytest.mark.parametrize("rule", [AdaptivePenalty, AugmentedLagrangian, Lagrangian, NuPI])
def test_it_is_an_option_of_every_rule(rule):
    for decisions in (True, False):
        engine, _ = trained(rule(decisions=decisions), SONEX(), steps=3)
        (term,) = engine.problem.all_terms
        assert (term.multipliers.decisions is not None) is decisions
        assert bool(torch.isfinite(term.multipliers.state.rows).all())


def test_decisions_of_several_classes_are_those_of_the_largest_output():
    """Also where no class has half of the probability."""
    columns = batch()[1] | {"y": torch.arange(48) // 4 % 4}
    outputs = torch.randn(48, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert outputs.softmax(1).max(1).values.min() < 0.5
    wrong = (outputs.argmax(1) != columns["y"]).double()
    expected = torch.stack([wrong[columns["group"] == side].mean() for side in (1, 0)])
    for constraint in (
        DemographicParity(rate=ErrorProbability()),
        MeanDifferenceAtMost(ErrorProbability(), 0.1, {"group": 1}, {"group": 0}),
    ):
        torch.testing.assert_close(constraint.decided(outputs, columns)[0], expected)


def test_decisions_of_what_smooths_none_are_refused():
    scores, columns = batch()
    for constraint in (DemographicParity(rate=LogisticLoss()), GroupAUCAtLeast(0.6)):
        with pytest.raises(ConfigError, match="smooths no decisions"):
            constraint.decided(scores, columns)
    assert DemographicParity(rate=LogisticLoss()).vacuous(scores + 9, columns) is None  # a loss decides nothing


HELD = torch.tensor([0.2] * 24 + [-3.0] * 16, dtype=torch.float64).unsqueeze(1)  # .6 positive decisions; smoothly less
RULES = {
    "ascent": lambda decisions: Lagrangian(0.1, decisions=decisions),
    "augmented": lambda decisions: AugmentedLagrangian(rate=0.1, decisions=decisions),
    "controlled": lambda decisions: NuPI(0.1, decisions=decisions),
    "adaptive": lambda decisions: AdaptivePenalty(0.05, decisions=decisions),
}
WITH_VALUES = {  # algorithms that remember inner values of the constraint, which multipliers follow
    "ALEXR, halves": lambda: ALEXR(mirror=True),
    "ALEXR, old": lambda: ALEXR(mirror=True, jacobian="old"),
    "ALEXR, reuse": lambda: ALEXR(mirror=True, jacobian="reuse"),
    "MSVR": MSVR,
    "SOAP": SOAP,
    "SONEX": SONEX,
    "SONX": SONX,
    "SOX": SOX,
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", WITH_VALUES)
@pytest.mark.parametrize(("decisions", "kappa"), [(True, 0.5), (False, 0.3)])
def test_the_gradient_takes_the_slope_at_the_multiplier_of_the_step(name, rule, decisions, kappa):
    """With weights that hardly move all means are exact: ``G = grad F + L'(h) grad h`` by autograd, at every step.

    L is that of the present multiplier, h the value on decisions where the multiplier follows these.  Both halves of
    the batch are alike.
    """
    alternating = torch.cat([torch.arange(0, 40, 2), torch.arange(1, 40, 2)])
    x, y = HELD[alternating], (torch.arange(40) < 24).long()[alternating]
    network = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    network.weight.data.fill_(1.0)
    algorithm, constraint = WITH_VALUES[name](), MeanAtMost(SoftRate(temperature=1.0), kappa)
    problem = algorithm.pose(CrossEntropy(), [constraint], RULES[rule](decisions), num_samples=40, dtype=torch.float64)
    engine, optimizer = Engine(network, problem, algorithm), torch.optim.SGD(network.parameters(), lr=1e-12)
    scores = network(x).squeeze(1)
    of_objective = torch.nn.functional.binary_cross_entropy_with_logits(scores, y.double())
    (of_objective,) = torch.autograd.grad(of_objective, network.weight, retain_graph=True)
    (of_rate,) = torch.autograd.grad(scores.sigmoid().mean(), network.weight)
    value = (scores > 0).double().mean() if decisions else scores.sigmoid().mean()
    (term,) = problem.all_terms
    for step in range(7):
        unit = term.multipliers.unit.nan_to_num(0.0)
        memory = term.multipliers.state.gather(None).view(1, -1, 1)
        slope = slopes(term.multipliers.rule.outer(memory, kappa, unit), value.detach().view(1, 1))
        engine.train_batch({"x": x, "y": y, "index": torch.arange(40)}, optimizer)
        expected = of_objective + slope.item() * of_rate
        torch.testing.assert_close(network.weight.grad, expected, rtol=1e-6, atol=1e-9, msg=f"step {step}")
    assert slope > 0
    told = term.multipliers.rule.outer(term.multipliers.state.gather(None).view(1, -1, 1), kappa, unit)
    (reported,) = problem.multipliers().values()
    assert reported == pytest.approx(slopes(told, value.detach().view(1, 1)).item(), rel=1e-6)


@pytest.mark.parametrize(("name", "rule"), every_nth(7, [(n, r) for n in ("SONEX", "SOX", "MSVR") for r in RULES]))
def test_the_mean_step_over_all_batches_is_the_gradient_where_rows_are_exact(name, rule):
    """Also with decisions: what a batch says of them moves the outer gradient of the next step, not of its own."""
    x = torch.linspace(-1.5, 2.0, 8, dtype=torch.float64).unsqueeze(1)
    columns = {"x": x, "y": (torch.arange(8) % 3 > 0).long(), "index": torch.arange(8)}

    def gradient(chosen):
        """Of a batch, after four of all samples, behind which rows and averages of gradients are exact."""
        network = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
        network.weight.data.fill_(1.0)
        algorithm, constraint = WITH_VALUES[name](), MeanAtMost(SoftRate(temperature=1.0), 0.49)
        problem = algorithm.pose(CrossEntropy(), [constraint], RULES[rule](True), num_samples=8, dtype=torch.float64)
        engine, optimizer = Engine(network, problem, algorithm), torch.optim.SGD(network.parameters(), lr=0.0)
        for _ in range(4):
            engine.train_batch(columns, optimizer)
        (multiplier,) = problem.multipliers().values()
        assert multiplier > 0
        engine.train_batch({n: column[list(chosen)] for n, column in columns.items()}, optimizer)
        return network.weight.grad.clone()

    steps = torch.stack([gradient(chosen) for chosen in itertools.combinations(range(8), 3)])
    assert steps.std() > 0.01
    torch.testing.assert_close(steps.mean(0), gradient(range(8)), rtol=1e-12, atol=0)


def test_storm_takes_the_same_decisions_at_both_weights():
    """MSVR by hand: ``v <- G + (1 - b) (v - G')``, G' at the previous weights with the outer gradients of that step."""
    gamma, b, rate, size = 0.3, 0.1, 0.05, 40
    g = torch.Generator().manual_seed(5)
    x, y = torch.randn(size, 1, generator=g, dtype=torch.float64), torch.arange(size) % 2
    network = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    network.weight.data.fill_(1.0)
    algorithm, constraint = MSVR(gamma, gamma_prime=0.0, b=b), MeanAtMost(SoftRate(temperature=1.0), 0.3)
    rule = AugmentedLagrangian(curvature=3.0, rate=rate, decisions=True)
    problem = algorithm.pose(CrossEntropy(), [constraint], rule, num_samples=size, dtype=torch.float64)
    engine, optimizer = Engine(network, problem, algorithm), torch.optim.SGD(network.parameters(), lr=0.2)

    def parts(w, chosen):
        w = w.clone().requires_grad_()
        scores = (x[chosen] @ w).flatten()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, y[chosen].double())
        smooth = scores.sigmoid().mean()
        slopes = [torch.autograd.grad(one, w, retain_graph=True)[0] for one in (loss, smooth)]
        return loss.item(), smooth.item(), (scores > 0).double().mean().item(), *slopes

    def slope(state):
        return max(0.0, state["nu"] + 3.0 * (state["u"] + state["apart"] - 0.3)) * state["unit"]

    w, nu, unit, v, before = torch.ones(1, 1, dtype=torch.float64), 0.0, 0.0, None, None
    for step in range(20):
        chosen = torch.randperm(size, generator=g)[:10]
        loss, smooth, decided, of_loss, of_rate = parts(w, chosen)
        if step == 0:
            u, apart = smooth, decided - smooth
        state = {"u": u, "apart": apart, "nu": nu, "unit": unit}
        gradient = of_loss + slope(state) * of_rate
        if v is None:
            v = gradient
        else:
            *_, of_loss, of_rate = parts(before[0], chosen)
            v = gradient + (1 - b) * (v - of_loss - slope(before[1]) * of_rate)
        before = w, state
        u, apart = u + gamma * (smooth - u), apart + gamma * (decided - smooth - apart)
        nu += rate * (max(0.0, nu + 3.0 * (u + apart - 0.3)) - nu)
        unit, w = unit or loss, w - 0.2 * v
        engine.train_batch({"x": x[chosen], "y": y[chosen], "index": chosen}, optimizer)
        torch.testing.assert_close(network.weight, w.T, rtol=1e-6, atol=1e-6, msg=f"step {step}")
    assert nu > 0

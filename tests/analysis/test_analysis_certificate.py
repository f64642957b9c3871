"""KKT residuals at optima found by scipy, away from optima, and with a biased estimator."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, nnls
from torch import nn

from fcco_lightning import (
    AUC,
    BSGD,
    SONEX,
    AugmentedLagrangian,
    AveragePrecision,
    ConfigError,
    CrossEntropy,
    CVaRGroupDRO,
    DataError,
    Engine,
    HingePenalty,
    InnerFunctions,
    LogisticLoss,
    MeanAtMost,
    MeanDifferenceAtMost,
    MeanNear,
    MoreauSmoothing,
    Objective,
    Quantity,
    SoftRate,
    SquaredHingePenalty,
)
from fcco_lightning.analysis import Samples, certificate, penalty_multipliers
from tests.analysis.problems import Score, cut

N = 120
GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(N, 3, generator=GENERATOR, dtype=torch.float64)
GROUP = (X[:, 1] + 0.8 * torch.randn(N, generator=GENERATOR, dtype=torch.float64) > 0).long()
Y = (X[:, 0] + X[:, 1] + torch.randn(N, generator=GENERATOR, dtype=torch.float64) > 0).long()
BATCH = {"x": X, "y": Y, "group": GROUP, "index": torch.arange(N)}


CAP = {0.1: 0.526, 0.0: 0.543}  # of the loss, by kappa: a little below what the other constraint leaves


def limits(kappa=0.1):
    """A difference of mean scores, the loss of a group, and one that is slack."""
    return [
        MeanDifferenceAtMost(Score(), kappa, {"group": 1}, {"group": 0}),
        MeanAtMost(LogisticLoss(), CAP[kappa], {"group": 1}, name="loss"),
        MeanAtMost(SoftRate(temperature=1.0), 0.95, name="slack"),
    ]


def functions(w, objective=None, constraints=None):
    network = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        network.weight.copy_(torch.as_tensor(w))
    return InnerFunctions(network, objective or CrossEntropy(), limits() if constraints is None else constraints)


def certified(measured, multipliers=None, size=50, batch=BATCH, **kwargs):
    with torch.no_grad():
        outputs = measured.network(batch["x"])
    order = torch.randperm(len(outputs), generator=torch.Generator().manual_seed(0))
    shuffled = {name: column[order] for name, column in batch.items()}
    samples, batches = Samples({"target": outputs}, {"target": batch}), {"target": cut(shuffled, size)}
    return certificate(measured, samples, batches, multipliers, **kwargs)


def logistic(w, chosen):
    x, y = X[chosen].numpy(), Y[chosen].numpy()
    return np.logaddexp(0, -(2 * y - 1) * (x @ w)).mean()


def slope(w, chosen):
    x, y = X[chosen].numpy(), Y[chosen].numpy()
    return x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(y)


EVERYONE, ONE = torch.ones(N, dtype=torch.bool), GROUP == 1
DIFFERENCE = (X[GROUP == 1].mean(0) - X[GROUP == 0].mean(0)).numpy()


def solved(kappa):
    """The optimum of constrained logistic regression and its multipliers, by scipy."""
    rows = [{"type": "ineq", "fun": lambda w, s=s: kappa - s * DIFFERENCE @ w} for s in (1, -1)]
    rows.append({"type": "ineq", "fun": lambda w: CAP[kappa] - logistic(w, ONE)})
    found = minimize(lambda w: logistic(w, EVERYONE), np.zeros(3), method="SLSQP", constraints=rows,
                     options={"ftol": 1e-15, "maxiter": 500})  # fmt: skip
    w = found.x
    normals = np.stack([np.sign(DIFFERENCE @ w) * DIFFERENCE, slope(w, ONE)], axis=1)
    return w, np.linalg.lstsq(normals, -slope(w, EVERYONE), rcond=None)[0]


def test_multipliers_and_residuals_at_a_constrained_optimum():
    w, nu = solved(0.1)
    assert nu.min() > 0.01
    found = certified(functions(w))
    assert found.multipliers == pytest.approx([*nu, 0], rel=1e-3, abs=1e-5)
    assert found.eps < 1e-5
    assert found.gradient == pytest.approx(np.linalg.norm(slope(w, EVERYONE)))
    assert found.values[:2] == pytest.approx([0, 0], abs=1e-6)
    given = certified(functions(w), [*nu, 0], size=7)
    assert given.eps < 1e-5
    assert given.multipliers == pytest.approx([*nu, 0])


def test_at_the_kink_of_an_absolute_value_the_multiplier_is_found():
    """With kappa = 0 both sides of |s| <= 0 are active, and rounding says nothing of the sign of s."""
    w, _ = solved(0.0)
    for tiny in (1e-9, -1e-9):
        found = certified(functions(w + tiny * DIFFERENCE, constraints=limits(0.0)))
        assert found.eps < 1e-5
        assert found.multipliers[0] > 0.1


def test_away_from_the_optimum_the_residuals_are_the_formulas():
    w, nu = np.array([0.5, -0.3, 0.2]), np.array([0.3, 0.7, 0.2])
    found = certified(functions(w), nu)
    h = np.array(
        [abs(DIFFERENCE @ w) - 0.1, logistic(w, ONE) - CAP[0.1], (1 / (1 + np.exp(-X.numpy() @ w))).mean() - 0.95]
    )
    rate = 1 / (1 + np.exp(-X.numpy() @ w))
    of_rate = (X.numpy() * (rate * (1 - rate))[:, None]).mean(0)
    total = slope(w, EVERYONE) + nu[0] * np.sign(DIFFERENCE @ w) * DIFFERENCE + nu[1] * slope(w, ONE) + nu[2] * of_rate
    assert found.values == pytest.approx(h)
    assert found.stationarity == pytest.approx(np.linalg.norm(total))
    assert found.complementarity == pytest.approx(np.abs(nu * h).max())
    assert found.violation == pytest.approx(h.max())
    # the best ones, of s <= kappa, -s <= kappa and the others: least squares of gradient and products together
    normals = np.stack([DIFFERENCE, -DIFFERENCE, slope(w, ONE), of_rate], axis=1)
    excess = np.array([DIFFERENCE @ w - 0.1, -DIFFERENCE @ w - 0.1, h[1], h[2]])
    best, _ = nnls(np.vstack([normals, np.diag(excess)]), np.concatenate([-slope(w, EVERYONE), np.zeros(4)]))
    assert max(best) > 0.01
    assert certified(functions(w)).multipliers == pytest.approx([abs(best[0] - best[1]), *best[2:]], abs=1e-9)


@pytest.mark.parametrize("make", [AUC, AveragePrecision, lambda: CVaRGroupDRO(0.5, num_groups=2),
                                  lambda: CVaRGroupDRO(0.5, num_groups=2).max_form()])  # fmt: skip
def test_the_gradient_of_any_objective_is_that_of_finite_differences(make):
    w, objective = np.array([0.5, -0.3, 0.2]), make().double()
    found = certified(functions(w, objective, []))
    objective.num_samples = N
    domain = objective.row_domain(N, BATCH)

    def value(w):
        outputs = X @ torch.as_tensor(w)
        with torch.no_grad():
            direct, rows = objective.measure(outputs, BATCH)
        if rows is None:
            return float(direct)
        values = rows.values[rows.weight != 0]
        if objective.outer.coupled:  # CVaR of two groups at 1/2 is the worse one
            return float(values.max())
        assert len(values) == (domain.num_rows if domain.owners is None else int(domain.owners.sum()))
        value = objective.outer(values).mean().detach()
        return float(value if direct is None else direct.detach() + value)

    steps = 1e-5 * np.eye(3)
    numeric = [(value(w + e) - value(w - e)) / 2e-5 for e in steps]
    threshold = [p for p in objective.parameters() if p.requires_grad]
    if threshold:  # both groups lie above the threshold 0: d/ds (s + mean [R - s]_+ / alpha)
        numeric.append(1 - 2)
    assert found.gradient == pytest.approx(np.linalg.norm(numeric), rel=1e-6)
    assert found.multipliers == ()
    assert found.eps == found.stationarity == found.gradient


def test_a_gradient_of_all_samples_knows_nothing_of_batches_without_pairs():
    """The cross-entropy beside them counts in all batches, and on a whole split as it is."""
    w, objective = np.array([0.5, -0.3, 0.2]), AUC(cross_entropy=1).double()
    alone = certified(functions(w, objective, [])).gradient
    objective.direct_weight = 1.7
    assert certified(functions(w, objective, [])).gradient == alone


@pytest.mark.parametrize("penalty", [HingePenalty(2.0), SquaredHingePenalty(3.0)])
def test_multipliers_of_a_fixed_penalty_are_its_slopes(penalty):
    measured = functions(np.array([0.9, 0.9, 0.0]))
    constraints = measured.constraints
    with torch.no_grad():
        outputs = measured.network(X)
    h = torch.tensor(certified(measured).values)
    slopes = 2.0 * (h > 0) if isinstance(penalty, HingePenalty) else 3.0 * h.clamp(min=0)
    assert 0 < int((h > 0).sum()) < 3
    samples = Samples({"target": outputs}, {"target": BATCH})
    assert penalty_multipliers(penalty, constraints, samples) == pytest.approx((slopes / 3).tolist())


@pytest.mark.parametrize("smoothing", [None, MoreauSmoothing(0.5)])
def test_multipliers_of_a_fixed_penalty_on_a_difference_are_the_slopes_that_train(smoothing):
    measured = functions(np.array([0.2, 0.3, -0.1]))
    (difference,) = measured.constraints[:1]
    with torch.no_grad():
        outputs = measured.network(X)

    def envelope(s, lam=0.5):
        if smoothing is None:
            return max(abs(s) - 0.1, 0)
        moved = np.linspace(-1, 1, 200001)  # both means move by half of it, towards each other
        return (np.maximum(np.abs(s - moved) - 0.1, 0) + 2 * (moved / 2) ** 2 / (2 * lam)).min()

    s = 0.1 + certified(measured).values[0]
    assert s - 0.1 > 0.02
    expected = (envelope(s + 1e-3) - envelope(s - 1e-3)) / 2e-3
    assert smoothing is None or 0.05 < expected < 0.95
    samples = Samples({"target": outputs}, {"target": BATCH})
    found = penalty_multipliers(HingePenalty(1.0), [difference], samples, smoothing=smoothing)
    assert found == pytest.approx([expected], abs=1e-3)


class Distance(Objective):
    """``mean (w - y)^2 / 2``."""

    def measure(self, outputs, batch):
        return (outputs.flatten() - batch["y"]).square().mean() / 2, None


class Noise(Quantity):
    """w with noise that a column brings."""

    def __call__(self, outputs, batch):
        return outputs.flatten() + batch["noise"]


def trained(algorithm):
    """``min |w - 2|^2 / 2`` on average, subject to ``mean of w + noise <= 1``, in batches of two."""
    noise = 3 * torch.randn(N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batch = {"x": torch.ones(N, 1, dtype=torch.float64), "noise": noise - noise.mean(), "index": torch.arange(N)}
    batch |= {"y": torch.full((N,), 2.0, dtype=torch.float64)}
    network = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        network.weight.zero_()
    problem = algorithm.pose(
        Distance(), [MeanAtMost(Noise(), 1.0)], AugmentedLagrangian(1.0, 0.05), num_samples=N,
        dtype=torch.float64,
    )  # fmt: skip
    engine = Engine(network, problem, algorithm)
    optimizer, generator = torch.optim.SGD(network.parameters(), lr=0.03), torch.Generator().manual_seed(2)
    for _ in range(200):
        index = torch.randperm(N, generator=generator)[:2]
        engine.train_batch({name: column[index] for name, column in batch.items()}, optimizer)
    measured = InnerFunctions(network, Distance(), [MeanAtMost(Noise(), 1.0)])
    nu = list(problem.multipliers().values())
    return certified(measured, batch=batch), certified(measured, nu, batch=batch)


def test_a_biased_estimator_is_flagged():
    """At the solution w = 1 and nu = 1; a slope [nu + h]_+ at noisy h is too large on average."""
    unbiased, own = trained(SONEX(0.005, 0.995))
    biased, own_biased = trained(BSGD())
    assert max(unbiased.eps, own.eps) < 0.2
    assert own.multipliers == pytest.approx([1], abs=0.3)
    assert biased.eps > 3 * unbiased.eps
    assert own_biased.eps > 3 * own.eps


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"constraints": [MeanAtMost(SoftRate(temperature=1.0), 0.1, part="protected")]},
            ConfigError,
            "MeanAtMost names another part",
        ),
        (
            {"constraints": [MeanAtMost(SoftRate(temperature=1.0), 0.1, {"group": 3}, "rare")]},
            DataError,
            "'rare' compares",
        ),
        ({"max_values": 5}, ConfigError, "max_values=5"),
        ({"objective": AveragePrecision(), "max_values": 100}, ConfigError, "AveragePrecision may compare"),
        ({"frozen": True}, ConfigError, "all parameters are frozen"),
    ],
)
def test_what_is_refused(change, error, message):
    kwargs = {"max_values": change.pop("max_values")} if "max_values" in change else {}
    frozen = change.pop("frozen", False)
    measured = functions(np.zeros(3), **change)
    measured.network.requires_grad_(not frozen)
    with pytest.raises(error, match=message):
        certified(measured, **kwargs)


def test_an_equality_has_a_multiplier_on_either_side():
    """``min |w - 2|^2 / 2`` subject to the mean of w near a target has nu = |2 - w|."""
    for target, w in ((1.0, 1.1), (3.0, 2.9)):
        network = nn.Linear(1, 1, bias=False).double()
        with torch.no_grad():
            network.weight.fill_(w)
        batch = {"x": torch.ones(4, 1, dtype=torch.float64), "index": torch.arange(4)}
        batch |= {"y": torch.full((4,), 2.0, dtype=torch.float64)}
        measured = InnerFunctions(network, Distance(), [MeanNear(Score(), target, 0.1)])
        found = certified(measured, batch=batch)
        assert found.multipliers == pytest.approx([0.9])
        assert found.eps < 1e-6

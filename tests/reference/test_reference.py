"""The reference against explicit sums, finite differences, enumeration and averages over many batches."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from .algorithms import BSGD, MOAP, MSVR, SOAP, SONX, SOX, HeavyBall
from .cases import CASES, make_case, presences
from .networks import Array, Data, Linear, Tanh, TwoTowers, make_data
from .outer import GapHinge, Hinge, Log
from .primal_dual import ALEXR, ALEXR2, project_capped_kl
from .probabilities import Balanced, Groups, Sampler, Uniform
from .toy import (
    Contrastive,
    GroupRisks,
    MeanLogistic,
    MeanRate,
    PairLoss,
    Part,
    Problem,
    RateGap,
    Term,
)

DATA = make_data()
TINY = make_data((5, 3, 2), seed=3)
ALPHA, TAU = 0.5, 0.4


def rare(data: Data) -> np.ndarray:
    """The smallest group."""
    return data.members(int(data.groups.max()))


def one_part(network: object, data: Data, term: Term, presence: float = 1.0, share: float = 1.0) -> Problem:
    return Problem(network, len(data), (Part(term, np.full(term.n_rows, presence), share),))


def start(problem: Problem, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=problem.network.size) * 0.7


def differences(value: Callable[[Array], float], w: Array, step: float = 1e-6) -> Array:
    """Central differences of a scalar function."""
    return np.array([(value(w + step * e) - value(w - step * e)) / (2 * step) for e in np.eye(len(w))])


@pytest.mark.parametrize("network", [Linear(DATA, extra=1), Tanh(DATA, extra=2), TwoTowers(DATA, width=3)])
def test_jacobians_of_networks(network):
    """Random combinations of all outputs: their gradient by the Jacobians and by differences."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=network.size)
    point = network.at(w)
    a, b, c = (rng.normal(size=array.shape) for array in (point.scores, point.images, point.texts))

    def combined(v: Array) -> float:
        at = network.at(v)
        return float((a * at.scores).sum() + (b * at.images).sum() + (c * at.texts).sum())

    gradient = np.zeros(network.size)
    if len(point.scores):
        gradient += a @ point.jacobian
    if len(point.images):
        gradient += np.einsum("nk,nkd->d", b, point.images_jacobian)
        gradient += np.einsum("nk,nkd->d", c, point.texts_jacobian)
    np.testing.assert_allclose(gradient, differences(combined, w), rtol=1e-6, atol=1e-6)


# The losses once more, as plain sums over samples.


def risks_by_sums(data: Data, scores: Array, s: float) -> float:
    total = s
    for group in range(int(data.groups.max()) + 1):
        losses = [math.log1p(math.exp(-(2 * data.labels[i] - 1) * scores[i])) for i in data.members(group)]
        total += max(sum(losses) / len(losses) - s, 0.0) / ALPHA / (data.groups.max() + 1)
    return total


def contrastive_by_sums(images: Array, texts: Array) -> float:
    n = len(images)
    similarity = [[float(images[i] @ texts[j]) for j in range(n)] for i in range(n)]
    total = 0.0
    for i in range(n):
        total += TAU * math.log(sum(math.exp((similarity[i][j] - similarity[i][i]) / TAU) for j in range(n)) / n)
        total += TAU * math.log(sum(math.exp((similarity[j][i] - similarity[i][i]) / TAU) for j in range(n)) / n)
    return total / n


def pairs_by_sums(data: Data, scores: Array) -> float:
    positives, negatives = np.flatnonzero(data.labels == 1), np.flatnonzero(data.labels == 0)
    pairs = [1 / (1 + math.exp(scores[i] - scores[j])) for i in positives for j in negatives]
    return sum(pairs) / len(pairs)


def gap_by_sums(data: Data, scores: Array) -> float:
    rates = [np.mean([1 / (1 + math.exp(-(scores[i] - 0.2) / 0.5)) for i in data.members(g)]) for g in (0, 1)]
    return 3.0 * max(abs(rates[0] - rates[1]) - 0.01, 0.0)


def test_exact_values_are_the_written_out_sums():
    data = make_data((20, 12, 3), seed=5)
    n = len(data)
    scored, towers = Tanh(data, extra=1), TwoTowers(data)
    w = np.random.default_rng(2).normal(size=scored.size)
    scores, s = scored.at(w).scores, float(w[-1])
    risks = one_part(scored, data, GroupRisks(data, Hinge(1 / ALPHA), threshold=scored.size - 1))
    assert risks.exact_value(w) == pytest.approx(risks_by_sums(data, scores, s), rel=1e-12)
    gap = one_part(scored, data, RateGap(data, data.members(0), data.members(1), GapHinge(3.0, 0.01), 0.2, 0.5))
    assert gap.exact_value(w) == pytest.approx(gap_by_sums(data, scores), rel=1e-12)
    assert gap.exact_value(w) > 0
    direct = Problem(scored, n, direct=((PairLoss(data), 1.0),))
    assert direct.exact_value(w) == pytest.approx(pairs_by_sums(data, scores), rel=1e-12)
    pairs = one_part(towers, data, Contrastive(data, Log(TAU), TAU))
    v = start(pairs)
    point = towers.at(v)
    assert pairs.exact_value(v) == pytest.approx(contrastive_by_sums(point.images, point.texts), rel=1e-12)


def whole_problems(data: Data) -> dict[str, Problem]:
    """Every term and every outer function, smoothed or not."""
    n, scored = len(data), Tanh(data, extra=1)
    s, first, second, few = scored.size - 1, data.members(0), data.members(1), rare(data)
    terms: dict[str, Term] = {
        "risks": GroupRisks(data, Hinge(1 / ALPHA), s),
        "risks, smoothed": GroupRisks(data, Hinge(1 / ALPHA, 0.0, 0.3), s),
        "rate, hinge": MeanRate(data, few, Hinge(5.0, 0.1)),
        "rate, smoothed": MeanRate(data, few, Hinge(5.0, 0.1, 0.2)),
        "gap, hinge": RateGap(data, first, second, GapHinge(3.0, 0.01), 0.2, 0.5),
        "gap, smoothed": RateGap(data, first, second, GapHinge(3.0, 0.01, 0.05), 0.2, 0.5),
    }
    problems = {name: one_part(scored, data, term, share=0.4) for name, term in terms.items()}
    direct = ((MeanLogistic(data), 1.0), (PairLoss(data), 1.0))
    problems["direct"] = Problem(scored, n, direct=direct)
    problems["contrastive"] = one_part(TwoTowers(data), data, Contrastive(data, Log(TAU), TAU))
    return problems


@pytest.mark.parametrize("name", whole_problems(TINY))
def test_exact_gradients_are_differences_of_values(name):
    problem = whole_problems(make_data((20, 12, 3), seed=5))[name]
    w = start(problem)
    gradient = problem.exact_gradient(w)
    assert np.linalg.norm(gradient) > 1e-3
    np.testing.assert_allclose(gradient, differences(problem.exact_value, w), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", [name for name in whole_problems(TINY) if name != "direct"])
def test_batch_jacobians_are_differences_of_inner_values(name):
    """A batch with duplicates; the rows of which it speaks are the same everywhere."""
    problem = whole_problems(TINY)[name]
    term, w = problem.parts[0].term, start(problem)
    batch = np.array([0, 7, 3, 9, 3, 5, 1, 8, 2])
    inner = term.measure(problem.at(w), batch)
    assert len(inner.rows)
    assert len(set(inner.rows.tolist())) == len(inner.rows)
    rng = np.random.default_rng(4)
    weights = rng.normal(size=inner.values.shape)
    expected = differences(lambda v: float((weights * term.measure(problem.at(v), batch).values).sum()), w)
    np.testing.assert_allclose(np.einsum("rk,rkd->d", weights, inner.jacobians), expected, rtol=1e-6, atol=1e-8)


def conjugate_argmax(outer: object, direction: Array, g: Array, y: Array, tau: float) -> Array:
    """``argmax_v <v, g> - f_lam^*(v) - tau/2 |v - y|^2`` over ``v = a direction`` on a grid, f_lam^* by a grid of u."""
    u = np.linspace(-6, 6, 2401)[:, None] * direction / (direction @ direction)
    a = np.linspace(-4, 4, 1601)
    conjugate = np.max(a[:, None] * (u @ direction)[None, :] - outer.value(u)[None, :], axis=1)
    v = a[:, None] * direction
    return v[np.argmax(v @ g - conjugate - tau / 2 * ((v - y) ** 2).sum(axis=1))]


@pytest.mark.parametrize(
    ("outer", "direction"),
    [
        (Hinge(2.0, 0.3), np.array([1.0])),
        (Hinge(2.0, 0.3, 0.2), np.array([1.0])),
        (GapHinge(1.5, 0.2), np.array([1.0, -1.0])),
        (GapHinge(1.5, 0.2, 0.1), np.array([1.0, -1.0])),
    ],
)
def test_dual_steps_maximise(outer, direction):
    rng = np.random.default_rng(0)
    for _ in range(12):
        g, y = rng.normal(size=len(direction)), direction * rng.uniform(0, 1)
        step = outer.dual_step(g[None], y[None], 0.7)[0]
        np.testing.assert_allclose(step, conjugate_argmax(outer, direction, g, y, 0.7), atol=2e-2)


def test_capped_projection_minimises_the_divergence():
    rng = np.random.default_rng(0)
    for _ in range(30):
        p, cap = rng.gamma(0.5, size=5) + 1e-3, rng.choice([0.21, 0.3, 0.6, 1.0])
        q = project_capped_kl(p, cap)
        assert q.sum() == pytest.approx(1.0, abs=1e-12)
        assert q.max() <= cap * (1 + 1e-12)
        best = (q * np.log(q / p)).sum()
        for _ in range(40):  # no feasible point nearby is better
            other = q + 0.02 * rng.normal(size=5) * q
            other /= other.sum()
            if other.max() <= cap:
                assert (other * np.log(other / p)).sum() >= best - 1e-12


SAMPLERS = {
    "uniform": Uniform(len(TINY), 4),
    "balanced": Balanced(TINY.labels, 2, 3),
    "groups": Groups(TINY.groups, 2, 3),
    "groups, with replacement": Groups(TINY.groups, 2, 3, replace=True),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_presence_by_formula_enumeration_and_drawing(name):
    sampler, rng = SAMPLERS[name], np.random.default_rng(0)
    assert sum(chance for _, chance in sampler.batches()) == pytest.approx(1.0, abs=1e-12)
    others = TINY.members(1)[:2].tolist()
    few, mixed = rare(TINY).tolist(), [*rare(TINY).tolist()[:1], *TINY.members(0)[:2].tolist()]
    cases = [
        (sampler.present(few), (few,)),
        (sampler.present(mixed), (mixed,)),
        (sampler.both(few, others), (few, others)),
    ]
    cases.append((sampler.both(few, mixed), (few, mixed)))  # with a sample in common
    for formula, subsets in cases:
        assert 0 < formula < 1
        assert formula == pytest.approx(sampler.enumerated(*subsets), abs=1e-12)
        error = math.sqrt(formula * (1 - formula) / 4000)
        assert abs(sampler.simulated(4000, rng, *subsets) - formula) < 4.5 * error


def sampled_problems(data: Data, sampler: Sampler) -> dict[str, Problem]:
    """The problems whose batches of this sampler estimate without bias, with its presence probabilities."""
    n, scored, s = len(data), Linear(data, extra=1), 4
    first, few = data.members(0), rare(data)
    terms: dict[str, Term] = {}
    direct: dict[str, tuple[object, float]] = {}
    if not isinstance(sampler, Balanced):
        terms["risks"] = GroupRisks(data, Hinge(1 / ALPHA, 0.0, 0.3), s)
        terms["rare rate"] = MeanRate(data, few, Hinge(5.0, 0.1, 0.2))
        terms["gap to the rare"] = RateGap(data, first, few, GapHinge(3.0, 0.01, 0.05))
    if isinstance(sampler, Uniform):
        direct["losses"] = (MeanLogistic(data), 1.0)
        classes = (np.flatnonzero(data.labels == label) for label in (0, 1))
        direct["pairs"] = (PairLoss(data), sampler.both(*classes))
        terms["contrastive"] = Contrastive(data, Log(TAU), TAU)
    if isinstance(sampler, Balanced):
        direct["pairs"] = (PairLoss(data), 1.0)
        positives = np.flatnonzero(data.labels == 1)
        terms["true positive rate"] = MeanRate(data, positives[:3], Hinge(5.0, 0.1, 0.2))
    problems = {name: Problem(scored, n, direct=(one,)) for name, one in direct.items()}
    for name, term in terms.items():
        network = TwoTowers(data) if isinstance(term, Contrastive) else scored
        problems[name] = Problem(network, n, (Part(term, presences(sampler, term, data), share=0.4),))
    return problems


class Estimates:
    """The gradient of a problem on batches at one w, y from the exact rows."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.w = problem, start(problem)
        self.point = problem.at(self.w)
        self.slopes = [p.term.slopes(self.w, u) for p, u in zip(problem.parts, problem.exact_rows(self.w), strict=True)]

    def on(self, batch: np.ndarray) -> Array:
        total = self.problem.direct_gradient(self.point, batch)
        for part, y in zip(self.problem.parts, self.slopes, strict=True):
            inner = part.term.measure(self.point, batch)
            total = total + part.gradient(self.w, inner, y[inner.rows])
        return total


@pytest.mark.parametrize("name", SAMPLERS)
def test_gradient_is_exact_on_average_over_all_batches(name):
    """All batches of a tiny data set, weighed with their probabilities: equal up to rounding."""
    sampler = SAMPLERS[name]
    for problem_name, problem in sampled_problems(TINY, sampler).items():
        estimates = Estimates(problem)
        mean = sum(chance * estimates.on(np.array(batch)) for batch, chance in sampler.batches())
        exact = problem.exact_gradient(estimates.w)
        assert np.linalg.norm(exact) > 1e-3, problem_name
        np.testing.assert_allclose(mean, exact, atol=1e-12, err_msg=problem_name)


@pytest.mark.parametrize("name", SAMPLERS)
def test_inner_values_are_exact_on_average_over_all_batches(name):
    """``E[g_i(batch) | row i present] = g_i`` for every row: the place of the sample itself has its true weight 1/n."""
    sampler = SAMPLERS[name]
    for problem_name, problem in sampled_problems(TINY, sampler).items():
        w = start(problem)
        point = problem.at(w)
        for part, exact in zip(problem.parts, problem.exact_rows(w), strict=True):
            mean = np.zeros_like(exact)
            for batch, chance in sampler.batches():
                inner = part.term.measure(point, np.array(batch))
                mean[inner.rows] += chance * inner.values
            np.testing.assert_allclose(mean / part.presence[:, None], exact, atol=1e-12, err_msg=problem_name)


@pytest.mark.parametrize("name", CASES)
def test_the_first_step_on_the_whole_data_has_the_exact_gradient(name):
    """Every row is present for certain, and takes its first value: G is the gradient of F for every method."""
    case = make_case(name)
    parts = tuple(Part(part.term, np.ones(part.term.n_rows), part.share) for part in case.problem.parts)
    direct = tuple((one, 1.0) for one, _ in case.problem.direct)
    problem = Problem(case.problem.network, len(case.data), parts, direct)
    exact, common = problem.exact_gradient(case.w), (problem, case.w, HeavyBall(0.1))
    methods = [SOX(*common, 0.2), SOAP(*common, 0.2), MOAP(*common, 0.2), BSGD(*common)]
    methods += [SONX(*common, 0.2, 0.1), MSVR(*common, 0.2, 0.1, 0.3)]
    methods += [ALEXR(*common, gamma=0.2, pair=pair) for pair in ("reuse", "old")]
    methods += [ALEXR2(*common, inner_steps=3, nu=0.2, eta=0.1, gamma=0.2, theta=0.1, pair="old")]
    for method in methods:
        method.step(problem.everything)
        np.testing.assert_allclose(method.gradient, exact, rtol=1e-10, atol=1e-12)

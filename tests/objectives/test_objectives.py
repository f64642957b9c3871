"""Pair losses and AUC, and properties of objectives beyond their contract."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fcco_lightning.errors import DataError
from fcco_lightning.objectives import (
    AUC,
    CrossEntropy,
    ExponentialPair,
    LogisticPair,
    Objective,
    RowDomain,
    SigmoidPair,
    SquaredHingePair,
    SquaredPair,
    binary_scores,
)
from fcco_lightning.objectives.auc.pairwise import ExponentialOf
from fcco_lightning.objectives.pair_sums import FEW_PAIRS, Few, Strata, pair_mean, pair_sums

EXACT = 1e-12  # means of at most 100 numbers of order one, float64

FORMULAS = {
    SigmoidPair(): lambda d: 1 / (1 + np.exp(d)),
    SigmoidPair(0.5): lambda d: 1 / (1 + np.exp(2 * d)),
    SquaredPair(0.7): lambda d: (0.7 - d) ** 2,
    SquaredHingePair(0.7): lambda d: np.maximum(0, 0.7 - d) ** 2,
    LogisticPair(): lambda d: np.log(1 + np.exp(-d)),
    ExponentialPair(2.0): lambda d: np.exp(-d / 2),
    ExponentialOf(SquaredHingePair(), 0.5): lambda d: np.exp(2 * np.maximum(0, 1 - d) ** 2),
}
PAIR_LOSSES = [SigmoidPair(0.5), SquaredPair(0.7), SquaredHingePair(0.7), LogisticPair(), ExponentialPair(2.0)]


def batch(size=17, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True)
    return scores, {"y": (torch.rand(size, generator=generator) < 0.4).long()}


@pytest.mark.parametrize("loss", FORMULAS, ids=repr)
def test_pair_losses_are_the_formulas_and_their_slopes_those_of_autograd(loss):
    d = torch.linspace(-3, 3, 41, dtype=torch.float64, requires_grad=True)
    losses, (value, slope) = loss(d), loss.with_slope(d.detach())
    expected = torch.from_numpy(FORMULAS[loss](d.detach().numpy()))
    torch.testing.assert_close(losses.detach(), expected, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(value, losses.detach(), rtol=1e-14, atol=0)
    torch.testing.assert_close(slope, torch.autograd.grad(losses.sum(), d)[0], rtol=EXACT, atol=1e-15)


@pytest.mark.parametrize("objective", [AUC(), CrossEntropy()], ids=["AUC", "CrossEntropy"])
def test_scores_may_be_a_column(objective):
    scores, columns = batch()
    expected = objective.measure(scores, columns)[0]
    assert torch.equal(objective.measure(scores.unsqueeze(1), columns)[0], expected)


@pytest.mark.parametrize("label", [0, 1])
def test_a_batch_without_one_of_the_classes_says_nothing(label):
    scores, _ = batch()
    value = AUC().measure(scores, {"y": torch.full((17,), label)})[0]
    value.backward()
    assert value.item() == 0
    assert scores.grad.tolist() == [0] * 17


class Counting(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_auc_is_a_few_operators_whatever_the_number_of_pairs():
    scores, columns = batch(128)
    with Counting() as counting:
        AUC().measure(scores, columns)[0]
    assert 0 < counting.calls <= 30


@pytest.mark.parametrize("shape", [(4, 2), (4, 1, 1), ()])
def test_scores_of_another_shape_are_refused(shape):
    assert binary_scores(torch.zeros(4, 1)).shape == (4,)
    assert binary_scores(torch.zeros(4)).shape == (4,)
    with pytest.raises(DataError, match=r"shape \(B,\) or \(B, 1\), got"):
        binary_scores(torch.zeros(shape))
    with pytest.raises(DataError, match="got"):
        AUC().measure(torch.zeros(shape), {"y": torch.ones(4)})


def test_an_objective_has_a_row_for_every_sample_unless_it_says_otherwise():
    class Nothing(Objective):
        def measure(self, outputs, batch):
            return None, None

    nothing = Nothing()
    assert nothing.outer is None
    assert nothing.row_domain(7, None) == RowDomain(7, per_sample=True)
    assert nothing.subsets({}) is None


def test_an_objective_that_measures_nothing_is_refused():
    class Unfinished(Objective):
        pass

    with pytest.raises(TypeError, match="measure"):
        Unfinished()


def many_scores():
    """440 positives and 250 negatives among each other: more pairs than are formed at once, some at the margin."""
    draw = torch.Generator().manual_seed(0)
    positives, negatives = (torch.randn(size, generator=draw, dtype=torch.float64) for size in (440, 250))
    positives[:20] = negatives[:20] + 0.7
    positives[400:] = 3.0
    order = torch.randperm(690, generator=draw)  # position of each, first of the positives
    scores = torch.empty(690, dtype=torch.float64).index_copy(0, order, torch.cat([positives, negatives]))
    of_positives, of_negatives = (torch.zeros(690, dtype=torch.float64) for _ in range(2))
    v, w = (torch.rand(size, generator=draw, dtype=torch.float64) for size in (440, 250))
    first, second = order.split([440, 250])
    of_positives.index_copy_(0, first, v / v.sum())
    of_negatives.index_copy_(0, second, w / w.sum())
    return scores.requires_grad_(), (first, second), of_positives, of_negatives


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("loss", PAIR_LOSSES, ids=lambda loss: type(loss).__name__)
def test_means_of_many_pairs_are_those_of_all_pairs_at_once(loss, known):
    scores, (first, second), v, w = many_scores()
    owners = Few(v > 0, 450) if known else None
    assert 690 * (450 if known else 690) > FEW_PAIRS
    mean = pair_mean(loss, scores, v, w, owners)
    losses = loss(scores[first].unsqueeze(1) - scores[second])
    expected = v[first] @ losses @ w[second]
    torch.testing.assert_close(mean, expected, rtol=1e-12, atol=0)
    found, right = (torch.autograd.grad(value, scores, retain_graph=True)[0] for value in (mean, expected))
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-15)
    with torch.no_grad():
        torch.testing.assert_close(pair_mean(loss, scores, v, w, owners), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("copies", [1, 400], ids=["all pairs", "sorted"])
@pytest.mark.parametrize("by", ["formula", "operators"])
def test_pairs_whose_loss_is_the_threshold_do_not_move_it(by, copies):
    """Well-ordered pairs have the loss 0, and thresholds begin there: ``d/ds [l - s]_+`` is -1 above s only."""
    scores = torch.tensor([2.0, *[0.5] * 4, 1.6] * copies, dtype=torch.float64)
    others = (torch.arange(len(scores)) % 6 > 0).double().unsqueeze(0)
    thresholds = torch.zeros(len(scores), dtype=torch.float64)

    def total(thresholds):
        return pair_sums(SquaredHingePair(), scores, others, thresholds=thresholds)[:, 0].sum()

    if by == "operators":  # a transform differentiates these
        found = torch.func.grad(total)(thresholds)
    else:
        (found,) = torch.autograd.grad(total(thresholds.requires_grad_()), thresholds)
    assert float(found[0]) == -copies  # of five pairs of the first sample one is above


@pytest.mark.parametrize("way", ["all", "owners", "partners", "strata", "small strata", "thresholds", "table"])
@pytest.mark.parametrize("loss", PAIR_LOSSES, ids=lambda loss: type(loss).__name__)
def test_sums_over_many_pairs_are_those_of_all_pairs_at_once(loss, way):
    scores, _, v, w = many_scores()
    draw = torch.Generator().manual_seed(1)
    stratum = torch.randint(300 if way == "small strata" else 3, (690,), generator=draw)
    more = torch.rand(690, generator=draw, dtype=torch.float64)
    weights, thresholds = torch.stack([v, w]), torch.rand(690, generator=draw, dtype=torch.float64)
    full = loss(scores.unsqueeze(1) - scores)
    given, rows = {}, torch.ones(690, 1, dtype=torch.bool)
    if way == "owners":
        given, rows = {"owners": Few(v > 0, 460)}, (v > 0).unsqueeze(1)
    if way == "partners":
        weights, given = w.unsqueeze(0), {"partners": Few(w > 0, 260)}
    if way in ("strata", "small strata", "table"):
        table = Strata(stratum).weighted(w, more)
        given = {"table": table.__call__ if way == "table" else table}
        full = full * (w + more.unsqueeze(1) * (stratum.unsqueeze(1) == stratum))
    if way == "thresholds":
        given, full = {"thresholds": thresholds}, (full - thresholds.unsqueeze(1)).clamp(min=0)
    expected, found = (full @ weights.T) * rows, pair_sums(loss, scores, weights, **given)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-14)
    upstream = torch.randn(expected.shape, generator=draw, dtype=torch.float64)
    slope, right = (torch.autograd.grad((upstream * sums).sum(), scores)[0] for sums in (found, expected))
    torch.testing.assert_close(slope, right, rtol=1e-9, atol=1e-13)


def test_more_owners_than_are_known_of_make_sums_and_means_nan():
    """And not silently those of some of them."""
    scores, _, v, w = many_scores()
    few = Few(v > 0, 439)
    assert pair_mean(SigmoidPair(), scores, v, w, few).isnan()
    assert pair_sums(SigmoidPair(), scores, w.unsqueeze(0), few).isnan().all()
    assert pair_sums(SigmoidPair(), scores, w.unsqueeze(0), partners=Few(w > 0, 249)).isnan().all()


def test_the_slope_beyond_the_largest_exponent_is_that_of_the_tangent():
    loss, d = ExponentialOf(SquaredHingePair(), 1e-3), torch.tensor([-0.5], dtype=torch.float64, requires_grad=True)
    value, slope = loss.with_slope(d.detach())
    assert value.isfinite()
    assert torch.equal(value, loss(d).detach())
    torch.testing.assert_close(slope, torch.autograd.grad(loss(d), d)[0])


@pytest.mark.parametrize("loss", [SigmoidPair(0.5), SquaredHingePair(), ExponentialPair()], ids=repr)
def test_sums_over_pairs_have_two_derivatives(loss):
    """By finite differences, of every argument that has a gradient."""
    draw = torch.Generator().manual_seed(0)
    scores, weights = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((7,), (2, 7)))
    thresholds, v = (torch.rand(7, generator=draw, dtype=torch.float64) for _ in range(2))
    owners = Few(torch.tensor([0, 1, 0, 0, 1, 1, 0]).bool(), 4)
    several, shares = torch.randn(2, 7, generator=draw, dtype=torch.float64), torch.rand(7, 7, generator=draw).double()
    of_several = torch.randn(2, 2, 7, generator=draw, dtype=torch.float64)
    functions = [
        (lambda s: pair_sums(loss, s, weights, owners), [scores]),
        (lambda s: pair_sums(loss, s, weights, table=lambda some: shares[:, some]), [scores]),
        (lambda s: pair_sums(loss, s, weights, partners=owners), [scores]),
        (lambda s, t: pair_sums(loss, s, weights, thresholds=t), [scores, thresholds]),
        (lambda s, t: pair_sums(loss, s, weights, owners, thresholds=t), [scores, thresholds]),
        (lambda s: pair_mean(loss, s, v, weights[0]), [scores]),
        (lambda s: pair_mean(loss, s, owners.spread(v[:4].unsqueeze(1))[:, 0], weights[0], owners), [scores]),
        (lambda s: pair_sums(loss, s, of_several, table=lambda some: shares[:, some]), [several]),
    ]
    for function, given in functions:
        arguments = [tensor.clone().requires_grad_() for tensor in given]
        assert torch.autograd.gradcheck(function, arguments)
        assert torch.autograd.gradgradcheck(function, arguments)


def test_sums_over_pairs_are_not_rounded_by_autocast():
    """Also where it is on while the gradient is taken."""
    draw = torch.Generator().manual_seed(0)
    weights, shares = torch.rand(2, 40, generator=draw), torch.full((40,), 0.025)
    many, of_many = torch.randn(700, generator=draw, requires_grad=True), torch.full((700,), 1 / 700)
    scores = torch.randn(40, generator=draw, requires_grad=True)
    functions = [
        (lambda: pair_sums(SigmoidPair(), scores, weights).square().sum(), scores),
        (lambda: pair_mean(SigmoidPair(), scores, shares, shares), scores),
        (lambda: pair_mean(SigmoidPair(), many, of_many, of_many), many),
        (lambda: pair_sums(SigmoidPair(), many, of_many.unsqueeze(0)).square().sum(), many),
    ]
    for function, given in functions:
        (exact,) = torch.autograd.grad(function(), given)
        value = function()
        with torch.autocast("cpu", torch.bfloat16):
            (found,) = torch.autograd.grad(value, given)
        torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("loss", PAIR_LOSSES, ids=lambda loss: type(loss).__name__)
def test_a_score_that_is_no_number_is_not_lost_among_many_pairs(loss, where):
    scores, first = torch.linspace(0, 1, 300).repeat(2), torch.arange(600) < 300
    scores[300 * where + 7] = float("nan")
    assert pair_mean(loss, scores, first / 300, ~first / 300).isnan()
    assert pair_sums(loss, scores, (~first / 300).unsqueeze(0))[first].isnan().any()


@pytest.mark.parametrize("loss", PAIR_LOSSES, ids=lambda loss: type(loss).__name__)
def test_second_derivatives_over_many_pairs_are_those_of_all_at_once(loss):
    scores, _, v, w = many_scores()
    scores = (scores.detach() + torch.linspace(0, 1e-3, 690)).requires_grad_()  # there is none at the margin
    direction = torch.randn(690, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def curvature(mean):
        (slope,) = torch.autograd.grad(mean, scores, create_graph=True)
        return torch.autograd.grad(slope @ direction, scores)[0]

    expected = curvature(v @ loss(scores.unsqueeze(1) - scores) @ w)
    torch.testing.assert_close(curvature(pair_mean(loss, scores, v, w)), expected, rtol=1e-9, atol=1e-14)

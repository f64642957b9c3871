import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from torch.utils._python_dispatch import TorchDispatchMode

from fcco_lightning.errors import ConfigError, DataError
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
from fcco_lightning.objectives.pair_sums import label_pair_sums, mean_by_blocks, pair_mean, pair_sums
from fcco_lightning.objectives.pairwise import ExponentialOf, shares

EXACT = 1e-12  # means of at most 100 numbers of order one, float64

PAIRS = [  # the loss of d = s_i - s_j and its derivative
    (SigmoidPair(), lambda d: 1 / (1 + np.exp(d)), lambda d: -np.exp(d) / (1 + np.exp(d)) ** 2),
    (SigmoidPair(0.5), lambda d: 1 / (1 + np.exp(2 * d)), lambda d: -2 * np.exp(2 * d) / (1 + np.exp(2 * d)) ** 2),
    (SquaredPair(0.7), lambda d: (0.7 - d) ** 2, lambda d: -2 * (0.7 - d)),
    (SquaredHingePair(0.7), lambda d: max(0, 0.7 - d) ** 2, lambda d: -2 * max(0, 0.7 - d)),
    (LogisticPair(), lambda d: np.log(1 + np.exp(-d)), lambda d: -1 / (1 + np.exp(d))),
]


def batch(size=17, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True)
    return scores, {"y": (torch.rand(size, generator=generator) < 0.4).long()}


@pytest.mark.parametrize(("loss", "value", "slope"), PAIRS, ids=[repr(p[0]) for p in PAIRS])
def test_auc_is_the_mean_over_pairs(loss, value, slope):
    scores, columns = batch()
    s, y = scores.tolist(), columns["y"].tolist()
    total, gradient, pairs = 0.0, np.zeros(len(s)), 0
    for i in range(len(s)):
        for j in range(len(s)):
            if y[i] == 1 and y[j] == 0:
                pairs += 1
                total += value(s[i] - s[j])
                gradient[i] += slope(s[i] - s[j])
                gradient[j] -= slope(s[i] - s[j])
    measured = AUC(loss).direct(scores, columns)
    measured.backward()
    assert measured.item() == pytest.approx(total / pairs, abs=EXACT)
    assert scores.grad.numpy() == pytest.approx(gradient / pairs, abs=EXACT)


def test_auc_uses_the_sigmoid_and_takes_a_column_of_scores():
    scores, columns = batch()
    expected = AUC(SigmoidPair()).direct(scores, columns)
    assert torch.equal(AUC().direct(scores, columns), expected)
    assert torch.equal(AUC().direct(scores.unsqueeze(1), columns), expected)


@pytest.mark.parametrize("label", [0, 1])
def test_a_batch_without_one_of_the_classes_says_nothing(label):
    scores, _ = batch()
    value = AUC().direct(scores, {"y": torch.full((17,), label)})
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
        AUC().direct(scores, columns)
    assert 0 < counting.calls <= 30


def test_cross_entropy_is_the_log_loss():
    scores, columns = batch()
    expected = log_loss(columns["y"], torch.sigmoid(scores).detach().numpy())
    assert CrossEntropy().direct(scores, columns).item() == pytest.approx(expected, abs=EXACT)
    assert CrossEntropy().direct(scores.unsqueeze(1), columns).item() == pytest.approx(expected, abs=EXACT)


def test_cross_entropy_of_several_classes_is_the_log_loss():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (20,), generator=generator)
    expected = log_loss(y, torch.softmax(scores, dim=1).numpy(), labels=[0, 1, 2])
    assert CrossEntropy().direct(scores, {"y": y}).item() == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize("shape", [(4, 2), (4, 1, 1), ()])
def test_scores_of_another_shape_are_refused(shape):
    assert binary_scores(torch.zeros(4, 1)).shape == (4,)
    assert binary_scores(torch.zeros(4)).shape == (4,)
    with pytest.raises(DataError, match=r"shape \(B,\) or \(B, 1\), got"):
        binary_scores(torch.zeros(shape))
    with pytest.raises(DataError, match="got"):
        AUC().direct(torch.zeros(shape), {"y": torch.ones(4)})


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize(
    ("kind", "name"), [(SigmoidPair, "scale"), (SquaredPair, "margin"), (SquaredHingePair, "margin")]
)
def test_units_must_be_positive(kind, name, bad):
    kind(0.1)
    with pytest.raises(ConfigError, match=f"{name} must be a finite number > 0"):
        kind(bad)


def test_an_objective_has_neither_part_unless_it_says_so():
    class Nothing(Objective):
        pass

    nothing = Nothing()
    assert nothing.direct(torch.zeros(2), {}) is None
    assert nothing.inner(torch.zeros(2), {}) is None
    assert nothing.row_domain(7, None) == RowDomain(7, per_sample=True)
    assert nothing.subsets({}) is None


PAIR_LOSSES = [SigmoidPair(0.5), SquaredPair(0.7), SquaredHingePair(0.7), LogisticPair(), ExponentialPair(2.0)]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", PAIR_LOSSES, ids=lambda loss: type(loss).__name__)
def test_means_of_many_pairs_are_those_of_all_pairs_at_once(loss, weighted):
    """110,000 pairs, more than are formed at once, some of them exactly at the margin."""
    draw = torch.Generator().manual_seed(0)
    positives, negatives = (torch.randn(size, generator=draw, dtype=torch.float64) for size in (440, 250))
    positives[:20] = negatives[:20] + 0.7
    positives[400:] = 3.0
    scores = torch.cat([positives, negatives]).requires_grad_()
    order = torch.randperm(690, generator=draw)  # position of each, first of the positives
    shuffled = torch.empty_like(scores).index_copy(0, order, scores)
    where, positives, negatives = order.split([440, 250]), *scores.split([440, 250])
    v, w = (torch.rand(size, generator=draw, dtype=torch.float64) for size in (440, 250))
    weight = torch.empty(690, dtype=torch.float64).index_copy(0, order, torch.cat([v, w])) if weighted else None
    mean = loss.mean(shuffled, *where, *(shares(weight, positions, shuffled) for positions in where))
    losses = loss(positives.unsqueeze(1) - negatives)
    expected = v @ losses @ w / (v.sum() * w.sum()) if weighted else losses.mean()
    torch.testing.assert_close(mean, expected, rtol=1e-12, atol=0)
    found, right = (torch.autograd.grad(value, scores, retain_graph=True)[0] for value in (mean, expected))
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-15)
    with torch.no_grad():
        torch.testing.assert_close(loss.mean(shuffled, *where), losses.mean(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("loss", [*PAIR_LOSSES, ExponentialOf(SquaredHingePair(), 0.5)], ids=repr)
def test_slopes_of_pair_losses_are_those_of_autograd(loss):
    d = torch.linspace(-3, 3, 41, dtype=torch.float64, requires_grad=True)
    value, slope = loss.with_slope(d.detach())
    torch.testing.assert_close(value, loss(d.detach()), rtol=1e-14, atol=0)
    torch.testing.assert_close(slope, torch.autograd.grad(loss(d).sum(), d)[0], rtol=1e-12, atol=1e-15)


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
    scores, weights = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((7,), (4, 2)))
    thresholds = torch.rand(3, 1, generator=draw, dtype=torch.float64)
    owners, others, labels = torch.tensor([5, 0, 3]), torch.tensor([1, 2, 4, 6]), torch.tensor([0, 1, 1])
    mine, v, w = torch.randn(7, 2, generator=draw, dtype=torch.float64), weights[:3, 0], weights[:, 1]
    positive, shares = torch.rand(3, 7, generator=draw) < 0.5, torch.rand(3, 7, generator=draw, dtype=torch.float64)
    all_weights = torch.randn(7, 2, generator=draw, dtype=torch.float64)
    functions = [
        (lambda s: pair_sums(loss, s, owners, others, weights, sign=-1.0), [scores]),
        (lambda s: pair_sums(loss, s, owners, None, all_weights, offset=torch.ones(1)), [scores]),
        (lambda s, t: pair_sums(loss, s, owners, others, weights, t), [scores, thresholds]),
        (lambda s: pair_mean(loss, s, owners, others, v, w), [scores]),
        (lambda s: label_pair_sums(loss, s, owners, labels, positive, shares), [mine]),
    ]
    for function, given in functions:
        arguments = [tensor.clone().requires_grad_() for tensor in given]
        assert torch.autograd.gradcheck(function, arguments)
        assert torch.autograd.gradgradcheck(function, arguments)


def test_sums_over_pairs_are_not_rounded_by_autocast():
    """Also where it is on while the gradient is taken."""
    scores, draw = torch.randn(40, requires_grad=True), torch.Generator().manual_seed(0)
    first, second = torch.arange(40).chunk(2)
    weights, shares = torch.rand(20, 2, generator=draw), torch.full((20,), 0.05)
    functions = [
        lambda: pair_sums(SigmoidPair(), scores, first, second, weights).square().sum(),
        lambda: pair_mean(SigmoidPair(), scores, first, second, shares, shares),
        lambda: mean_by_blocks(SigmoidPair(), scores[:20], scores[20:], shares, shares),
    ]
    for function in functions:
        (exact,) = torch.autograd.grad(function(), scores)
        value = function()
        with torch.autocast("cpu", torch.bfloat16):
            (found,) = torch.autograd.grad(value, scores)
        torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("loss", PAIR_LOSSES, ids=lambda loss: type(loss).__name__)
def test_a_score_that_is_no_number_is_not_lost_among_many_pairs(loss, where):
    scores = torch.linspace(0, 1, 300).repeat(2)
    scores[300 * where + 7] = float("nan")
    assert loss.mean(scores, *torch.arange(600).chunk(2)).isnan()


def test_second_derivatives_over_many_pairs_are_refused_and_not_zero():
    scores, sides = torch.linspace(0, 1, 300).repeat(2).requires_grad_(), torch.arange(600).chunk(2)
    with pytest.raises(ConfigError, match="very many pairs has no second derivative"):
        torch.autograd.grad(SigmoidPair().mean(scores, *sides), scores, create_graph=True)
    (slope,) = torch.autograd.grad(SquaredHingePair().mean(scores, *sides), scores, create_graph=True)
    (curvature,) = torch.autograd.grad(slope[:300].sum(), scores)
    assert (curvature[:300] > 0).all()

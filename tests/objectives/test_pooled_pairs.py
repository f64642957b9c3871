"""Pairs of bags, whose rows depend on each other, so that the tests of single rows do not apply.

Those tests evaluate f row by row and want slopes of f_i.  Here the outer function is one of all rows, and the slope at
row i is n dF / du_i, which is twice that of f_i.
"""

import pytest
import torch
from mpmath import diff, exp, log, mpf

from fcco_lightning.objectives import AttentionPooling, LogisticPair, PooledPairs, SigmoidPair, SmoothMaxPooling
from fcco_lightning.outer import slopes

POSITIVE = torch.tensor([True, False, True, False, False])
BAGS = 3, 4  # positive and negative ones, of which two and three have rows here
SHARE = sum(BAGS) / torch.tensor([BAGS[0] if one else BAGS[1] for one in POSITIVE], dtype=torch.float64)
CASES = {  # pooling and loss, and both written a second time
    "smooth maximum": (SmoothMaxPooling(0.5), SigmoidPair(), lambda u: log(u[0]) / 2, lambda d: 1 / (1 + exp(d))),
    "attention": (AttentionPooling(), LogisticPair(), lambda u: u[0] / u[1], lambda d: log(1 + exp(-d))),
}


def rows(width, count=5):
    return 0.3 + 2 * torch.rand(count, width, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def by_pairs(name, u, i):
    """f_i in 60 digits, by its definition."""
    _, _, score, loss = CASES[name]
    gaps = [score(u[i]) - score(u[j]) for j in range(len(u)) if POSITIVE[j] != POSITIVE[i]]
    return mpf(SHARE[i].item()) / 2 * sum(loss(d if POSITIVE[i] else -d) for d in gaps) / len(gaps)


@pytest.mark.parametrize("name", CASES)
def test_values_and_slopes_are_those_of_the_definition_in_60_digits(name):
    pooling, loss, *_ = CASES[name]
    u, outer = rows(pooling.width), PooledPairs(pooling, loss, POSITIVE, SHARE)
    exact = [[mpf(x) for x in row] for row in u.tolist()]
    for i, (value, slope) in enumerate(zip(outer(u), slopes(outer, u), strict=True)):
        assert value.item() == pytest.approx(float(by_pairs(name, exact, i)), rel=1e-14)
        for k in range(pooling.width):

            def moved(x, i=i, k=k):
                row = [x if j == k else a for j, a in enumerate(exact[i])]
                return by_pairs(name, [*exact[:i], row, *exact[i + 1 :]], i)

            assert slope[k].item() == pytest.approx(2 * float(diff(moved, exact[i][k])), rel=1e-13)


def test_with_all_bags_the_slopes_are_those_of_the_mean_over_pairs():
    n, u = len(POSITIVE), rows(1).requires_grad_()
    share = n / torch.where(POSITIVE, 2.0, 3.0)
    outer = PooledPairs(SmoothMaxPooling(0.5), SigmoidPair(), POSITIVE, share)
    score = 0.5 * u[:, 0].log()
    pairs = [torch.sigmoid(score[j] - score[i]) for i in (0, 2) for j in (1, 3, 4)]
    mean = sum(pairs) / len(pairs)
    assert outer(u).mean().item() == pytest.approx(mean.item(), rel=1e-6)  # shares of float32
    torch.testing.assert_close(slopes(outer, u), n * torch.autograd.grad(mean, u)[0], rtol=1e-6, atol=0)


def test_rows_of_one_class_say_nothing():
    outer = PooledPairs(SmoothMaxPooling(0.5), SigmoidPair(), POSITIVE[POSITIVE], SHARE[POSITIVE])
    assert outer(rows(1, 2)).tolist() == [0, 0]
    assert slopes(outer, rows(1, 2)).tolist() == [[0], [0]]


@pytest.mark.parametrize("name", CASES)
def test_copies_of_a_bag_have_the_values_and_slopes_of_a_single_one(name):
    pooling, loss, *_ = CASES[name]
    u, at = rows(pooling.width), torch.tensor([3, 0, 3, 1, 2, 4, 3, 0])
    once = PooledPairs(pooling, loss, POSITIVE, SHARE)
    copies = torch.bincount(at)[at]
    found = PooledPairs(pooling, loss, POSITIVE[at], SHARE[at], copies)
    torch.testing.assert_close(found(u[at]), once(u)[at], rtol=1e-14, atol=0)
    torch.testing.assert_close(slopes(found, u[at]), slopes(once, u)[at], rtol=1e-14, atol=0)

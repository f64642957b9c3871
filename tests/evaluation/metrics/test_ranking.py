"""Ranking metrics against scikit-learn, against their definitions, and under monotone maps."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.retrieval import retrieval_precision, retrieval_recall

from fcco_lightning.errors import ConfigError, DataError, NonFiniteError
from fcco_lightning.evaluation import metrics

TOLERANCE = 1e-12  # shares of counts in float64

MAPS = {
    "exp": lambda s: (s / 4).exp(),
    "shift": lambda s: s - 1000,
    "scale": lambda s: 1e-3 * s,
    "cube": lambda s: s**3,
}


def sample(n=150, seed=0, ties=False):
    """Scores, labels and groups that depend on each other, so that no metric sits at a special value."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (n,), generator=generator)
    groups = torch.randint(0, 2, (n,), generator=generator)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    scores = 2 * noise + labels + 0.7 * groups * labels
    return (scores.round() if ties else scores), labels, groups


both = pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])


@both
@pytest.mark.parametrize("num_thresholds", [1, 7, 120])
def test_roc_gap_is_the_largest_difference_of_rates(ties, num_thresholds):
    scores, labels, groups = sample(80, ties=ties)
    pooled = sorted(scores.tolist())
    rows = list(zip(scores.tolist(), labels.tolist(), groups.tolist(), strict=True))
    gap = 0.0
    for k in range(num_thresholds):
        threshold = pooled[int((k + 0.5) / num_thresholds * len(pooled))]
        for label in (0, 1):
            rates = [np.mean([s >= threshold for s, y, g in rows if (y, g) == (label, of)]) for of in (0, 1)]
            gap = max(gap, abs(rates[0] - rates[1]))
    assert metrics.roc_gap(scores, labels, groups, num_thresholds) == pytest.approx(gap, abs=TOLERANCE)


def test_roc_gap_sees_both_rates_and_no_difference_where_there_is_none():
    scores = torch.tensor([0.0, 1.0, 0.0, 1.0])
    labels, groups = torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1])
    assert metrics.roc_gap(scores, labels, groups) == 0.0
    only_fpr_differs = torch.tensor([0.0, 1.0, 1.0, 1.0])
    assert metrics.roc_gap(only_fpr_differs, labels, groups) == 1.0
    only_tpr_differs = torch.tensor([0.0, 1.0, 0.0, 0.0])
    assert metrics.roc_gap(only_tpr_differs, labels, groups) == 1.0


# Whole numbers in a narrow range: every map below is strictly increasing on them in floating point too.
ROWS = st.lists(st.tuples(st.integers(-8, 8), st.booleans(), st.booleans()), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from(sorted(MAPS)))
def test_properties_of_any_sample(rows, name):
    rows = [*rows, *itertools.product([0], [False, True], [False, True])]  # every class in every group
    scores, labels, groups = (torch.tensor(column) for column in zip(*rows, strict=True))
    scores = scores.double()
    value, gap = metrics.auc(scores, labels), metrics.roc_gap(scores, labels, groups)
    assert 0 <= value <= 1
    assert 0 <= gap <= 1
    assert metrics.auc(-scores, labels) == pytest.approx(1 - value, abs=TOLERANCE)
    assert metrics.auc(scores, ~labels) == pytest.approx(1 - value, abs=TOLERANCE)
    assert metrics.roc_gap(scores, labels, ~groups) == gap
    assert metrics.auc(MAPS[name](scores), labels) == value
    assert metrics.roc_gap(MAPS[name](scores), labels, groups) == gap
    order = torch.arange(len(scores)).flip(0)
    assert metrics.auc(scores[order], labels[order]) == value


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_scores_of_any_float_type_and_with_a_graph(dtype):
    scores = torch.tensor([0.25, 0.5, 0.5, 1.0], dtype=dtype, requires_grad=True)
    value = metrics.auc(scores, torch.tensor([0.0, 1.0, 0.0, 1.0]))
    assert value == 0.875


def test_a_small_difference_of_float64_scores_is_no_tie():
    assert metrics.auc(torch.tensor([1.0, 1.0 + 1e-15], dtype=torch.float64), torch.tensor([0, 1])) == 1.0


S, Y = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0, 1, 1])


@pytest.mark.parametrize(
    ("scores", "labels", "error", "message"),
    [
        (S[:2], Y, DataError, r"one shape \(n,\), got scores \(2,\), labels \(3,\)"),
        (S[:, None], Y[:, None], DataError, r"one shape \(n,\), got scores \(3, 1\)"),
        (S[:0], Y[:0], DataError, "at least one sample"),
        (S.long(), Y, DataError, r"floating point .* torch\.int64"),
        (S, torch.tensor([-1, 1, 1]), DataError, "labels must be 0 or 1, got -1 at position 0"),
        (S, torch.tensor([0.0, 1.0, torch.nan]), DataError, "got nan at position 2"),
        (S, torch.ones(3), DataError, "3 samples of class 1 and none of class 0"),
        (S, torch.zeros(3), DataError, "3 samples of class 0 and none of class 1"),
        (torch.tensor([0.0, torch.nan, torch.inf]), Y, NonFiniteError, r"nan at position 1 \(2 of 3 are not\)"),
    ],
)
def test_wrong_samples_are_refused(scores, labels, error, message):
    with pytest.raises(error, match=message):
        metrics.auc(scores, labels)


@pytest.mark.parametrize("labels", [Y, Y.bool(), Y.float(), Y.to(torch.uint8)], ids=lambda y: str(y.dtype))
def test_labels_of_any_type_are_accepted(labels):
    assert metrics.auc(S, labels) == 1.0


@pytest.mark.parametrize(
    ("labels", "groups", "message"),
    [
        ([0, 1, 0, 1], [0, 0, 1], r"groups \(3,\)"),
        ([0, 1, 0, 1], [0, 0, 1, 2], "groups must be 0 or 1, got 2 at position 3"),
        ([0, 1, 0, 1], [0, 0, 0, 0], "groups == 1 and labels == 0"),
        ([0, 1, 0, 0], [0, 0, 1, 1], "groups == 1 and labels == 1"),
        ([1, 1, 0, 1], [0, 0, 1, 1], "groups == 0 and labels == 0"),
    ],
)
def test_wrong_groups_are_refused(labels, groups, message):
    with pytest.raises(DataError, match=message):
        metrics.roc_gap(torch.arange(4.0), torch.tensor(labels), torch.tensor(groups))


@pytest.mark.parametrize("weight", [None, torch.ones(20_000), torch.full((20_000,), 2.0)])
def test_quantiles_of_many_samples_are_exact_whatever_all_of_them_weigh(weight):
    n, levels = 20_000, 200
    labels, groups = torch.arange(n) % 2, torch.arange(n) // 2 % 2
    thresholds, _ = metrics.group_rates(torch.arange(n).double(), labels, groups, levels, weight)
    assert thresholds.tolist() == [(2 * k + 1) * n // (2 * levels) for k in range(levels)]


@pytest.mark.parametrize("num_thresholds", [0, -3, 1.5])
def test_wrong_numbers_of_thresholds_are_refused(num_thresholds):
    with pytest.raises(ConfigError, match="num_thresholds"):
        metrics.roc_gap(*sample(), num_thresholds)


@pytest.mark.parametrize("k", [1, 4, 7, 8, 100])
def test_precision_and_recall_at_the_head_of_a_list_that_may_be_shorter(k):
    scores, y = torch.rand(7, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 0, 1, 1, 0])
    found = metrics.precision_recall_at(scores, y, k)
    expected = retrieval_precision(scores, y, top_k=k), retrieval_recall(scores, y, top_k=k)
    assert found == pytest.approx([value.item() for value in expected])

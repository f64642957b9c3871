"""Counts of scores against the exact figures of all samples at once, which lie within the stated error."""

import pytest
import sklearn.metrics as reference
import torch

from fcco_lightning.errors import ConfigError, DataError, NonFiniteError
from fcco_lightning.evaluation.metrics import ScoreCounts, precision_recall_at, roc_gap
from tests.evaluation.metrics.test_ranking import sample

ROUNDING = 1e-9


def counted(*columns, bits=20, chunk=1000):
    counts = ScoreCounts(bits)
    for part in zip(*(column.split(chunk) for column in columns), strict=True):
        counts.update(*part)
    return counts


CHANGES = {
    "spread": lambda scores: scores,
    "heavy tails": lambda scores: scores**15 * 1e6,
    "far from zero": lambda scores: scores - 1000,
    "all equal": lambda scores: torch.full_like(scores, -2.5),
}


@pytest.mark.parametrize("bits", [10, 16])
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_exact_figures_lie_within_the_error(change, ties, bits):
    scores, labels, groups = sample(400, seed=3, ties=ties)
    scores = change(scores)
    counts = counted(scores, labels, groups, bits=bits, chunk=77)
    found = {
        "auc": (counts.auc(), reference.roc_auc_score(labels, scores)),
        "ap": (counts.average_precision(), reference.average_precision_score(labels, scores)),
        "gap": (counts.roc_gap(50), roc_gap(scores, labels, groups, 50).item()),
    }
    for k in (1, 30, 399, 400, 1000):
        head = zip(counts.head(k), precision_recall_at(scores, labels, k), strict=True)
        found |= {f"head {k}, {i}": (got, exact.item()) for i, (got, exact) in enumerate(head)}
    for figure, (got, exact) in found.items():
        assert abs(got.value - exact) <= got.error + ROUNDING, figure


def test_the_error_is_small_and_falls_with_the_number_of_cells():
    scores, labels, groups = sample(20_000, seed=1)
    coarse, fine = (counted(scores, labels, groups, bits=bits) for bits in (12, 20))
    for figure in ("auc", "average_precision", "roc_gap"):
        assert getattr(fine, figure)().error < min(2e-3, getattr(coarse, figure)().error / 4), figure
    assert fine.auc().error < 1e-4


def test_the_bound_of_the_area_is_attained():
    positive, negative = torch.tensor([1.0, 1.00001]), torch.tensor([0, 1])
    best, worst = counted(positive, negative).auc(), counted(positive, 1 - negative).auc()
    assert best == worst == (0.5, 0.5)


def test_scores_of_zero_are_equal_and_huge_ones_are_kept():
    zeros = counted(torch.tensor([-0.0, 0.0]), torch.tensor([1, 0]))
    assert len(zeros.counts.nonzero()[:, 2].unique()) == 1
    huge = torch.tensor([-1e300, -1e-300, 1e-40, 1e300], dtype=torch.float64)
    assert counted(huge, torch.tensor([0, 0, 1, 1])).auc().value == 1.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_chunk_is_refused_before_it_is_counted(bad):
    counts = ScoreCounts(10)
    with pytest.raises(NonFiniteError, match="position 1"):
        counts.update(torch.tensor([1.0, bad]), torch.tensor([0, 1]))
    with pytest.raises(DataError, match=r"labels must be 0 or 1, got 2"):
        counts.update(torch.ones(2), torch.tensor([0, 2]))
    assert counts.counts.sum() == 0


def test_a_missing_class_is_said():
    counts = counted(torch.tensor([0.1, 0.2]), torch.tensor([1, 1]), bits=10)
    for figure in (counts.auc, counts.average_precision):
        with pytest.raises(DataError, match=r"both classes in all, got \[0, 2\]"):
            figure()
    with pytest.raises(DataError, match="in each group"):
        counts.roc_gap()


@pytest.mark.parametrize("bits", [9, 25, 12.5])
def test_the_number_of_cells_is_bounded(bits):
    with pytest.raises(ConfigError, match="bits"):
        ScoreCounts(bits)

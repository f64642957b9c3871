"""The curves of two groups."""

import pytest
import torch
from sklearn.metrics import roc_auc_score
from sklearn.metrics import roc_curve as curve_of_sklearn

from fcco_lightning.evaluation.metrics import roc_gap, split_roc

GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.randint(0, 2, (90,), generator=GENERATOR)
GROUPS = torch.randint(0, 2, (90,), generator=GENERATOR)
SCORES = torch.randn(90, generator=GENERATOR) + LABELS * (1 + GROUPS)
ROUNDING = 1e-12


# In the second sample the negatives of the groups differ, so the gap is one of false positive rates.
@pytest.mark.parametrize(("scores", "labels"), [(SCORES, LABELS), (-SCORES, 1 - LABELS)], ids=["tpr", "fpr"])
def test_split_roc_contains_the_curves_and_the_points_of_the_gap(scores, labels):
    roc = split_roc(scores, labels, GROUPS, names=("a", "b"))
    assert [curve.name for curve in roc.groups] == ["a", "b"]
    for k, curve in enumerate(roc.groups):
        members = GROUPS.eq(k)
        fpr, tpr, _ = curve_of_sklearn(labels[members], scores[members], drop_intermediate=False)
        assert (curve.fpr, curve.tpr) == (pytest.approx(fpr, abs=ROUNDING), pytest.approx(tpr, abs=ROUNDING))
        assert curve.auc == pytest.approx(roc_auc_score(labels[members], scores[members]), abs=ROUNDING)
        distances = [max(abs(roc.widest[k][0] - x), abs(roc.widest[k][1] - y)) for x, y in zip(fpr, tpr, strict=True)]
        assert min(distances) < ROUNDING
    assert roc.gap == roc_gap(scores, labels, GROUPS).item()
    (fpr_0, tpr_0), (fpr_1, tpr_1) = roc.widest
    assert roc.gap == max(abs(fpr_0 - fpr_1), abs(tpr_0 - tpr_1))

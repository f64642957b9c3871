"""The group metric and the curves behind it."""

import pytest
import torch

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.metrics import ROCGap, functional
from fcco_lightning.metrics.group import split_roc

GENERATOR = torch.Generator().manual_seed(0)
LABELS = torch.randint(0, 2, (90,), generator=GENERATOR)
GROUPS = torch.randint(0, 2, (90,), generator=GENERATOR)
SCORES = torch.randn(90, generator=GENERATOR) + LABELS * (1 + GROUPS)


def test_batches_add_up_to_the_split():
    metric = ROCGap(num_thresholds=3)
    for rows in torch.arange(90).split(11):
        metric.update(SCORES[rows], LABELS[rows], GROUPS[rows])
    coarse, fine = (functional.roc_gap(SCORES, LABELS, GROUPS, count).item() for count in (3, 200))
    assert metric.compute().item() == coarse < fine


def test_a_group_without_a_class_is_refused_when_the_split_is_complete():
    metric = ROCGap()
    metric.update(torch.arange(3.0), torch.tensor([0, 1, 0]), torch.tensor([0, 0, 1]))
    with pytest.raises(DataError, match="groups == 1 and labels == 1"):
        metric.compute()
    metric.update(torch.tensor([3.0]), torch.tensor([1]), torch.tensor([1]))
    assert metric.compute().item() == 1.0  # at t = 2 the negative of group 1 counts as positive, that of group 0 not


def test_shapes_are_checked_in_the_batch_that_brings_them():
    with pytest.raises(DataError, match=r"groups \(3,\)"):
        ROCGap().update(torch.zeros(2), torch.zeros(2), torch.zeros(3))


def test_no_thresholds_are_refused_at_construction():
    with pytest.raises(ConfigError, match="num_thresholds"):
        ROCGap(num_thresholds=0)


# In the second sample the negatives of the groups differ, so the gap is one of false positive rates.
@pytest.mark.parametrize(("scores", "labels"), [(SCORES, LABELS), (-SCORES, 1 - LABELS)], ids=["tpr", "fpr"])
def test_split_roc_holds_the_curves_and_the_points_of_the_gap(scores, labels):
    roc = split_roc(scores, labels, GROUPS, names=("a", "b"))
    assert [curve.name for curve in roc.groups] == ["a", "b"]
    for k, curve in enumerate(roc.groups):
        members = GROUPS.eq(k)
        fpr, tpr, _ = functional.roc_curve(scores[members], labels[members])
        assert (curve.fpr, curve.tpr) == (fpr.tolist(), tpr.tolist())
        assert curve.auc == functional.auc(scores[members], labels[members]).item()
        assert roc.widest[k] in list(zip(curve.fpr, curve.tpr, strict=True))
    assert roc.gap == functional.roc_gap(scores, labels, GROUPS).item()
    (fpr_0, tpr_0), (fpr_1, tpr_1) = roc.widest
    assert roc.gap == max(abs(fpr_0 - fpr_1), abs(tpr_0 - tpr_1))

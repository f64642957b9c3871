"""Metric classes: batches add up to the split, wrong arguments are refused at once."""

import pytest
import torch

from fcco_lightning.errors import ConfigError, DataError, NonFiniteError
from fcco_lightning.metrics import AUC, AveragePrecision, PartialAUC, functional

SCORES = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 30
LABELS = (SCORES > -30).roll(3).long()

PAIRS = [
    (AUC(), functional.auc),
    (AveragePrecision(), functional.average_precision),
    (PartialAUC(max_fpr=0.3), lambda s, y: functional.partial_auc(s, y, max_fpr=0.3)),
    (
        PartialAUC(min_tpr=0.5, standardize=False),
        lambda s, y: functional.partial_auc(s, y, min_tpr=0.5, standardize=False),
    ),
]


@pytest.mark.parametrize(("metric", "function"), PAIRS, ids=lambda part: type(part).__name__)
def test_batches_add_up_to_the_split_and_reset_forgets_them(metric, function):
    for _ in range(2):
        for start in range(0, 50, 7):
            metric.update(SCORES[start : start + 7], LABELS[start : start + 7])
        value = metric.compute()
        assert (value.item(), value.dtype) == (function(SCORES, LABELS).item(), torch.float64)
        metric.reset()


def test_precision_survives_a_change_of_the_modules_dtype():
    metric = torch.nn.ModuleList([AUC()]).half()[0]
    metric.update(torch.tensor([1.0, 1.0 + 1e-15], dtype=torch.float64), torch.tensor([0, 1]))
    assert metric.compute().item() == 1.0


def test_batches_of_other_float_types_mix():
    metric = AUC()
    metric.update(torch.tensor([0.0, 1.0], dtype=torch.bfloat16, requires_grad=True), torch.tensor([0, 1]))
    metric.update(torch.tensor([0.5]), torch.tensor([True]))
    assert metric.compute().item() == 1.0


def test_shapes_are_checked_in_the_batch_that_brings_them():
    with pytest.raises(DataError, match=r"one shape \(n,\), got scores \(2, 1\), labels \(2,\)"):
        AUC().update(torch.zeros(2, 1), torch.zeros(2))


def test_the_split_is_checked_when_it_is_complete():
    metric = AUC()
    metric.update(torch.zeros(2), torch.zeros(2))
    with pytest.raises(DataError, match="both classes"):
        metric.compute()
    metric.update(torch.tensor([1.0]), torch.tensor([1]))
    assert metric.compute().item() == 1.0
    metric.update(torch.tensor([torch.nan]), torch.tensor([1]))
    with pytest.raises(NonFiniteError, match="position 3"):
        metric.compute()


def test_an_empty_split_is_refused():
    with (
        pytest.warns(UserWarning, match="before the ``update``"),
        pytest.raises(DataError, match="at least one sample"),
    ):
        AUC().compute()


@pytest.mark.parametrize("bounds", [{}, {"max_fpr": 0.0}, {"min_tpr": 1.0}, {"max_fpr": 0.1, "min_tpr": 0.1}])
def test_a_wrong_range_is_refused_at_construction(bounds):
    with pytest.raises(ConfigError, match=r"max_fpr|min_tpr"):
        PartialAUC(**bounds)

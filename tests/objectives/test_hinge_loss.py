"""The hinge loss of samples, whose mean scikit-learn computes."""

import pytest
import torch
from sklearn.metrics import hinge_loss

from fcco_lightning import HingeLoss
from fcco_lightning.errors import ConfigError, DataError

SCORES, LABELS = torch.tensor([0.3, -2.0, 1.5, 0.9]), torch.tensor([1, 0, 0, 1])


def test_its_mean_is_that_of_scikit_learn():
    losses = HingeLoss()(SCORES, {"y": LABELS})
    assert losses.mean().item() == pytest.approx(hinge_loss(LABELS.numpy(), SCORES.numpy()))
    torch.testing.assert_close(HingeLoss(2.0)(SCORES, {"y": LABELS}), 2 * HingeLoss()(SCORES / 2, {"y": LABELS}))


def test_labels_of_minus_one_and_a_margin_of_nothing_are_refused():
    with pytest.raises(DataError, match="HingeLoss needs labels `y` of 0 and 1, got -1"):
        HingeLoss().check(SCORES, {"y": 2 * LABELS - 1})
    with pytest.raises(ConfigError, match="margin must be a finite number > 0, got 0"):
        HingeLoss(0)

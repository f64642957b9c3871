import math

import pytest
import torch

from fcco_lightning.evaluation import SurvivalEvaluation
from fcco_lightning.evaluation.metrics.survival import concordance

TIME, EVENT = torch.tensor([1.0, 2.0, 2.0, 3.0, 4.0]), torch.tensor([True, True, False, True, False])


def test_concordance_of_constant_right_and_wrong_risks():
    assert concordance(TIME, EVENT, torch.zeros(5)) == 0.5
    assert concordance(TIME, EVENT, -TIME - 0.1 * (~EVENT)) == 1.0
    assert concordance(TIME, EVENT, TIME + 0.1 * (~EVENT)) == 0.0
    assert math.isnan(concordance(TIME, torch.zeros(5, dtype=torch.bool), TIME))


def test_splits_without_events():
    evaluation, batch = SurvivalEvaluation(), {"time": TIME, "event": torch.zeros(5)}
    with pytest.warns(UserWarning, match="all 5 samples of a split are censored"):
        assert all(math.isnan(value) for value in evaluation(torch.randn(5), batch).values())
    assert evaluation.details(torch.randn(5), batch) == {}


def test_risks_that_are_shifted_or_large_leave_the_figures_finite():
    risk = torch.randn(5, generator=torch.Generator().manual_seed(0))
    batch = {"time": TIME, "event": EVENT}
    expected = SurvivalEvaluation()(risk, batch)
    assert SurvivalEvaluation()(risk + 100, batch) == pytest.approx(expected, rel=1e-4)
    assert all(math.isfinite(value) for value in SurvivalEvaluation()(1e3 * risk, batch).values())

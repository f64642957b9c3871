import math

import pytest
import torch

from fcco_lightning.evaluation import SurvivalEvaluation
from fcco_lightning.evaluation.metrics.survival import breslow_log_hazard, brier_score, concordance, kaplan_meier

TIME, EVENT = torch.tensor([1.0, 2.0, 2.0, 3.0, 4.0]), torch.tensor([True, True, False, True, False])


def test_the_survival_curve_by_hand():
    curve = kaplan_meier(TIME, EVENT)
    t = torch.tensor([0.5, 1.0, 1.5, 2.0, 3.0, 9.0])
    assert curve(t).tolist() == pytest.approx([1, 4 / 5, 4 / 5, 4 / 5 * 3 / 4, 3 / 10, 3 / 10])
    assert curve(t, before=True).tolist() == pytest.approx([1, 1, 4 / 5, 4 / 5, 4 / 5 * 3 / 4, 3 / 10])


def test_without_risks_the_hazard_is_that_of_nelson_and_aalen():
    log_hazard = breslow_log_hazard(TIME, EVENT, torch.zeros(5))
    assert log_hazard.values.exp().tolist() == pytest.approx([1 / 5, 1 / 5 + 1 / 4, 1 / 5 + 1 / 4 + 1 / 2])


def test_concordance_of_constant_right_and_wrong_risks():
    assert concordance(TIME, EVENT, torch.zeros(5)) == 0.5
    assert concordance(TIME, EVENT, -TIME - 0.1 * (~EVENT)) == 1.0
    assert concordance(TIME, EVENT, TIME + 0.1 * (~EVENT)) == 0.0
    assert math.isnan(concordance(TIME, torch.zeros(5, dtype=torch.bool), TIME))


def test_without_censoring_the_brier_score_is_the_mean_squared_error():
    time, t = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.5, 2.5])
    survival = torch.tensor([[0.2, 0.1], [0.7, 0.4], [0.9, 0.8]], dtype=torch.float64)
    found = brier_score(time, torch.ones(3, dtype=torch.bool), survival, t)
    alive = (time.unsqueeze(1) > t).double()
    assert found.tolist() == pytest.approx((survival - alive).square().mean(0).tolist())


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

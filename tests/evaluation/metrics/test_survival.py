"""Metrics of survival times: special cases, ties, splits without events, and large risks."""

import math

import pytest
import torch

from fcco_lightning.evaluation import SurvivalEvaluation
from fcco_lightning.evaluation.metrics.survival import (
    breslow_log_hazard,
    concordance,
    just_before,
    survival_probability,
    uncensored_probability,
)

TIME, EVENT = torch.tensor([1.0, 2.0, 2.0, 3.0, 4.0]), torch.tensor([True, True, False, True, False])


def test_concordance_of_constant_right_and_wrong_risks():
    assert concordance(TIME, EVENT, torch.zeros(5)) == 0.5
    assert concordance(TIME, EVENT, -TIME - 0.1 * (~EVENT)) == 1.0
    assert concordance(TIME, EVENT, TIME + 0.1 * (~EVENT)) == 0.0
    assert math.isnan(concordance(TIME, torch.zeros(5, dtype=torch.bool), TIME))


def test_at_equal_times_events_come_before_censoring():
    """Discrete times of events and of censoring, independent: the weights 1/G add up to n, as they do on average.

    By hand, at every time t: ``G(t) = product over s <= t of 1 - censored at s / (still there at s - events at s)``.
    """
    generator = torch.Generator().manual_seed(0)
    event_at, censored_at = (torch.randint(1, 7, (20_000,), generator=generator) for _ in range(2))
    time, event = torch.minimum(event_at, censored_at), event_at <= censored_at
    found, share = uncensored_probability(time, event), 1.0
    for t in range(1, 6):
        here = time == t
        share *= 1 - int((here & ~event).sum()) / int((time >= t).sum() - (here & event).sum())
        assert float(found(t)) == pytest.approx(share)
        assert share == pytest.approx(1 - t / 6, abs=0.02)
    weight = 1 / found(just_before(time))
    assert float((weight * event.numpy()).sum()) == pytest.approx(len(time), rel=0.02)


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


def test_survival_curves_of_outputs_with_a_graph():
    risk, new = torch.zeros(5, requires_grad=True), torch.tensor([0.0, 1.0], requires_grad=True)
    curves = survival_probability(breslow_log_hazard(TIME, EVENT, risk), new, torch.tensor([0.5, 1.0, 3.0]))
    hazard = [0, 1 / 5, 1 / 5 + 1 / 4 + 1 / 2]  # events over samples at risk
    assert curves.tolist() == [pytest.approx([math.exp(-h * math.exp(r)) for h in hazard]) for r in (0, 1)]

"""Slopes of outer functions: against finite differences, at kinks, and the shapes and dtypes of values and slopes."""

import pytest
import torch

from fcco_lightning.outer import (
    Absolute,
    DiscountedGain,
    Hinge,
    Linear,
    Log,
    LogRatio,
    LogWithTemperature,
    NegativeLog,
    Ratio,
    RatioDifference,
    Shifted,
    SmoothedHinge,
    SquaredHinge,
    slopes,
)
from tests.outer.case import case_name
from tests.outer.cases import ALL_OUTER, CONVEX

VALUE = 1e-11  # inequalities between closed forms
SLOPE = 2e-5  # central differences with h = 1e-6


@pytest.mark.parametrize("case", CONVEX, ids=case_name)
def test_subgradient_inequality_also_at_kinks(case):
    u = case.rows(12)
    lines = case.outer(u) + (slopes(case.outer, u) * (u.unsqueeze(1) - u)).sum(-1)  # [z, u]: line at u in z
    assert (case.outer(u).unsqueeze(1) - lines).min() >= -VALUE * (1 + lines.abs().max())


@pytest.mark.parametrize("case", ALL_OUTER, ids=case_name)
def test_slope_is_that_of_differences_away_from_kinks(case):
    h, u = 1e-6, case.rows(10)[:10]
    steps = h * torch.eye(case.width, dtype=torch.float64)
    differences = torch.stack([(case.outer(u + step) - case.outer(u - step)) / (2 * h) for step in steps], dim=1)
    torch.testing.assert_close(slopes(case.outer, u), differences, rtol=SLOPE, atol=SLOPE)


@pytest.mark.parametrize("case", ALL_OUTER, ids=case_name)
def test_a_value_for_every_row_and_slopes_in_its_dtype(case):
    u = case.rows(5)
    assert case.outer(u).shape == u.shape[:1]
    for dtype in (torch.float32, torch.float64):
        found = slopes(case.outer, u.to(dtype).requires_grad_())
        assert (found.shape, found.dtype, found.requires_grad) == (u.shape, dtype, False)


@pytest.mark.parametrize(
    ("outer", "kink"),
    [
        (Hinge(rho=3.0, kappa=0.5), (0.5,)),
        (SquaredHinge(rho=3.0, kappa=0.5), (0.5,)),
        (SmoothedHinge(rho=3.0, kappa=0.5), (0.5,)),
        (Shifted(Absolute(Hinge(rho=3.0)), torch.tensor(0.5)), (0.5,)),
        (Shifted(Absolute(Hinge(rho=3.0, kappa=0.25)), torch.tensor(0.5)), (0.25,)),
        (Linear(Absolute(Hinge(rho=3.0)), (1.0, -1.0)), (0.5, 0.5)),
        (Linear(Absolute(Hinge(rho=3.0, kappa=0.25)), (1.0, -1.0)), (0.5, 0.75)),
        (RatioDifference(Absolute(Hinge(rho=3.0))), (1.0, 2.0, 0.5, 1.0)),
    ],
    ids=repr,
)
def test_slope_is_zero_at_a_kink(outer, kink):
    assert slopes(outer, torch.tensor([kink])).tolist() == [[0.0] * len(kink)]


FLOORED = [
    NegativeLog,
    Log,
    LogRatio,
    Ratio,
    DiscountedGain,
    lambda floor: LogWithTemperature(torch.ones(()), 1, floor),
]


@pytest.mark.parametrize("make", FLOORED)
def test_rows_below_the_floor_have_the_slope_at_the_floor(make):
    outer, width = make(floor=0.25), 2 if make in (LogRatio, Ratio) else 1
    low = torch.tensor([[0.25], [0.1], [0.0], [-3.0]], dtype=torch.float64)
    rows = torch.cat([torch.ones_like(low), low], dim=1)[:, -width:]
    found = slopes(outer, rows)
    assert found[0].abs().min() > 0
    assert torch.equal(found, found[:1].expand_as(found))

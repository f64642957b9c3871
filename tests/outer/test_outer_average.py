"""Averages of outer functions under Gaussian noise: against numerical integration, and within their bounds."""

import math

import pytest
import torch

from fcco_lightning.errors import ConfigError
from fcco_lightning.outer import (
    AbsoluteDistance,
    GaussianAverage,
    Hinge,
    Maximum,
    MoreauEnvelope,
    RatioDifference,
    Shifted,
    Square,
)
from tests.outer.case import case_name
from tests.outer.cases.smoothing import AVERAGED

REACH = 8.0  # standard deviations that are integrated over
POINTS = {1: 200_000, 2: 800}  # of every coordinate


def integral(outer, row, sigma):
    """``E f(u + sigma z)`` of a row (k,) by the midpoint rule in all coordinates."""
    count = POINTS[len(row)]
    z = (torch.arange(count, dtype=torch.float64) + 0.5) * (2 * REACH / count) - REACH
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi) * (2 * REACH / count)
    places = torch.cartesian_prod(*[z] * len(row)).reshape(-1, len(row))
    weights = torch.cartesian_prod(*[density] * len(row)).reshape(-1, len(row)).prod(1)
    return (outer.value(row + sigma * places) * weights).sum().item()


@pytest.mark.parametrize("sigma", [0.05, 0.7])
@pytest.mark.parametrize("case", AVERAGED, ids=case_name)
def test_average_is_the_integral(case, sigma):
    for u in case.rows(3):
        found = GaussianAverage(case.outer, sigma).value(u.unsqueeze(0)).item()
        assert found == pytest.approx(integral(case.outer, u, sigma), abs=3e-5 * case.outer.lipschitz)


@pytest.mark.parametrize("sigma", [0.05, 0.7])
@pytest.mark.parametrize("case", AVERAGED, ids=case_name)
def test_average_lies_above_by_at_most_c_sigma_and_its_gradient_is_lipschitz(case, sigma):
    smooth, c = GaussianAverage(case.outer, sigma), case.outer.lipschitz
    a, b = case.rows(200, seed=1), case.rows(200, seed=2)
    gap = smooth.value(a) - case.outer.value(a)
    assert gap.min() >= -1e-12
    assert gap.max() <= c * sigma * case.width**0.5
    change = (smooth.subgradient(a) - smooth.subgradient(b)).norm(dim=1)
    assert bool((change <= c / sigma * (a - b).norm(dim=1) * (1 + 1e-9)).all())
    lam = 2 * sigma * case.width**0.5 / c  # the envelope of the same bound lies below
    assert bool((MoreauEnvelope(case.outer, lam).value(a) <= smooth.value(a)).all())


def test_a_threshold_is_learnt_through_the_average():
    shift = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    smooth, u = GaussianAverage(Shifted(Hinge(2.0), shift), 0.2), torch.tensor([[0.5], [0.1]], dtype=torch.float64)
    (slope,) = torch.autograd.grad(smooth.value(u).sum(), shift)
    assert slope.item() == pytest.approx(-smooth.subgradient(u).sum().item(), rel=1e-12)


@pytest.mark.parametrize(
    ("outer", "width"),
    [(Maximum(), 2), (RatioDifference(AbsoluteDistance(Hinge())), 4), (AbsoluteDistance(Square()), 1)],
    ids=repr,
)
def test_functions_without_a_closed_form_are_refused(outer, width):
    with pytest.raises(ConfigError, match="has no closed"):
        GaussianAverage(outer, 0.1).value(torch.ones(1, width))

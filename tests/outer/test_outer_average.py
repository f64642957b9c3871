"""Averages of outer functions under Gaussian noise: against numerical integration, and within their bounds."""

import math

import pytest
import torch

from fcco_lightning.errors import ConfigError
from fcco_lightning.outer import (
    Absolute,
    Hinge,
    Linear,
    LogSumExp,
    Maximum,
    RatioDifference,
    Shifted,
    Square,
    slopes,
)
from tests.outer.case import at_points, case_name
from tests.outer.cases.smoothing import AVERAGED

REACH = 8.0  # standard deviations that are integrated over
POINTS = {1: 20_000, 2: 800}  # of every coordinate


def integral(outer, rows, sigma):
    """``E f(u + sigma z)`` of rows (m, k) by the midpoint rule in all coordinates."""
    width = rows.shape[1]
    z = ((torch.arange(POINTS[width], dtype=torch.float64) + 0.5) / POINTS[width] * 2 - 1) * REACH
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi) * (2 * REACH / POINTS[width])
    places = torch.cartesian_prod(*[z] * width).reshape(-1, width)
    weights = torch.cartesian_prod(*[density] * width).reshape(-1, width).prod(1)
    return at_points(outer, rows.unsqueeze(1) + sigma * places) @ weights


@pytest.mark.parametrize("sigma", [0.05, 0.7])
@pytest.mark.parametrize("case", AVERAGED, ids=case_name)
def test_average_is_the_integral(case, sigma):
    u = case.rows(2)
    found = case.outer.averaged(sigma)(u)
    torch.testing.assert_close(found, integral(case.outer, u, sigma), rtol=0, atol=3e-5 * case.outer.lipschitz)


@pytest.mark.parametrize("sigma", [0.05, 0.7])
@pytest.mark.parametrize("case", AVERAGED, ids=case_name)
def test_average_lies_above_by_at_most_c_sigma_and_its_gradient_is_lipschitz(case, sigma):
    smooth, c = case.outer.averaged(sigma), case.outer.lipschitz
    assert (smooth.smooth, smooth.convex, smooth.lipschitz) == (True, True, c)
    a, b = case.rows(200, seed=1), case.rows(200, seed=2)
    gap = smooth(a) - case.outer(a)
    assert gap.min() >= -1e-12
    assert gap.max() <= c * sigma * case.width**0.5
    change = (slopes(smooth, a) - slopes(smooth, b)).norm(dim=1)
    assert bool((change <= c / sigma * (a - b).norm(dim=1) * (1 + 1e-9)).all())
    lam = 2 * sigma * case.width**0.5 / c  # the envelope of the same bound lies below
    assert bool((case.outer.smoothed(lam)(a) <= smooth(a)).all())


def test_a_threshold_is_learnt_through_the_average():
    shift = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    smooth, u = Shifted(Hinge(2.0), shift).averaged(0.2), torch.tensor([[0.5], [0.1]], dtype=torch.float64)
    (slope,) = torch.autograd.grad(smooth(u).sum(), shift)
    assert slope.item() == pytest.approx(-slopes(smooth, u).sum().item(), rel=1e-12)


@pytest.mark.parametrize(
    "outer",
    [
        *(Maximum(), LogSumExp(), Square(), Absolute(Square()), Shifted(Maximum(), torch.zeros(()))),
        Absolute(Linear(Hinge(1.0, 0.5), (-1.0,))),  # which falls, and so is not 0 below 0
        Absolute(Absolute(Hinge(1.0, 0.5))),
    ],
    ids=repr,
)
def test_functions_without_a_closed_form_are_refused(outer):
    with pytest.raises(ConfigError, match=r"no closed form of its average under Gaussian noise.* Use MoreauSmoothing"):
        outer.averaged(0.1)


def test_the_average_of_a_size_is_also_that_of_a_hinge_that_is_moved_and_stretched():
    moved = Absolute(Shifted(Linear(Hinge(2.0, 0.1), (0.5,)), torch.tensor(0.3, dtype=torch.float64)))
    u = torch.linspace(-2, 2, 5, dtype=torch.float64).unsqueeze(1)
    torch.testing.assert_close(moved.averaged(0.4)(u), integral(moved, u, 0.4), rtol=0, atol=1e-4)


def test_differences_of_ratios_are_refused_with_their_own_reason():
    with pytest.raises(ConfigError, match=r"has no closed-form prox, which smoothing needs\. Use a smooth penalty"):
        RatioDifference(Absolute(Hinge())).averaged(0.1)

"""Single estimators: the mirror form by its definition, the correction of the theory, and refused arguments."""

import math

import pytest
import torch
from scipy.optimize import minimize_scalar

from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import Average, DualProx, Minibatch, ScaledAverage
from fcco_lightning.estimators.base import moved
from fcco_lightning.outer import Hinge, Log, LogSumExp, Range, Softplus, Square, SquaredHinge, slopes
from tests.contracts.registry_estimators import first, follow

ROUNDING = 1e-12  # one step in float64
ARGMIN = 1e-6  # scipy's minimiser
RHO, LAM = 2.0, 0.3
SMOOTHED = Hinge(RHO).smoothed(LAM)


def hinge_slope(u):
    return min(max(u / LAM, 0.0), RHO)


def track_one(estimator, row, inner, previous=None, outer=SMOOTHED):
    values = [None if v is None else torch.tensor([[v]], dtype=torch.float64) for v in (row, inner, previous)]
    return follow(estimator, *values, outer, 5.0)


@pytest.mark.parametrize(
    ("n", "batch", "gamma", "expected"), [(30, 8, 0.1, 3.96), (16, 4, 0.5, 6.5), (1252, 8, 0.1, 173.7)]
)
def test_theoretical_correction_has_the_numbers_of_erratum_004_27(n, batch, gamma, expected):
    for gamma_prime, factor in (("theory", expected), (0.2, 0.2)):
        rows = Average(gamma, gamma_prime).update(
            *torch.tensor([[[0.0]], [[0.0]], [[-1.0]]], dtype=torch.float64), SMOOTHED, n / batch
        )
        assert rows.item() == pytest.approx(factor, rel=2e-3)


def conjugate_bregman_argmax(f_star, slope, y_old, ahead, tau, bounds):
    """argmax_y y ahead - f*(y) - tau (f*(y) - f*(y_old) - slope (y - y_old)), slope in the subdifferential at y_old."""

    def loss(y):
        return -(y * ahead - f_star(y) - tau * (f_star(y) - slope * y))

    return minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x


@pytest.mark.parametrize("tau", [0.25, 4.0])
@pytest.mark.parametrize(
    ("outer", "f_star", "bounds"),
    [
        (Square(0.7), lambda y: y * y / (4 * 0.7), (-50, 50)),
        (Softplus(1.0), lambda y: y * math.log(y) + (1 - y) * math.log(1 - y), (1e-12, 1 - 1e-12)),
        (SquaredHinge(1.5), lambda y: y * y / (2 * 1.5), (0, 50)),
        (SMOOTHED, lambda y: LAM * y * y / 2, (0, RHO)),
    ],
    ids=["square", "softplus", "squared hinge", "smoothed hinge"],
)
def test_mirror_form_is_the_argmax_of_its_definition(outer, f_star, bounds, tau):
    theta, u, g, before = 0.5, 0.4, 0.9, 0.5
    gamma = 1 / (1 + tau)
    tracked = track_one(Average(gamma, gamma * theta, fresh=True, convex_only=True), u, g, before, outer)
    y_old = slopes(outer, torch.tensor([[u]], dtype=torch.float64)).item()
    expected = conjugate_bregman_argmax(f_star, u, y_old, g + theta * (g - before), tau, bounds)
    assert tracked.y.item() == pytest.approx(expected, abs=ARGMIN)
    assert tracked.rows.item() == pytest.approx((tau * u + g + theta * (g - before)) / (1 + tau), abs=ROUNDING)


def hinge_steps(u, tau=1.0, g=0.5):
    """The outer gradient of the u-form, and that of the y-form with psi = f_lam* from y = grad f_lam(u)."""
    mirror = track_one(Average(1 / (1 + tau), fresh=True, convex_only=True), u, g).y.item()
    y = hinge_slope(u)
    return mirror, min(max((g + tau * LAM * y) / (LAM * (1 + tau)), 0.0), RHO)


@pytest.mark.parametrize("u", [0.0, 0.2, LAM * RHO])
def test_u_form_equals_y_form_where_the_smoothed_hinge_is_curved(u):
    mirror, y_form = hinge_steps(u)
    assert mirror == pytest.approx(y_form, abs=ROUNDING)


@pytest.mark.parametrize("u", [-1.0, -0.3, LAM * RHO + 0.5])
def test_u_form_differs_from_y_form_where_it_is_flat_or_linear(u):
    mirror, y_form = hinge_steps(u, g=0.5 if u < 0 else 0.1)
    assert abs(mirror - y_form) > 0.1  # erratum SONEX-7


def test_dual_prox_of_a_non_smooth_hinge_starts_at_zero():
    estimator, inner = DualProx(tau=2.0), torch.tensor([[0.5]])
    y = estimator.update(first(estimator, inner), inner, None, Hinge(RHO, 0.1), 10.0)
    assert y.item() == pytest.approx(0.4 / 2.0)  # clip(0 + (g - kappa)/tau, 0, rho)


def test_wide_rows_are_averaged_entry_by_entry():
    rows, inner = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[3.0, 2.0, -1.0]])
    tracked = follow(Average(0.5, fresh=True), rows, inner, None, LogSumExp(), 10.0)
    assert tracked.rows.tolist() == [[2.0, 2.0, 1.0]]
    assert torch.allclose(tracked.y, torch.softmax(tracked.rows, dim=1))


@pytest.mark.parametrize(
    ("estimator", "needed"),
    [
        (Average(0.5, 0.0), False),
        (Average(0.5, 0.1), True),
        (Average(0.5, "theory"), True),
        (DualProx(1.0, 0.0), False),
        (DualProx(1.0, 0.1), True),
        (Average(), False),
        (ScaledAverage(), False),
        (Minibatch(), False),
    ],
    ids=repr,
)
def test_a_second_forward_is_asked_for_only_where_its_weight_is_not_zero(estimator, needed):
    assert estimator.needs_previous is needed


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Average(1.0, "theory"), "divides by 1 - gamma"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    Average(1.0, 0.0)
    Average(0.99, "theory")
    with pytest.raises(ConfigError, match=message):
        make()


def test_outer_gradients_are_taken_at_no_less_than_a_share_of_the_fresh_value():
    """Of log u: a share of 1e12 without the bound, of 10 with it; a row that is near is left alone."""
    rows, inner = torch.tensor([[1e-12], [0.5]]), torch.tensor([[1.0], [1.0]])
    tracked = follow(Average(0.5), rows, inner, None, Log(), growth=10.0)
    torch.testing.assert_close(tracked.y * inner, torch.tensor([[10.0], [2.0]]))
    torch.testing.assert_close(tracked.rows, torch.tensor([[0.5], [0.75]]))


def test_only_rows_that_are_corrected_stay_in_the_interval_of_the_inner_values():
    """A row that is inner values times 1/p leaves [0, 1] on purpose."""
    rows, inner = torch.tensor([[0.5]]), torch.tensor([[0.8]])
    new = moved(ScaledAverage(0.9), rows, inner, None, Square(), 4.0, None, Range(0.0, 1.0))
    assert new.item() == pytest.approx(0.1 * 0.5 + 0.9 * 4 * 0.8)
    corrected = moved(Average(0.9, 1.0), rows, inner + 5, inner - 5, Square(), 1.0, None, Range(0.0, 1.0))
    assert corrected.item() == 1.0

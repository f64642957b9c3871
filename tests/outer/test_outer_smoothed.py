"""Moreau envelopes against minima over grids, and dual steps, which are their slopes, against maxima over grids."""

import numpy as np
import pytest
import torch

from fcco_lightning.errors import ConfigError
from fcco_lightning.outer import (
    Absolute,
    AveragedHinge,
    ChiSquare,
    Hinge,
    Linear,
    Maximum,
    Shifted,
    Square,
    SquaredHinge,
    slopes,
)
from tests.outer.case import at_points, case_name, cloud, minimum
from tests.outer.cases import ALL_OUTER, CASES, ENVELOPES, SMOOTHED

ARGMIN = 2e-6  # a minimiser is found to about the square root of the value's rounding error
VALUE = 1e-11  # inequalities between closed forms
EXACT = 1e-12  # two closed forms in float64
SUPREMUM = 1e-9  # of a function with a kink, which lies between two points of a grid
LAMS = (0.02, 2.0)
ONE_VARIABLE = [c for c in SMOOTHED if c.width == 1]


@pytest.mark.parametrize("lam", LAMS)
@pytest.mark.parametrize("case", ONE_VARIABLE, ids=case_name)
def test_envelope_is_the_minimum_over_a_grid_and_its_slope_the_way_to_the_minimiser(case, lam):
    f, u = case.outer, case.rows(6)
    reach = (lam * slopes(f, u).abs() + 2 * lam**0.5 + 0.1).squeeze(1)

    def moved(v):
        return at_points(f, v.unsqueeze(2)) + (v - u).square() / (2 * lam)

    v, value = minimum(moved, u[:, 0] - reach, u[:, 0] + reach)
    smooth = f.smoothed(lam)
    torch.testing.assert_close(smooth(u), value, rtol=VALUE, atol=VALUE)
    torch.testing.assert_close(u - lam * slopes(smooth, u), v.unsqueeze(1), rtol=0, atol=ARGMIN)


@pytest.mark.parametrize("lam", LAMS)
@pytest.mark.parametrize("case", SMOOTHED, ids=case_name)
def test_what_the_slope_leads_to_satisfies_the_three_point_inequality(case, lam):
    # h(v) = f(v) + |v - u|^2/(2 lam) is (1/lam)-strongly convex: v = argmin iff h(z) >= h(v) + |z - v|^2/(2 lam)
    f, u = case.outer, case.rows(6)
    v = u - lam * slopes(f.smoothed(lam), u)
    best = f(v) + (v - u).square().sum(-1) / (2 * lam)
    z = cloud(v)
    ahead = at_points(f, z) + (z - u.unsqueeze(1)).square().sum(-1) / (2 * lam)
    least = best.unsqueeze(1) + (z - v.unsqueeze(1)).square().sum(-1) / (2 * lam)
    assert (ahead - least).min() >= -VALUE * (1 + least.abs().max())
    torch.testing.assert_close(f.smoothed(lam)(u), best, rtol=VALUE, atol=VALUE)


@pytest.mark.parametrize("case", SMOOTHED + ENVELOPES, ids=case_name)
def test_smoothing_twice_is_smoothing_by_the_sum(case):
    u, once, twice = case.rows(10), case.outer.smoothed(0.7), case.outer.smoothed(0.3).smoothed(0.4)
    torch.testing.assert_close(twice(u), once(u), rtol=VALUE, atol=VALUE)
    torch.testing.assert_close(slopes(twice, u), slopes(once, u), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("tau", [0.3, 4.0])
@pytest.mark.parametrize("case", ONE_VARIABLE, ids=case_name)
def test_a_dual_step_is_the_argmax_with_the_conjugate_as_a_supremum(case, tau):
    # h(z) = f*(z) + tau z^2 / 2 - v z is tau-strongly convex: y = argmin iff h(z) >= h(y) + tau (z - y)^2 / 2
    v = torch.tensor([-1.5, -0.4, 0.0, 0.6, 2.0], dtype=torch.float64)
    y = slopes(case.outer.smoothed(tau), v.unsqueeze(1)).squeeze(1)
    low, high = case.dual if case.dual != (-np.inf, 0.0) else (-np.inf, -0.05)  # f*(0) = inf for -log
    z = cloud(y.unsqueeze(1)).squeeze(2).clamp(max(low, -10.0), min(high, 10.0))
    assert y.min() >= low
    assert y.max() <= high

    def conjugate(y):
        def below(u):
            return at_points(case.outer, u.unsqueeze(2)) - y.reshape(-1, 1) * u

        start = 1e-9 if case.low > 0 else -45.0
        _, least = minimum(below, *(torch.full((y.numel(),), end, dtype=torch.float64) for end in (start, 45.0)))
        return -least.view(y.shape)

    best = conjugate(y) + tau / 2 * y.square() - v * y
    ahead = conjugate(z) + tau / 2 * z.square() - v.unsqueeze(1) * z
    slack = ahead - best.unsqueeze(1) - tau / 2 * (z - y.unsqueeze(1)).square()
    assert slack.min() >= -SUPREMUM * (1 + best.abs().max())


@pytest.mark.parametrize("case", ONE_VARIABLE, ids=case_name)
def test_dual_rows_of_float32_lie_in_the_domain_of_the_conjugate(case):
    low, high = torch.tensor(case.dual)
    u = 3 * case.rows(40).float()
    y = slopes(case.outer.smoothed(0.7), u)
    assert bool(((low <= y) & (y <= high)).all())
    wider = slopes(Shifted(case.outer, torch.tensor(0.1), 0.3).smoothed(0.7), u)
    low, high = torch.tensor([end / 0.3 for end in case.dual])
    assert bool(((low <= wider) & (wider <= high)).all())


def positive_part(x):
    return x.clamp(min=0)


def simplex(v):
    ordered = v.sort(descending=True).values
    shifts = [(ordered[:, : j + 1].sum(1, keepdim=True) - 1) / (j + 1) for j in range(v.shape[1])]
    return positive_part(v - torch.cat(shifts, dim=1).max(dim=1, keepdim=True).values)


def soft(x, kappa):
    return x.sign() * positive_part(x.abs() - kappa)


def fairness_step(g, y, tau, lam, rho=2.0, kappa=0.1):
    a = soft((g[:, 0] - g[:, 1]) + 2 * tau * y[:, 0], kappa) / (2 * (lam + tau))
    a = a.clamp(-rho, rho)
    return torch.stack([a, -a], dim=1)


DUAL_STEPS = [  # section 2 of the specification, last column
    (Hinge(2.0, 0.1), 1, lambda g, y, t: (y + (g - 0.1) / t).clamp(0, 2)),
    (Hinge(2.0, 0.1).smoothed(0.3), 1, lambda g, y, t: ((g - 0.1 + t * y) / (0.3 + t)).clamp(0, 2)),
    (Linear(Absolute(Hinge(2.0, 0.1)), (1.0, -1.0)), 2, lambda g, y, t: fairness_step(g, y, t, 0.0)),
    (Linear(Absolute(Hinge(2.0, 0.1)), (1.0, -1.0)).smoothed(0.3), 2, lambda g, y, t: fairness_step(g, y, t, 0.3)),
    (SquaredHinge(2.0), 1, lambda g, y, t: positive_part((g + t * y) / (1 / 2.0 + t))),  # rho -> rho/2 in the table
    (ChiSquare(0.5), 1, lambda g, y, t: positive_part((g + 1 + t * y) / (1 / 0.5 + t))),
    (ChiSquare(0.5, half=False), 1, lambda g, y, t: positive_part((g + 2 + t * y) / (2 / 0.5 + t))),
    (Maximum(), 3, lambda g, y, t: simplex(y + g / t)),
    (Shifted(Maximum(), torch.tensor(0.25), 0.5), 3, lambda g, y, t: simplex(0.5 * (y + (g - 0.25) / t)) / 0.5),
    (Shifted(Hinge(2.0), torch.tensor(0.25), 0.5), 1, lambda g, y, t: (y + (g - 0.25) / t).clamp(0, 4)),
    (Square(1.5), 1, lambda g, y, t: (g + t * y) / (1 / (2 * 1.5) + t)),
]


@pytest.mark.parametrize("tau", [0.3, 4.0])
@pytest.mark.parametrize(("outer", "width", "table"), DUAL_STEPS, ids=lambda x: repr(x) if hasattr(x, "smooth") else "")
def test_dual_step_is_that_of_the_table(outer, width, table, tau):
    generator = torch.Generator().manual_seed(0)
    g, y = (torch.randn(50, width, generator=generator, dtype=torch.float64) for _ in range(2))
    y = slopes(outer, 2 * y)  # dual rows lie in dom f*
    torch.testing.assert_close(slopes(outer.smoothed(tau), g + tau * y), table(g, y, tau), atol=EXACT, rtol=EXACT)


@pytest.mark.parametrize("case", [c for c in CASES if not c.envelope], ids=case_name)
def test_a_function_without_closed_form_says_so(case):
    with pytest.raises(ConfigError, match="no closed-form prox"):
        case.outer.smoothed(1.0)(case.rows(2))


def test_an_average_has_no_envelope():
    with pytest.raises(ConfigError, match=r"AveragedHinge.* has no closed-form prox\. Use it without smoothing"):
        AveragedHinge().smoothed(0.1)(torch.zeros(1, 1))


@pytest.mark.parametrize("case", ALL_OUTER, ids=case_name)
def test_lam_must_be_positive(case):
    for lam in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=r"lam must be a finite number > 0|RatioDifference.* no closed-form prox"):
            case.outer.smoothed(lam)

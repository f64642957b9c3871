import numpy as np
import pytest
import torch

from fcco_lightning.errors import ConfigError
from fcco_lightning.outer import (
    AbsoluteDifference,
    ChiSquare,
    Hinge,
    LogSumExp,
    Maximum,
    Shifted,
    Square,
    SquaredHinge,
)
from fcco_lightning.outer import MoreauEnvelope as Envelope
from tests.outer.case import case_name, minimum
from tests.outer.cases import CONVEX, NOT_CONVEX, WITH_PROX

ARGMIN = 2e-6  # a minimiser is found to about the square root of the value's rounding error
SUPREMUM = 1e-6  # slope at a kink times the 1.5e-8 |u| to which scipy places it
VALUE = 1e-9  # Fenchel-Young: roots and sums of rounding error
EXACT = 1e-12  # two closed forms in float64
ONE_VARIABLE = [c for c in WITH_PROX if c.width == 1]


def inside(case):
    """Dual values in the interior of dom f* and, where they are finite, its ends."""
    low, high = case.dual
    grid = np.clip([-2.0, -0.5, 0.0, 0.3, 0.9, 2.5], low, high)
    return sorted({y for y in grid if not (np.isinf(case.dual[0]) and y == high == 0)})  # f*(0) = inf for -log


@pytest.mark.parametrize("case", ONE_VARIABLE, ids=case_name)
def test_conjugate_is_the_supremum(case):
    for y in inside(case):
        low = 1e-9 if case.low > 0 and not isinstance(case.outer, Envelope) else -45.0  # f = inf for u <= 0
        _, least = minimum(lambda u, y=y: case.outer.value(u) - y * u[:, 0], low, 45.0, count=4001)
        assert case.outer.conjugate(torch.tensor([[y]], dtype=torch.float64)).item() == pytest.approx(
            -least, abs=SUPREMUM
        )


@pytest.mark.parametrize("case", ONE_VARIABLE, ids=case_name)
def test_conjugate_is_infinite_exactly_outside_its_domain(case):
    for end, outwards in zip(case.dual, (-1, 1), strict=True):
        if np.isfinite(end):
            out = torch.tensor([[end + outwards * 0.01]], dtype=torch.float64)
            assert case.outer.conjugate(out).item() == torch.inf
            far = torch.tensor([[outwards * 1e3], [outwards * 1e4]], dtype=torch.float64)
            if bool(torch.isfinite(case.outer.value(far)).all()):  # and the supremum indeed grows without end
                gain = (out * far)[:, 0] - case.outer.value(far)
                assert gain[1] > gain[0] + 1


@pytest.mark.parametrize("case", [c for c in CONVEX if c.conjugate], ids=case_name)
def test_fenchel_young_inequality_with_equality_at_subgradients(case):
    u = case.rows(10)
    y = case.outer.subgradient(u)
    conjugate = case.outer.conjugate(y)
    assert torch.allclose(case.outer.value(u) + conjugate, (u * y).sum(-1), atol=VALUE, rtol=VALUE)
    gap = case.outer.value(u).unsqueeze(1) + conjugate - u @ y.T
    assert gap.min() >= -VALUE


@pytest.mark.parametrize(
    ("outer", "y"),
    [
        (AbsoluteDifference(Hinge(2.0, 0.1)), (0.5, -0.4)),  # off the line (a, -a)
        (AbsoluteDifference(Hinge(2.0, 0.1)), (2.1, -2.1)),
        (AbsoluteDifference(SquaredHinge()), (0.5, 0.5)),
        (Maximum(), (0.5, 0.6)),
        (Maximum(), (1.2, -0.2)),
        (LogSumExp(), (0.5, 0.6)),
        (LogSumExp(), (1.2, -0.2)),
    ],
)
def test_conjugate_of_wider_functions_is_infinite_outside(outer, y):
    assert outer.conjugate(torch.tensor([y], dtype=torch.float64)).item() == torch.inf


@pytest.mark.parametrize("tau", [0.05, 0.6, 3.0])
@pytest.mark.parametrize("case", ONE_VARIABLE, ids=case_name)
def test_conjugate_prox_is_the_argmin(case, tau):
    for y in (-1.5, 0.0, 0.4, 2.0):

        def objective(v, y=y):
            return case.outer.conjugate(v) + (v - y).square().sum(-1) / (2 * tau)

        low, high = (float(np.clip(y + s * (12 * tau + 6), *case.dual)) for s in (-1, 1))
        if np.isinf(case.dual[0]) and case.dual[1] == 0:
            high = -1e-9  # f* = inf at 0 for -log
        v, _ = minimum(objective, low, high)
        assert case.outer.conjugate_prox(torch.tensor([[y]], dtype=torch.float64), tau).item() == pytest.approx(
            v, abs=ARGMIN
        )


def test_conjugate_prox_of_every_wide_function_satisfies_the_three_point_inequality():
    # h(v) = f*(v) + |v - y|^2/(2 tau) is (1/tau)-strongly convex: v = argmin iff h(z) >= h(v) + |z - v|^2/(2 tau)
    tau = 0.6
    for case in (c for c in WITH_PROX if c.width > 1):
        for y in case.rows(10, seed=1):
            v = case.outer.conjugate_prox(y.unsqueeze(0), tau)
            corners = case.outer.subgradient(3 * case.rows(60, seed=2))  # in dom f*, as all between them and v
            z = torch.cat([v + t * (corners - v) for t in (1.0, 0.1, 1e-3)])
            ahead, best = (case.outer.conjugate(w) + (w - y).square().sum(-1) / (2 * tau) for w in (z, v))
            slack = ahead - best - (z - v).square().sum(-1) / (2 * tau)
            assert slack.min() >= -VALUE * (1 + best.abs().item()), case_name(case)


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
    (Envelope(Hinge(2.0, 0.1), 0.3), 1, lambda g, y, t: ((g - 0.1 + t * y) / (0.3 + t)).clamp(0, 2)),
    (AbsoluteDifference(Hinge(2.0, 0.1)), 2, lambda g, y, t: fairness_step(g, y, t, 0.0)),
    (Envelope(AbsoluteDifference(Hinge(2.0, 0.1)), 0.3), 2, lambda g, y, t: fairness_step(g, y, t, 0.3)),
    (SquaredHinge(2.0), 1, lambda g, y, t: positive_part((g + t * y) / (1 / 2.0 + t))),  # rho -> rho/2 in the table
    (ChiSquare(0.5), 1, lambda g, y, t: positive_part((g + 1 + t * y) / (1 / 0.5 + t))),
    (ChiSquare(0.5, half=False), 1, lambda g, y, t: positive_part((g + 2 + t * y) / (2 / 0.5 + t))),
    (Maximum(), 3, lambda g, y, t: simplex(y + g / t)),
    (Shifted(Maximum(), torch.tensor(0.25), 0.5), 3, lambda g, y, t: simplex(0.5 * (y + (g - 0.25) / t)) / 0.5),
    (Shifted(Hinge(2.0), torch.tensor(0.25), 0.5), 1, lambda g, y, t: (y + (g - 0.25) / t).clamp(0, 4)),
    (Square(1.5), 1, lambda g, y, t: (g + t * y) / (1 / (2 * 1.5) + t)),
]


@pytest.mark.parametrize("tau", [0.3, 4.0])
@pytest.mark.parametrize(("outer", "width", "table"), DUAL_STEPS, ids=lambda x: repr(x) if hasattr(x, "prox") else None)
def test_dual_step_is_that_of_the_table(outer, width, table, tau):
    generator = torch.Generator().manual_seed(0)
    g, y = (torch.randn(50, width, generator=generator, dtype=torch.float64) for _ in range(2))
    y = outer.subgradient(2 * y)  # dual rows lie in dom f*
    step = outer.conjugate_prox(y + g / tau, 1 / tau)
    assert torch.allclose(step, table(g, y, tau), atol=EXACT, rtol=EXACT)


@pytest.mark.parametrize("case", NOT_CONVEX, ids=case_name)
def test_dual_maps_refuse_functions_that_are_not_convex(case):
    u = case.rows(1)
    with pytest.raises(ConfigError, match="not convex"):
        case.outer.conjugate(u)
    with pytest.raises(ConfigError, match="not convex"):
        case.outer.conjugate_prox(u, 1.0)
    with pytest.raises(ConfigError, match="not convex"):
        Envelope(case.outer, 0.1).conjugate(u)


@pytest.mark.parametrize("tau", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize("case", WITH_PROX, ids=case_name)
def test_tau_must_be_positive(case, tau):
    assert bool(torch.isfinite(case.outer.conjugate_prox(case.rows(1), 1.0)).all())
    with pytest.raises(ConfigError, match="tau must be a finite number > 0"):
        case.outer.conjugate_prox(case.rows(1), tau)


def test_no_prox_means_no_dual_step():
    with pytest.raises(ConfigError, match="no closed-form prox"):
        LogSumExp().conjugate_prox(torch.zeros(1, 3), 1.0)

import pytest
import torch
from scipy.optimize import minimize

from fcco_lightning.errors import ConfigError
from fcco_lightning.outer import Hinge, Log, Ratio
from tests.outer.case import Case, case_name, cloud, minimum
from tests.outer.cases import ALL_OUTER, CONVEX, NOT_CONVEX_WITH_PROX, WITH_PROX, WITHOUT_PROX

ARGMIN = 2e-6  # a minimiser is found to about the square root of the value's rounding error
MINIMUM = 1e-7  # slope at a kink times the 1.5e-8 |u| to which scipy places it
VALUE = 1e-11  # inequalities between closed forms
SLOPE = 2e-5  # central differences with h = 1e-6
LAMS = (0.02, 2.0)


def with_lams(cases):
    """Every case with every lam, of which every second pair is slow."""
    return [
        pytest.param(case, lam, id=f"{case_name(case)}-{lam}", marks=[pytest.mark.slow] if (i + j) % len(LAMS) else [])
        for i, case in enumerate(cases)
        for j, lam in enumerate(LAMS)
    ]


ONE_VARIABLE = [c for c in WITH_PROX if c.width == 1]


def moved(case: Case, v: torch.Tensor, u: torch.Tensor, lam: float) -> torch.Tensor:
    return case.outer.value(v) + (v - u).square().sum(-1) / (2 * lam)


@pytest.mark.parametrize(("case", "lam"), with_lams(ONE_VARIABLE))
def test_prox_and_envelope_are_argmin_and_min_over_a_grid(case, lam):
    for u in case.rows(4):
        reach = lam * case.outer.subgradient(u.unsqueeze(0)).abs().item() + 2 * lam**0.5 + 0.1
        v, value = minimum(lambda v, u=u: moved(case, v, u, lam), u.item() - reach, u.item() + reach)
        row = u.unsqueeze(0)
        assert case.outer.prox(row, lam).item() == pytest.approx(v, abs=ARGMIN)
        assert case.outer.envelope(row, lam).item() == pytest.approx(value, abs=MINIMUM, rel=MINIMUM)


@pytest.mark.parametrize(("case", "lam"), with_lams(WITH_PROX))
def test_prox_satisfies_the_three_point_inequality(case, lam):
    # h(v) = f(v) + |v - u|^2/(2 lam) is (1/lam)-strongly convex: v = argmin iff h(z) >= h(v) + |z - v|^2/(2 lam)
    u = case.rows(6)
    v = case.outer.prox(u, lam)
    z = torch.stack([cloud(row) for row in v])
    least = moved(case, v, u, lam).unsqueeze(1) + (z - v.unsqueeze(1)).square().sum(-1) / (2 * lam)
    found = moved(case, z.flatten(0, 1), u.repeat_interleave(z.shape[1], 0), lam).view_as(least)
    assert ((found - least).amin(1) >= -VALUE * (1 + least.abs().amax(1))).all()


@pytest.mark.parametrize("lam", [0.01, 0.05])
@pytest.mark.parametrize("case", NOT_CONVEX_WITH_PROX, ids=case_name)
def test_prox_of_a_non_convex_function_is_the_local_argmin(case, lam):
    u = case.rows(5).clamp(min=0.8)
    for row, v in zip(u, case.outer.prox(u, lam), strict=True):

        def objective(z, row=row):
            return moved(case, torch.tensor(z).reshape(1, -1), row, lam).item()

        found = minimize(objective, row.numpy(), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14})
        assert v.numpy() == pytest.approx(found.x, abs=ARGMIN)


@pytest.mark.parametrize("case", WITH_PROX, ids=case_name)
def test_envelope_gradient_is_the_slope_of_the_envelope(case):
    lam, h = 0.3, 1e-6
    u = case.rows(8)
    gradient = case.outer.envelope_gradient(u, lam)
    for j in range(case.width):
        step = h * torch.eye(case.width, dtype=torch.float64)[j]
        slope = (case.outer.envelope(u + step, lam) - case.outer.envelope(u - step, lam)) / (2 * h)
        assert torch.allclose(gradient[:, j], slope, rtol=SLOPE, atol=SLOPE)


@pytest.mark.parametrize("case", CONVEX, ids=case_name)
def test_subgradient_inequality_also_at_kinks(case):
    u = case.rows(12)
    lines = case.outer.value(u) + (case.outer.subgradient(u) * (u.unsqueeze(1) - u)).sum(-1)  # [z, u]: line at u in z
    assert (case.outer.value(u).unsqueeze(1) - lines).min() >= -VALUE * (1 + lines.abs().max())


@pytest.mark.parametrize("case", ALL_OUTER, ids=case_name)
def test_subgradient_is_the_gradient_away_from_kinks(case):
    h, u = 1e-6, case.rows(10)[:10].requires_grad_()
    (found,) = torch.autograd.grad(case.outer.value(u).sum(), u)
    assert torch.allclose(case.outer.subgradient(u), found, rtol=VALUE, atol=VALUE)
    for j in range(case.width):
        step = h * torch.eye(case.width, dtype=torch.float64)[j]
        slope = (case.outer.value(u + step) - case.outer.value(u - step)) / (2 * h)
        assert torch.allclose(found[:, j], slope, rtol=SLOPE, atol=SLOPE)


@pytest.mark.parametrize("case", ALL_OUTER, ids=case_name)
def test_shapes_and_dtypes_are_kept(case):
    u = case.rows(5).float()
    assert case.outer.value(u).shape == u.shape[:1]
    assert case.outer.value(u).dtype == case.outer.subgradient(u).dtype == torch.float32
    assert case.outer.subgradient(u).shape == u.shape
    if case.prox:
        small = case.outer.prox(u, 0.01)
        assert small.shape == u.shape
        assert small.dtype == torch.float32


@pytest.mark.parametrize("case", WITHOUT_PROX, ids=case_name)
def test_a_function_without_closed_form_says_so(case):
    u = case.rows(2)
    with pytest.raises(ConfigError, match="no closed-form prox"):
        case.outer.prox(u, 1.0)
    with pytest.raises(ConfigError, match="no closed-form prox"):
        case.outer.envelope(u, 1.0)


def test_local_prox_refuses_rows_without_a_stationary_point():
    row = torch.tensor([[0.5]])
    assert Log().prox(row, 0.06).item() > 0
    with pytest.raises(ConfigError, match=r"u >= 0\.52"):
        Log().prox(row, 0.0676)
    with pytest.raises(ConfigError, match="u >= 2"):
        Log().prox(torch.tensor([[-3.0]]), 1.0)
    rows = torch.tensor([[1.0, 0.5]])
    assert bool(torch.isfinite(Ratio().prox(rows, 0.001)).all())
    for lam in (0.05, 1.0, 50.0):  # Newton's method wanders, and may end at some positive v
        with pytest.raises(ConfigError, match="no stationary point"):
            Ratio().prox(rows, lam)


@pytest.mark.parametrize("lam", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("case", [c for c in WITH_PROX if c.width == 1][:12], ids=case_name)
def test_lam_must_be_positive(case, lam):
    u = case.rows(1)
    assert bool(torch.isfinite(case.outer.envelope(u, 0.5)).all())
    for method in (case.outer.envelope, case.outer.envelope_gradient):
        with pytest.raises(ConfigError, match="lam must be a finite number > 0"):
            method(u, lam)


def test_subgradient_of_the_hinge_is_zero_at_the_kink():
    assert Hinge(rho=3.0, kappa=0.5).subgradient(torch.tensor([[0.5]])).item() == 0

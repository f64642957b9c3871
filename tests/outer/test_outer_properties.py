"""Declared properties of outer functions: convexity, smoothness, Lipschitz constants, envelopes."""

from inspect import isabstract

import pytest
import torch

from fcco_lightning.errors import ConfigError
from fcco_lightning.objectives import PooledPairs
from fcco_lightning.outer import (
    Absolute,
    AveragedHinge,
    ChiSquare,
    DiscountedGain,
    Hinge,
    Linear,
    Log,
    LogRatio,
    MoreauSmoothing,
    Multiplied,
    NegativeLog,
    NoSmoothing,
    OuterFunction,
    Power,
    RandomizedSmoothing,
    Shifted,
    SmoothedHinge,
    Softplus,
    Square,
    SquaredHinge,
    slopes,
)
from tests.contracts.completeness import concrete_classes
from tests.outer.case import REFERENCES, Case, case_name
from tests.outer.cases import ALL_OUTER, CONVEX, SMOOTHED

ROUNDING = 1e-11  # float64 arithmetic on values up to about 1e3
JUMP = 10.0  # a Lipschitz gradient's difference quotient does not grow; a jump's grows 1e6-fold, |u|^(1/2)'s 1e3-fold
OF_SEVERAL_ROWS = [PooledPairs]  # in test_pooled_pairs.py: a case here evaluates any number of rows, one by one


def missing_from(known):
    """Names of the outer functions that ``known`` lacks; those of all rows together are tested with their estimator."""
    found = concrete_classes(OuterFunction) - set(OF_SEVERAL_ROWS)
    wanted = {c.__name__ for c in found if not (c.coupled or isabstract(c) or c.__name__.startswith("_"))}
    return sorted(wanted - set(known))


def test_every_outer_function_has_a_case_and_a_reference(monkeypatch):
    cases, references = ({c.__name__ for c in known} for known in ({type(c.outer) for c in ALL_OUTER}, REFERENCES))
    assert (missing_from(cases), missing_from(references)) == ([], [])
    dummy = type("Dummy", (Hinge,), {"__module__": Hinge.__module__})
    monkeypatch.setattr(f"{Hinge.__module__}.Dummy", dummy, raising=False)  # the check itself
    assert [missing_from(known) for known in (cases, references)] == [["Dummy"]] * 2


@pytest.mark.parametrize("case", ALL_OUTER, ids=case_name)
def test_convexity_flag(case):
    a, b = case.rows(40, seed=1), case.rows(40, seed=2)
    above = (case.outer(a) + case.outer(b)) / 2 - case.outer((a + b) / 2)
    assert bool((above >= -ROUNDING).all()) == case.outer.convex


@pytest.mark.parametrize("case", ALL_OUTER, ids=case_name)
def test_smoothness_flag(case):
    kinks = torch.tensor(case.kinks, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(20, 1, case.width, generator=generator, dtype=torch.float64)

    def quotient(size: float) -> float:
        ahead = slopes(case.outer, (kinks + size * directions).reshape(-1, case.width))
        back = slopes(case.outer, (kinks - size * directions).reshape(-1, case.width))
        return float(((ahead - back).norm(dim=1) / size).max())

    assert (quotient(1e-8) < JUMP * quotient(1e-2)) == case.outer.smooth


FINITE_LIPSCHITZ = [c for c in CONVEX if c.outer.lipschitz != float("inf")]


@pytest.mark.parametrize("case", FINITE_LIPSCHITZ, ids=case_name)
def test_lipschitz_constant_holds_and_is_attained(case):
    u = 20 * case.rows(400)
    steepest = slopes(case.outer, u).norm(dim=1).max()
    assert 0.999 * case.outer.lipschitz <= steepest <= case.outer.lipschitz * (1 + ROUNDING)


@pytest.mark.parametrize("outer", [Log(0.5, floor=0.1), LogRatio(0.5, floor=0.1), DiscountedGain(floor=0.1)], ids=repr)
def test_lipschitz_constant_of_a_function_of_logarithms_is_its_slope_at_the_floor(outer):
    row = torch.full((1, 2 if isinstance(outer, LogRatio) else 1), 0.1, dtype=torch.float64)
    assert slopes(outer, row).norm().item() == pytest.approx(outer.lipschitz)


@pytest.mark.parametrize("outer", [Square(), SquaredHinge(), ChiSquare(), Power(), NegativeLog()], ids=repr)
def test_unbounded_slopes_have_no_lipschitz_constant(outer):
    assert outer.lipschitz == float("inf")


@pytest.mark.parametrize("lam", [0.05, 0.7])
@pytest.mark.parametrize("case", [c for c in FINITE_LIPSCHITZ if c.envelope], ids=case_name)
def test_envelope_lies_within_lam_c_squared_over_two_of_the_function(case, lam):
    u = case.rows(100)
    gap = case.outer(u) - case.outer.smoothed(lam)(u)
    assert gap.min() >= -ROUNDING
    assert gap.max() <= lam * case.outer.lipschitz**2 / 2 + ROUNDING


@pytest.mark.parametrize("lam", [0.05, 0.7])
@pytest.mark.parametrize("case", SMOOTHED, ids=case_name)
def test_gradient_of_the_envelope_is_lipschitz_with_one_over_lam(case, lam):
    a, b = case.rows(60, seed=1), case.rows(60, seed=2)
    smooth = case.outer.smoothed(lam)
    assert smooth.smooth
    change = (slopes(smooth, a) - slopes(smooth, b)).norm(dim=1)
    assert bool((change <= (a - b).norm(dim=1) / lam * (1 + 1e-6) + ROUNDING).all())


def test_smoothing_maps_only_non_smooth_functions():
    hinge, square = Hinge(2.0), Square()
    assert MoreauSmoothing(0.1)(hinge) == SmoothedHinge(2.0, lam=0.1)
    assert MoreauSmoothing(0.1)(square) is square
    assert NoSmoothing()(hinge) is hinge
    assert RandomizedSmoothing(0.1)(hinge) == AveragedHinge(2.0, sigma=0.1)
    assert RandomizedSmoothing(0.1)(square) is square


@pytest.mark.parametrize("cap", [None, torch.tensor([[0.2]])])
def test_the_lagrangian_of_float32_rows_has_a_value(cap):
    """Apple's GPUs have no float64."""
    f = Multiplied(torch.tensor([[0.2]]), kappa=0.1, cap=cap)
    assert f(torch.tensor([[0.6]])).item() == pytest.approx(0.2 * 0.5)


def test_wide_rows_of_separable_functions_sum():
    u = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    for case in CONVEX:
        if case.width == 1 and case.low < 0:
            parts = sum(case.outer(u[:, j : j + 1]) for j in range(3))
            assert case.outer(u).item() == pytest.approx(parts.item(), rel=1e-12)


NOT_FINITE = float("nan"), float("inf")
BAD = [
    *(
        (make, 0.5, (*NOT_FINITE, 0.0, -1.0), f"{name} must be a finite number > 0")
        for name, make in (
            ("sigma", Hinge().averaged),
            ("scale", lambda v: Shifted(Hinge(), torch.zeros(()), v)),
        )
    ),
    (Power, 1.01, (*NOT_FINITE, 1.0, 0.5, -2.0), "p must be"),
    (Softplus, -0.5, (*NOT_FINITE, 0.0), "b must"),
]


@pytest.mark.parametrize(("make", "good", "bad", "message"), BAD)
def test_numbers_out_of_range_are_refused(make, good, bad, message):
    make(good)
    for value in bad:
        with pytest.raises(ConfigError, match=message):
            make(value)


@pytest.mark.parametrize("weights", [(0.0, 0.0), (1.0, float("nan")), (float("inf"), 1.0)])
def test_weights_of_a_sum_are_finite_and_not_all_zero(weights):
    with pytest.raises(ConfigError, match="weights must be finite numbers that are not all 0"):
        Linear(Hinge(), weights)


@pytest.mark.parametrize(
    "phi", [Log(), NegativeLog(), Softplus(-1.0), Softplus(1.0), ChiSquare(), Hinge(kappa=-0.1)], ids=repr
)
def test_an_absolute_value_needs_a_convex_function_with_slope_zero_at_zero(phi):
    Absolute(SquaredHinge(kappa=0.0))
    with pytest.raises(ConfigError, match="Absolute needs a convex"):
        Absolute(phi)


@pytest.mark.parametrize("case", ALL_OUTER, ids=case_name)
def test_require_convex(case: Case):
    if not case.convex:
        with pytest.raises(ConfigError, match=r"ALEXR needs a convex outer function, and .* is not convex"):
            case.outer.require_convex("ALEXR")
    else:
        case.outer.require_convex("ALEXR")

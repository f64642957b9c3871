"""Values and slopes of every outer function and its envelope against 60 digits, for float32 rows of any size."""

from collections.abc import Callable

import pytest
import torch
from mpmath import mpf

from fcco_lightning.outer import Maximum, NegativeLog, OuterFunction, Power, Softplus, slopes
from tests.outer.case import Case, Row, case_name
from tests.outer.cases import ALL_OUTER, SMOOTHED

DIGITS = {torch.float64: 1e-9, torch.float32: 1e-6}  # relative; rounding a result to float32 takes 6e-8 of it
SINGLE = torch.finfo(torch.float32)
SIZES = (1e-6, 1e-3, 0.3, 1.0, 50.0, 1e6)
LAMS = (1e-6, 1e-2, 1e3)


def rows(case: Case, *, positive: bool) -> torch.Tensor:
    """Float32 rows of every size, of both signs, and close to the kinks."""
    sizes = torch.tensor(SIZES)
    column = sizes if positive else torch.cat([sizes, -sizes, torch.zeros(1)])
    u = column.unsqueeze(1).expand(-1, case.width)
    first = torch.arange(case.width) == 0
    spread = [u, torch.where(first, u, u / 2), torch.where(first, u / 3, u), torch.where(first, u, 0.3 + 0 * u)]
    kinks = torch.tensor(case.kinks)
    near = [kinks, kinks * (1 + 2e-6), kinks * (1 - 2e-6), kinks + 1e-6 * first, kinks - 0.01 * first]
    found = torch.cat([*(spread if case.width > 1 else spread[:1]), *near])
    return found[(found > 0).all(dim=1)] if positive else found


def assert_precise(got: torch.Tensor, wanted: list[Row], u: torch.Tensor) -> None:
    """Relative to the largest entry of a row that is wanted."""
    exact = torch.tensor([[float(x) for x in row] for row in wanted], dtype=torch.float64)
    size = exact.abs().amax(dim=1)
    wrong = (got.view(exact.shape) - exact).abs().amax(dim=1) > DIGITS[got.dtype] * size.clamp(min=SINGLE.tiny)
    wrong &= size <= SINGLE.max
    assert not wrong.any(), [(a.tolist(), b.tolist(), c.tolist()) for a, b, c in zip(u, got, exact, strict=True)]


def assert_exact(f: OuterFunction, u: torch.Tensor, value: Callable[[Row], mpf], slope: Callable[[Row], Row]) -> None:
    """Of rows in float32, of which values are taken in float64."""
    exact = [[mpf(x) for x in row] for row in u.tolist()]
    assert f(u.double()).dtype == torch.float64
    assert slopes(f, u).dtype == torch.float32
    assert_precise(f(u.double()), [[value(row)] for row in exact], u)
    assert_precise(slopes(f, u), [slope(row) for row in exact], u)


@pytest.mark.parametrize("case", ALL_OUTER, ids=case_name)
def test_value_and_slope(case):
    exact = case.exact
    assert_exact(case.outer, rows(case, positive=case.low > 0), exact.value, exact.subgradient)


@pytest.mark.parametrize("lam", LAMS)
@pytest.mark.parametrize("case", SMOOTHED, ids=case_name)
def test_value_and_slope_of_the_envelope(case, lam):
    exact, smoothing = case.exact, mpf(lam)
    assert_exact(
        case.outer.smoothed(lam),
        rows(case, positive=False),
        lambda u: exact.envelope(u, smoothing),
        lambda u: exact.envelope_gradient(u, smoothing),
    )


@pytest.mark.parametrize(
    ("outer", "u", "lam", "slope"),
    [
        (NegativeLog(), [50.0], 1e-4, [-0.02]),
        (NegativeLog(), [-1e6], 1e-6, [-1e12]),
        (Softplus(), [1e6], 1e-4, [1.0]),
        (Power(), [1e-6], 1e-6, [4e-18]),
        (Maximum(), [1e6, 1e6], 1e-6, [0.5, 0.5]),
    ],
    ids=repr,
)
def test_slopes_that_a_difference_quotient_loses(outer, u, lam, slope):
    for dtype in (torch.float32, torch.float64):
        assert slopes(outer.smoothed(lam), torch.tensor([u], dtype=dtype))[0].tolist() == pytest.approx(
            slope, rel=1e-6, abs=0
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rows_of_lower_precision_are_rounded_once(dtype):
    u = torch.linspace(-2, 2, 33).to(dtype).unsqueeze(1)
    for case in SMOOTHED:
        if case.width == 1:
            f = case.outer.smoothed(0.01)
            assert torch.equal(slopes(f, u), slopes(f, u.double()).to(dtype))

"""Every map of every outer function in float32, against the same map in 60 digits, for rows and lam of any size."""

from typing import Any

import pytest
import torch
from mpmath import mpf

from fcco_lightning.outer import MoreauEnvelope, NegativeLog, Shifted, Softplus
from tests.outer.case import Case, case_name, reference
from tests.outer.cases import ALL_OUTER, WITH_PROX

DIGITS = 1e-6  # relative; rounding a result to float32 takes 6e-8 of it
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


def assert_precise(got: torch.Tensor, wanted: list[list[mpf]], u: torch.Tensor, beside: torch.Tensor | None = None):
    """Relative to the largest entry of a row that is wanted, or of the row of ``beside`` if that is larger."""
    assert got.dtype == torch.float32
    assert len(got) == len(wanted) > 0
    for place, (row, exact) in enumerate(zip(got.reshape(len(got), -1).tolist(), wanted, strict=True)):
        size = max(abs(x) for x in exact)
        if size > SINGLE.max:
            continue
        least = 0.0 if beside is None else beside[place].abs().max().item()
        error = max(abs(a - b) for a, b in zip(row, exact, strict=True))
        assert error <= DIGITS * max(size, least, SINGLE.tiny), (u[place].tolist(), row, [float(x) for x in exact])


def numbers(row: torch.Tensor) -> list[mpf]:
    return [mpf(x) for x in row.tolist()]


@pytest.mark.parametrize("case", ALL_OUTER, ids=case_name)
def test_value_and_subgradient(case):
    exact, u = reference(case.outer), rows(case, positive=case.low > 0 and not isinstance(case.outer, MoreauEnvelope))
    assert_precise(case.outer.value(u), [[exact.value(numbers(row))] for row in u], u)
    assert_precise(case.outer.subgradient(u), [exact.subgradient(numbers(row)) for row in u], u)


def with_lams(cases: list[Case]) -> list[Any]:
    """Every case with one lam, in turn, and with the others where tests are slow.

    Envelopes pass lam on to what they smooth, so that one is enough for them.
    """
    found = []
    for place, case in enumerate(cases):
        lams = LAMS[1:2] if isinstance(case.outer, MoreauEnvelope) else LAMS
        for number, lam in enumerate(lams):
            slow = [pytest.mark.slow] if (place + number) % len(lams) else []
            found.append(pytest.param(case, lam, id=f"{case_name(case)}-{lam}", marks=slow))
    return found


@pytest.mark.parametrize(("case", "lam"), with_lams([c for c in ALL_OUTER if c.prox]))
def test_prox_envelope_and_its_gradient(case, lam):
    exact, u = reference(case.outer), rows(case, positive=not case.outer.convex)
    u = u[case.proximal(u, lam)]
    if not len(u):
        return
    moved = [exact.prox(numbers(row), mpf(lam)) for row in u]
    assert_precise(case.outer.prox(u, lam), moved, u, beside=u)
    slopes = [exact.envelope_gradient(numbers(row), mpf(lam)) for row in u]
    assert_precise(case.outer.envelope_gradient(u, lam), slopes, u)
    values = [[exact.envelope(numbers(row), mpf(lam))] for row in u]
    assert_precise(case.outer.envelope(u, lam), values, u)


@pytest.mark.parametrize(("case", "tau"), with_lams(WITH_PROX))
def test_conjugate_prox(case, tau):
    exact, y = reference(case.outer), rows(case, positive=False)
    moved = [exact.conjugate_prox(numbers(row), mpf(tau)) for row in y]
    assert_precise(case.outer.conjugate_prox(y, tau), moved, y)


@pytest.mark.parametrize(
    ("outer", "u", "lam", "slope"),
    [(NegativeLog(), 50.0, 1e-4, -0.02), (Softplus(), 1e6, 1e-4, 1.0), (NegativeLog(), -1e6, 1e-6, -1e12)],
    ids=repr,
)
def test_slopes_that_a_difference_quotient_loses(outer, u, lam, slope):
    row = torch.tensor([[u]])
    assert outer.envelope_gradient(row, lam).item() == pytest.approx(slope, rel=DIGITS)
    assert outer.envelope_gradient(row.double(), lam).item() == pytest.approx(slope, rel=DIGITS)
    step = 1 / lam  # the same number as a dual step
    assert outer.conjugate_prox(row * step, step).item() == pytest.approx(slope, rel=DIGITS)


@pytest.mark.parametrize("case", WITH_PROX, ids=case_name)
def test_dual_rows_of_float32_lie_in_the_domain(case):
    y = case.outer.conjugate_prox(3 * case.rows(40).float(), 0.7)
    assert bool(torch.isfinite(case.outer.conjugate(y)).all())
    thirds = Shifted(case.outer, torch.tensor(0.1), 0.3)  # c y leaves the domain by the last bit of c
    assert bool(torch.isfinite(thirds.conjugate(thirds.conjugate_prox(3 * case.rows(40).float(), 0.7))).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_half_precision_are_rounded_once(dtype):
    u = torch.linspace(-2, 2, 33).to(dtype).unsqueeze(1)
    for case in WITH_PROX:
        if case.width == 1:
            got, wide = case.outer.envelope_gradient(u, 0.01), case.outer.envelope_gradient(u.double(), 0.01)
            assert torch.equal(got, wide.to(dtype))

"""Properties of every estimator in the registry."""

import numpy as np
import pytest
import torch

from fcco_lightning.outer import Hinge, Range, Shifted, Square, slopes

from .registry_estimators import BATCH, ESTIMATORS, LAM, RHO, N, first, follow

SMOOTHED = Hinge(RHO).smoothed(LAM)
every = pytest.mark.parametrize("member", ESTIMATORS.values(), ids=ESTIMATORS)


def update(estimator, rows, inner, previous=None, seen=None, inverse=N / BATCH, limits=Range()):  # noqa: B008
    """One update as an algorithm makes it: a row never visited counts as the first value."""
    previous = previous if estimator.needs_previous else None
    unseen = None if seen is None else ~seen.unsqueeze(1).expand(rows.shape)
    rows = rows if unseen is None else torch.where(unseen, first(estimator, inner).to(rows.dtype), rows)
    return follow(estimator, rows, inner, previous, SMOOTHED, inverse, unseen, limits)


@every
@pytest.mark.parametrize("width", [1, 2])
def test_fifty_steps_equal_the_formula_in_numpy(member, width):
    estimator, draw = member.make(), np.random.default_rng(0)
    chance = draw.uniform(0.2, 0.9, (N, 1))
    table, rows = np.full((N, width), 99.0), torch.full((N, width), 99.0, dtype=torch.float64)
    visited = np.zeros(N, dtype=bool)
    for _ in range(50):
        batch = draw.permutation(N)[:BATCH]
        now, before = draw.normal(0.2, 1.0, (2, BATCH, width))
        expected = member.formula(table[batch], now, before, visited[batch], 1 / chance[batch])
        table *= expected.others
        table[batch] = expected.rows
        index = torch.from_numpy(batch)
        tracked = update(
            estimator,
            rows[index],
            torch.from_numpy(now),
            torch.from_numpy(before),
            torch.from_numpy(visited[batch]),
            1 / torch.from_numpy(chance[batch]),
        )
        rows *= estimator.decay
        rows[index] = tracked.rows
        visited[batch] = True
        np.testing.assert_allclose(tracked.y.numpy(), expected.y, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(rows[index].numpy(), table[batch], rtol=1e-12, atol=1e-12)
    seen = visited if estimator.remembers else np.zeros(N, dtype=bool)
    np.testing.assert_allclose(rows.numpy()[seen], table[seen], rtol=1e-12, atol=1e-12)


@every
@pytest.mark.parametrize("width", [1, 3])
def test_the_first_visit_is_exact(member, width):
    inner, other = torch.tensor([[0.3, 0.1, -0.2]])[:, :width], torch.full((1, width), -5.0)
    estimator = member.make()
    tracked = update(estimator, other, inner, other, torch.tensor([False]))
    expected = member.formula(
        other.numpy(), inner.numpy(), other.numpy(), np.array([False]), np.full((1, 1), N / BATCH)
    )
    torch.testing.assert_close(tracked.y, torch.from_numpy(expected.y).float())
    if estimator.convex_only and not member.averages:  # it remembers y, from 0
        assert torch.equal(tracked.rows, tracked.y)
    else:
        assert torch.equal(tracked.rows, inner)


@every
def test_a_missing_previous_point_counts_as_the_present_one(member):
    rows, inner = torch.tensor([[0.1], [0.7]]), torch.tensor([[0.4], [-0.2]])
    estimator = member.make()
    one, other = (estimator.update(rows, inner, p, SMOOTHED, N / 2) for p in (None, inner))
    assert torch.equal(one, other)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(4, 1), (2, 3), (1, 2), (0, 1)])
def test_shape_and_dtype_stay(member, dtype, shape):
    rows, inner, previous = torch.randn(3, *shape, dtype=dtype)
    kept = [t.clone() for t in (rows, inner, previous)]
    tracked = update(member.make(), rows, inner, previous, torch.ones(shape[0], dtype=torch.bool))
    for one in (tracked.rows, tracked.y):
        assert (one.shape, one.dtype, one.requires_grad) == (shape, dtype, False)
    assert (tracked.value.shape, tracked.value.dtype) == (shape[:1], torch.float64)
    assert all(torch.equal(a, b) for a, b in zip(kept, (rows, inner, previous), strict=True))  # a pure map


@every
def test_single_precision_follows_double_precision(member):
    rows = {dtype: torch.zeros(N, 1, dtype=dtype) for dtype in (torch.float32, torch.float64)}
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        now, before = torch.randn(2, N, 1, generator=generator, dtype=torch.float64)
        tracked = {d: update(member.make(), rows[d], now.to(d), before.to(d)) for d in rows}
        rows = {d: t.rows for d, t in tracked.items()}
        torch.testing.assert_close(rows[torch.float32].double(), rows[torch.float64], rtol=1e-5, atol=1e-5)
        single, double = (tracked[d].y.double() for d in (torch.float32, torch.float64))
        torch.testing.assert_close(single, double, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name, member in ESTIMATORS.items() if member.averages])
def test_a_correction_does_not_carry_an_average_out_of_its_range(name):
    rows = torch.tensor([[0.9], [0.1], [0.5]])
    inner, previous = torch.tensor([[1.0], [0.0], [0.5]]), torch.tensor([[-30.0], [30.0], [0.4]])
    estimator = ESTIMATORS[name].make()
    free = update(estimator, rows, inner, previous, torch.ones(3, dtype=torch.bool)).rows
    held = update(estimator, rows, inner, previous, torch.ones(3, dtype=torch.bool), limits=Range(0.0, 1.0)).rows
    torch.testing.assert_close(held, free.clamp(0, 1))
    if estimator.needs_previous:
        assert free[0] > 1
        assert free[1] < 0


@pytest.mark.parametrize("name", [name for name, member in ESTIMATORS.items() if member.constant])
def test_bias_and_variance_at_fixed_weights(name):
    """An average of ``g + noise`` has the mean ``g + (1 - gamma)^t (u_0 - g)``, the variance of Lemma B.3 of the SONEX
    paper.
    """
    member = ESTIMATORS[name]
    estimator, gamma, g, start, noise, copies, steps = member.make(), member.gamma, 0.5, 2.0, 0.7, 40_000, 6
    rows = torch.full((copies, 1), start, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for t in range(1, steps + 1):
        inner = g + noise * torch.randn(copies, 1, generator=generator, dtype=torch.float64)
        # every row is in the batch, so MOAP's scale is one; f(u) = u^2/2, so y = u
        rows = estimator.update(rows, inner, inner, Square(0.5), 1.0)
        variance = gamma / (2 - gamma) * noise**2 * (1 - (1 - gamma) ** (2 * t))
        assert rows.mean().item() == pytest.approx(
            g + (1 - gamma) ** t * (start - g), abs=5 * (variance / copies) ** 0.5
        )
        assert rows.var().item() == pytest.approx(variance, rel=5 * (2 / copies) ** 0.5)


@every
def test_stale_or_fresh(member):
    estimator = member.make()
    tracked = follow(estimator, torch.tensor([[1.0]]), torch.tensor([[3.0]]), None, Square(0.5))
    at = 1 + 2 * member.gamma if member.fresh else 1.0
    assert tracked.y.item() == pytest.approx(at)


@every
def test_an_estimate_is_f_at_the_rows_with_its_slopes_there(member):
    """In the inner values and in a known parameter of f; where rows are dual, it is f at the batch with their slope."""
    estimator, s = member.make(), torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    outer = Shifted(SMOOTHED, s)
    rows, inner = torch.tensor([[0.4, 0.2], [0.7, -1.0], [0.1, 9.0]]), torch.tensor([[0.5, 0.3], [-0.1, 0.6], [2, 0.2]])
    g = inner.double().requires_grad_()
    value = estimator.estimate(outer, rows, g, inner)
    of_batch, of_parameter = torch.autograd.grad(value.sum(), (g, s))
    at, y = (rows, slopes(outer, rows.double())) if estimator.follows_values else (inner, rows.double())
    torch.testing.assert_close(value, outer(at.double()), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(of_batch, y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(of_parameter, -y.sum(), rtol=1e-12, atol=1e-12)

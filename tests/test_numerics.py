"""Numerical functions: projections, roots, finiteness and ties."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fcco_lightning.numerics import (
    Known,
    all_finite,
    counts,
    exp_with_tangent,
    first_of_equals,
    increasing_root,
    project_to_simplex,
    root,
)

EXACT = 1e-12  # closed forms in float64
SLSQP = 1e-6  # what the reference solver reaches


@pytest.mark.parametrize("radius", [1.0, 2.5])
def test_projection_to_the_simplex_against_a_solver(radius):
    generator = torch.Generator().manual_seed(0)
    for v in torch.randn(10, 4, generator=generator, dtype=torch.float64) * 2:
        found = minimize(
            lambda p, v=v: ((p - v.numpy()) ** 2).sum(),
            np.full(4, radius / 4),
            bounds=[(0, None)] * 4,
            constraints={"type": "eq", "fun": lambda p: p.sum() - radius},
            options={"ftol": 1e-15},
        )
        p = project_to_simplex(v.unsqueeze(0), radius)[0]
        assert p.sum().item() == pytest.approx(radius, abs=EXACT)
        assert p.numpy() == pytest.approx(found.x, abs=SLSQP)


def test_projection_keeps_points_of_the_simplex():
    p = torch.tensor([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(project_to_simplex(p), p, atol=EXACT, rtol=0)


def test_projection_of_rows_far_from_the_simplex_in_float32():
    v = torch.tensor([[3e8, 1.0], [-5e7, -5e7], [2e7, 2e7 - 2]])
    assert project_to_simplex(v).tolist() == [[1, 0], [0.5, 0.5], [1, 0]]


def test_root_of_an_increasing_function():
    target = torch.tensor([-8.0, 0.0, 2.0, 27.0], dtype=torch.float64)
    bound = torch.full_like(target, 5.0)
    found = increasing_root(lambda v: v**3 - target, -bound, bound)
    assert torch.allclose(found**3, target, atol=EXACT)


def test_root_at_the_ends_of_the_bracket():
    low, high = torch.zeros(1), torch.ones(1)
    assert increasing_root(lambda v: v + 0.0, low, high).item() == pytest.approx(0, abs=1e-6)
    assert increasing_root(lambda v: v - 1.0, low, high).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("target", [-1e6, -2.0, 0.0, 0.3, 4e9])
def test_root_of_a_function_of_one_number(target):
    assert root(lambda x: x**3 - target, 1e-15) == pytest.approx(np.cbrt(target), rel=1e-13)
    assert root(lambda x: float("nan"), 1e-15) == 0  # for whoever asked to find


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_all_finite(bad):
    good = [
        torch.tensor([3.0, -1e300], dtype=torch.float64),
        torch.zeros(()),
        torch.full((4,), 3e38),
    ]  # a sum overflows
    assert all_finite(good)
    assert not all_finite([*good, torch.tensor([[1.0, bad]])])
    assert not all_finite([torch.tensor([float("inf"), -float("inf")])])


@pytest.mark.parametrize("size", [0, 1, 2, 500, 1024, 1025, 4000])
@pytest.mark.parametrize("most", [1, 7, 1000])
def test_equal_entries_are_counted_and_found(size, most):
    """By tables of all pairs, or by sorting."""
    values = torch.randint(-most, most, (size,), generator=torch.Generator().manual_seed(size + most))
    _, place, number = np.unique(values.numpy(), return_inverse=True, return_counts=True)
    assert counts(values).tolist() == number[place].tolist()
    assert counts(values.double() / 3).tolist() == number[place].tolist()
    first = {}
    for position, value in enumerate(values.tolist()):
        first.setdefault(value, position)
    assert first_of_equals(values).tolist() == [first[value] for value in values.tolist()]
    assert counts(values).dtype == first_of_equals(values).dtype == torch.int64


def test_what_is_known_moves_once_to_where_it_is_used():
    known = Known(torch.tensor([1, 1 / 3], dtype=torch.float64))
    assert known.like(torch.zeros(1)) is known.values
    with torch.inference_mode():
        narrow = known.like(torch.zeros(1), torch.float32)
    assert torch.equal(narrow, torch.tensor([1, 1 / 3]))
    assert known.like(torch.zeros(1), torch.float32) is narrow
    assert not narrow.is_inference()
    assert known.like(torch.zeros(1, device="meta")).device.type == "meta"
    assert known.like(torch.zeros(1)).tolist() == [1, 1 / 3]  # no digit was lost on the way


def test_the_tangent_of_exp_rises_as_far_as_numbers_reach():
    x = torch.logspace(1, 11, 200).requires_grad_()
    value = exp_with_tangent(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert (value.diff() > 0).all()
    torch.testing.assert_close(slope, x.detach().clamp(max=60).exp())

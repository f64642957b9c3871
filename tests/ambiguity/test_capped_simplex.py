"""The capped simplex against scipy's linear programming, for caps that give whole numbers of entries and for others."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from fcco_lightning import CappedSimplex, ConfigError
from fcco_lightning.ambiguity import simplex as module

SIZES_AND_ALPHAS = [
    (1, 1.0),
    (5, 0.2),
    (5, 0.3),
    (5, 1.0),
    (7, 0.5),
    (8, 0.25),
    (8, 1 / 8),
    (83, 0.1),
    (83, 0.15),
    (400, 0.15),
]


def members(n, alpha, q):
    assert q.min() >= 0
    assert q.max() <= 1 / (alpha * n) * (1 + 1e-12)
    assert q.sum() == pytest.approx(1, abs=1e-12)


def support(alpha, slope):
    """``max <q, slope>`` over the members, a linear program."""
    n = len(slope)
    return -linprog(-slope, A_eq=np.ones((1, n)), b_eq=[1], bounds=[(0, 1 / (alpha * n))] * n).fun


@pytest.mark.parametrize(("n", "alpha"), SIZES_AND_ALPHAS)
def test_no_member_is_nearer_than_the_projection(n, alpha):
    random = np.random.default_rng(n)
    for scale in (0.01, 1.0, 100.0):
        v = random.normal(size=n) * scale
        q = CappedSimplex(alpha).project(torch.from_numpy(v)).numpy()
        members(n, alpha, q)
        # optimal iff <v - q, p - q> <= 0 for every member p
        assert support(alpha, v - q) - (v - q) @ q <= 1e-9 * max(1, scale)


@pytest.mark.parametrize(("n", "alpha"), SIZES_AND_ALPHAS)
@pytest.mark.parametrize("scale", [1e9, 1e20, 1e54])
def test_of_numbers_far_apart_the_largest_get_the_weight(n, alpha, scale):
    """As while a solver whose first step was too large comes back: the projection is a vertex, to the last digit."""
    v = torch.from_numpy(np.random.default_rng(n).normal(size=n) * scale)
    q = CappedSimplex(alpha).project(v)
    members(n, alpha, q.numpy())
    torch.testing.assert_close(q, CappedSimplex(alpha).worst_case(v), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("n", "alpha"), [(2, 0.55), (5, 0.37), (7, 0.5), (9, 1.0), (83, 0.1)])
@pytest.mark.parametrize("scale", [1e4, 1e6, 1e30])
def test_projections_of_single_precision_numbers_far_apart(n, alpha, scale):
    """Of large losses the exponentials of all but the largest vanish, and still somebody has to take what is left."""
    v = torch.from_numpy(np.random.default_rng(n).normal(size=n) * scale).float()
    v[: n // 3] = v[: n // 3] / scale
    capped = CappedSimplex(alpha)
    for project in (capped.project, capped.project_kl):
        q = project(v)
        assert q.dtype == torch.float32
        torch.testing.assert_close(q, project(v.double()).float(), rtol=0, atol=1e-6)
        members(n, alpha * (1 - 1e-6), (q.double() / q.double().sum()).numpy())
        assert q.sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("n", "alpha"), SIZES_AND_ALPHAS)
def test_both_ways_to_the_projection_are_the_same(n, alpha, monkeypatch):
    """By a table and by bisection, with ties."""
    v = torch.from_numpy(np.random.default_rng(n).normal(size=n).round(1))
    found = []
    for table in (0, 10**9):
        monkeypatch.setattr(module, "_TABLE", table)
        found.append(CappedSimplex(alpha).project(v))
    torch.testing.assert_close(*found, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("n", "alpha"), SIZES_AND_ALPHAS)
def test_no_member_has_a_smaller_divergence_than_the_kl_projection(n, alpha):
    random = np.random.default_rng(n)
    for scale in (0.01, 1.0, 5.0):
        log_p = random.normal(size=n) * scale + random.normal()
        q = CappedSimplex(alpha).project_kl(torch.from_numpy(log_p)).numpy()
        members(n, alpha, q)
        slope = log_p - np.log(np.maximum(q, 1e-300))
        assert support(alpha, slope) - slope @ q <= 1e-8 * max(1, scale)


@pytest.mark.parametrize("shift", [-5000.0, 0.0, 5000.0])
def test_kl_projection_of_weights_of_any_size(shift):
    log_p = torch.tensor([0.0, -1.0, -800.0, -2.0], dtype=torch.float64) + shift
    q = CappedSimplex(alpha=0.5).project_kl(log_p)  # cap 1/2
    share = 1 / (1 + np.exp(-1))
    assert q.tolist() == pytest.approx([0.5, 0.5 * share, 0, 0.5 * (1 - share)], abs=1e-8)


def test_less_than_one_group_is_refused():
    CappedSimplex(1 / 3).check(3)
    with pytest.raises(ConfigError, match=r"alpha=0.1 of 5 groups or samples is 0.5 of one"):
        CappedSimplex(0.1).check(5)

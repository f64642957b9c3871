"""Figures of the worst groups against numpy, linear programming and counting by hand."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from fcco_lightning.errors import ConfigError, DataError, NonFiniteError
from fcco_lightning.evaluation.metrics import cvar, cvar_weights, group_means, num_worst, worst_fraction, worst_group

NAN = math.nan


def random_losses(seed, size, ties):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 4, size).astype(float) if ties else rng.normal(size=size)


# --------------------------------------------------------------------------------------------------------------- means


def test_many_float32_values_are_added_in_float64():
    values = torch.full((300_000,), 0.1)
    means, _ = group_means(values, torch.zeros(300_000, dtype=torch.int64), 1)
    assert means.item() == pytest.approx(values[0].double().item(), rel=1e-12)


def test_no_samples_are_empty_groups():
    means, counts = group_means(torch.zeros(0), torch.zeros(0, dtype=torch.int64), 2)
    assert means.isnan().all()
    assert counts.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("groups", "size", "error", "match"),
    [
        ([0, 3], 3, DataError, r"0\.\.2 .*got 3 at position 1"),
        ([-1, 0], 3, DataError, "got -1 at position 0"),
        ([0.0, 1.0], 3, DataError, "whole numbers"),
        ([0, 0, 0], 3, DataError, r"groups \(3,\)"),
        ([0, 0], 0, ConfigError, "num_groups"),
    ],
)
def test_groups_that_are_none(groups, size, error, match):
    with pytest.raises(error, match=match):
        group_means(torch.zeros(2), torch.tensor(groups), size)


def test_the_worst_of_those_present():
    values = torch.tensor([0.5, NAN, 0.25, 0.75])
    assert worst_group(values).item() == 0.25
    assert worst_group(values, highest=True).item() == 0.75


# ---------------------------------------------------------------------------------------------------------------- tail


def test_number_of_worst_groups_is_exact():
    """Against whole-number arithmetic: alpha = percent / 100."""
    for size in range(1, 400):
        for percent in (1, 5, 7, 10, 15, 29, 30, 57, 58, 100):
            assert num_worst(size, percent / 100) == max(1, -(-percent * size // 100)), (size, percent)


def test_absent_groups_and_ties():
    accuracy = torch.tensor([NAN, 0.5, 0.2, 0.5, NAN, 0.9])
    counts = torch.tensor([0, 10, 5, 1000, 0, 7])
    assert worst_fraction(accuracy, 0.5).item() == pytest.approx(0.35)  # 2 of the 4 present
    assert worst_fraction(accuracy, 0.5, counts).item() == pytest.approx((1 + 505 / 2) / (5 + 505))  # both in part


# ---------------------------------------------------------------------------------------------------------------- CVaR


def weights_by_linear_program(losses, alpha):
    """Largest value of q L over the capped simplex."""
    size = len(losses)
    cap = min(1.0, 1 / (alpha * size))
    return -linprog(-losses, A_eq=np.ones((1, size)), b_eq=[1], bounds=[(0, cap)] * size).fun


def cvar_by_threshold(losses, alpha):
    """The least of a piecewise linear function is at one of its kinks."""
    return min(s + np.maximum(losses - s, 0).sum() / (alpha * len(losses)) for s in losses)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("alpha", [0.02, 0.1, 0.3, 0.77, 1.0])
@pytest.mark.parametrize("size", [1, 3, 10, 30])
def test_cvar_by_both_of_its_definitions(size, alpha, ties):
    losses = random_losses(size, size, ties)
    value, largest = cvar(torch.tensor(losses), alpha).item(), weights_by_linear_program(losses, alpha)
    assert value == pytest.approx(cvar_by_threshold(losses, alpha), rel=1e-9, abs=1e-9)
    assert value == pytest.approx(largest, rel=1e-7, abs=1e-7)
    q = cvar_weights(torch.tensor(losses), alpha).numpy()
    assert q.sum() == pytest.approx(1)
    assert (q >= 0).all()
    assert (q <= min(1, 1 / (alpha * size)) + 1e-12).all()
    assert q @ losses == pytest.approx(largest, rel=1e-7, abs=1e-7)
    for level in np.unique(losses):
        assert np.ptp(q[losses == level]) == 0  # equal losses, equal weights


def test_float32_losses_are_taken_exactly():
    losses = torch.tensor([0.1, 0.7, 0.3], dtype=torch.float32)
    q = cvar_weights(losses, 0.5)
    assert q.dtype == torch.float64
    assert q.tolist() == pytest.approx([0, 2 / 3, 1 / 3], abs=1e-15)
    assert cvar(losses, 0.5).item() == pytest.approx(
        (2 * losses[1].double() + losses[2].double()).item() / 3, rel=1e-15
    )


def test_absent_groups_have_no_weight():
    with_gap = torch.tensor([NAN, 4.0, 1.0, NAN, 2.0])
    assert cvar(with_gap, 0.5).item() == cvar(torch.tensor([4.0, 1.0, 2.0]), 0.5).item()
    assert cvar_weights(with_gap, 0.5).tolist() == pytest.approx([0, 2 / 3, 0, 0, 1 / 3])


# ------------------------------------------------------------------------------------------------------------ mistakes

OF_ALPHA = [worst_fraction, cvar, cvar_weights]


@pytest.mark.parametrize("function", OF_ALPHA)
@pytest.mark.parametrize("alpha", [0, -0.1, 1.5, NAN, "0.1"])
def test_bad_alpha(function, alpha):
    with pytest.raises(ConfigError, match=r"alpha must lie in \(0, 1\], got"):
        function(torch.zeros(3), alpha)


@pytest.mark.parametrize("function", [worst_group, *(lambda v, f=f: f(v, 0.5) for f in OF_ALPHA)])
@pytest.mark.parametrize(
    ("values", "error", "match"),
    [
        (torch.full((3,), NAN), DataError, "all of the 3 groups are absent"),
        (torch.zeros(0), DataError, "all of the 0 groups"),
        (torch.zeros(2, 2), DataError, r"shape \(G,\), is needed, got \(2, 2\)"),
        (torch.tensor([0.0, math.inf]), NonFiniteError, "inf for group 1"),
    ],
)
def test_bad_values(function, values, error, match):
    with pytest.raises(error, match=match):
        function(values)


def test_counts_of_other_groups():
    with pytest.raises(DataError, match=r"counts \(2,\)"):
        worst_fraction(torch.zeros(3), 0.5, torch.ones(2))


def test_the_mean_of_the_worst_groups_is_in_float64():
    values = torch.tensor([0.0, 1.0, 1.0, 1.0, 5.0], dtype=torch.float64) / 3
    assert worst_fraction(values, 0.5).item() == pytest.approx(2 / 9, abs=1e-15)  # 0 and two of the three equal ones

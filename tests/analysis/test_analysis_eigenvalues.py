"""Gram matrices and their eigenvalues against numpy."""

import math

import numpy as np
import pytest
import torch

from fcco_lightning.analysis import gram, jacobian, spectrum, stationarity
from tests.analysis.problems import GROUPS, SIZE, cut, make, whole


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (7, 3)])
def test_the_gram_matrix_and_its_eigenvalues_as_numpy(shape):
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    singular_values = np.zeros(shape[0])
    singular_values[: min(shape)] = np.linalg.svd(rows.numpy(), compute_uv=False)
    torch.testing.assert_close(gram(rows), rows @ rows.T)
    got = spectrum(gram(rows))
    assert got.lambda_max == pytest.approx(singular_values.max() ** 2)
    assert got.lambda_min == pytest.approx(singular_values.min() ** 2, abs=1e-12)


def test_two_equal_groups_make_the_gram_matrix_singular():
    batch = whole()
    batch["group"] = batch["group"].clamp(max=GROUPS - 2)
    first = spectrum(gram(jacobian(make(groups=GROUPS - 1), [batch]).rows))
    assert first.lambda_min > 1e-8 * first.lambda_max
    assert first.condition == pytest.approx(first.lambda_max / first.lambda_min)
    own = batch["group"] == 2
    twice = {k: torch.cat([v, v[own]]) for k, v in batch.items()}
    twice["group"][SIZE:] = GROUPS - 1
    found = spectrum(gram(jacobian(make(), cut(twice, 7)).rows))
    assert 0 <= found.lambda_min < 1e-14 * found.lambda_max
    assert found.condition == math.inf


def test_the_gram_matrix_goes_through_blocks(monkeypatch):
    found = jacobian(make(), [whole()])
    expected = gram(found.rows), stationarity(make().objective, found, [0.0, 0.1])
    monkeypatch.setattr("fcco_lightning.analysis.inner_jacobian._BLOCK", 3 * GROUPS)
    torch.testing.assert_close(gram(found.rows), expected[0])
    for got, other in zip(stationarity(make().objective, found, [0.0, 0.1]), expected[1], strict=True):
        assert got == pytest.approx(other)

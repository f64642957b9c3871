"""Piecewise linear features of columns."""

import statistics
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import StandardScaler

from fcco_lightning.data.features import PiecewiseFeatures
from fcco_lightning.errors import ConfigError


def columns(n=2000, seed=0):
    """A normal one, one of which nine values in ten are equal, an indicator, a constant and one of two numbers."""
    rng = np.random.default_rng(seed)
    rare = np.where(rng.random(n) < 0.9, 0, rng.exponential(1000, n).round())
    return np.column_stack([rng.normal(5, 3, n), rare, rng.random(n) < 0.02, np.full(n, 7.0), rng.integers(3, 5, n)])


def test_features_are_the_numbers_and_how_much_of_every_piece_lies_below_them():
    X, new = columns(), columns(seed=1) * 1.3  # beyond the pieces, too
    made = PiecewiseFeatures(pieces=4).fit(X)
    expected = StandardScaler().fit(X).transform(new)
    expected[:, 2] = new[:, 2] - X[:, 2].mean()  # in its size
    expected[:, 3] = 0  # of a constant nothing is learnt
    for j in (0, 1):
        quarters = [statistics.quantiles(of, n=4, method="inclusive") for of in (X[:, j], set(X[:, j]))]
        ends = sorted({X[:, j].min(), *quarters[0], *quarters[1], X[:, j].max()})
        np.testing.assert_allclose(made.ends_[j], ends, rtol=1e-12)
        below = [np.interp(new[:, j], [a, b], [0, 1]) for a, b in pairwise(ends)]
        expected = np.column_stack([expected, *below])
    assert list(made.ends_) == [0, 1]  # the others have two values at most
    np.testing.assert_allclose(made.transform(new), expected, atol=1e-9)


def test_weights_of_the_features_are_any_function_that_is_linear_on_the_pieces():
    x = columns()[:, :1]
    made = PiecewiseFeatures(pieces=6).fit(x)
    bends = np.interp(x[:, 0], made.ends_[0], [3, -1, 4, 1, -5, 9, 2])
    found = LinearRegression().fit(made.transform(x), bends).predict(made.transform(x))
    np.testing.assert_allclose(found, bends, atol=1e-9)


@pytest.mark.parametrize(
    ("samples", "numbers", "pieces"),
    [(999, 1, 1), (1000, 1, 2), (3000, 1, 6), (50_000, 1, 48), (3000, 100, 5), (3000, 300, 1)],
)
def test_pieces_need_samples_and_few_columns(samples, numbers, pieces):
    X = np.random.default_rng(0).random((samples, numbers))
    found = PiecewiseFeatures().fit(X).ends_
    assert {len(ends) - 1 for ends in found.values()} == ({pieces} if pieces > 1 else set())


def test_a_sparse_matrix_has_no_pieces():
    X = columns()
    thin = sparse.csr_matrix(X)
    made = PiecewiseFeatures().fit(thin)
    np.testing.assert_allclose(made.transform(thin).std(0), [1, 1, X[:, 2].std(), 0, 1])
    assert not made.transform(thin)[X == 0].any()
    for kind in (sparse.csc_matrix, sparse.coo_matrix):
        again = PiecewiseFeatures().fit(kind(X)).transform(kind(X))
        np.testing.assert_array_equal(again, made.transform(thin))
    with pytest.raises(ConfigError, match="pieces=2 needs an array, and X is a sparse matrix"):
        PiecewiseFeatures(2).fit(thin)
    with pytest.raises(ConfigError, match=r"pieces must be a whole number >= 1, got 0\. 1 stands for no pieces"):
        PiecewiseFeatures(0).fit(X)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix])
def test_a_constant_column_says_nothing_later_either(kind):
    X = np.column_stack([np.linspace(0, 1, 9), np.full(9, 0.1), np.ones(9), np.zeros(9)])
    made = PiecewiseFeatures(pieces=1).fit(kind(X))
    assert not made.transform(kind(X))[:, 1:].any()
    assert not made.transform(kind(X * 7 - 3 * (X == 0)))[:, 1:].any()

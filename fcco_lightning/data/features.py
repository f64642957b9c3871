"""Features of columns of numbers for a network, fitted on the training split only."""

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.preprocessing import StandardScaler

from fcco_lightning.checks import at_least
from fcco_lightning.errors import ConfigError

FloatArray = npt.NDArray[np.float64]
Pieces = int | Literal["auto"]
_MOST, _SAMPLES, _FEATURES = 48, 500, 512  # pieces of a column; samples for each; pieces of all columns together


def ends_of_pieces(columns: Sequence[FloatArray], pieces: Pieces, samples: int) -> list[FloatArray]:
    """Return the ends a_k, in increasing order, of the pieces of every column; none of one with two values at most.

    They are the quantiles k / pieces of the values and those of the distinct values; the latter divide a column of
    which most values are equal, too.

    Args:
        columns: the values of each, of any shape (n,).
        pieces: number of pieces for each of the two kinds of quantiles, or "auto" for what the samples allow.
        samples: number of rows of the table.
    """
    if pieces == 1:
        return [np.empty(0) for _ in columns]
    distinct = [np.unique(values) for values in columns]
    divisible = [len(of) > 2 for of in distinct]
    allowed = min(_MOST, samples // _SAMPLES, _FEATURES // max(1, sum(divisible)))
    number = max(1, allowed) if pieces == "auto" else at_least("pieces", pieces, 1)
    shares = np.linspace(0, 1, number + 1)
    return [
        np.unique(np.quantile(of, shares).tolist() + np.quantile(values, shares).tolist())
        if many and number > 1
        else np.empty(0)
        for of, values, many in zip(distinct, columns, divisible, strict=True)
    ]


def shares_below(values: FloatArray, ends: FloatArray) -> FloatArray:
    """Return how much of every piece lies below ``values`` (n,), shape (n, number of pieces)."""
    return np.clip((values[:, None] - ends[:-1]) / np.diff(ends), 0, 1)


class PiecewiseFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Columns of numbers, each followed by how much of every piece of its range lies below the value.

    A column that is constant becomes 0, so that another value, of which nothing was learnt, changes no score.  One of 0
    and 1 keeps its size: divided by its small deviation, that of a rare category would outweigh all others.  Any other
    becomes ``(x - mean) / deviation``, and, where there are pieces ``[a_k, a_{k+1}]``, beside it

    .. math:: \min\{1, \max\{0, (x - a_k) / (a_{k+1} - a_k)\}\},

    so that a layer of weights is any function of the column that is linear on each piece: perceptrons learn steps and
    bends badly from the number alone (Gorishniy, Rubachev and Babenko, *On Embeddings for Numerical Features in Tabular
    Deep Learning*, NeurIPS 2022, Section 3.2).  The ends a_k are those of :func:`ends_of_pieces`.

    Args:
        pieces: number of pieces for each of the two kinds of quantiles; 1 for none; "auto" for one piece for every 500
            samples, at most 48, and about 512 of all columns together.  A sparse matrix has none.

    Attributes:
        ends_: the ends a_k of the pieces, in increasing order, for every column that has some.

    Raises:
        ConfigError: if ``pieces`` is not a whole number >= 1, or above 1 for a sparse matrix.

    Example:
        >>> PiecewiseFeatures(pieces=2).fit([[0.0], [1.0], [2.0]]).transform([[1.5]])[0, 1:]
        array([1. , 0.5])
    """

    def __init__(self, pieces: Pieces = "auto") -> None:
        self.pieces = pieces

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Learn means, deviations and pieces from ``X`` (n, d), an array or a sparse matrix."""
        thin = sparse.issparse(X)
        if thin and self.pieces != "auto" and at_least("pieces", self.pieces, 1) > 1:
            raise ConfigError(
                f"pieces={self.pieces} needs an array, and X is a sparse matrix. Leave it out, or give X.toarray()."
            )
        X = X if thin else np.asarray(X, dtype=np.float64)
        self._scaler = StandardScaler(with_mean=not thin).fit(X)
        self._scaler.scale_[_indicators(X)] = 1.0
        self._scaler.scale_[_constant(X)] = np.inf
        ends = [] if thin else ends_of_pieces(X.T, self.pieces, len(X))
        self.ends_ = {j: of for j, of in enumerate(ends) if len(of)}
        return self

    def transform(self, X: Any) -> FloatArray:
        """Return the features of ``X`` (n, d): an array, of as many columns again as there are pieces."""
        if sparse.issparse(X) and not self._scaler.with_mean:
            return np.asarray(self._scaler.transform(X).toarray(), dtype=np.float64)
        X = np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=np.float64)
        below = [shares_below(X[:, j], ends) for j, ends in self.ends_.items()]
        return np.concatenate([self._scaler.transform(X), *below], axis=1)


def _indicators(X: Any) -> Any:
    """Which columns hold 0 and 1 only, shape (d,)."""
    if not sparse.issparse(X):
        return ((X == 0) | (X == 1)).all(0)
    others = X.indices[(X.data != 0) & (X.data != 1)]
    return np.bincount(others, minlength=X.shape[1]) == 0


def _constant(X: Any) -> Any:
    """Which columns hold one number only, shape (d,)."""
    low, high = X.min(0), X.max(0)
    return (low == high) if not sparse.issparse(X) else (low.toarray() == high.toarray())[0]

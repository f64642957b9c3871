"""Features of numeric columns for a network, fitted on the training split only."""

from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.preprocessing import StandardScaler

from fcco_lightning.data.pieces import FloatArray, Pieces, ends_of_pieces, pieces_of, shares_below
from fcco_lightning.errors import ConfigError


class PiecewiseFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Standardises numeric columns and adds piecewise linear features for the pieces of their ranges.

    A constant column becomes 0, so that values that were not seen in training do not change the score.  A column of 0
    and 1 is centred but not scaled: divided by its small deviation, a rare category would outweigh all others.  Any
    other becomes ``(x - mean) / deviation`` and, for every piece ``[a_k, a_{k+1}]`` of its range, the share of the
    piece below x,

    .. math:: \min\{1, \max\{0, (x - a_k) / (a_{k+1} - a_k)\}\},

    so that a linear layer can represent every function that is linear on each piece; perceptrons learn steps and
    bends badly from the number alone (Gorishniy, Rubachev and Babenko, *On Embeddings for Numerical Features in Tabular
    Deep Learning*, NeurIPS 2022, Section 3.2).  The ends a_k are computed by
    :func:`~fcco_lightning.data.pieces.ends_of_pieces`.

    Args:
        pieces: number of pieces for each of the two kinds of quantiles; 1 for none; "auto" for one piece per 500
            samples, at most 48, and about 512 in all columns together.  A sparse matrix has none.

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
        thin, pieces = sparse.issparse(X), pieces_of("pieces", self.pieces)
        if thin and pieces not in ("auto", 1):
            raise ConfigError(
                f"pieces={self.pieces} needs an array, and X is a sparse matrix. Leave it out, or give X.toarray()."
            )
        X = X.tocsr() if thin else np.asarray(X, dtype=np.float64)
        self._scaler = StandardScaler(with_mean=not thin).fit(X)
        self._scaler.scale_[_indicators(X)] = 1.0
        self._scaler.scale_[_constant(X)] = np.inf
        ends = [] if thin else ends_of_pieces(X.T, pieces, len(X))
        self.ends_ = {j: column_ends for j, column_ends in enumerate(ends) if len(column_ends)}
        return self

    @property
    def columns(self) -> list[int]:
        """For every feature the number of its column of X."""
        pieces = [j for j, ends in self.ends_.items() for _ in ends[1:]]
        return [*range(len(self._scaler.scale_)), *pieces]

    def transform(self, X: Any) -> FloatArray:
        """Return the features of ``X`` (n, d), an array or a sparse matrix, as an array (n, d + number of pieces)."""
        if sparse.issparse(X) and not self._scaler.with_mean:
            return np.asarray(self._scaler.transform(X).toarray(), dtype=np.float64)
        X = np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=np.float64)
        shares = [shares_below(X[:, j], ends) for j, ends in self.ends_.items()]
        return np.concatenate([self._scaler.transform(X), *shares], axis=1)


def _indicators(X: Any) -> Any:
    """Whether a column holds only 0 and 1, shape (d,)."""
    if not sparse.issparse(X):
        return ((X == 0) | (X == 1)).all(0)
    others = X.indices[(X.data != 0) & (X.data != 1)]
    return np.bincount(others, minlength=X.shape[1]) == 0


def _constant(X: Any) -> Any:
    """Whether a column holds only one number, shape (d,)."""
    low, high = X.min(0), X.max(0)
    return (low == high) if not sparse.issparse(X) else (low.toarray() == high.toarray())[0]

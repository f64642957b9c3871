"""Features of columns of numbers for a network, fitted on the training split only."""

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.preprocessing import StandardScaler

from fcco_lightning.checks import at_least
from fcco_lightning.errors import ConfigError

_MOST, _SAMPLES, _FEATURES = 48, 500, 512  # pieces of a column; samples for each; pieces of all columns together


class PiecewiseFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Columns of numbers, each followed by how much of every piece of its range lies below the value.

    A column of 0 and 1 keeps its size: divided by its small deviation, that of a rare category would outweigh all
    others.  Any other becomes ``(x - mean) / deviation``, and, where there are pieces ``[a_k, a_{k+1}]``, beside it

    .. math:: \min\{1, \max\{0, (x - a_k) / (a_{k+1} - a_k)\}\},

    so that a layer of weights is any function of the column that is linear on each piece: perceptrons learn steps and
    bends badly from the number alone (Gorishniy, Rubachev and Babenko, *On Embeddings for Numerical Features in Tabular
    Deep Learning*, NeurIPS 2022, Section 3.2).  The ends a_k are the quantiles k / pieces of the training values and
    those of their distinct values; the latter divide a column of which most values are equal, too.

    Args:
        pieces: number of pieces for each of the two kinds of quantiles; 1 for none; None for one piece for every 500
            samples, at most 48, and about 512 of all columns together.  A sparse matrix has none.

    Attributes:
        edges_: the ends a_k of the pieces, in increasing order, for every column that has some.

    Raises:
        ConfigError: if ``pieces`` is not a whole number >= 1, or above 1 for a sparse matrix.

    Example:
        >>> PiecewiseFeatures(pieces=2).fit([[0.0], [1.0], [2.0]]).transform([[1.5]])[0, 1:]
        array([1. , 0.5])
    """

    def __init__(self, pieces: int | None = None) -> None:
        self.pieces = pieces

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: ARG002
        """Learn means, deviations and pieces from ``X`` (n, d), an array or a sparse matrix."""
        thin = sparse.issparse(X)
        if thin and self.pieces is not None and at_least("pieces", self.pieces, 1) > 1:
            raise ConfigError(
                f"pieces={self.pieces} needs an array, and X is a sparse matrix. Leave it out, or give X.toarray()."
            )
        X = X if thin else np.asarray(X, dtype=np.float64)
        self._scaler = StandardScaler(with_mean=not thin).fit(X)
        indicators = _indicators(X)
        self._scaler.scale_[indicators] = 1.0
        self.edges_ = {} if thin else self._edges(X, np.flatnonzero(~indicators))
        return self

    def transform(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the features of ``X`` (n, d): an array, of as many columns again as there are pieces."""
        if sparse.issparse(X):
            return np.asarray(self._scaler.transform(X).toarray(), dtype=np.float64)
        X = np.asarray(X, dtype=np.float64)
        below = [np.clip((X[:, [j]] - a[:-1]) / np.diff(a), 0, 1) for j, a in self.edges_.items()]
        return np.concatenate([self._scaler.transform(X), *below], axis=1)

    def _edges(self, X: npt.NDArray[np.float64], numbers: npt.NDArray[np.intp]) -> dict[int, npt.NDArray[np.float64]]:
        """Of the columns of ``numbers``, those with three values or more."""
        pieces = self._pieces(len(X), len(numbers))
        shares = np.linspace(0, 1, pieces + 1)
        distinct = {int(j): np.unique(X[:, j]) for j in (numbers if pieces > 1 else [])}
        return {
            j: np.unique(np.quantile(values, shares).tolist() + np.quantile(X[:, j], shares).tolist())
            for j, values in distinct.items()
            if len(values) > 2
        }

    def _pieces(self, samples: int, columns: int) -> int:
        if self.pieces is not None:
            return at_least("pieces", self.pieces, 1)
        return max(1, min(_MOST, samples // _SAMPLES, _FEATURES // max(columns, 1)))


def _indicators(X: Any) -> Any:
    """Which columns hold 0 and 1 only, shape (d,)."""
    if not sparse.issparse(X):
        return ((X == 0) | (X == 1)).all(0)
    others = X.indices[(X.data != 0) & (X.data != 1)]
    return np.bincount(others, minlength=X.shape[1]) == 0

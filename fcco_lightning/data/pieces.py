"""Pieces of the range of a numeric column, and the share of each piece that lies below a value."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from fcco_lightning.checks import at_least
from fcco_lightning.errors import ConfigError

FloatArray = npt.NDArray[np.float64]
Pieces = int | Literal["auto"]
_MOST, _SAMPLES, _FEATURES = 48, 500, 512  # pieces of a column; samples per piece; pieces of all columns together


def pieces_of(name: str, pieces: Pieces) -> Pieces:
    """Return ``pieces`` if it is a whole number >= 1 or "auto", else raise :class:`ConfigError` naming the argument."""
    try:
        return "auto" if pieces == "auto" else at_least(name, pieces, 1)
    except ConfigError as error:
        raise ConfigError(f"{error} 1 stands for no pieces, 'auto' for as many as the samples allow.") from None


def ends_of_pieces(columns: Sequence[FloatArray], pieces: Pieces, samples: int) -> list[FloatArray]:
    """Return for every column the ends a_k of its pieces, in increasing order; none if it has at most two values.

    The ends are the quantiles k / pieces of the values and those of the distinct values; the latter divide even a
    column whose values are mostly equal.

    Args:
        columns: the values of every column, shape (its number of values,).
        pieces: number of pieces for each of the two kinds of quantiles, or "auto".
        samples: number of rows of the table.
    """
    if pieces == 1:
        return [np.empty(0) for _ in columns]
    distinct = [np.unique(values) for values in columns]
    divisible = [len(uniques) > 2 for uniques in distinct]
    most_pieces = min(_MOST, samples // _SAMPLES, _FEATURES // max(1, sum(divisible)))
    number = max(1, most_pieces) if pieces == "auto" else int(pieces)
    shares = np.linspace(0, 1, number + 1)
    return [
        np.unique(np.quantile(uniques, shares).tolist() + np.quantile(values, shares).tolist())
        if is_divisible and number > 1
        else np.empty(0)
        for uniques, values, is_divisible in zip(distinct, columns, divisible, strict=True)
    ]


def shares_below(values: FloatArray, ends: FloatArray) -> FloatArray:
    """Return the share, in [0, 1], of every piece that lies below ``values`` (n,), shape (n, number of pieces)."""
    return np.clip((values[:, None] - ends[:-1]) / np.diff(ends), 0, 1)

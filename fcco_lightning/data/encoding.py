"""Encoding of a table of numbers and words as float features, fitted on the training split only."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from fcco_lightning.checks import at_least, list_of, one_of
from fcco_lightning.data.columns import (
    MOST_ARE_NUMBERS,
    and_more,
    as_value,
    distinct_texts,
    is_number,
    is_value,
    require_columns,
    require_few_lost,
    with_columns,
)
from fcco_lightning.data.pieces import FloatArray, Pieces, ends_of_pieces, pieces_of, shares_below
from fcco_lightning.data.table import TensorTable, require_finite
from fcco_lightning.errors import ConfigError, DataError

Features = npt.NDArray[np.float32]
Places = npt.NDArray[np.int32]
MISSING = "(missing)"
_YEAR = 365.2425  # days
_MOST_IN_MEMORY = 1 << 28  # bytes of features above which they may be computed for every batch
_ROWS_AT_ONCE = 1 << 14  # rows that are encoded together; a whole table would need twice its memory
_FAR = 3  # standard deviations from the mean, beyond which a ninth of the training cells can lie (Chebyshev)
_FEWEST_JUDGED, _MOST_JUDGED = 10, 10_000  # rows that say whether most of a column lies there
_STARTS_AS_DATE = r"\s*\d"
_DATE = r"\s*\d{4}-\d\d-\d\d([T ].*)?"  # ISO 8601 without eight digits in a row


@dataclass(frozen=True)
class NumericColumn:
    """A numeric column, which becomes (x - mean) / std, or 0 if it is constant in the training split (std = 0).

    With ``ends`` (k,) of pieces it also becomes k - 1 piecewise linear features, see
    :class:`~fcco_lightning.data.features.PiecewiseFeatures`, and for every one of its ``periods`` sine and cosine of
    2 pi x / period.
    """

    name: str
    mean: float
    std: float
    median: float
    ends: list[float] = field(default_factory=list)
    periods: list[float] = field(default_factory=list)

    @property
    def features(self) -> list[str]:
        """Names of the features it becomes."""
        pieces = [f"{self.name}[{low:.12g},{high:.12g}]" for low, high in pairwise(self.ends)]
        waves = [f"{wave}({self.name}/{period:.12g})" for period in self.periods for wave in ("sin", "cos")]
        return [self.name, *pieces, *waves]

    @classmethod
    def fit(cls, names: Sequence[str], values: FloatArray) -> list["NumericColumn"]:
        """Fit k columns at once, ``values`` (k, n); entries that are not finite are ignored."""
        if not np.isfinite(values).all():  # columns differ in their missing entries: one by one
            return [cls.fit([name], _finite(name, row)[None])[0] for name, row in zip(names, values, strict=True)]
        # a constant column is recognised by its values: the std of equal floats may be 1e-17 instead of 0
        with np.errstate(over="ignore", invalid="ignore"):
            std = np.where(values.min(axis=1) < values.max(axis=1), values.std(axis=1), 0.0)
            mean = values.mean(axis=1)
        if len(overflowing := np.flatnonzero(~(np.isfinite(mean) & np.isfinite(std)))):
            largest = values[overflowing[0]][np.abs(values[overflowing[0]]).argmax()]
            raise DataError(
                f"Column {names[overflowing[0]]!r} has numbers as large as {largest:g}, which cannot be standardised. "
                "Leave the cells empty where it stands for a missing number (encoding.missing: impute); else give the "
                "column another unit, or leave it out (columns.drop)."
            )
        facts = mean.tolist(), std.tolist(), np.median(values, axis=1).tolist()
        return [cls(*column) for column in zip(names, *facts, strict=True)]

    @staticmethod
    def filled(columns: Sequence["NumericColumn"], values: FloatArray) -> FloatArray:
        """Return the ``values`` (k, n) of k columns, with medians in place of values that are not finite."""
        return np.where(np.isfinite(values), values, np.array([column.median for column in columns])[:, None])

    @staticmethod
    def standardised(columns: Sequence["NumericColumn"], values: FloatArray) -> FloatArray:
        """Return the standardised features (k, n) of k columns from their :meth:`filled` ``values`` (k, n)."""
        mean, std = np.array([(column.mean, column.std) for column in columns]).T[:, :, None]
        return np.where(std > 0, (values - mean) / np.where(std > 0, std, 1.0), 0.0)

    def beside(self, values: FloatArray) -> list[FloatArray]:
        """Return the features of pieces (n, k - 1) and of periods (n, 2 * periods) from filled ``values`` (n,)."""
        features = [shares_below(values, np.array(self.ends))] if self.ends else []
        if self.periods:
            turns = 2 * np.pi * values[:, None] / np.array(self.periods)
            features.append(np.stack([np.sin(turns), np.cos(turns)], axis=2).reshape(len(values), -1))
        return features


@dataclass(frozen=True)
class BinnedColumn:
    """A numeric column that becomes one 0/1 feature per bin; ``edges`` separate the bins, see :func:`bin_names`."""

    name: str
    edges: list[float]
    median: float

    @property
    def features(self) -> list[str]:
        return [f"{self.name}={part}" for part in bin_names(self.edges)]

    @classmethod
    def fit(cls, name: str, values: FloatArray, quantiles: int) -> "BinnedColumn":
        """Cut ``values`` (n,) at their quantiles k / quantiles, without repeated edges or empty bins."""
        values = _finite(name, values)
        # edges are values of the column, so that no bin is empty; the largest value is no edge
        edges = np.unique(np.quantile(values, np.arange(1, quantiles) / quantiles, method="inverted_cdf"))
        return cls(name, edges[edges < values.max()].tolist(), float(np.median(values)))

    def transform(self, values: FloatArray) -> Features:
        """Return the features, shape (n, number of bins)."""
        values = np.where(np.isfinite(values), values, self.median)
        return np.eye(len(self.edges) + 1, dtype=np.float32)[bin_of(values, self.edges)]


def bin_names(edges: Sequence[float]) -> list[str]:
    """Return the names of the bins that ``edges`` (k,), ascending, cut the line into.

    Example:
        >>> bin_names([30, 45.5])
        ['<=30', '(30,45.5]', '>45.5']
        >>> bin_names([])
        ['any']
    """
    if not edges:
        return ["any"]
    texts = [f"{edge:.12g}" for edge in edges]
    return [f"<={texts[0]}", *(f"({low},{high}]" for low, high in pairwise(texts)), f">{texts[-1]}"]


def bin_of(values: FloatArray, edges: Sequence[float]) -> npt.NDArray[np.intp]:
    """Return for ``values`` (n,) the positions of their bins in :func:`bin_names`; an edge belongs to the bin below."""
    return np.searchsorted(np.asarray(edges, dtype=np.float64), values, side="left")


@dataclass(frozen=True)
class CategoricalColumn:
    """A column that becomes one 0/1 feature per category of the training split; all are 0 for an unknown category."""

    name: str
    categories: list[str]

    @property
    def features(self) -> list[str]:
        return [f"{self.name}={category}" for category in self.categories]

    @property
    def of_texts(self) -> bool:
        """Whether a category is a text that is neither a number nor a truth value."""
        return not all(category == MISSING or is_value(category) for category in self.categories)

    def places(self, texts: Sequence[str]) -> Places:
        """Return the positions of ``texts`` among the categories, int32; -1 for unknown ones."""
        codes = pd.Index(self.categories, dtype=object).get_indexer(pd.Index(texts, dtype=object))
        return codes.astype(np.int32)

    def transform(self, places: Places) -> Features:
        """Return the features, shape (n, number of categories), of cells given by their :meth:`places` (n,)."""
        known_rows = (places >= 0).nonzero()[0]
        hot = np.zeros((len(places), len(self.categories)), dtype=np.float32)
        hot[known_rows, places[known_rows]] = 1.0
        return hot


def _finite(name: str, values: FloatArray) -> FloatArray:
    values = values[np.isfinite(values)]
    if not len(values):
        raise DataError(f"Column {name!r} has no finite value to fit on. Leave it out (columns.drop=[{name!r}]).")
    return values


Column = NumericColumn | BinnedColumn | CategoricalColumn


@dataclass(frozen=True)
class Cells:
    """The cells of n rows from which features are computed, in the order of the encoder's columns of each kind.

    A number takes 8 bytes and a category 4; the features of a number with 72 pieces take 292 bytes.

    Attributes:
        numbers: cells of the k numeric columns, shape (k, n), float64; missing cells are not finite.
        places: cells of the c categorical columns, shape (c, n), see :meth:`CategoricalColumn.places`.
    """

    numbers: FloatArray
    places: Places

    def __len__(self) -> int:
        return int(self.numbers.shape[1])

    def take(self, rows: slice | npt.NDArray[np.int64]) -> "Cells":
        """Return the cells of some rows, in their order."""
        return Cells(self.numbers[:, rows], self.places[:, rows])


@dataclass(frozen=True)
class Encoding:
    """How the columns of a table become features; applied by :class:`TabularEncoder`.

    Args:
        categorical: columns that are categories.  Other columns are treated by their type: numbers are numbers; dates,
            such as 2026-01-31 or 2026-01-31 18:30 (ISO 8601), become days since 1970, with sine and cosine for the year
            (365.2425 days), the week and, if some have a time, the day; text, bool and any other type are categories,
            except that a text column of mostly numbers is refused, see
            :func:`fcco_lightning.data.schema.settle_types`.
        missing: "error" refuses feature cells that are missing or infinite; "impute" replaces them by the training
            split's median of numbers, or a category of their own, and counts them.
        quantiles: number >= 2 of bins, between quantiles of the training split, into which numeric columns are cut, so
            that all features are 0 or 1 (fewer if quantiles coincide); None standardises these columns.
        numeric: columns that are numbers; up to a tenth of their cells may be no numbers and count as missing.  Dates
            become days since 1970, without sine and cosine, and durations days.
        pieces: number of pieces into which the range of every numeric column is divided, each of which becomes an
            additional feature, so that a perceptron can learn steps and bends; 1 for none; "auto" for one per 500
            rows of the training split, at most 48, see :class:`~fcco_lightning.data.features.PiecewiseFeatures`.

    Raises:
        ConfigError: if a column is both ``categorical`` and ``numeric``, or another argument is out of range.
    """

    categorical: list[str] = field(default_factory=list)
    missing: Literal["error", "impute"] = "error"
    quantiles: int | None = None
    numeric: list[str] = field(default_factory=list)
    pieces: Pieces = 1

    def __post_init__(self) -> None:
        named = [set(list_of(f"encoding.{name}", getattr(self, name))) for name in ("categorical", "numeric")]
        shared = sorted(set.intersection(*named))
        if shared:
            raise ConfigError(f"encoding.categorical and encoding.numeric both name {shared}. Leave one of them out.")
        one_of("encoding.missing", self.missing, ("error", "impute"))
        if self.quantiles is not None:
            at_least("encoding.quantiles", self.quantiles, 2)
        cut = pieces_of("encoding.pieces", self.pieces) != 1
        if self.quantiles is not None and cut:
            raise ConfigError(
                f"encoding.quantiles={self.quantiles} and encoding.pieces={self.pieces!r} exclude each other: columns "
                "that are cut into bins are no numbers any more. Leave one of them out."
            )


class TabularEncoder:
    """Standardises numbers and one-hot encodes the rest, in the column order of the frame it was fitted on.

    Args:
        encoding: which columns are categories, and how numbers and missing cells are encoded.

    Attributes:
        columns: how every column is encoded.
        dates: the columns that were recognised as dates.
        unknown_counts: column -> number of cells in the latest :meth:`transform` whose category is not in the fit.
        far: column of numbers -> its median in the latest :meth:`transform` and in fitting, where most of its cells lie
            more than 3 standard deviations from the mean of fitting.  Dates are none: later ones are expected.
        imputed: positions of the rows in the latest :meth:`transform` that had missing cells, which were imputed.
        empty: columns without any value in the latest :meth:`transform`.

    Example:
        >>> encoder = TabularEncoder().fit(pd.DataFrame({"age": [20, 40], "job": ["cook", "smith"]}))
        >>> encoder.feature_names
        ['age', 'job=cook', 'job=smith']
        >>> encoder.transform(pd.DataFrame({"age": [30], "job": ["poet"]}))
        tensor([[0., 0., 0.]])
    """

    def __init__(self, encoding: Encoding = Encoding()) -> None:
        self.encoding = encoding
        self.columns: list[Column] = []
        self.dates: list[str] = []
        self.unknown_counts: dict[str, int] = {}
        self.far: dict[str, tuple[float, float]] = {}
        self.imputed: list[int] = []
        self.empty: list[str] = []
        self._unread: dict[str, int] = {}

    @property
    def feature_names(self) -> list[str]:
        """Names of the d features, in order."""
        return [feature for column in self.columns for feature in column.features]

    @property
    def texts(self) -> list[str]:
        """The categorical columns that held texts in the training split."""
        return [c.name for c in self.columns if isinstance(c, CategoricalColumn) and c.of_texts]

    def fit(self, frame: pd.DataFrame, where: str = "the training split") -> "TabularEncoder":
        """Learn means, deviations, medians, bins and categories from ``frame`` (n, columns) and return self."""
        categorical, quantiles = self.encoding.categorical, self.encoding.quantiles
        require_columns(frame, {"encoding.categorical": categorical}, where)
        self.dates = dates_of(frame, {*categorical, *self.encoding.numeric})
        frame = with_numbers(frame, self.dates, self.encoding, where)
        numeric = frame.columns[[is_number(kind) for kind in frame.dtypes]]
        numbers = [name for name in numeric if name not in categorical]
        values = self._numbers(frame, numbers, where)
        fitted: dict[str, Column] = {}
        if quantiles:
            fitted |= {n: BinnedColumn.fit(n, v, quantiles) for n, v in zip(numbers, values, strict=True)}
        else:
            fitted |= zip(numbers, self._standardised(numbers, values), strict=True)
        for name in frame.columns[~frame.columns.isin(numbers)]:
            fitted[name] = CategoricalColumn(name, sorted({*self._distinct_cells(frame[name], where)[0]}))
        self.columns = [fitted[name] for name in frame.columns]
        return self

    def transform(self, frame: pd.DataFrame, where: str = "the table") -> Tensor:
        """Return the features, (n, d) float32, of n rows with the columns of the fit, in any order.

        Raises:
            DataError: if it is not fitted, a column is absent, or (``missing="error"``) a cell is missing.
        """
        return self.features(self.cells(frame, where))

    def cells(self, frame: pd.DataFrame, where: str = "the table") -> Cells:
        """Return the cells of n rows for :meth:`features`, and record which are unknown or missing.

        Raises:
            DataError: as :meth:`transform`.
        """
        if not self.columns:
            raise DataError("TabularEncoder is not fitted: call fit(training_frame) or load_state_dict first.")
        require_columns(frame, {"the fitted column": [column.name for column in self.columns]}, where)
        frame = self._with_numbers(frame, where)
        self.unknown_counts, self.imputed, self.empty = {}, [], []
        numbers = self._numbers(frame, [column.name for column in self._numeric_columns], where)
        self.far = self._far(numbers)
        places = np.empty((len(self._categorical_columns), len(frame)), dtype=np.int32)
        for column, positions in zip(self._categorical_columns, places, strict=True):
            texts, codes = self._distinct_cells(frame[column.name], where)
            if not column.of_texts:  # pandas reads all cells as texts if one is
                texts = [as_value(text) for text in texts]
            positions[:] = column.places(texts)[codes]
            if unknown := int((positions < 0).sum()):
                self.unknown_counts[column.name] = unknown
        return Cells(numbers, places)

    def _far(self, numbers: FloatArray) -> dict[str, tuple[float, float]]:
        columns = [column for column in self._numeric_columns if isinstance(column, NumericColumn)]
        if not columns or numbers.shape[1] < _FEWEST_JUDGED:
            return {}
        values = NumericColumn.filled(columns, numbers[:, :: -(-numbers.shape[1] // _MOST_JUDGED)])
        with np.errstate(over="ignore"):  # of numbers that are far indeed
            far = (np.abs(NumericColumn.standardised(columns, values)) > _FAR).mean(axis=1) > 0.5
        places = [place for place in np.flatnonzero(far) if columns[place].name not in self.dates]
        return {columns[i].name: (float(np.median(values[i])), columns[i].median) for i in places}

    def far_remarks(self, where: str) -> list[str]:
        """Name the columns of numbers most of whose cells in the latest table, called ``where``, are :attr:`far`."""
        return [
            f"most cells of the column {name!r} in {where} lie more than {_FAR} standard deviations from the mean of "
            f"training (median {here:.6g}, in training {there:.6g}), where scores are unreliable. If the unit differs, "
            f"use the same one in both tables; or train without the column (columns.drop=[{name!r}])."
            for name, (here, there) in self.far.items()
        ]

    def features(self, cells: Cells) -> Tensor:
        """Return the features, (n, d) float32, of n rows."""
        starts = range(0, max(1, len(cells)), _ROWS_AT_ONCE)
        parts = (self._features(cells.take(slice(start, start + _ROWS_AT_ONCE))) for start in starts)
        first = next(parts)
        if len(first) == len(cells):
            return torch.from_numpy(first)
        features = np.empty((len(cells), first.shape[1]), dtype=np.float32)
        features[: len(first)] = first
        for start, part in zip(starts[1:], parts, strict=True):
            features[start : start + len(part)] = part
        return torch.from_numpy(features)

    def _features(self, cells: Cells) -> Features:
        features: dict[str, list[npt.NDArray[Any]]] = {}
        # columns are standardised together: a table may have 100,000 of them
        columns = [column for column in self._numeric_columns if isinstance(column, NumericColumn)]
        if columns:  # either all numeric columns are cut into bins, or none
            values = NumericColumn.filled(columns, cells.numbers)
            standard = NumericColumn.standardised(columns, values)[:, :, None]
            for column, row, feature in zip(columns, values, standard, strict=True):
                features[column.name] = [feature, *column.beside(row)]
        else:
            binned = [column for column in self._numeric_columns if isinstance(column, BinnedColumn)]
            features |= {c.name: [c.transform(row)] for c, row in zip(binned, cells.numbers, strict=True)}
        features |= {c.name: [c.transform(row)] for c, row in zip(self._categorical_columns, cells.places, strict=True)}
        parts = [part for column in self.columns for part in features[column.name]]
        with np.errstate(over="ignore"):  # the caller checks that they are finite
            return np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")

    @property
    def _numeric_columns(self) -> list[NumericColumn | BinnedColumn]:
        return [column for column in self.columns if not isinstance(column, CategoricalColumn)]

    @property
    def _categorical_columns(self) -> list[CategoricalColumn]:
        return [column for column in self.columns if isinstance(column, CategoricalColumn)]

    def table(self, cells: Cells, columns: Mapping[str, Tensor]) -> TensorTable:
        """Return a table with the features ``x`` (n, d) and the other ``columns``, from which batches are gathered.

        Features that would take more than 256 MiB, and more than four times the memory of the cells, are computed for
        every batch: a million rows with a thousand features of pieces take 4 GB, their cells 0.1 GB.
        """
        size = 4 * len(cells) * len(self.feature_names)
        if size > max(_MOST_IN_MEMORY, 4 * (cells.numbers.nbytes + cells.places.nbytes)):
            return TensorTable(columns, size=len(cells), inputs=partial(self.inputs, cells))
        return TensorTable({"x": self.features(cells), **columns})

    def inputs(self, cells: Cells, rows: Tensor) -> dict[str, Tensor]:
        """Return the features ``x`` (B, d) of the given ``rows`` (B,).

        Raises:
            DataError: if a feature is too large for float32.
        """
        x = self.features(cells.take(rows.numpy()))
        require_finite("x", x)
        return {"x": x}

    def batches(self, frame: pd.DataFrame, size: int) -> Iterator[Tensor]:
        """Yield the features x (B, d) of successive blocks of ``size`` rows of a table, see :meth:`transform`."""
        yield from torch.split(self.transform(frame), size)

    def remarks(self, rows: int) -> list[str]:
        """Warnings about unknown, unreadable and missing cells in the latest table, which has ``rows`` rows."""
        unknown = [
            f"{count} of {rows} rows ({count / rows:.0%}) have a value of the column {name!r} that the training split "
            "does not have, so all its category features are 0"
            f"{' in every row' if count == rows else ''}. Use the same values in both tables."
            for name, count in self.unknown_counts.items()
        ]
        unread = [
            f"{count} of {rows} cells of the column {name!r} are no {'dates' if name in self.dates else 'numbers'}: "
            "the training median takes their place."
            for name, count in self._unread.items()
        ]
        empty = [
            f"{rows} of {rows} rows (100%) have no value of the column {name!r}: it is imputed in all of them, "
            f"and has no effect. Fill it, or train without it (columns.drop=[{name!r}])."
            for name in self.empty
            if name not in self.unknown_counts
        ]
        missing = [f"{len(self.imputed)} of {rows} rows have missing cells, which are imputed."]
        far = self.far_remarks("the table")
        return [*unknown, *unread, *empty, *(missing if self.imputed and not empty else []), *far]

    def state_dict(self) -> dict[str, Any]:
        """Return the fitted state as lists, dicts, texts and numbers only."""
        return {
            "missing": self.encoding.missing,
            "quantiles": self.encoding.quantiles,
            "pieces": self.encoding.pieces,
            "categorical": list(self.encoding.categorical),
            "numeric": list(self.encoding.numeric),
            "dates": list(self.dates),
            "columns": [asdict(column) for column in self.columns],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a fitted state."""
        arguments = ("categorical", "missing", "quantiles", "numeric", "pieces")  # older files lack some
        self.encoding = Encoding(**{name: state[name] for name in arguments if name in state})
        self.columns, self.dates = [_column(column) for column in state["columns"]], list(state.get("dates", ()))

    def _with_numbers(self, frame: pd.DataFrame, where: str) -> pd.DataFrame:
        """Return a table with dates and ``encoding.numeric`` columns as numbers; record cells that are not numbers."""
        for name in self.dates:
            if is_number(frame[name].dtype) and frame[name].notna().any():  # such as 20260131, which is not in days
                raise DataError(
                    f"Column {name!r} held dates in the training split but is {frame[name].dtype} in {where}, with "
                    f"cells such as {frame[name].dropna().iloc[0]}. Write dates as 2026-01-31."
                )
        names = {*self.encoding.numeric, *self.dates}
        numeric = [column.name for column in self.columns if column.name in names]
        table = with_numbers(frame, numeric, self.encoding, where)
        self._unread = {name: len(rows) for name, rows in unread(frame, table, numeric).items()}
        return table

    def _standardised(self, names: Sequence[str], values: FloatArray) -> list[NumericColumn]:
        """Fit numeric columns, ``values`` (k, n), with pieces and, for dates, periods."""
        finite = [row[np.isfinite(row)] for row in values]
        ends = ends_of_pieces(finite, self.encoding.pieces, values.shape[1])
        columns = zip(NumericColumn.fit(names, values), ends, finite, strict=True)
        return [
            replace(column, ends=cut.tolist(), periods=_periods(days) if column.name in self.dates else [])
            for column, cut, days in columns
        ]

    def _numbers(self, frame: pd.DataFrame, names: list[str], where: str) -> FloatArray:
        """Return numeric columns (k, n); each is contiguous, so that its mean does not depend on the other columns."""
        cells = frame[names]
        for name, kind in zip(names, cells.dtypes, strict=True):
            if not is_number(kind):
                invalid = cells[name].notna() & pd.to_numeric(cells[name].astype(object), errors="coerce").isna()
                faults = f", with cells that are no numbers: {cells_of(cells[name], invalid)}" if invalid.any() else ""
                raise DataError(
                    f"Column {name!r} held numbers in the training split but is {kind} in {where}{faults}. Correct it, "
                    f"or train anew with such cells as missing ones (encoding.numeric=[{name!r}]) or as categories "
                    f"(encoding.categorical=[{name!r}])."
                )
        values = np.ascontiguousarray(cells.to_numpy(dtype=np.float64, na_value=np.nan).T)
        nonfinite = ~np.isfinite(values)
        if nonfinite.any():
            marked = pd.DataFrame(nonfinite.T, frame.index, names)
            self._refuse(marked, "NaN or infinite", "the training median", where)
        return values

    def _distinct_cells(self, column: pd.Series, where: str) -> tuple[list[str], npt.NDArray[np.intp]]:
        """Return the distinct cells as texts, and for every row the position of its cell among them, (n,)."""
        codes, texts = distinct_texts(column)
        missing = codes < 0
        self._refuse(pd.DataFrame({column.name: missing}, column.index), "missing", "a category of their own", where)
        return ([*texts, MISSING] if missing.any() else texts), codes  # the code -1 of a missing cell is the last text

    def _refuse(self, marked: pd.DataFrame, fault: str, cure: str, where: str) -> None:
        """Refuse the first column with a marked cell or, with ``missing="impute"``, record the rows."""
        if not marked.any(axis=None):
            return
        if self.encoding.missing == "impute":
            self.imputed = sorted({*self.imputed, *marked.any(axis=1).to_numpy().nonzero()[0].tolist()})
            self.empty += [name for name in marked.columns[marked.all()] if name not in self.empty]
            return
        name = str(marked.columns[marked.any()][0])
        mask = marked[name]
        if mask.all():
            raise DataError(f"Column {name!r} of {where} has no value. Train without it (columns.drop=[{name!r}]).")
        raise DataError(
            f"Column {name!r} of {where} has {mask.sum()} {fault} cells (first: row {mask.idxmax()}). Remove those "
            f"rows, or train without the column (columns.drop=[{name!r}]) or with encoding.missing='impute' ({cure})."
        )


def with_numbers(
    frame: pd.DataFrame, numeric: Sequence[str], encoding: Encoding, where: str = "the table"
) -> pd.DataFrame:
    """Return a table in which the columns ``numeric`` are converted to numbers.

    Raises:
        DataError: if a cell is no number and missing cells are refused, or if more than a tenth of a column's cells are
            no numbers.
    """
    others = [name for name in numeric if not pd.api.types.is_numeric_dtype(frame[name].dtype)]
    return with_columns(frame, {name: _as_numbers(frame[name], encoding, where) for name in others})


def dates_of(frame: pd.DataFrame, others: Collection[str] = ()) -> list[str]:
    """Return the columns, except ``others``, of dates or of texts that are mostly dates of ISO 8601."""
    return [str(name) for name in frame.columns if name not in others and _are_dates(frame[name])]


def _are_dates(column: pd.Series) -> bool:
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return True
    if is_number(column.dtype):
        return False
    counts = column.value_counts(sort=False)  # distinct cells: a million cells may be a dozen words
    cells = counts.index.to_series()
    if not len(cells) or not isinstance(cells.iloc[0], str | date):
        return False
    required = MOST_ARE_NUMBERS * counts.sum()
    alike = cells.astype(str).str.fullmatch(_DATE)
    if counts[alike.to_numpy()].sum() < required:
        return False
    return bool(counts[_since_1970(cells).notna().to_numpy()].sum() >= required)


def _periods(days: FloatArray) -> list[float]:
    """Periods, in days, of dates in days since 1970: the year, the week and, if there are times, the day."""
    return [_YEAR, 7.0, *([1.0] if (days % 1 != 0).any() else [])]


def unread(frame: pd.DataFrame, converted: pd.DataFrame, numeric: Sequence[str]) -> dict[str, list[int]]:
    """Return for each column ``numeric`` the positions of filled cells that :func:`with_numbers` could not convert."""
    lost = {name: (converted[name].isna() & frame[name].notna()).to_numpy().nonzero()[0].tolist() for name in numeric}
    return {name: rows for name, rows in lost.items() if rows}


def _as_numbers(column: pd.Series, encoding: Encoding, where: str) -> pd.Series:
    if pd.api.types.is_timedelta64_dtype(column.dtype):
        return _days(column)
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        return _days(_since_1970(column))
    column = column.astype(object)  # also for pandas' categories
    kind = "numbers" if str(column.name) in encoding.numeric else "dates"
    numbers = pd.to_numeric(column, errors="coerce").astype(np.float64)
    if kind == "dates" or numbers.isna().all():
        numbers = _days(_since_1970(column))
    unreadable = numbers.isna() & column.notna()
    if unreadable.any() and encoding.missing == "error":
        raise DataError(
            f"encoding: the column {str(column.name)!r} of {where} must hold {kind}, but has other cells: "
            f"{cells_of(column, unreadable)}. Correct them, or set encoding.missing='impute' to take them as missing."
        )
    require_few_lost(
        int(unreadable.sum()),
        len(column),
        f"cells of the column {str(column.name)!r} of {where} are no {kind} ({cells_of(column, unreadable)})",
        f"Correct them, or take the column for one of categories (encoding.categorical: [{column.name}]).",
    )
    return numbers


def _since_1970(dates: pd.Series) -> pd.Series:
    """Durations since 1970; missing for cells that are no date."""
    if not pd.api.types.is_datetime64_any_dtype(dates.dtype):
        dates = dates.where(dates.astype(str).str.match(_STARTS_AS_DATE))  # pandas accepts "now" and "today", too
    parsed = pd.to_datetime(dates, utc=True, format="ISO8601", errors="coerce")
    since: pd.Series = parsed - pd.Timestamp(0, tz="UTC").as_unit(parsed.dt.unit)  # 9999-12-31 has no nanoseconds
    return since


def _days(durations: pd.Series) -> pd.Series:
    days: pd.Series = durations.dt.total_seconds() / 86400
    return days


def cells_of(column: pd.Series, marked: pd.Series) -> str:
    """Return the first marked cells with their rows, as text."""
    cells = column[marked]
    return ", ".join(f"row {row}: {cell!r}" for row, cell in cells.head(3).items()) + and_more(cells, 3)


def _column(state: Mapping[str, Any]) -> Column:
    """Rebuild a column from its fields; ``categories`` and ``edges`` identify their kinds, others are standardised."""
    if "edges" in state:
        return BinnedColumn(**state)
    return CategoricalColumn(**state) if "categories" in state else NumericColumn(**state)

"""Look-up of columns and of their values, with error messages that say what to do."""

import difflib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fcco_lightning.data.conditions import Condition, comparisons, holds, values_of
from fcco_lightning.data.text_files import read_csv, separator
from fcco_lightning.errors import DataError

if TYPE_CHECKING:  # tables are read and checked without loading torch
    from numpy.typing import NDArray
    from torch import Tensor

ROW = "position among the samples"
"""A column of tables of images and of texts that is none of theirs: the place of a sample among all that were read."""
MOST_ARE_NUMBERS = 0.9
"""Share of numbers among the filled cells from which on a column of text is taken for numbers with mistakes in it."""
_DECIMAL_COMMA, _THOUSANDS = r"[+-]?\d+,\d+", r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?"
_TRUTH_VALUES = frozenset({"True", "False"})
_SPELT = {True: ("yes", "on"), False: ("no", "off")}  # further truth values in YAML
_VALUES = frozenset({"integer", "floating", "mixed-integer-float", "boolean", "empty"})  # results of infer_dtype


_MOST_SHOWN = 80  # characters of a value in a message
MOST_LOST = 0.1
"""Share of the samples whose cell or image may be unreadable where something takes its place."""


def require_few_lost(lost: int, total: int, description: str, way_out: str) -> None:
    """Raise :class:`DataError` if more than one, and more than a tenth, of the ``description`` cannot be read."""
    if lost > max(1, MOST_LOST * total):
        raise DataError(f"{lost} of {total} {description}, more than a tenth, the most that may be replaced. {way_out}")


def text_of(column: pd.Series) -> pd.Series:
    """Return the cells as stripped text, missing cells kept; whole numbers read the same as int and as float."""
    codes, texts = distinct_texts(column)
    return _cells(column, codes, texts)


def distinct_texts(column: pd.Series) -> "tuple[NDArray[np.intp], list[str]]":
    """Return for every cell its position among the distinct texts, (n,), -1 for a missing cell; and these texts.

    It saves time to process the distinct texts only: a column of a million rows may have a dozen.
    """
    codes, values = pd.factorize(column)
    return codes, [_text(value) for value in values]


def _cells(column: pd.Series, codes: "NDArray[np.intp]", texts: Sequence[str]) -> pd.Series:
    """The column made of the results of :func:`distinct_texts`; missing cells stay missing."""
    cells = np.array([*texts, np.nan], dtype=object)
    return pd.Series(cells[codes], column.index, name=column.name)


def stripped(column: pd.Series) -> pd.Series:
    """Return a column without the blanks around its texts; other cells are not changed."""
    if column.dtype != "str" or column.isna().all():  # other types are kept as pandas infers them
        return column.map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
    codes, texts = pd.factorize(column)
    blanks = any(text != text.strip() for text in texts)
    return _cells(column, codes, [text.strip() for text in texts]).astype("str") if blanks else column


def is_number(kind: Any) -> bool:
    """Tell whether a type of cells is numeric; bools are not."""
    return pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind)


def require_columns(frame: pd.DataFrame, required: Mapping[str, Iterable[str]], where: str) -> None:
    """Raise :class:`DataError` unless ``frame`` has all columns of ``required``, a mapping from argument to columns.

    The message names the argument, the table ``where``, its columns and the most similar one.
    """
    available = [str(name) for name in frame.columns if name != ROW]
    present = set(available)
    for argument, names in required.items():
        for name in names:
            if name in present:
                continue
            raise DataError(
                f"{argument}={name!r} is not a column of {where}.{did_you_mean(name, available)} Its columns are "
                f"{listed_in_order(available)}."
            )


def did_you_mean(name: str, available: Sequence[str]) -> str:
    """Return the question for a message whether the most similar name was meant; empty if none is similar."""
    close = difflib.get_close_matches(name, available, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def with_columns(frame: pd.DataFrame, columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return a table with other cells in some columns; unlike ``assign`` it accepts every name, such as self."""
    changed = frame.copy(deep=False)
    for name, cells in columns.items():
        changed[name] = cells
    return changed


def as_written(frame: pd.DataFrame, path: Path, names: Sequence[str]) -> pd.DataFrame:
    """Return the rows of a .csv or .tsv with the literal texts of the file, such as "NA" and "007", in some columns.

    The rows of another file are not changed.

    Args:
        frame: the rows as pandas reads them, which takes "NA" for a missing cell and "007" for a number.
        path: path of the file.
        names: names of the columns.
    """
    present = [name for name in names if name in frame.columns]
    if not present or separator(path) is None:
        return frame
    texts = read_csv(path, f"'{path}'", usecols=present, dtype=str, keep_default_na=False, skipinitialspace=True)
    return with_columns(frame, {name: texts[name].to_numpy() for name in present})


def holds_texts(column: pd.Series) -> bool:
    """Whether the filled cells are neither all numbers nor all truth values."""
    return pd.api.types.infer_dtype(column) not in _VALUES


def as_texts(frame: pd.DataFrame, source: object, names: Iterable[str]) -> pd.DataFrame:
    """Return the rows of a .csv with literal texts in columns that hold texts in another table.

    pandas reads a column as numbers or truth values if every filled cell of *this* table looks like one.  Missing cells
    stay missing.

    Args:
        frame: the rows as pandas reads them.
        source: the path of the file; rows of another source are not changed.
        names: names of the columns; names that the table lacks are ignored.
    """
    if not isinstance(source, (str, os.PathLike)):
        return frame
    guessed = [name for name in names if name in frame.columns and not holds_texts(frame[name])]
    texts = as_written(frame, Path(source), guessed)
    return with_columns(texts, {name: texts[name].where(frame[name].notna()) for name in guessed})


def with_commas(column: pd.Series) -> str:
    """Return a message about a text column of numbers with commas; empty for any other column.

    Of such a column a share of at least :data:`MOST_ARE_NUMBERS` of the filled cells are numbers, some with commas.
    """
    if not holds_texts(column):
        return ""
    counts = column.value_counts()
    cells = counts.index.to_series().astype(str).str.strip()
    commas = cells.str.fullmatch(f"{_DECIMAL_COMMA}|{_THOUSANDS}")
    numbers = pd.to_numeric(cells, errors="coerce").notna() | commas
    if not commas.any() or counts[numbers.to_numpy()].sum() < MOST_ARE_NUMBERS * counts.sum():
        return ""
    thousands = bool(cells[commas].str.fullmatch(_THOUSANDS).all())
    kind, option = ("thousands separators", "thousands") if thousands else ("decimal commas", "decimal")
    return (
        f"is text, because its numbers have {kind}, such as {cells[commas].iloc[0]!r}. Write the table anew without "
        f"them, pandas.read_csv(FILE, {option}=',').to_csv(NEW, index=False)"
    )


def require_filled(column: pd.Series, argument: str, where: str, remedy: str = "") -> None:
    """Raise :class:`DataError` if a cell of ``column`` is missing: a label or a group cannot be imputed."""
    missing = column.isna()
    if missing.any():
        raise DataError(
            f"Column {str(column.name)!r} ({argument}) of {where} has {missing.sum()} missing cells (first: row "
            f"{missing.idxmax()}). Labels and groups are never imputed: remove those rows or fill them in. (In a .csv, "
            f"NA, None, null and the like are missing cells; rename a value that is called so.) {remedy}".rstrip()
        )


def places(values: Iterable[str], cells: pd.Series) -> "Tensor":
    """Return the position of every cell, as text, among ``values``, or -1, shape (n,), int64."""
    import torch  # noqa: PLC0415

    codes = pd.Index(list(values), dtype=object).get_indexer(pd.Index(text_of(cells), dtype=object))
    return torch.from_numpy(codes.astype(np.int64))


def marked(column: pd.Series, values: Iterable[object]) -> "Tensor":
    """Mark the cells equal to one of ``values``; 1, 1.0, True, "true" and "1" are equal, and so are "a" and " a ".

    A truth value is also equal to the words that YAML reads as one: True to "yes" and "on", False to "no" and "off".

    Returns:
        int64 tensor of shape (n,) with values in {0, 1}; 0 for missing cells.
    """
    import torch  # noqa: PLC0415

    meanings = set[str | float]().union(*map(_meanings, values))
    text = text_of(column)
    cells = [cell for cell in text.dropna().unique() if number_or_text(cell) in meanings]
    return torch.from_numpy(text.isin(cells).to_numpy().astype(np.int64))


def indicator(column: pd.Series, value: object, argument: str, where: str) -> "Tensor":
    """Mark the cells equal to ``value`` as :func:`marked` does; there must be at least one.

    Raises:
        DataError: if there is none; it names the ``argument`` and the table ``where``, and lists the column's values.
    """
    equal = marked(column, [value])
    if not bool(equal.any()):
        raise DataError(
            f"{argument}={value!r} is not a value of column {str(column.name)!r} in {where}. "
            f"Its values are {listed(text_of(column).unique())}."
        )
    return equal


def condition_on(column: pd.Series, condition: Condition) -> "Callable[[pd.Series], Tensor]":
    """Return the function that tests whether cells of any split meet a condition, interpreted by the training split.

    A text that is one of the values of ``column``, of the training split, stands for that value; else it must be a
    comparison with numbers.  A missing cell meets no condition.  The function maps n cells to 0 or 1 each, int64.

    Raises:
        DataError: if no cell of ``column`` has one of the values or meets the comparison.
    """
    import torch  # noqa: PLC0415

    name = str(column.name)
    present = {number_or_text(text): text for text in text_of(column.dropna()).unique()}
    values = values_of(condition, name)
    others = [value for value in values if not _meanings(value) & present.keys()]
    for value in others:
        _require_comparison(value, column, listed(present.values()))

    def test(cells: pd.Series) -> "Tensor":
        mask = marked(cells, [value for value in values if value not in others]).bool()
        if others:
            numbers = torch.from_numpy(cells.to_numpy(dtype=np.float64, copy=True, na_value=np.nan))
            mask = mask | holds(numbers, others, name)
        return mask.long()

    if not bool(test(column).any()):
        low, high = column.min(), column.max()
        raise DataError(
            f"where={{{name}: {condition!r}}} holds for no sample, where {name!r} lies in "
            f"[{low}, {high}]. Correct the comparison."
        )
    return test


def _require_comparison(value: object, column: pd.Series, values: str) -> None:
    clause = f"where={{{column.name}: {value!r}}}"
    if not comparisons(value):
        raise DataError(f"{clause}: {value!r} is not a value of column {str(column.name)!r}. Its values are {values}.")
    if not pd.api.types.is_numeric_dtype(column.dtype):
        raise DataError(
            f"{clause} compares the column {str(column.name)!r} with numbers, but it is {column.dtype}. Name one of "
            f"its values {values}."
        )


def listed(values: Iterable[object]) -> str:
    """Return the first twelve values, sorted as texts, as one text."""
    texts = map(str, values)
    return listed_in_order(sorted(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..." for text in texts))


def listed_in_order(values: Sequence[object]) -> str:
    """Return the first twelve values as one text."""
    return f"{list(values[:12])}{and_more(values, 12)}"


def and_more(values: Sized, shown: int) -> str:
    """Return " and K more" for a message that shows the first ``shown`` values; empty if there are no more."""
    return f" and {len(values) - shown} more" if len(values) > shown else ""


def _text(value: object) -> str:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value).strip()


def _meanings(value: object) -> set[str | float]:
    """All values of :func:`number_or_text` of cells that are equal to a value in a configuration."""
    spellings = _SPELT[bool(value)] if isinstance(value, bool | np.bool_) else ()
    spelt = {way for spelling in spellings for way in (spelling, spelling.capitalize(), spelling.upper())}
    return {number_or_text(_text(value))} | spelt


def is_value(text: str) -> bool:
    """Whether :func:`text_of` gives this text for a number or truth value; it never gives '007' or '1.0'."""
    value = number_or_text(text)
    return text in _TRUTH_VALUES or (not isinstance(value, str) and _text(value) == text)


def as_value(text: str) -> str:
    """The text that :func:`text_of` gives for the number or truth value in ``text``; other texts are not changed."""
    value = number_or_text(text)
    if text.capitalize() in _TRUTH_VALUES:
        return text.capitalize()  # as pandas spells them
    return text if isinstance(value, str) else _text(value)


def number_or_text(text: str) -> str | float:
    """The value by which texts are compared: their number if they are one, so that '1', '1.0' and 'true' agree."""
    if text.capitalize() in _TRUTH_VALUES:
        return float(text.capitalize() == "True")
    if "_" in text:  # int() would read "1_1" as 11
        return text
    with suppress(ValueError):
        return int(text)  # not float: it is inexact beyond 2^53
    with suppress(ValueError):
        number = float(text)
        return number if math.isfinite(number) else text
    return text

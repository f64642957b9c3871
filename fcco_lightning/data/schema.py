"""Decision which columns of a whole table are numbers and which are categories, before the table is split."""

import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from fcco_lightning.data.columns import MOST_ARE_NUMBERS, and_more, is_number, require_columns, text_of, with_commas
from fcco_lightning.data.encoding import (
    CategoricalColumn,
    Column,
    Encoding,
    NumericColumn,
    cells_of,
    dates_of,
    with_numbers,
)
from fcco_lightning.errors import DataError

_MANY_CATEGORIES = 20
_MOST_NAMED = 8
_UNNAMED = re.compile(r"|Unnamed: \d+(_level_\d+)?(\.\d+)?|__index_level_\d+__")  # names given by pandas and Arrow
_OF_ROWS = re.compile(
    r"(?i)(level_0|index|idx|id|row|(row|line|record|sample)[ _.]?(id|index|idx|no|nr|number))(\.\d+)?"
)
MOST_SEEN = 0.5
"""Share of cells with values that training does not have, from which on a column of categories is of no use."""
_FEWEST_TEXTS = 100  # fewer rows may have distinct categories by chance
_WORDS = 3  # a cell with at least so many words is a text, not a name
_FEWEST_NUMBERED = 10  # fewer rows may have the numbers 0, 1, 2, ... by chance
_OTHER_DATE = r"\d{1,2}([./-])\d{1,2}\1(\d{4}|\d\d)([ T].*)?|\d{4}([./])\d{1,2}\4\d{1,2}([ T].*)?"
_NOT_AS_WRITTEN = "dates, but not written as 2026-01-31"
_LIKE_A_NUMBER = re.compile(r"\d|inf", re.IGNORECASE)
_SIGNED = r"[+-]?[$€£¥]?\s?[+-]?\d{1,3}([ ,']?\d{3})*([.,]\d+)?\s?[$€£¥%]?"


def settle_types(
    frame: pd.DataFrame, encoding: Encoding, unused: Collection[str] = (), where: str = "the table"
) -> pd.DataFrame:
    """Return a whole table with text columns of ``encoding.numeric`` as numbers; refuse columns of mistyped numbers.

    Other text columns are categories.  One is refused if at least a share of :data:`MOST_ARE_NUMBERS`, but not all, of
    its filled cells are numbers, with or without a comma: because of a few mistyped cells every number would become a
    category.  Columns that are ``unused`` are not checked.

    Raises:
        DataError: naming the column, the first cells that are no numbers, and possible remedies.
    """
    require_columns(frame, {"encoding.numeric": encoding.numeric}, where)
    text = [pd.api.types.is_object_dtype(kind) or pd.api.types.is_string_dtype(kind) for kind in frame.dtypes]
    settled = with_numbers(frame, encoding.numeric, encoding, where)
    _refuse_totals(frame, where)
    declared = {*encoding.numeric, *encoding.categorical, *unused}
    faults = [_as_mistyped_numbers(frame[name], where) for name in frame.columns[text] if name not in declared]
    if any(faults):
        raise DataError(" ".join(filter(None, faults)))
    return settled


def _as_mistyped_numbers(column: pd.Series, where: str) -> str:
    """A message about a text column that consists mostly of numbers; empty for any other column."""
    counts = column.value_counts()
    if not len(counts):
        return ""
    cells = counts.index.to_series().astype(str)
    if not any(map(_LIKE_A_NUMBER.search, cells)):  # fast exit for columns of names
        return ""
    numbers = pd.to_numeric(cells, errors="coerce").notna()
    share = counts[numbers.to_numpy()].sum() / counts.sum()
    name = str(column.name)
    if MOST_ARE_NUMBERS <= share < 1:
        unreadable = column.isin(counts.index[~numbers.to_numpy()])
        repeated = bool((column[unreadable].astype(str) == name).all())
        way_out = "Remove the repeated header line" if repeated else "Correct them"
        return (
            f"The column {name!r} of {where} is text, because {unreadable.sum()} of its {counts.sum()} filled cells "
            f"are no numbers: {cells_of(column, unreadable)}. {way_out}; or say what it is: encoding.numeric: "
            f"[{name}] (these cells are then missing, see encoding.missing) or encoding.categorical: [{name}] (a "
            f"feature for each of its {len(counts)} values)."
        )
    if remark := with_commas(column):
        return (
            f"The column {name!r} of {where} {remark}, or keep its {len(counts)} values as categories "
            f"(encoding.categorical: [{name}])."
        )
    with_sign = cells.str.fullmatch(_SIGNED) & ~numbers
    if counts[(numbers | with_sign).to_numpy()].sum() / counts.sum() >= MOST_ARE_NUMBERS and with_sign.any():
        return (
            f"The column {name!r} of {where} is text, because its numbers have signs beside or blanks within them, "
            f"such as {cells[with_sign].iloc[0]!r}. Write the table anew without them, or keep its {len(counts)} "
            f"values as categories (encoding.categorical: [{name}])."
        )
    return ""


def _numeric_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """The numeric columns, without durations."""
    return frame[frame.columns[[is_number(kind) for kind in frame.dtypes]]]


def _refuse_totals(frame: pd.DataFrame, where: str) -> None:
    """Refuse a table whose last row is the sum of the others in all numeric columns, and the largest value in one."""
    numbers = _numeric_columns(frame).astype(float)
    if len(frame) < _FEWEST_NUMBERED or numbers.shape[1] == 0:
        return
    others, last = numbers.iloc[:-1], numbers.iloc[-1]
    equal = np.isclose(last, others.sum(), rtol=1e-9, atol=0) | last.isna()
    if equal.all() and ((last > others.max()) & last.notna()).any():
        raise DataError(
            f"The last row of {where} is the sum of the others, in {_first([*map(str, numbers.columns)])}: a line of "
            "totals is no sample. Remove it."
        )


def numbering(frame: pd.DataFrame, named: Collection[str] = ()) -> dict[str, str]:
    """Return the columns of a whole table that identify a row and are no features, each with the reason.

    These are columns without a name (such as a saved index), whole numbers that number the rows in any order, distinct
    numbers in a column called "id", "index" or the like, copies of another column, which pandas calls "NAME.1", and
    columns of texts most of which occur once.  A network would learn the order of the rows from them, or the label.

    Args:
        frame: the table as read.
        named: columns that the user has named, which are never returned.
    """
    if frame.attrs.get("sparse"):  # LIBSVM's format has features only
        return {}
    names = [str(name) for name in frame.columns if name not in named]
    reasons = {name: "no name" for name in names if _UNNAMED.fullmatch(name)}
    for name in names:
        original, _, number = name.rpartition(".")
        if number.isdecimal() and original in frame and frame[name].equals(frame[original]):
            reasons[name] = f"a copy of {original}"
    numbers = {name: "it numbers the rows" for name in _row_numberings(frame) if name in names and name not in reasons}
    rest = [name for name in names if name not in reasons and name not in numbers]
    return {**reasons, **numbers, **{name: reason for name in rest if (reason := _mostly_unique(frame[name]))}}


def _mostly_unique(column: pd.Series) -> str:
    """The reason why a column of texts is no feature, if most cells occur in one row only; else empty."""
    filled = column.dropna()
    if len(filled) < _FEWEST_NUMBERED or not isinstance(filled.iloc[0], str):
        return ""
    share = filled.nunique() / len(filled)
    if share < 1 and (share <= MOST_SEEN or len(filled) < _FEWEST_TEXTS):
        return ""
    cells = filled.astype(str)
    numbers = pd.to_numeric(cells, errors="coerce").notna().mean() >= MOST_ARE_NUMBERS
    if numbers or dates_of(column.to_frame()) or _as_mistyped_numbers(column, ""):
        return ""
    if kind := _mistaken_kind(cells):
        return kind
    if (cells.head(_FEWEST_TEXTS).str.count(r"\s+") + 1).mean() >= _WORDS:
        return "different texts: GroupedTextDataModule learns from such a column"
    return "another value in every row" if share == 1 else f"{share:.0%} of its values occur once"


def _mistaken_kind(cells: pd.Series) -> str:
    """A remark if texts look like dates or numbers in another notation; else empty."""
    if are_other_dates(cells):
        return _NOT_AS_WRITTEN
    numbers = pd.to_numeric(cells, errors="coerce").notna()
    if numbers.mean() <= MOST_SEEN:
        return ""
    others = cells[~numbers].value_counts()
    return f"{numbers.mean():.0%} numbers, and {others.index[0]!r} in {others.iloc[0]} cells: leave these empty"


def _row_numberings(frame: pd.DataFrame) -> list[str]:
    """The columns of distinct whole numbers without gaps, or with a name such as "id"."""
    if len(frame) < _FEWEST_NUMBERED:
        return []
    first = _numeric_columns(frame.head(_FEWEST_NUMBERED))  # enough to exclude most columns
    values = first.to_numpy(dtype=np.float64, na_value=np.nan)
    values = np.where(np.isfinite(values), values, np.nan)
    possible = (values % 1 == 0).all(0) & (np.diff(np.sort(values, axis=0), axis=0) > 0).all(0)
    return [str(name) for name in first.columns[possible] if _numbers_rows(frame[name])]


def _numbers_rows(column: pd.Series) -> bool:
    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    if not np.isfinite(values).all() or not (values % 1 == 0).all() or len(np.unique(values)) < len(values):
        return False
    return bool(values.max() - values.min() == len(values) - 1 or _OF_ROWS.fullmatch(str(column.name)))


def described(
    columns: Sequence[Column],
    unseen: Mapping[str, Mapping[str, float]],
    left_out: Mapping[str, str],
    sensitive: Sequence[str] = (),
) -> str:
    """Return a few lines on how the columns of a table are encoded, and on unseen values in other splits.

    Args:
        columns: the encoded columns.
        unseen: split -> categorical column -> share of cells whose value does not occur in the training split.
        left_out: the columns that are no features by :func:`numbering`, with the reasons.
        sensitive: the columns that define groups and are no features.
    """
    dates = [column.name for column in columns if isinstance(column, NumericColumn) and column.periods]
    numbers = [c.name for c in columns if not isinstance(c, CategoricalColumn) and c.name not in dates]
    categories = sorted((c for c in columns if isinstance(c, CategoricalColumn)), key=lambda c: -len(c.categories))
    lines = [f"{len(columns)} columns become {sum(len(column.features) for column in columns)} features"]
    if numbers:
        lines.append(f"  {len(numbers)} of numbers: {_first(numbers)}")
    if dates:
        lines.append(f"  {len(dates)} of dates, as days with sine and cosine of year and week: {_first(dates)}")
    if categories:
        lines.append(f"  {len(categories)} of categories: {_first([_name_and_size(column) for column in categories])}")
    if left_out:
        reasons = _first([f"{name} ({reason})" for name, reason in left_out.items()])
        lines.append(
            f"  {len(left_out)} left out: {reasons}; to use one, name it in encoding.numeric or encoding.categorical"
        )
    if sensitive:
        listing = _first(sensitive)
        lines.append(
            f"  {len(sensitive)} that define groups, not features: {listing}; columns.use_sensitive makes them features"
        )
    shares = sorted(((s, c, split) for split, by_column in unseen.items() for c, s in by_column.items()), reverse=True)
    if shares:
        lines.append(f"  never seen in training: {_first([f'{s:.1%} of {c} ({split})' for s, c, split in shares])}")
    return "\n".join(lines)


def are_other_dates(cells: pd.Series) -> bool:
    """Whether nearly all texts are dates in another notation than ISO 8601."""
    alike = cells.str.strip().str.fullmatch(_OTHER_DATE)
    return len(cells) > 0 and bool(alike.mean() >= MOST_ARE_NUMBERS)


def doubts(
    frame: pd.DataFrame, features: Sequence[str], labels: Sequence[str], sensitive: Sequence[str] = ()
) -> list[str]:
    """Return warnings about probable mistakes in the training rows, each with advice.

    These are features that determine a label, and values of labels and groups that differ only in case.

    Args:
        frame: the training rows.
        features: names of the columns that are features.
        labels: names of the columns that are labels of classes.
        sensitive: names of the columns that define groups.
    """
    lines = [
        f"  {name!r} determines {label!r} in all training rows: if it is known only afterwards, columns.drop=[{name!r}]"
        for label in labels
        for name in (() if frame.attrs.get("sparse") else features)
        if _determines(frame[name], frame[label])
    ]
    for name in [*labels, *sensitive]:
        alike: dict[str, list[str]] = {}
        for text in sorted(text_of(frame[name].dropna()).unique()):
            alike.setdefault(text.casefold(), []).append(text)
        if pairs := [" and ".join(map(repr, spellings)) for spellings in alike.values() if len(spellings) > 1]:
            lines.append(
                f"  {name!r} has {_first(pairs)}, which count as different: use one spelling if they are the same"
            )
    return lines


def _determines(feature: pd.Series, label: pd.Series) -> bool:
    """Whether every value of a column has one label only; False with few rows or one label."""
    if len(label) < _FEWEST_TEXTS:
        return False
    for rows in (_FEWEST_TEXTS, len(label)):  # the first rows exclude most columns
        codes, values = pd.factorize(feature.iloc[:rows], use_na_sentinel=False)
        label_codes, classes = pd.factorize(label.iloc[:rows], use_na_sentinel=False)
        if not len(values) == len(classes) == len({*zip(codes.tolist(), label_codes.tolist(), strict=True)}):
            return False
    return len(classes) > 1


def _name_and_size(column: CategoricalColumn) -> str:
    """The name and the number of values of a column, with a remark if they may be numbers or dates."""
    size = len(column.categories)
    if are_other_dates(pd.Series(column.categories, dtype=object)):
        return f"{column.name} ({size} {_NOT_AS_WRITTEN})"
    if size > _MANY_CATEGORIES and pd.to_numeric(pd.Series(column.categories), errors="coerce").notna().all():
        return f"{column.name} ({size} values, all numbers: encoding.numeric?)"
    return f"{column.name} ({size})"


def _first(texts: Sequence[str]) -> str:
    return f"{', '.join(texts[:_MOST_NAMED])}{and_more(texts, _MOST_NAMED)}"


def require_seen(columns: Sequence[Column], unseen: Mapping[str, float], frame: pd.DataFrame, where: str) -> None:
    """Raise :class:`DataError` if most cells of a categorical column have values that do not occur in training.

    ``unseen`` is the share of such cells in every column of the rows ``frame``, which are called ``where``.
    """
    for column in columns:
        name, share = column.name, unseen.get(column.name, 0.0)
        if isinstance(column, CategoricalColumn) and share > MOST_SEEN:
            cells = frame[name].astype(str)
            raise DataError(
                f"{share:.0%} of the column {name!r} in {where} are values that the training split does not have, such "
                f"as {cells[~cells.isin(column.categories)].iloc[0]!r}: it has {len(column.categories)}, such as "
                f"{column.categories[0]!r}. Give both tables the same words; or leave the column out (columns.drop: "
                f"[{name}]), call it one of numbers (encoding.numeric: [{name}]), or one of categories after all "
                f"(encoding.categorical: [{name}])."
            )

"""The reader of all text files in UTF-8: tables separated by commas or tabs, and other texts."""

import bz2
import codecs
import csv
import gzip
import io
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pandas as pd
from pandas.errors import ParserError, ParserWarning

from fcco_lightning.errors import DataError

_CHUNK = 1 << 20
_LONGEST = (1 << 31) - 1  # characters of a field; the default of csv is 131,072, pandas has no limit
_MOST_UNPACKED = 1 << 28  # bytes that a packed file of any size may hold; beyond them 100 times its size
_UNPACKERS: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def separator(path: Path) -> str | None:
    r"""Return the separator of fields in a .csv, .tsv, .csv.gz or .tsv.gz; None for other names.

    Example:
        >>> separator(Path("t.csv")), separator(Path("T.TSV.gz")), separator(Path("t.gz"))
        (',', '\t', None)
    """
    return _SEPARATORS.get(Path(path.name.lower().removesuffix(".gz")).suffix)


def _opened(path: Path) -> IO[bytes]:
    """Open a file for reading its bytes, decompressed if its name ends with .gz."""
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def require_moderate(path: Path, where: str) -> None:
    """Raise :class:`DataError` if a .gz or .bz2 file holds more than 256 MB, and more than 100 times its own size."""
    if (unpacker := _UNPACKERS.get(path.suffix.lower())) is None:
        return
    left = max(_MOST_UNPACKED, 100 * path.stat().st_size)
    with unpacker(path) as file:
        while left >= 0 and (chunk := file.read(_CHUNK)):
            left -= len(chunk)
    if left < 0:
        raise DataError(
            f"{where} unpacks to more than 100 times its size, as a file that is to fill the memory does. If it is to "
            "be trusted, unpack it and give the file inside."
        )


def read_text(path: Path, where: str) -> str:
    """Return the content of a text file, which is called ``where`` in messages.

    Raises:
        DataError: if it is not in UTF-8, or holds a NUL, naming the line.
    """
    require_text(path, where)
    return path.read_text(encoding="utf-8-sig")


def require_text(path: Path, where: str) -> None:
    """Raise :class:`DataError` if a file has a byte that is NUL or not UTF-8, naming the first one and its line.

    A .gz file is decompressed, and refused if that fails or it is not moderate, see :func:`require_moderate`.
    """
    number, start = 1, b""  # number of the first line of a chunk, start of the file
    try:
        require_moderate(path, where)
        with _opened(path) as file:
            while chunk := file.read(_CHUNK) + file.readline():  # whole lines
                start = start or chunk[:2]
                if (wrong := _first_wrong(chunk)) is not None:
                    break
                number += chunk.count(b"\n")
            else:
                return
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{where} is damaged, or not packed by gzip: {error}. Restore it.") from error
    encoding = "UTF-16" if start in _UTF_16 else "CP1252"
    fault = f"is not in UTF-8. Save it in that encoding, for example: iconv -f {encoding} -t UTF-8 FILE > NEW."
    if chunk[wrong] == 0:
        fault = "holds a NUL: it is damaged, or no text at all. Restore it, or remove these bytes."
    number, place = number + chunk.count(b"\n", 0, wrong), wrong - chunk.rfind(b"\n", 0, wrong)
    raise DataError(f"{where}, line {number}: byte {place} of the line is 0x{chunk[wrong]:02x}, so the file {fault}")


def _first_wrong(lines: bytes) -> int | None:
    """The position of the first byte that is NUL or not UTF-8; None if there is none."""
    places = [place] if (place := lines.find(b"\0")) >= 0 else []
    try:
        lines.decode()
    except UnicodeDecodeError as error:
        places.append(error.start)
    return min(places, default=None)


def read_csv(path: Path, where: str, *, with_names: bool = False, **options: Any) -> pd.DataFrame:
    """Return the rows of a file of comma-separated values; no column becomes the index.

    Args:
        path: path of the file; a .tsv has tabs instead of commas, and a .gz is decompressed.
        where: name of the file in messages.
        with_names: whether the first line must be a header with distinct names, which is checked first.
        **options: further arguments of ``pandas.read_csv``.

    Raises:
        DataError: if it is no text in UTF-8, or a row has more fields than the header (except an empty one if every
            line ends with a comma).
    """
    require_text(path, where)
    if with_names:
        _require_header(path, where)
    try:
        with _opened(path) as file, warnings.catch_warnings():
            warnings.simplefilter("error", ParserWarning)  # pandas warns if it drops a field
            frame: pd.DataFrame = pd.read_csv(file, **{"index_col": False, "sep": separator(path) or ",", **options})
    except (ParserError, ParserWarning) as error:
        _require_no_more_fields(path, where)
        raise DataError(f"{where} is no readable table of text: {error}") from error
    return frame


@contextmanager
def _rows_of(path: Path) -> Iterator[Any]:
    """Open a table and yield a reader of the fields of its lines, which may have any length."""
    before = csv.field_size_limit(_LONGEST)
    try:
        with _opened(path) as file, io.TextIOWrapper(file, newline="", encoding="utf-8-sig") as text:
            yield csv.reader(text, delimiter=separator(path) or ",", skipinitialspace=True)
    finally:
        csv.field_size_limit(before)


def _require_header(path: Path, where: str) -> None:
    """Refuse a file without a header, with duplicate names, or with another separator than its name implies.

    The header is considered missing if a field of the first line is a number and the names of all numeric columns are
    numbers, unless these number the columns.
    """
    with _rows_of(path) as reader:
        rows: Iterator[list[str]] = filter(None, reader)  # skips empty lines
        names, first = next(rows, []), next(rows, [])
    own = separator(path) or ","
    for sign in ";\t|,":
        if sign != own and own.join(names).count(sign) >= max(1, len(names)):
            kind = next((ending for ending, mark in _SEPARATORS.items() if mark == sign), None)
            anew = f"Write it anew: pandas.read_csv(FILE, sep={sign!r}).to_csv(NEW, index=False), with decimal=',' if "
            raise DataError(
                f"{where}: its columns are separated by {sign!r}, not by {own!r}. "
                + (f"Call it {kind}." if kind else f"{anew}its numbers have decimal commas.")
            )
    numbers = [value for name in names if (value := _number(name)) is not None]
    named = any(_number(name) is None and _number(cell) is not None for name, cell in zip(names, first, strict=False))
    in_order = [numbers[0] + k for k in range(len(numbers))] == numbers if len(numbers) > 1 else numbers in ([0], [1])
    if numbers and not named and not in_order:
        raise DataError(
            f"{where}, line 1: the names of the columns are numbers ({', '.join(names[:6])}"
            f"{', ...' if len(names) > 6 else ''}), so the header seems to be missing. Put a line with the names of "
            "the columns above it."
        )
    require_different([*filter(None, names)], where)  # pandas would rename duplicates


def require_different(names: Iterable[Any], where: str) -> None:
    """Raise :class:`DataError` if several columns of a table have the same name."""
    repeated = sorted({str(name) for name, count in Counter(names).items() if count > 1})
    if repeated:
        raise DataError(f"{where}: several columns have the name {repeated[0]!r}. Rename or remove all but one.")


def _require_no_more_fields(path: Path, where: str) -> None:
    """Raise :class:`DataError` naming the first line that has more fields than the header."""
    with _rows_of(path) as reader:
        rows = filter(None, reader)
        num_fields = len(next(rows, []))
        for row in rows:
            if len(row) > num_fields:
                raise DataError(
                    f"{where}, line {reader.line_num}: it has {len(row)} fields, and the header has {num_fields}. Add "
                    "the missing name (for an index in front: to_csv(NEW, index=False)), or put a field that contains "
                    "a comma between quotes."
                )


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    return None

"""One reader for all kinds of tables: files, saved ``datasets`` folders, hub ids and objects in memory."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fcco_lightning.data.columns import and_more, as_written, listed, stripped
from fcco_lightning.data.text_files import read_csv, require_different, require_moderate, separator
from fcco_lightning.errors import DataError

ACCEPTED = (
    "a path to a .csv, .tsv (also .gz) or .parquet file or to one of LIBSVM's or LETOR's format (.svm, .svmlight, "
    ".libsvm, .letor, .txt, .bz2), a folder written by datasets.save_to_disk, 'sklearn:NAME' for a table that comes "
    "with scikit-learn, a hub id 'owner/name' or 'owner/name:split', a pandas DataFrame, a datasets.Dataset, or a dict "
    "of columns"
)
_SUFFIXES = dict.fromkeys((".parquet", ".pq"), "parquet") | dict.fromkeys(
    (".svm", ".svmlight", ".libsvm", ".letor", ".txt", ".bz2"), "svmlight"
)
_READERS = {  # readers of pandas for files that must be converted first
    **dict.fromkeys((".gz", ".zip", ".xz", ".zst"), "read_csv(FILE)"),
    **dict.fromkeys((".xls", ".xlsx", ".ods"), "read_excel(FILE)"),
    ".json": "read_json(FILE)",
    ".jsonl": "read_json(FILE, lines=True)",
    ".feather": "read_feather(FILE)",
    ".dta": "read_stata(FILE)",
    ".sav": "read_spss(FILE)",
}
_BUNDLED = ("breast_cancer", "diabetes", "digits", "iris", "wine")
_SEVERAL = (Mapping, np.ndarray, list, tuple, set)
_BYTES = (bytes, bytearray, memoryview)
_BYTES_A_CELL = 24  # memory of a dense feature: in the frame, during encoding, and encoded
_FEATURE = re.compile(r"f\d+")
_HUB_ID = re.compile(r"[\w][\w.-]*/[\w.-]+(:[\w.\[\]:%+-]+)?")


def read_table(source: Any, argument: str = "source", texts: Sequence[str] = ()) -> pd.DataFrame:
    """Read ``source`` into a DataFrame with a fresh index 0..n-1.

    Args:
        source: one of :data:`ACCEPTED`.  Files and folders take precedence over hub ids, whose default split is
            ``train``.
        argument: name of the source in messages.
        texts: columns of a .csv or .tsv whose cells are read literally as texts, such as "NA" and "001".

    A file in LIBSVM's format has lines ``label qid:7 1:0.5 8:2 # comment``, and may be compressed as .bz2.  It becomes
    the columns ``label``, ``qid`` (if a line has one) and ``f1``, ``f8``, ..., dense, with 0 for absent features.  A
    table of scikit-learn has its label in the column ``target``.

    Returns:
        A new frame with one row per sample, without blanks around texts.

    Raises:
        DataError: if the source is missing, unreadable, of another kind, or has no rows.
    """
    is_path, where = isinstance(source, (str, PathLike)), f"{argument}={shown(source)}"
    frame = _from_name(source, argument, texts) if is_path else _from_memory(source, argument)
    if frame.empty:
        raise DataError(f"{where} has no rows or no columns.")
    frame = frame.reset_index(drop=True)
    if isinstance(frame.columns, pd.MultiIndex):
        raise DataError(
            f"{where} has names of columns in {frame.columns.nlevels} levels, such as {frame.columns[0]}. Give each "
            "one name: frame.columns = ['_'.join(map(str, name)) for name in frame]."
        )
    frame.columns = frame.columns.map(str)
    require_different(frame.columns, where)
    types = pd.api.types
    plain = [types.is_numeric_dtype(kind) and not types.is_complex_dtype(kind) for kind in frame.dtypes]
    for name in frame.columns[~np.array(plain)]:
        _require_plain(frame[name], where)
        decimals = types.infer_dtype(frame[name], skipna=True) == "decimal"  # of a data base
        frame[name] = frame[name].astype(float) if decimals else stripped(frame[name])
    return frame


def _require_plain(column: pd.Series, where: str) -> None:
    """Refuse a column of lists, mappings, bytes or complex numbers, which is no feature."""
    kind, where = column.dtype, f"{where}: the column {str(column.name)!r}"
    if isinstance(kind, pd.CategoricalDtype):
        column, kind = kind.categories.to_series(), kind.categories.dtype
    if pd.api.types.is_complex_dtype(kind):
        raise DataError(f"{where} holds complex numbers. Give their two parts a column each.")
    if not pd.api.types.is_object_dtype(kind) and getattr(kind, "type", None) not in (list, dict, bytes):
        return
    kinds = {*map(type, column)}
    if any(issubclass(kind, _BYTES) for kind in kinds):
        raise DataError(f"{where} holds bytes. Remove it, or make texts of them: frame[NAME].str.decode('utf-8').")
    if any(issubclass(kind, _SEVERAL) for kind in kinds):
        cell = next(cell for cell in column if isinstance(cell, _SEVERAL))
        raise DataError(
            f"{where} holds a {type(cell).__name__} in a cell ({str(cell)[:60]}). Give every number or name a column "
            "of its own, or remove the column."
        )


def is_hub_id(source: Any) -> bool:
    """Tell whether :func:`read_table` would look for ``source`` on the hub."""
    if not isinstance(source, str) or Path(source).exists():
        return False
    return _HUB_ID.fullmatch(source) is not None and _kind_of(Path(source)) is None


def _kind_of(path: Path) -> str | None:
    """Return the kind of a file by its name; None if it cannot be read."""
    return "text" if separator(path) else _SUFFIXES.get(path.suffix.lower())


def _from_name(source: str | PathLike[str], argument: str, texts: Sequence[str]) -> pd.DataFrame:
    source, path = str(source), Path(source)
    if source.startswith("sklearn:"):
        return _from_sklearn(source.removeprefix("sklearn:"), argument)
    if path.is_file():
        return _from_file(path, argument, texts)
    if path.is_dir() or is_hub_id(source):
        return _from_memory(open_dataset(source, argument, ACCEPTED), argument)
    raise DataError(
        f"{argument}={source!r}: no such file or folder (working directory: {Path.cwd()}). Accepted are {ACCEPTED}."
    )


def _from_file(path: Path, argument: str, texts: Sequence[str]) -> pd.DataFrame:
    kind = _kind_of(path)
    if kind is None:
        reader = _READERS.get(path.suffix.lower())
        anew = "" if reader is None else f" Write it anew: pandas.{reader}.to_csv(NEW, index=False)."
        raise DataError(f"{argument}='{path}': unknown suffix {path.suffix!r}.{anew} Accepted are {ACCEPTED}.")
    if kind == "svmlight":
        return _from_svmlight(path, argument)
    # not load_dataset("csv"), which copies the file to a cache and takes a second or more
    try:
        if kind == "parquet":
            return pd.read_parquet(path)
        # low_memory=False infers the type of a whole column, whatever the length of the file; the copy below makes
        # columns of one type contiguous, which speeds up tables of 100,000 columns many times
        frame = read_csv(path, f"{argument}='{path}'", with_names=True, skipinitialspace=True, low_memory=False)
        return as_written(frame.copy(), path, texts)
    except DataError:
        raise
    except pd.errors.EmptyDataError as error:
        raise DataError(
            f"{argument}='{path}' is empty. It must hold a line with the names of the columns, and one a sample."
        ) from error
    except Exception as error:  # readers of damaged files raise errors of many classes
        raise DataError(f"{argument}='{path}' is not a readable {kind} file: {error}") from error


def with_features(frame: pd.DataFrame, names: Iterable[str]) -> pd.DataFrame:
    """Return a table read from LIBSVM's format with 0 in all features of ``names`` that it lacks; others unchanged.

    Such a file contains only the features that are not 0.
    """
    absent = [name for name in names if name not in frame.columns and _FEATURE.fullmatch(str(name))]
    if not absent or not frame.attrs.get("sparse"):
        return frame
    return frame.reindex(columns=[*frame.columns, *absent], fill_value=0.0)


def _from_svmlight(path: Path, argument: str) -> pd.DataFrame:
    from sklearn.datasets import load_svmlight_file  # noqa: PLC0415  (slow to import, and only needed here)

    try:
        require_moderate(path, f"{argument}='{path}'")
        # zero_based=True keeps the numbers of the features as they are in the file
        matrix, label, query = load_svmlight_file(str(path), query_id=True, zero_based=True)
    except DataError:
        raise
    except (OSError, EOFError, ValueError, OverflowError) as error:
        raise DataError(f"{argument}='{path}' is not a readable file of LIBSVM's format: {error}") from error
    matrix.eliminate_zeros()
    nonempty = (matrix.getnnz(axis=0) > 0).nonzero()[0]
    required, have = _BYTES_A_CELL * matrix.shape[0] * len(nonempty), _memory()
    if have is not None and required > have:
        raise DataError(
            f"{argument}='{path}' has {matrix.shape[0]} rows and {len(nonempty)} features, {matrix.nnz:,} of them not "
            f"0. Features are held densely, which takes about {required / 2**30:.1f} GiB of this machine's "
            f"{have / 2**30:.1f} GiB. Reduce them, for example with sklearn's TruncatedSVD, or take fewer rows."
        )
    leading = {"label": label} | ({"qid": query} if len(query) == len(label) else {})
    features = pd.DataFrame(matrix[:, nonempty].toarray(), columns=[f"f{i}" for i in nonempty])
    frame = pd.concat([pd.DataFrame(leading), features], axis=1)
    frame.attrs["sparse"] = True
    return frame


def _memory() -> int | None:
    """Return the bytes of memory of this machine, or None if they are not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _from_sklearn(name: str, argument: str) -> pd.DataFrame:
    from sklearn import datasets  # noqa: PLC0415  (slow to import, and only needed here)

    if name not in _BUNDLED:
        raise DataError(f"{argument}='sklearn:{name}': the tables that come with scikit-learn are {list(_BUNDLED)}.")
    frame: pd.DataFrame = getattr(datasets, f"load_{name}")(as_frame=True).frame
    return frame


def open_dataset(source: str, argument: str, accepted: str, split: str | None = "train") -> Any:
    """Open a folder written by ``save_to_disk``, or the hub id "owner/name" or "owner/name:split", with ``datasets``.

    ``split`` is the default for a hub id without one; None for a mapping of all splits.

    Raises:
        DataError: if there is neither; it names the ``argument`` and the ``accepted`` sources.
    """
    import datasets  # noqa: PLC0415  (slow to import, and only needed here)

    name, _, suffix = source.partition(":")
    try:
        if Path(source).is_dir():
            return datasets.load_from_disk(source)
        return datasets.load_dataset(name, split=suffix or split)
    except Exception as error:  # builders raise errors of many classes
        folder = "is a folder that datasets.load_from_disk cannot read"
        hub = f"is neither a file nor a folder in {Path.cwd()}, and the hub gave no data set {name!r} with split"
        cause = error.__cause__ or error
        raise DataError(
            f"{argument}={source!r} {folder if Path(source).is_dir() else f'{hub} {suffix or split!r}'}: "
            f"{type(cause).__name__}: {cause}. Check the name, the split and the connection. Accepted are {accepted}."
        ) from error


def _from_memory(source: Any, argument: str) -> pd.DataFrame:
    if isinstance(source, pd.DataFrame):
        return source.copy()
    if hasattr(source, "column_names") and isinstance(source, Mapping):  # a datasets.DatasetDict
        raise DataError(f"{argument} holds several splits {sorted(source)}; pass one of them, or save it alone.")
    if hasattr(source, "to_pandas"):
        frame: pd.DataFrame = source.to_pandas()
        return frame
    if isinstance(source, Mapping):
        try:
            return pd.DataFrame(dict(source))
        except ValueError as error:
            raise DataError(f"{argument}: the columns {listed(source)} do not form a table: {error}") from error
    raise DataError(f"{argument} is a {type(source).__name__}. Accepted are {ACCEPTED}.")


def shown(source: Any) -> str:
    """Return a source's name in messages: its path or type; for several the first one and the number of others."""
    if isinstance(source, (list, tuple)) and source:
        return f"{shown(source[0])}{and_more(source, 1)}"
    return f"'{source}'" if isinstance(source, (str, PathLike)) else f"<{type(source).__name__}>"

"""One reader for every kind of table: file, saved ``datasets`` folder, hub id, or something in memory."""

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from fcco_lightning.errors import DataError

ACCEPTED = (
    "a path to a .csv or .parquet file, a folder written by datasets.save_to_disk, a hub id 'owner/name' or "
    "'owner/name:split', a pandas DataFrame, a datasets.Dataset, or a dict of columns"
)
_SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
_HUB_ID = re.compile(r"(?P<name>[\w][\w.-]*/[\w.-]+)(:(?P<split>[\w.\[\]:%+-]+))?")


def read_table(source: Any, argument: str = "source") -> pd.DataFrame:
    """Read ``source`` into a DataFrame with a fresh index 0..n-1.

    Args:
        source: a path to a .csv or .parquet file, a folder written by ``datasets.save_to_disk``, a hub id
            ``"owner/name"`` or ``"owner/name:split"`` (split ``train`` if left out), a pandas DataFrame, a
            ``datasets.Dataset``, or a dict of columns.  Files and folders win over hub ids.
        argument: what the caller calls it, for messages.

    Returns:
        A new frame with one row per sample; text cells stripped of surrounding blanks.

    Raises:
        DataError: if the source is missing, unreadable, of another kind, or has no rows.
    """
    read = _from_name if isinstance(source, (str, PathLike)) else _from_memory
    frame = read(source, argument)
    if frame.empty:
        raise DataError(f"{argument}={_short(source)} has no rows or no columns.")
    frame = frame.reset_index(drop=True)
    for name in frame.columns[[not pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]]:
        frame[name] = frame[name].map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
    return frame


def is_hub_id(source: Any) -> bool:
    """Tell whether :func:`read_table` would look for ``source`` on the hub."""
    if not isinstance(source, str) or Path(source).exists():
        return False
    match = _HUB_ID.fullmatch(source)
    return match is not None and Path(source).suffix.lower() not in _SUFFIXES


def _from_name(source: str | PathLike[str], argument: str) -> pd.DataFrame:
    source, path = str(source), Path(source)
    if path.is_dir():
        return _from_folder(path, argument)
    if path.is_file():
        return _from_file(path, argument)
    if is_hub_id(source):
        return _from_hub(source, argument)
    raise DataError(
        f"{argument}={source!r}: no such file or folder (working directory: {Path.cwd()}). Accepted are {ACCEPTED}."
    )


def _from_file(path: Path, argument: str) -> pd.DataFrame:
    kind = _SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise DataError(f"{argument}='{path}': unknown suffix {path.suffix!r}. Accepted are {ACCEPTED}.")
    # pandas, not load_dataset("csv"): that copies the file to a cache outside the project and costs a second or more.
    try:
        return pd.read_csv(path, skipinitialspace=True) if kind == "csv" else pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{argument}='{path}' is not a readable {kind} file: {error}") from error


def _from_folder(path: Path, argument: str) -> pd.DataFrame:
    import datasets  # noqa: PLC0415  (slow to import, and only needed here)

    try:
        loaded = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{argument}='{path}' is a folder that datasets.load_from_disk cannot read: {error}. "
            f"Accepted are {ACCEPTED}."
        ) from error
    return _from_memory(loaded, argument)


def _from_hub(source: str, argument: str) -> pd.DataFrame:
    import datasets  # noqa: PLC0415  (slow to import, and only needed here)

    match = _HUB_ID.fullmatch(source)
    assert match is not None  # noqa: S101  (is_hub_id has matched it)
    name, split = match["name"], match["split"] or "train"
    try:
        loaded = datasets.load_dataset(name, split=split)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{argument}={source!r} is neither a file nor a folder here (working directory: {Path.cwd()}), and the hub "
            f"gave no data set {name!r} with split {split!r}: {type(error).__name__}: {error}. "
            f"Check the name, the split and the connection. Accepted are {ACCEPTED}."
        ) from error
    return _from_memory(loaded, argument)


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
            raise DataError(f"{argument}: the columns {sorted(source)} do not form a table: {error}") from error
    raise DataError(f"{argument} is a {type(source).__name__}. Accepted are {ACCEPTED}.")


def _short(source: Any) -> str:
    return repr(source) if isinstance(source, (str, PathLike)) else f"<{type(source).__name__}>"

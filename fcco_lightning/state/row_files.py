"""Tables of rows on disk: each process writes its rows to a file, and any number of processes can read them.

A part file holds rows as in memory, so that even NaNs are preserved bit for bit.  ``manifest.json`` lists the parts of
all tables, with the checksum of every chunk of ``CHUNK_BYTES``, and is written last: a folder without it is an
interrupted save.
"""

import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcco_lightning.errors import CheckpointError
from fcco_lightning.state.checkpoint_schema import ManifestFile, require

FORMAT_VERSION = 2
CHUNK_BYTES = 4 << 20  # part of the format: files written with another value are refused
MANIFEST = "manifest.json"
_COLUMNS = 512  # of the matrix whose sums give the checksum of a chunk
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class RowPart:
    """The part of a table that one process has written, as plain values."""

    table: str
    file: str  # name in the folder; a part without rows has no file
    first: int  # global number of its first row
    count: int  # rows
    width: int
    dtype: str  # "float32" or "float64"
    sums: Sequence[int] = ()  # checksum of every chunk, in [0, 2**64)

    @property
    def checksum(self) -> int:
        """Checksum of the rows, see :func:`checksum`."""
        return sum(self.sums) & _MASK


@dataclass(frozen=True)
class Manifest:
    """The content of a save: ``tables`` maps names to numbers of rows; ``parts`` are sorted and not empty."""

    save_id: str
    tables: dict[str, int]
    parts: tuple[RowPart, ...]


def write_part(folder: Path, table: str, save_id: str, first: int, rows: Tensor, num_rows: int) -> RowPart:
    """Write ``rows`` (count, k), global rows ``first``, ``first + 1``, ... of ``num_rows``, chunk by chunk, and fsync.

    Nothing is written if count is 0.  The file's name contains ``save_id``, so that an earlier save in the folder stays
    intact.

    Raises:
        CheckpointError: if ``rows`` do not fit into the table, or cannot be written; no file is left then.
    """
    _layout(rows)
    name = f"{quote(table, safe='')}.{first:012d}.{quote(save_id, safe='')}.rows"
    count, width = rows.shape
    part = RowPart(table, name, first, count, width, str(rows.dtype)[6:])
    if not count:
        return part
    _check_range(table, first, count, num_rows)
    with new_file(folder / name) as file:
        return replace(part, sums=[total for words, total in _chunks(rows, first) if file.write(words.data)])


def write_manifest(folder: Path, save_id: str, tables: Mapping[str, int], parts: Sequence[RowPart]) -> None:
    """Complete the save atomically; one process calls it after all processes have written their parts.

    ``tables`` are numbers of rows by name, ``parts`` the parts of all tables and processes, in any order.

    Raises:
        CheckpointError: if the parts of a table do not hold each of its rows once, or on a failure to write.
    """
    parts = sorted((part for part in parts if part.count), key=lambda part: (part.table, part.first))
    if strangers := {part.table for part in parts} - set(tables):
        raise CheckpointError(f"parts of {sorted(strangers)} were written, the tables to save are {list(tables)}.")
    for table in tables:
        _check_cover(table, tables[table], [part for part in parts if part.table == table])
    content = {"format": _format(), "save_id": save_id, "tables": dict(tables), "parts": [*map(asdict, parts)]}
    with new_file(folder / MANIFEST) as file:
        file.write(_manifest_bytes(content))


def _check_cover(table: str, num_rows: int, parts: Sequence[RowPart]) -> None:
    if len(kinds := {(part.width, part.dtype) for part in parts}) > 1:
        raise CheckpointError(f"the parts of table {table!r} must have one (width, dtype), got {sorted(kinds)}.")
    ends = accumulate((part.count for part in parts), initial=0)
    for end, begin in zip(ends, [*(part.first for part in parts), num_rows], strict=True):
        if end != begin:
            raise CheckpointError(
                f"the parts of table {table!r} must hold each of its {num_rows} rows once, but after row {end - 1} "
                f"comes row {begin}. Give the part of every process, once."
            )


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A context that writes a file atomically: it gets its name when it is completely on disk, or never.

    Links are followed; pipes and other special files are written directly.

    Raises:
        CheckpointError: if it cannot be written.
    """
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        with path.open("wb") as pipe:
            yield pipe
        return
    # in the same folder, as renaming between file systems is not atomic
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # another job may write the same name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"cannot write `{path}`: {reason}. What was there before is as it was. Free space, or choose another "
            "folder."
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    with suppress(OSError):  # not supported by every file system; a lost name looks like an interrupted save
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_manifest(folder: Path, save_id: str | None = None) -> Manifest:
    """The manifest of the save in ``folder``.

    Raises:
        CheckpointError: if there is no manifest, if it is damaged or of another format version, or if ``save_id`` is
            given and differs from that of the save.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise CheckpointError(
            f"`{path}` is missing: the save was interrupted, or the folder is not one. Resume from another checkpoint."
        )
    with _naming_file(path):
        stored = path.read_bytes()
        content = json.loads(stored)
    version = content.get("format") if isinstance(content, dict) else None
    if version != _format():
        raise CheckpointError(
            f"`{path}` has format {version!r}, this installation reads {_format()}. Load it where it was written, or "
            "with the version of fcco_lightning that wrote it."
        )
    if _manifest_bytes(content) != stored:
        raise _damaged(path, "it does not match its digest")
    require(content, ManifestFile, f"`{path}`")
    strange = [part["file"] for part in content["parts"] if Path(part["file"]).name != part["file"]]
    if strange:
        raise _damaged(path, f"it names the file {strange[0]!r} in another folder")
    if save_id not in (None, content["save_id"]):
        raise _damaged(path, f"it is of save {content['save_id']!r}, the checkpoint of save {save_id!r}")
    return Manifest(content["save_id"], content["tables"], tuple(RowPart(**part) for part in content["parts"]))


def read_rows(
    folder: Path, manifest: Manifest, table: str, first: int, into: Tensor, num_rows: int | None = None
) -> None:
    """Fill ``into`` (m, k) with the global rows ``first``, ..., ``first + m - 1`` of ``table``.

    Every chunk with one of these rows is read and verified completely; no file is read if m is 0.  ``into`` has the
    saved dtype, on any device, and is undefined after an error.  The caller's table has ``num_rows`` rows; None for the
    saved number.

    Raises:
        CheckpointError: if table, shape or dtype differs, or a file is missing, damaged or of another save.
    """
    _layout(into)
    if table not in manifest.tables:
        raise CheckpointError(f"the checkpoint has no table {table!r}, only {list(manifest.tables)}.")
    parts, saved_rows = [part for part in manifest.parts if part.table == table], manifest.tables[table]
    expected = (saved_rows if num_rows is None else num_rows, into.shape[1], str(into.dtype)[6:])
    for saved in {(saved_rows, part.width, part.dtype) for part in parts} - {expected}:
        raise CheckpointError(
            f"the checkpoint's table {table!r} has (rows, width, dtype) {saved}, this problem needs {expected}. It was "
            "trained on another data set, split or set of constraints: use the same ones, or start without --ckpt_path."
        )
    if len(into):
        _check_range(table, first, len(into), saved_rows)
    for part in parts:
        low, high = max(first, part.first), min(first + len(into), part.first + part.count)
        if low < high:
            _read_part(folder / part.file, part, low - part.first, into[low - first : high - first])


def _read_part(path: Path, part: RowPart, start: int, into: Tensor) -> None:
    """Fill ``into`` with the rows ``start``, ... of a part, counted from the part's first row."""
    (width, step), stop = _layout(into), start + len(into)
    with _naming_file(path), path.open("rb") as file:
        size, expected_size = os.fstat(file.fileno()).st_size, 4 * part.count * width
        if size != expected_size:
            raise _damaged(path, f"it has {size} bytes, must have {expected_size}")
        buffer = np.empty(min(step, part.count) * width, np.uint32)
        for chunk in range(start // step, -(-stop // step)):
            low, high = chunk * step, min((chunk + 1) * step, part.count)
            file.seek(4 * low * width)
            words = buffer[: (high - low) * width]
            file.readinto(words.data)
            if _checksum(words, (part.first + low) * width) != part.sums[chunk]:
                rows = f"rows {part.first + low}..{part.first + high - 1}"
                raise _damaged(path, f"{rows} do not match their checksum")
            table, first = torch.from_numpy(words.view(part.dtype)).view(-1, part.width), max(low, start)
            into[first - start : high - start].copy_(table[first - low : stop - low])


@contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    """A context that turns errors of reading or parsing into a :class:`CheckpointError` naming the file."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"cannot read `{path}`: {reason}. {_WAY_OUT}") from error


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"`{path}` is damaged or belongs to another save: {reason}. {_WAY_OUT}")


_WAY_OUT = "Copy the folder again from where it was saved, or resume from another checkpoint."


def checksum(rows: Tensor, first: int) -> int:
    r"""Checksum of ``rows`` (count, k), beginning with the global row ``first``; the sum of the chunks' checksums.

    The memory of a chunk is read as a matrix of 512 columns of 64-bit numbers.  Of its column sums and row sums, both
    mod 2**64, the low and the high halves are weighted with 64-bit random numbers and added up; the sum is multiplied
    by an odd random number that belongs to the chunk's position in the table.  A change of the rows, including a swap,
    is undetected with the probability that two random 64-bit numbers agree; the cost is little more than that of
    reading the memory.
    """
    return sum(total for _, total in _chunks(rows, first)) & _MASK


def require_checksum(total: int, stored: str, name: str, path: str | Path) -> None:
    """Raise :class:`CheckpointError` unless all rows of the dual state ``name`` have the checksum that was written."""
    if f"{total:016x}" != stored:
        raise CheckpointError(
            f"the rows of the dual state `{name}` do not match their checksum: the checkpoint `{path}` is damaged. Use "
            "an earlier one."
        )


def _chunks(rows: Tensor, first: int) -> Iterator[tuple[NDArray[np.uint32], int]]:
    """The words of every chunk, which are then in the cache, and their checksum."""
    width, step = _layout(rows)
    for start in range(0, len(rows), step):
        words = rows[start : start + step].detach().cpu().contiguous().numpy().reshape(-1).view(np.uint32)
        yield words, _checksum(words, (first + start) * width)


def _checksum(words: NDArray[np.uint32], position: int) -> int:
    """Checksum of a chunk whose first word is word ``position`` of the table."""
    if rest := words.size % (2 * _COLUMNS):
        words = np.pad(words, (0, 2 * _COLUMNS - rest))
    matrix = words.view(np.uint64).reshape(-1, _COLUMNS)
    sums = np.concatenate([np.add.reduce(matrix, 0), np.add.reduce(matrix, 1)])
    low_weights, high_weights = (_mixed(half << 62, sums.size) for half in (1, 2))
    total = (sums & np.uint64(0xFFFFFFFF)) * low_weights + (sums >> np.uint64(32)) * high_weights
    return int(total.sum()) * (int(_mixed(position, 1)[0]) | 1) & _MASK


def _mixed(first: int, count: int) -> NDArray[np.uint64]:
    """The outputs ``first``, ``first + 1``, ... of splitmix64."""
    numbers = np.arange(first + 1, first + 1 + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _format() -> dict[str, Any]:
    return {"version": FORMAT_VERSION, "byte_order": sys.byteorder, "chunk_bytes": CHUNK_BYTES}


def _manifest_bytes(content: Mapping[str, Any]) -> bytes:
    """The canonical text of ``content``, with its digest."""
    body = {name: value for name, value in content.items() if name != "digest"}
    digest = sha256(json.dumps(body).encode()).hexdigest()
    return json.dumps({**body, "digest": digest}, indent=1).encode() + b"\n"


def _layout(rows: Tensor) -> tuple[int, int]:
    """Number of words per row, and of rows per chunk."""
    if rows.dim() != 2 or rows.shape[1] < 1 or rows.dtype not in (torch.float32, torch.float64):
        raise CheckpointError(
            f"rows must be (count, width), width >= 1, of float32 or float64, got {tuple(rows.shape)} {rows.dtype}."
        )
    row_bytes = rows.shape[1] * rows.element_size()
    return row_bytes // 4, max(1, CHUNK_BYTES // row_bytes)


def _check_range(table: str, first: int, count: int, num_rows: int) -> None:
    if first < 0 or first + count > num_rows:
        raise CheckpointError(
            f"table {table!r} has rows 0..{num_rows - 1}, got rows {first}..{first + count - 1}. "
            "Divide the rows of the table over the processes."
        )

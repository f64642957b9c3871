"""``fcco inspect`` and ``fcco convert``: what a checkpoint holds, without the model that it belongs to.

Rows are streamed, and every byte of them is verified, so a table of any size needs a few MiB of memory.
"""

import json
import math
import os
import secrets
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import quote

import torch
from numpy.lib.format import dtype_to_descr, write_array_header_1_0
from rich.console import Console, Group
from rich.table import Table as Grid
from rich.text import Text
from torch import Tensor

from fcco_lightning.errors import CheckpointError, ConfigError, printable
from fcco_lightning.state.checkpoint_files import read_file, rows_folder
from fcco_lightning.state.row_files import CHUNK_BYTES, Manifest, checksum, read_manifest, read_rows

_SAFETENSORS = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_UNKNOWN_TO_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


class StoredRows(NamedTuple):
    """A dual state as it lies in a checkpoint.

    Attributes:
        name: in the checkpoint.
        shape: rows and width.
        dtype: of the rows.
        checksum: of the rows, as the checkpoint has it.
        files: number of part files; 0 if the rows lie in the checkpoint itself.
        unverified: reads the rows in order, about 4 MiB at a time.
    """

    name: str
    shape: tuple[int, int]
    dtype: torch.dtype
    checksum: str
    files: int
    unverified: Callable[[], Iterator[Tensor]]

    def pieces(self) -> Iterator[Tensor]:
        """All rows in order, about 4 MiB at a time: (m, k) each, valid until the next one.

        Raises:
            CheckpointError: if a byte is not what was saved; the last piece may have been given out then.
        """
        first = total = 0
        for rows in self.unverified():
            yield rows
            total += checksum(rows, first)
            first += len(rows)
        if f"{total % 2**64:016x}" != self.checksum:
            raise CheckpointError(
                f"the rows of the dual state `{self.name}` do not match their checksum: the checkpoint is damaged. Use "
                "an earlier one."
            )


class Checkpoint(NamedTuple):
    """A checkpoint that ``fcco fit`` wrote, not yet read.

    Attributes:
        content: as the Trainer saved it; tensors are mapped from the file.
        weights: tensors of the network by name (``network.*``), and others that are no rows.
        states: dual states.
    """

    content: dict[str, Any]
    weights: dict[str, Tensor]
    states: list[StoredRows]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Open a checkpoint, verifying the file but not the rows beside it.

    Raises:
        CheckpointError: if it is missing, damaged, of another format, or not written by ``fcco fit``.
    """
    path = Path(path)
    content = read_file(path, whole=True)
    header = content["fcco"]
    names = sorted(header["tables"], key=lambda name: (len(name), name))  # terms.2 before terms.10
    states = [_rows(path, name, header["tables"][name], content) for name in names]
    rows = {f"{state.name}.{part}" for state in states for part in ("rows", "_extra_state")}
    weights = {k: v for k, v in content["state_dict"].items() if isinstance(v, Tensor) and k not in rows}
    return Checkpoint(content, weights, states)


def _rows(path: Path, name: str, described: Mapping[str, Any], content: Mapping[str, Any]) -> StoredRows:
    inside = content["state_dict"].get(f"{name}.rows")
    if inside is not None:
        step = _rows_at_once(inside.shape[1], inside.dtype)
        shape = (len(inside), inside.shape[1])
        return StoredRows(name, shape, inside.dtype, described["checksum"], 0, partial(inside.split, step))
    save_id = content["fcco"]["save_id"]
    folder = rows_folder(path) / save_id
    shape, dtype = (described["num_rows"], described["width"]), getattr(torch, described["dtype"])
    manifest = read_manifest(folder, save_id)
    read_rows(folder, manifest, name, 0, torch.empty(0, shape[1], dtype=dtype), shape[0])  # none: their shape is right
    files = sum(part.table == name for part in manifest.parts)
    read = partial(_from_files, folder, manifest, name, shape, dtype)
    return StoredRows(name, shape, dtype, described["checksum"], files, read)


def _from_files(
    folder: Path, manifest: Manifest, name: str, shape: tuple[int, int], dtype: torch.dtype
) -> Iterator[Tensor]:
    step = _rows_at_once(shape[1], dtype)
    buffer = torch.empty(min(step, shape[0]), shape[1], dtype=dtype)
    for part in (p for p in manifest.parts if p.table == name):
        for start in range(0, part.count, step):
            rows = buffer[: part.count - start]
            read_rows(folder, manifest, name, part.first + start, rows, shape[0])
            yield rows


def _rows_at_once(width: int, dtype: torch.dtype) -> int:
    return max(1, CHUNK_BYTES // (width * dtype.itemsize))  # of the files: each chunk is read once


# ------------------------------------------------------------------------------------------------------------- inspect


def describe(path: str | Path) -> dict[str, Any]:
    """What a checkpoint holds, as plain values for JSON; every byte is read and verified.

    Args:
        path: of the checkpoint.

    Returns:
        ``algorithm``, ``version`` (of the format), ``world_size`` (processes that wrote it), ``epoch``,
        ``global_step``, ``num_samples``, ``optimizer``, ``skipped_batches``, ``weights`` (``tensors``, ``values`` and
        ``bytes``, statistics of BatchNorm included) and ``states``, a list with ``name``, ``rows``, ``width``,
        ``dtype``, ``files`` (0: in the checkpoint itself), ``bytes``, ``seen`` (share of rows ever written), ``min``,
        ``mean``, ``max`` and ``norm`` (Euclidean) of the written rows, None where there is none, and ``verified``.

    Raises:
        CheckpointError: if it is missing, damaged, or not written by ``fcco fit``.
    """
    checkpoint = read_checkpoint(path)
    header, weights = checkpoint.content["fcco"], checkpoint.weights.values()
    return {
        "checkpoint": str(path),
        "algorithm": header["algorithm"],
        "version": header["version"],
        "world_size": header["world_size"],
        "epoch": checkpoint.content["epoch"],
        "global_step": checkpoint.content["global_step"],
        "num_samples": header["num_samples"],
        "optimizer": header["optimizer"]["class"],
        "skipped_batches": header["skipped_batches"],
        "weights": {
            "tensors": len(weights),
            "values": sum(w.numel() for w in weights),
            "bytes": sum(w.nbytes for w in weights),
        },
        "states": [_described(state) for state in checkpoint.states],
    }


def _described(state: StoredRows) -> dict[str, Any]:
    """Facts about a table, in one pass over its rows."""
    written, total, squares, low, high = 0, 0.0, 0.0, math.inf, -math.inf
    for rows in state.pieces():
        values = rows[~rows[:, 0].isnan()].double()
        if len(values):
            written += len(values)
            total += values.sum().item()
            squares += values.square().sum().item()
            low, high = min(low, values.min().item()), max(high, values.max().item())
    of_rows = {"min": low, "mean": total / max(1, written * state.shape[1]), "max": high, "norm": math.sqrt(squares)}
    return {
        "name": state.name,
        "rows": state.shape[0],
        "width": state.shape[1],
        "dtype": str(state.dtype).removeprefix("torch."),
        "files": state.files,
        "bytes": math.prod(state.shape) * state.dtype.itemsize,
        "seen": written / state.shape[0],
        **{k: v if written and math.isfinite(v) else None for k, v in of_rows.items()},
        "verified": True,  # or pieces() has raised
    }


def render(description: Mapping[str, Any]) -> Group:
    """Lay out what :func:`describe` says, to be printed by ``rich``."""
    weights, states = description["weights"], description["states"]
    facts = Grid.grid(padding=(0, 2))
    for name, value in (
        ("algorithm", description["algorithm"]),
        ("epoch, global step", f"{description['epoch']}, {description['global_step']}"),
        ("weights", f"{weights['values']:,} in {weights['tensors']} tensors, {_size(weights['bytes'])}"),
        ("optimizer", description["optimizer"]),
        ("training samples", f"{description['num_samples']:,}"),
        ("skipped batches", str(description["skipped_batches"])),
        ("written by", f"{_count(description['world_size'], 'process', 'es')}, format {description['version']}"),
    ):
        facts.add_row(name, Text(printable(value)))
    if not states:
        return Group(facts, "no dual state: this algorithm remembers none")
    table = Grid(caption="every byte of every row was verified", caption_justify="left")
    table.add_column("dual state", overflow="fold")
    for title in ("rows x width", "seen", "min", "mean", "max", "norm", "lies in"):
        table.add_column(title, justify="right")
    for s in states:
        lies = _count(s["files"], "part file", "s") if s["files"] else "the checkpoint"
        numbers = ("" if s[k] is None else f"{s[k]:.4g}" for k in ("min", "mean", "max", "norm"))
        shape = f"{s['rows']:,} x {s['width']} {s['dtype']}"
        table.add_row(Text(printable(s["name"])), shape, _share(s["seen"]), *numbers, f"{lies}, {_size(s['bytes'])}")
    return Group(facts, table)


def _count(number: int, noun: str, plural: str) -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def _share(value: float) -> str:
    """A percentage that says 0 and 100 only where it is."""
    return f"{min(max(value, 0.001), 0.999) if 0 < value < 1 else value:.1%}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


# ------------------------------------------------------------------------------------------------------------- convert


class Entry(NamedTuple):
    """A tensor to write.

    Attributes:
        name: of the tensor.
        dtype: of the tensor.
        shape: of the tensor.
        pieces: gives it in pieces along its first dimension.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[Tensor]]


def convert(path: str | Path, out: str | Path, *, force: bool = False) -> Path:
    """Write the weights and the rows of a checkpoint as plain tensors, at once or not at all.

    Tensors keep the names they have in the checkpoint: the network's are ``network.*``, so that

        network.load_state_dict({k[8:]: v for k, v in tensors.items() if k.startswith("network.")})

    and each dual state is ``<name>.rows`` (n, k), NaN where never written, and ``<name>.seen`` (n,), bool.  numpy knows
    no bfloat16: there such tensors are float32.

    Args:
        path: of the checkpoint.
        out: ``*.safetensors``, ``*.npz``, or a folder, without extension or with ``/`` behind it, for one ``.npy`` a
            tensor.
        force: replace what ``out`` is.

    Returns:
        What was written.

    Raises:
        ConfigError: if ``out`` has another extension, or is there already.
        CheckpointError: if the checkpoint is missing, damaged or not written by ``fcco fit``, or ``out`` cannot be
            written; what was there is as it was.

    A folder that is replaced is gone for an instant.
    """
    suffix = "" if str(out).endswith(("/", os.sep)) else Path(out).suffix
    if suffix not in _WRITERS:
        raise ConfigError(
            f"OUT {out}: cannot write {suffix!r}. Choose .safetensors, .npz, or a folder of .npy files: a name without "
            "extension, or with / at its end."
        )
    folder, out = not suffix, Path(out).resolve()
    _check_absent(out, folder, force)
    checkpoint = read_checkpoint(path)
    entries = [Entry(k, w.dtype, tuple(w.shape), partial(_whole, w)) for k, w in checkpoint.weights.items()]
    for state in checkpoint.states:
        entries.append(Entry(f"{state.name}.rows", state.dtype, state.shape, state.pieces))
        entries.append(Entry(f"{state.name}.seen", torch.bool, state.shape[:1], partial(_seen, state)))
    temporary = out.with_name(f".{out.name}.{secrets.token_hex(8)}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _WRITERS[suffix](temporary, entries)
        if folder:
            _remove(out)
        temporary.replace(out)
    except OSError as error:
        raise CheckpointError(
            f"cannot write `{out}`: {error.strerror or error}. Free space, or choose another folder."
        ) from error
    finally:
        with suppress(OSError):
            _remove(temporary)
    return out


def _check_absent(out: Path, folder: bool, force: bool) -> None:
    if not out.exists():
        return
    if not force:
        raise ConfigError(f"OUT {out} is there already. Choose another name, or replace it with --force.")
    if folder and (not out.is_dir() or any(p.suffix != ".npy" for p in out.iterdir())):
        raise ConfigError(f"OUT {out} is not a folder of .npy files alone, so --force leaves it. Choose another name.")
    if not folder and out.is_dir():
        raise ConfigError(f"OUT {out} is a folder, so --force leaves it. Choose another name.")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _whole(tensor: Tensor) -> Iterator[Tensor]:
    yield tensor


def _seen(state: StoredRows) -> Iterator[Tensor]:
    return (~rows[:, 0].isnan() for rows in state.pieces())


def _write_folder(folder: Path, entries: Sequence[Entry]) -> None:
    folder.mkdir()
    for entry in entries:
        with (folder / f"{quote(entry.name, safe='')}.npy").open("wb") as file:
            _write_npy(file, entry)


def _write_npz(path: Path, entries: Sequence[Entry]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for entry in entries:
            with archive.open(f"{entry.name}.npy", "w", force_zip64=True) as file:
                _write_npy(file, entry)


def _write_npy(file: IO[bytes], entry: Entry) -> None:
    # not open_memmap: on a full disk that ends the program instead of raising
    dtype = torch.float32 if entry.dtype in _UNKNOWN_TO_NUMPY else entry.dtype
    descr = dtype_to_descr(torch.empty(0, dtype=dtype).numpy().dtype)
    write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": entry.shape})
    for piece in entry.pieces():
        file.write(_bytes(piece.to(dtype)))


def _write_safetensors(path: Path, entries: Sequence[Entry]) -> None:
    """A length, a header in JSON, then all tensors without gaps: github.com/huggingface/safetensors."""
    entries = sorted(entries, key=lambda entry: -entry.dtype.itemsize)  # so that every tensor is aligned
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape, _ in entries:
        if dtype not in _SAFETENSORS:
            raise CheckpointError(f"safetensors knows no {dtype}, the type of `{name}`. Choose .npz or a folder.")
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _SAFETENSORS[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in entries:
            for piece in entry.pieces():
                file.write(_bytes(piece))


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


_WRITERS = {"": _write_folder, ".safetensors": _write_safetensors, ".npz": _write_npz}


# -------------------------------------------------------------------------------------------------------- command line


def print_description(path: str, *, as_json: bool) -> None:
    """Print what a checkpoint holds, as JSON or as a table."""
    description = describe(path)
    if as_json:
        sys.stdout.write(json.dumps(description, indent=2) + "\n")
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(render(description))

"""``fcco inspect`` and ``fcco convert``: the content of a checkpoint, without its model."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from rich.console import Console, Group
from rich.table import Column
from rich.table import Table as Grid
from rich.text import Text
from safetensors.torch import save as as_safetensors
from torch import Tensor

from fcco_lightning.errors import CheckpointError, ConfigError, printable
from fcco_lightning.state.checkpoint_files import read_file
from fcco_lightning.state.new_file import new_file
from fcco_lightning.state.parts import read_parts

_STATISTICS: dict[str, Callable[..., Tensor]] = {
    "min": torch.min,
    "mean": torch.mean,
    "max": torch.max,
    "norm": torch.norm,
}
_UNKNOWN_TO_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


class Checkpoint(NamedTuple):
    """A checkpoint that ``fcco fit`` wrote, with verified checksums.

    Attributes:
        content: The content that the Trainer saved.
        weights: The tensors of the network by name (``network.*``), and other tensors except rows.
        rows: The rows of the dual states by name, shape (n, k), NaN where never written.
        files: The number of part files of these rows by name; 0 if they are in the checkpoint itself.
    """

    content: dict[str, Any]
    weights: dict[str, Tensor]
    rows: dict[str, Tensor]
    files: dict[str, int]


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint, and verify it and its separate files of rows.

    Raises:
        CheckpointError: if it is missing, damaged, of another format, or not written by ``fcco fit``.
    """
    content = read_file(path, whole=True)
    stored, processes = content["state_dict"], content["fcco"]["world_size"]
    names = sorted(content["fcco"]["states"], key=lambda name: (len(name), name))  # terms.2 before terms.10
    read = read_parts(content, {f"state_dict.{name}.rows": (0, len(stored[f"{name}.rows"])) for name in names})
    rows = {name: read[f"state_dict.{name}.rows"] for name in names}
    files = {name: processes if stored[f"{name}.rows"].is_meta else 0 for name in names}
    of_rows = {f"{name}.{part}" for name in names for part in ("rows", "_extra_state")}
    weights = {k: v for k, v in stored.items() if isinstance(v, Tensor) and k not in of_rows}
    return Checkpoint(content, weights, rows, files)


def _seen(rows: Tensor) -> Tensor:
    """Whether each row was ever written, shape (n,)."""
    return ~rows[:, 0].isnan()


# ------------------------------------------------------------------------------------------------------------- inspect


def describe(path: str | Path) -> dict[str, Any]:
    """Describe the content of a checkpoint as plain values for JSON; every byte is read and verified.

    Args:
        path: path of the checkpoint.

    Returns:
        ``algorithm``, ``version`` (of the format), ``world_size`` (processes that wrote it), ``epoch``,
        ``global_step``, ``num_samples``, ``optimizer``, ``skipped_batches``, ``weights`` (``tensors``, ``values`` and
        ``bytes``, statistics of BatchNorm included) and ``states``, a list with ``name``, ``rows``, ``width``,
        ``dtype``, ``files`` (0: in the checkpoint itself), ``bytes``, ``seen`` (share of rows ever written), ``min``,
        ``mean``, ``max`` and ``norm`` (Euclidean) of the written rows, None where there is none, and ``verified``.

    Raises:
        CheckpointError: if it is missing, damaged, or not written by ``fcco fit``.
    """
    content, weights, states, files = read_checkpoint(path)
    header, sizes = content["fcco"], [(w.numel(), w.nbytes) for w in weights.values()]
    described = []
    for name, rows in states.items():
        values = rows[_seen(rows)].double()
        statistics = {key: stat(values).item() if len(values) else math.nan for key, stat in _STATISTICS.items()}
        described.append(
            {
                "name": name,
                "rows": len(rows),
                "width": rows.shape[1],
                "dtype": str(rows.dtype).removeprefix("torch."),
                "files": files[name],
                "bytes": rows.nbytes,
                "seen": len(values) / len(rows),
                **{key: value if math.isfinite(value) else None for key, value in statistics.items()},
                "verified": True,  # else read_checkpoint() raises
            }
        )
    return {
        "checkpoint": str(path),
        "algorithm": header["engine"]["algorithm"]["name"],
        "version": header["version"],
        "world_size": header["world_size"],
        "epoch": content["epoch"],
        "global_step": content["global_step"],
        "num_samples": header["num_samples"],
        "optimizer": header["optimizer"]["class"],
        "skipped_batches": header["skipped_batches"],
        "weights": {"tensors": len(sizes), "values": sum(n for n, _ in sizes), "bytes": sum(b for _, b in sizes)},
        "states": described,
    }


def print_description(path: str, *, as_json: bool) -> None:
    """Print the description of a checkpoint, as JSON or as a table."""
    description = describe(path)
    if as_json:
        sys.stdout.write(json.dumps(description, indent=2) + "\n")
        return
    weights, states = description["weights"], description["states"]
    facts = {
        "algorithm": description["algorithm"],
        "epoch, global step": f"{description['epoch']}, {description['global_step']}",
        "weights": f"{weights['values']:,} in {weights['tensors']} tensors, {_size(weights['bytes'])}",
        "optimizer": description["optimizer"],
        "training samples": f"{description['num_samples']:,}",
        "skipped batches": str(description["skipped_batches"]),
        "written by": f"{_count(description['world_size'], 'process', 'es')}, format {description['version']}",
    }
    grid = Grid.grid(padding=(0, 2))
    for name, value in facts.items():
        grid.add_row(name, Text(printable(value)))
    titles = (Column(title, justify="right") for title in ("rows x width", "seen", *_STATISTICS, "lies in"))
    table = Grid(Column("dual state", overflow="fold"), *titles, caption_justify="left")
    table.caption = "every byte of every row was verified"
    for s in states:
        lies = _count(s["files"], "part file", "s") if s["files"] else "the checkpoint"
        numbers = ("" if s[key] is None else f"{s[key]:.4g}" for key in _STATISTICS)
        shape = f"{s['rows']:,} x {s['width']} {s['dtype']}"
        table.add_row(Text(printable(s["name"])), shape, _share(s["seen"]), *numbers, f"{lies}, {_size(s['bytes'])}")
    shown = Group(grid, table if states else "no dual state: this algorithm remembers none")
    Console(width=None if sys.stdout.isatty() else 160).print(shown)


def _count(number: int, noun: str, plural: str) -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"


def _share(value: float) -> str:
    """A percentage that is rounded to 0 or 100 only if it is exact."""
    return f"{min(max(value, 0.001), 0.999) if 0 < value < 1 else value:.1%}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


# ------------------------------------------------------------------------------------------------------------- convert


def convert(path: str | Path, out: str | Path, *, force: bool = False) -> Path:
    """Write the weights and the rows of a checkpoint as plain tensors, completely or not at all.

    Tensors keep their names in the checkpoint: the network's are ``network.*``, so that

        network.load_state_dict({k[8:]: v for k, v in tensors.items() if k.startswith("network.")})

    loads them, and each dual state is ``<name>.rows`` (n, k), NaN where never written, and ``<name>.seen`` (n,), bool.
    bfloat16, which numpy lacks, becomes float32 in ``*.npz``.

    Args:
        path: Path of the checkpoint.
        out: ``*.safetensors`` or ``*.npz``.
        force: Whether an existing file is replaced.

    Returns:
        The path of the file.

    Raises:
        ConfigError: if ``out`` has another extension, exists already, or is a folder.
        CheckpointError: if the checkpoint is missing, damaged or not written by ``fcco fit``, or ``out`` cannot be
            written; an existing file is then kept.
    """
    out = Path(out)
    if out.suffix not in _WRITERS:
        raise ConfigError(f"OUT {out}: cannot write {out.suffix!r}. Choose .safetensors or .npz.")
    if out.is_dir():
        raise ConfigError(f"OUT {out} is a folder, which --force does not replace. Choose another name.")
    if out.exists() and not force:
        raise ConfigError(f"OUT {out} exists already. Choose another name, or replace it with --force.")
    checkpoint = read_checkpoint(path)
    tensors = dict(checkpoint.weights)
    for name, rows in checkpoint.rows.items():
        tensors |= {f"{name}.rows": rows, f"{name}.seen": _seen(rows)}
    with new_file(out) as file:
        _WRITERS[out.suffix](file, tensors)
    return out.resolve()


def _write_npz(file: BinaryIO, tensors: Mapping[str, Tensor]) -> None:
    arrays = {name: (t.float() if t.dtype in _UNKNOWN_TO_NUMPY else t).detach().numpy() for name, t in tensors.items()}
    np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub has another type


def _write_safetensors(file: BinaryIO, tensors: Mapping[str, Tensor]) -> None:
    # safetensors accepts tied weights and columns of a matrix only as copies
    copies = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    try:
        file.write(as_safetensors(copies, {"format": "pt"}))
    except KeyError as unknown:
        name = next((name for name, tensor in copies.items() if tensor.dtype in unknown.args), "a tensor")
        raise CheckpointError(
            f"safetensors does not support {unknown}, the dtype of `{name}`. Choose .npz."
        ) from unknown


_WRITERS: dict[str, Callable[[BinaryIO, Mapping[str, Tensor]], None]] = {
    ".safetensors": _write_safetensors,
    ".npz": _write_npz,
}

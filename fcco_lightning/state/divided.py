"""Sharded tensors (``DTensor``), as FSDP2 makes of weights: every process holds consecutive rows of them.

Process r of P holds the rows ``r c, ..., (r + 1) c - 1`` of the first dimension (n, ...), ``c = ceil(n / P)``, so that
the last processes may hold fewer, or none.  A checkpoint holds the shapes of such tensors; their values are in a table
of row files (:mod:`~fcco_lightning.state.row_files`), ordered by process.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fcco_lightning.errors import CheckpointError
from fcco_lightning.state.row_files import Manifest, read_manifest, read_rows

TABLE = "weights"
"""Name of the table in row files."""
_PLACES = ("state_dict", "optimizer_states", "fcco")  # entries of a checkpoint that may hold sharded tensors


def is_divided(value: object) -> bool:
    """Whether a value is a sharded tensor, a ``DTensor``."""
    return hasattr(value, "to_local")


def is_gathered(network: nn.Module) -> bool:
    """Whether the weights of a network are sharded by FSDP2, which gathers them when they are used.

    While weights are gathered, :func:`is_divided` is false for them.
    """
    return any(hasattr(module, "set_reshard_after_forward") for module in network.modules())


def part_of(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds, in the same memory and without graph; a plain tensor unchanged."""
    if not is_divided(tensor):
        return tensor
    detached: Any = tensor.detach()
    part: Tensor = detached.to_local()
    return part


def parts_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The parts of several tensors that this process holds."""
    return [part_of(tensor) if hasattr(tensor, "to_local") else tensor for tensor in tensors]


def exchange(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> list[Tensor]:
    """Set tensors to other values, and return their old values.

    Memory is exchanged without a copy, except for sharded tensors, as FSDP2 reads its own memory only.
    """
    old_values: list[Tensor] = []
    for tensor, value in zip(tensors, values, strict=True):
        if hasattr(tensor, "to_local"):
            old_values.append(tensor.detach().clone())
            with torch.no_grad():
                tensor.copy_(value)
        else:
            old_values.append(tensor.data)
            tensor.data = value
    return old_values


def divided_as(tensor: Tensor, other: Tensor | None) -> Tensor:
    """Shard a plain tensor like ``other``, which has the same shape; unchanged if ``other`` is not sharded."""
    reference: Any = other
    if not is_divided(reference) or is_divided(tensor):
        return tensor
    mesh = reference.device_mesh
    first, stop = _share(tensor.shape, mesh.size(), mesh.get_local_rank())
    return _assembled(tensor.reshape(-1)[first:stop], tensor.shape, mesh)


def _share(shape: Sequence[int], size: int, rank: int) -> tuple[int, int]:
    """The range of values of a tensor, in memory order, that the process ``rank`` of ``size`` holds."""
    rows, width = shape[0], prod(shape[1:])
    rows_per_process = -(-rows // size)
    return min(rows, rank * rows_per_process) * width, min(rows, (rank + 1) * rows_per_process) * width


def _assembled(part: Tensor, shape: torch.Size, mesh: Any) -> Tensor:
    from torch.distributed.tensor import DTensor, Shard  # noqa: PLC0415 - a third of the time that torch takes to load

    strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    return DTensor.from_local(
        part.reshape(-1, *shape[1:]), mesh, [Shard(0)], run_check=False, shape=shape, stride=strides
    )


# --------------------------------------------------------------------------------------------------------- checkpoints


def take_out(checkpoint: dict[str, Any]) -> list[Tensor]:
    """Replace sharded tensors in a checkpoint by tensors without values (device "meta"), and return them."""
    divided: list[Tensor] = []

    def shape_of(tensor: Tensor) -> Tensor:
        if not is_divided(tensor):
            return tensor
        divided.append(tensor)
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    _change(checkpoint, shape_of)
    return divided


def gathered(checkpoint: dict[str, Any]) -> None:
    """Replace sharded tensors in a checkpoint by whole ones; all processes must call it."""
    _change(checkpoint, lambda tensor: tensor.full_tensor() if is_divided(tensor) else tensor)  # type: ignore[attr-defined]


def rows_here(tensors: Sequence[Tensor]) -> Tensor:
    """This process's parts of sharded tensors, concatenated to rows (count, 1) on the CPU.

    They are float64 if a tensor is, and otherwise float32, which holds half precision exactly.
    """
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    return torch.cat([part.reshape(-1).to("cpu", dtype) for part in parts_of(tensors)]).unsqueeze(1)


def place_of(tensors: Sequence[Tensor], size: int, rank: int) -> tuple[int, int]:
    """The first row of process ``rank`` of ``size`` in the table of sharded tensors, and the number of all rows."""
    ends = [0, *accumulate(_length(tensors, size, other) for other in range(size))]
    return ends[rank], ends[-1]


def _length(tensors: Sequence[Tensor], size: int, rank: int) -> int:
    return sum(stop - first for first, stop in (_share(t.shape, size, rank) for t in tensors))


def without_values(checkpoint: Mapping[str, Any]) -> list[Tensor]:
    """The tensors of a checkpoint whose values are in row files."""
    meta: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        meta.extend([tensor] if tensor.is_meta else [])
        return tensor

    for name in _PLACES:
        mapped(checkpoint.get(name), Tensor, note)
    return meta


def put_back(checkpoint: dict[str, Any], folder: Path, mesh: Any = None) -> None:
    """Replace the tensors without values of a checkpoint by tensors with values from row files, sharded or whole.

    Args:
        checkpoint: the content of the checkpoint, which is changed.
        folder: the folder of the checkpoint, which contains a folder for its save.
        mesh: device mesh of the processes over which tensors are sharded; None for whole tensors.

    Raises:
        CheckpointError: if a file is missing, damaged or of another save.
    """
    tensors = without_values(checkpoint)
    if not tensors:
        return
    header = checkpoint["fcco"]
    if "save_id" not in header:
        raise CheckpointError("the checkpoint has weights without values, and names no files that hold them.")
    manifest = read_manifest(folder / header["save_id"], header["save_id"])
    num_expected, num_stored = sum(tensor.numel() for tensor in tensors), manifest.tables.get(TABLE, 0)
    if num_expected != num_stored:  # before memory is allocated
        raise CheckpointError(
            f"the checkpoint has {num_expected} values of weights in files beside it, and `{folder}` holds "
            f"{num_stored}. Copy the folder again from where it was saved."
        )
    size, rank = (1, 0) if mesh is None else (mesh.size(), mesh.get_local_rank())
    ranges = [_share(t.shape, size, rank) for t in tensors]
    values = iter(_read_ranges(tensors, ranges, folder / header["save_id"], manifest, header["world_size"]))

    def filled(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor
        part = next(values).to(tensor.dtype)
        return part.view(tensor.shape) if mesh is None else _assembled(part, tensor.shape, mesh)

    _change(checkpoint, filled)


def _read_ranges(
    tensors: Sequence[Tensor], ranges: Sequence[tuple[int, int]], folder: Path, manifest: Manifest, writers: int
) -> list[Tensor]:
    """Ranges of values of tensors, from the files of ``writers`` processes, one process at a time."""
    kinds = [getattr(torch, part.dtype) for part in manifest.parts if part.table == TABLE]
    dtype = kinds[0] if kinds else torch.float32
    buffers = [torch.empty(stop - first, dtype=dtype) for first, stop in ranges]
    for writer in range(writers):
        shares = [_share(t.shape, writers, writer) for t in tensors]
        if all(max(a, c) >= min(b, d) for (a, b), (c, d) in zip(shares, ranges, strict=True)):
            continue
        (start, total), rows = place_of(tensors, writers, writer), _length(tensors, writers, writer)
        block = torch.empty(rows, 1, dtype=dtype)
        read_rows(folder, manifest, TABLE, start, block, total)
        pieces = torch.split(block.squeeze(1), [stop - first for first, stop in shares])
        for into, piece, (first, stop), (low, high) in zip(buffers, pieces, ranges, shares, strict=True):
            a, b = max(first, low), min(stop, high)
            if a < b:
                into[a - first : b - first] = piece[a - low : b - low]
    return buffers


def _change(checkpoint: dict[str, Any], change: Callable[[Tensor], Tensor]) -> None:
    for name in _PLACES:
        if name in checkpoint:
            checkpoint[name] = mapped(checkpoint[name], Tensor, change)


def mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """The value with ``change`` applied to all members of type ``kind``; unchanged containers are not copied."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, Mapping):
        changed: Any = {key: mapped(member, kind, change) for key, member in value.items()}
        unchanged = all(changed[key] is member for key, member in value.items())
    elif type(value) in (list, tuple):
        changed = type(value)(mapped(member, kind, change) for member in value)
        unchanged = all(new is member for new, member in zip(changed, value, strict=True))
    else:
        return value
    return value if unchanged else changed

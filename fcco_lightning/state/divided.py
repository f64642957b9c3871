"""Tensors that lie in parts on all processes, as FSDP2 divides weights: each holds consecutive rows of them.

Process r of P holds the rows ``r c, ..., (r + 1) c - 1`` of the first dimension (n, ...), ``c = ceil(n / P)``, so that
the last processes may hold fewer, or none.  A checkpoint holds the shapes of such tensors; their values lie in one
table of row files (:mod:`~fcco_lightning.state.row_files`), where the parts of one process follow those of the other.
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
_PLACES = ("state_dict", "optimizer_states", "fcco")  # of a checkpoint that may hold divided tensors


def is_divided(value: object) -> bool:
    """Whether a value is a tensor that lies in parts on several processes, a ``DTensor``."""
    return hasattr(value, "to_local")


def is_gathered(network: nn.Module) -> bool:
    """Whether weights of a network are gathered from several processes where they are used, as FSDP2 does.

    While they are in use they look whole, so that :func:`is_divided` does not tell.
    """
    return any(hasattr(module, "set_reshard_after_forward") for module in network.modules())


def part_of(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds, in the same memory and without graph; a whole tensor as it is."""
    if not is_divided(tensor):
        return tensor
    detached: Any = tensor.detach()
    part: Tensor = detached.to_local()
    return part


def parts_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The parts of several tensors that this process holds."""
    return [part_of(tensor) if hasattr(tensor, "to_local") else tensor for tensor in tensors]


def exchange(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> list[Tensor]:
    """Let tensors hold other values, and return what they held.

    Memory changes hands, but for divided tensors, whose values are copied: FSDP2 reads its own memory only.
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
    """This process's part of a whole tensor, divided as ``other`` of the same shape is; unchanged where none is."""
    reference: Any = other
    if not is_divided(reference) or is_divided(tensor):
        return tensor
    mesh = reference.device_mesh
    first, stop = _share(tensor.shape, mesh.size(), mesh.get_local_rank())
    return _assembled(tensor.reshape(-1)[first:stop], tensor.shape, mesh)


def _share(shape: Sequence[int], size: int, rank: int) -> tuple[int, int]:
    """The range of values, in the order of memory, that one of ``size`` processes holds of a tensor."""
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
    """Leave the shapes of divided tensors in a checkpoint, as tensors without values, and return the tensors."""
    divided: list[Tensor] = []

    def shape_of(tensor: Tensor) -> Tensor:
        if not is_divided(tensor):
            return tensor
        divided.append(tensor)
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")

    _change(checkpoint, shape_of)
    return divided


def gathered(checkpoint: dict[str, Any]) -> None:
    """Make divided tensors in a checkpoint whole; all processes call it together."""
    _change(checkpoint, lambda tensor: tensor.full_tensor() if is_divided(tensor) else tensor)  # type: ignore[attr-defined]


def rows_here(tensors: Sequence[Tensor]) -> Tensor:
    """What this process holds of divided tensors, one behind the other, as rows (count, 1) on the CPU.

    They are float32, in which 16 bits lose nothing, or float64 where a tensor is.
    """
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    return torch.cat([part.reshape(-1).to("cpu", dtype) for part in parts_of(tensors)]).unsqueeze(1)


def place_of(tensors: Sequence[Tensor], size: int, rank: int) -> tuple[int, int]:
    """The number of the first row of one of ``size`` processes in the table of divided tensors, and of all rows."""
    ends = [0, *accumulate(_length(tensors, size, other) for other in range(size))]
    return ends[rank], ends[-1]


def _length(tensors: Sequence[Tensor], size: int, rank: int) -> int:
    return sum(stop - first for first, stop in (_share(t.shape, size, rank) for t in tensors))


def without_values(checkpoint: Mapping[str, Any]) -> list[Tensor]:
    """The tensors of a checkpoint whose values lie in row files."""
    meta: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        meta.extend([tensor] if tensor.is_meta else [])
        return tensor

    for name in _PLACES:
        mapped(checkpoint.get(name), Tensor, note)
    return meta


def put_back(checkpoint: dict[str, Any], folder: Path, mesh: Any = None) -> None:
    """Give the tensors of a checkpoint their values from row files, in the parts of this process or whole.

    Args:
        checkpoint: as it was saved; its tensors without values are replaced.
        folder: that belongs to the checkpoint, with a folder for its save.
        mesh: of the processes over which the tensors are divided; None for whole ones.

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
    if num_expected != num_stored:  # before memory is taken for them
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
    """The wanted ranges of values of tensors that ``writers`` processes have written, those of one at a time."""
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
    """The value with every member of type ``kind`` changed; a container in which nothing changes is returned itself."""
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

"""Checkpoints with sharded tensors, of which every process writes its part to a file beside the checkpoint.

In the place of a sharded tensor ``X.ckpt`` has one of the same shape without values (device "meta"), and
``X.ckpt.rows/SAVE_ID/r.part`` has the parts of process r by these places, such as ``state_dict.network.weight``.  Part
files are written by ``torch.save``, and opened as carefully as checkpoints.  Any number of processes can read them.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.errors import CheckpointError
from fcco_lightning.state.archives import opened
from fcco_lightning.state.checkpoint_schema import PART_FILE, require
from fcco_lightning.state.new_file import new_file
from fcco_lightning.state.rows import DualState
from fcco_lightning.state.sharded import from_part, is_sharded, part_of, shard_of

_PLACES = ("state_dict", "optimizer_states", "fcco")  # entries of a checkpoint that may have sharded tensors
_PLAIN = (str, int, float, bool, type(None))  # most values, which are quickly passed over
_WAY_OUT = "Copy the folder again from where it was saved, or resume from another checkpoint."


FOLDER = "rows_folder"
"""Key of the header of a checkpoint that was read, for the folder beside it."""


def rows_folder(path: str | Path) -> Path:
    """The folder ``X.ckpt.rows`` that belongs to ``X.ckpt``; it has one folder per save."""
    return Path(f"{os.path.realpath(path)}.rows")


def take_out(checkpoint: dict[str, Any], states: Mapping[str, DualState]) -> dict[str, Tensor]:
    """Replace sharded tensors in a checkpoint by tensors without values.

    Args:
        checkpoint: the content of the checkpoint, which is changed.
        states: dual states by name, of which the sharded ones are taken out.

    Returns: the parts that this process holds, by their places.
    """
    parts: dict[str, Tensor] = {}

    def taken(place: str, tensor: Tensor) -> Tensor:
        if is_sharded(tensor):
            parts[place] = part_of(tensor)
        state = states.get(place.removeprefix("state_dict.").removesuffix(".rows"))
        if state is not None and state.sharded:
            parts[place] = state.rows
            return torch.empty(state.num_rows, state.width, dtype=tensor.dtype, device="meta")
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") if place in parts else tensor

    change(checkpoint, taken)
    return parts


def write_part(folder: Path, rank: int, parts: Mapping[str, Tensor]) -> None:
    """Write the parts of process ``rank`` to the folder of a save, completely or not at all.

    Raises:
        CheckpointError: if the file cannot be written.
    """
    with new_file(folder / f"{rank}.part") as file:
        torch.save({"save_id": folder.name, "rank": rank, "parts": dict(parts)}, file)


def without_values(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a checkpoint without values, by their places, except the rows of dual states."""
    tensors = _tensors(checkpoint)
    rows = {f"state_dict.{name}.rows" for name in checkpoint["fcco"]["states"]}
    return {place: tensor for place, tensor in tensors.items() if tensor.is_meta and place not in rows}


def put_back(checkpoint: dict[str, Any], mesh: Any = None) -> None:
    """Give values to the tensors of a checkpoint without values, except rows; the tensors are sharded or whole.

    Args:
        checkpoint: the content of the checkpoint, which is changed.
        mesh: device mesh of the processes over which tensors are sharded; None for whole tensors.

    Raises:
        CheckpointError: see :func:`read_parts`.
    """
    shard = (0, 1) if mesh is None else (mesh.get_local_rank(), mesh.size())
    ranges = {place: shard_of(len(tensor), *shard) for place, tensor in without_values(checkpoint).items()}
    found = read_parts(checkpoint, ranges)

    def filled(place: str, tensor: Tensor) -> Tensor:
        part = found.get(place, tensor)
        return part if part is tensor or mesh is None else from_part(part, tensor.shape, mesh)

    change(checkpoint, filled)


def read_parts(checkpoint: Mapping[str, Any], ranges: Mapping[str, tuple[int, int]]) -> dict[str, Tensor]:
    """Read rows of tensors of a checkpoint, which may be in files beside it; memory is mapped where it can be.

    Args:
        checkpoint: the content of the checkpoint, with :data:`FOLDER` in its header.
        ranges: the first row and the number of rows of each tensor that is read, by its place.

    Raises:
        CheckpointError: if a file is missing, damaged, of another save, or has other parts.
    """
    tensors = {place: tensor for place, tensor in _tensors(checkpoint).items() if place in ranges}
    missing = {place: tensor for place, tensor in tensors.items() if tensor.is_meta}
    found = {place: t[ranges[place][0] : sum(ranges[place])] for place, t in tensors.items() if place not in missing}
    if not missing:
        return found
    header = checkpoint["fcco"]
    if "save_id" not in header:
        raise CheckpointError("the checkpoint has tensors without values, and names no files that have them.")
    folder, writers = Path(header[FOLDER]) / header["save_id"], header["world_size"]
    _require_all(folder, writers)
    pieces: dict[str, list[Tensor]] = {place: [] for place in missing}
    for writer in range(writers):
        overlaps = {}
        for place, tensor in missing.items():
            (first, count), (start, held) = ranges[place], shard_of(len(tensor), writer, writers)
            low, high = max(first, start), min(first + count, start + held)
            if low < high:
                overlaps[place] = slice(low - start, high - start), (held, *tensor.shape[1:])
        parts = _opened_part(folder / f"{writer}.part", writer) if overlaps else {}
        for place, (rows, shape) in overlaps.items():
            part = parts.get(place)
            if part is None or part.is_meta or (part.shape, part.dtype) != (shape, missing[place].dtype):
                raise _damaged(folder / f"{writer}.part", f"it has no {place} of shape {shape}")
            pieces[place].append(part[rows])
    for place, tensor in missing.items():  # memory is taken only now, when all of it is known to be in the files
        none = torch.empty(0, *tensor.shape[1:], dtype=tensor.dtype)
        found[place] = pieces[place][0] if len(pieces[place]) == 1 else torch.cat([none, *pieces[place]])
    return found


def _require_all(folder: Path, writers: int) -> None:
    """Refuse a number of parts that the folder does not have, before a loop over them."""
    if not (last := folder / f"{writers - 1}.part").exists():
        raise CheckpointError(f"`{last}` is missing: it has a part of the checkpoint. {_WAY_OUT}")
    held = len(list(folder.glob("*.part")))
    if not 0 < writers <= 2 * held:  # a single missing one is named when it is opened
        raise CheckpointError(f"`{folder}` has {held} of the {writers} parts of the checkpoint. {_WAY_OUT}")


def _opened_part(path: Path, rank: int) -> dict[str, Tensor]:
    content = opened(path)
    require(content, PART_FILE, f"`{path}`")
    if (content["save_id"], content["rank"]) != (path.parent.name, rank):
        raise _damaged(path, f"it is of process {content['rank']} in save {content['save_id']!r}")
    parts: dict[str, Tensor] = content["parts"]
    return parts


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"`{path}` is damaged or belongs to another save: {reason}. {_WAY_OUT}")


def _tensors(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a checkpoint that may be sharded, by their places."""
    tensors: dict[str, Tensor] = {}
    change(dict(checkpoint), tensors.setdefault)
    return tensors


def change(checkpoint: dict[str, Any], changed: Callable[[str, Tensor], Tensor]) -> None:
    """Apply a function of place and tensor to the tensors of a checkpoint that may be sharded."""
    for name in _PLACES:
        if name in checkpoint:
            checkpoint[name] = mapped(checkpoint[name], Tensor, changed, name)


def mapped(value: Any, kind: type, changed: Callable[[str, Any], Any], place: str = "") -> Any:
    """The value with ``changed`` applied to all members of type ``kind``; unchanged containers are not copied."""

    def inside(key: Any, member: Any) -> Any:
        return member if type(member) in _PLAIN else mapped(member, kind, changed, f"{place}.{key}")

    if isinstance(value, kind):
        return changed(place, value)
    if isinstance(value, Mapping):
        members: Any = {key: inside(key, member) for key, member in value.items()}
        unchanged = all(members[key] is member for key, member in value.items())
    elif type(value) in (list, tuple):
        members = type(value)(inside(i, member) for i, member in enumerate(value))
        unchanged = all(new is member for new, member in zip(members, value, strict=True))
    else:
        return value
    return value if unchanged else members

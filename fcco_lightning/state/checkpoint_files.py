"""Reading of checkpoint files: complete, of a known format and structure, and without running code in them."""

import hashlib
import io
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fcco_lightning.checks import check_file
from fcco_lightning.errors import CheckpointError, FCCOError
from fcco_lightning.state.archives import excess
from fcco_lightning.state.checkpoint_schema import misfit_of_checkpoint
from fcco_lightning.state.divided import put_back

CHECKPOINT_VERSION = 5
STRUCTURE = "structure"
"""Key of a checkpoint's header that describes its structure, see :func:`structure_of`."""
_MISSING = "is missing"
_MOST_MEMBERS = 1000  # up to which an entry is described member by member
_PLAIN = (int, float, bool, str)
_HYPER_PARAMETERS = ("hyper_parameters", "datamodule_hyper_parameters", "hparams", "module_arguments")  # of Lightning
_DEEPEST, _MOST_VALUES = 100, 1_000_000  # levels of nesting, and values outside of lists of plain values
WEIGHTS_ALONE = (
    "has no optimizer_states: saved with save_weights_only=True, it can be evaluated, but not continued. Continue one "
    "that was saved whole, or start without --ckpt_path."
)


def rows_folder(path: str | Path) -> Path:
    """The folder ``X.ckpt.rows`` that belongs to ``X.ckpt``; it holds one folder per save."""
    return Path(f"{os.path.realpath(path)}.rows")


def read_file(path: str | Path, *, to_continue: bool = False, whole: bool = False) -> dict[str, Any]:
    """The content of a checkpoint file; tensors are memory-mapped, and no code in it is run.

    Args:
        path: path of the file.
        to_continue: whether training is to be continued, which needs more than weights and rows.
        whole: whether weights in files beside it are read, too.

    Raises:
        CheckpointError: naming the file and what is wrong, if it is missing, damaged, not written by
            :class:`~fcco_lightning.FCCOModule` under a Trainer, or in another format.
    """
    path = Path(path)
    content = opened(path)
    require_sound(content, path, to_continue=to_continue)
    if whole:
        put_back(content, rows_folder(path))
    return content


def require_sound(content: Mapping[str, Any], path: str | Path, *, to_continue: bool = False) -> None:
    """Refuse content that does not follow :mod:`~fcco_lightning.state.checkpoint_schema`.

    Args:
        content: content of a checkpoint.
        path: path of its file.
        to_continue: whether training is to be continued, which needs more than weights and rows.

    Raises:
        CheckpointError: naming the file, the entry, its value and what is required.
    """
    header = content.get("fcco")
    if header is None:
        raise _invalid_checkpoint(path, "it has no state of an algorithm")
    if not isinstance(header, Mapping):
        raise _invalid_checkpoint(path, "its entry `fcco` is no mapping")
    if header.get("version") != CHECKPOINT_VERSION:
        raise CheckpointError(f"checkpoint {path}: {another_format(header)}")
    if to_continue and "optimizer_states" not in content:
        raise CheckpointError(f"checkpoint {path} {WEIGHTS_ALONE}")
    misfit = misfit_of_checkpoint(content, to_continue=to_continue)
    if misfit is not None:
        raise _invalid_checkpoint(path, misfit)


@contextmanager
def in_words(name: str) -> Iterator[None]:
    """A context for loading a state, which turns errors into a :class:`CheckpointError`.

    It is for states whose format only their owner knows, such as an optimizer's.

    Args:
        name: name of the state in messages.

    Raises:
        CheckpointError: with the original message.
    """
    try:
        yield
    except FCCOError:
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{name} cannot be taken over ({type(error).__name__}: {reason}): it is incomplete, or of another part. "
            "Use another checkpoint, or start without --ckpt_path."
        ) from error


def in_memory(path: str | Path) -> io.BytesIO:
    """A checkpoint with the weights in files beside it, as a file in memory.

    Raises:
        CheckpointError: see :func:`read_file`, or naming a file beside it that is missing or damaged.
    """
    file = io.BytesIO()
    torch.save(read_file(path, whole=True), file)
    file.seek(0)
    return file


def another_format(header: Mapping[str, Any]) -> str:
    """The message for a checkpoint of another format."""
    return (
        f"it has format {header.get('version')!r}, this installation reads format {CHECKPOINT_VERSION}. Load it with "
        "the version of fcco_lightning that wrote it, or start without --ckpt_path."
    )


def opened(path: Path) -> dict[str, Any]:
    """The content of a file from any source; its tensors are memory-mapped.

    Raises:
        CheckpointError: if it is missing or damaged, would run code, is not a checkpoint, or differs from the structure
            stored in it.
    """
    check_file(path)
    if (reason := excess(path)) is not None:
        raise _invalid_checkpoint(path, reason)
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # any error is possible
        match = re.search(r"GLOBAL ([\w.]+)", str(error))
        no_data = f"it names {match and match[1]}, which is no data (if you trust it: torch.serialization.safe_globals)"
        raise _invalid_checkpoint(path, no_data if match else type(error).__name__) from error
    if not isinstance(content, dict):
        raise _invalid_checkpoint(path, f"it holds a {type(content).__name__}, not a mapping")
    _require_tree(path, content)
    _require_plain_arguments(path, content)
    changed = difference(content)
    if changed is not None:
        raise CheckpointError(
            f"checkpoint {path}: {changed}. Use an earlier one; if it was changed on purpose, take its entry "
            f"`fcco.{STRUCTURE}` out."
        )
    return content


def _require_plain_arguments(path: Path, content: Mapping[Any, Any]) -> None:
    """Refuse hyperparameters from which Lightning would create a module with code that the file names."""
    for name in _HYPER_PARAMETERS:
        arguments = content.get(name, {})
        if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
            raise _invalid_checkpoint(path, f"its entry `{name}` is no mapping of texts")
        if "_instantiator" in arguments:
            raise CheckpointError(
                f"checkpoint {path}: its entry `{name}` names code that is to make the module. Take the entry out, and "
                "pass the module's parts."
            )


def _require_tree(path: Path, content: Mapping[Any, Any]) -> None:
    """Refuse content that is not a tree of limited size (such as a list that contains itself), or exceeds its file."""
    size, count = path.stat().st_size, 0
    todo: list[tuple[Any, int]] = [(content, 0)]
    while todo:
        value, depth = todo.pop()
        count += 1
        if depth > _DEEPEST or count > _MOST_VALUES:
            raise _invalid_checkpoint(path, f"it holds more than {_DEEPEST} levels, or {_MOST_VALUES} values")
        if isinstance(value, Tensor) and not is_lazy(value) and not value.is_meta:
            if value.layout != torch.strided or value.nbytes > size:
                raise _invalid_checkpoint(
                    path, f"it holds a tensor of shape {tuple(value.shape)} whose values it does not have"
                )
        elif isinstance(value, Mapping):
            if not getattr(value, "__dict__", {}).keys() <= {"_metadata"}:  # `values` would hide members
                raise _invalid_checkpoint(path, f"it holds a mapping with attributes ({', '.join(vars(value))})")
            todo += [(member, depth + 1) for member in value.values()]
        elif isinstance(value, list | tuple) and not set(map(type, value)) <= set(_PLAIN):
            todo += [(member, depth + 1) for member in value]


def _invalid_checkpoint(path: str | Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path}: not written by `fcco fit` (FCCOModule under a Trainer), or not completely: {reason}. "
        "Give one that was."
    )


def weights_of_network(content: Mapping[str, Any]) -> dict[str, Any]:
    """The network's weights and buffers in a checkpoint, by their names in the network."""
    stored = content["state_dict"]
    return {k.removeprefix("network."): v for k, v in stored.items() if k.startswith("network.")}


def load_weights(network: nn.Module, content: Mapping[str, Any], file: str, way_out: str = "") -> None:
    """Load the weights of a checkpoint into a network.

    Args:
        network: the network, with the architecture that was trained.
        content: content of the checkpoint.
        file: name of the checkpoint in messages.
        way_out: last sentence of messages.

    Raises:
        CheckpointError: if the weights belong to another network.
    """
    weights = weights_of_network(content)
    with whole_or_not(network, weights, file, way_out):
        network.load_state_dict(versioned(network, weights))


def versioned(module: nn.Module, stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Stored weights with the versions of the module's layers, if the stored mapping has lost its own versions.

    Layers whose weights had several formats need the version: without it MNASNet of torchvision loads nothing.
    """
    weights = OrderedDict(stored)
    versions = getattr(stored, "_metadata", None) or module.state_dict()._metadata  # type: ignore[attr-defined]
    weights._metadata = versions  # type: ignore[attr-defined]
    return weights


@contextmanager
def whole_or_not(module: nn.Module, stored: Mapping[str, Any], file: str, way_out: str = "") -> Iterator[None]:
    """A context for loading stored weights; if torch refuses them, the module keeps its old weights.

    Args:
        module: the module that loads them.
        stored: weights and buffers by name.
        file: name of the checkpoint in messages.
        way_out: last sentence of messages.

    Raises:
        CheckpointError: if the weights belong to another network, naming a weight that differs.
    """
    present = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    present_shapes, stored_shapes = _shapes(present), _shapes(stored)
    differing = [
        name
        for name in {**stored_shapes, **present_shapes}
        if present_shapes.get(name, _MISSING) != stored_shapes.get(name, _MISSING)
    ]
    backup = {n: t.clone() for n, t in present.items() if differing and not is_lazy(t)}  # torch loads what fits
    try:
        yield
    except RuntimeError as error:
        if not differing and isinstance(error, FCCOError):
            raise
        if not differing:
            raise CheckpointError(f"{file} holds weights that cannot be loaded: {error}.{way_out}") from error
        for name, value in backup.items():
            present[name].copy_(value)
        name, num_more = differing[0], len(differing) - 1
        raise CheckpointError(
            f"{file} holds the weights of another network: {name} {stored_shapes.get(name, _MISSING)} there and "
            f"{present_shapes.get(name, _MISSING)} here{f', and {num_more} more' if num_more else ''}.{way_out}"
        ) from error


def _shapes(weights: Mapping[str, Any]) -> dict[str, str]:
    """Phrases with the shapes of tensors by name, without lazy tensors, which accept any shape."""
    tensors = {k: v for k, v in weights.items() if isinstance(v, Tensor) and not is_lazy(v)}
    return {name: f"has shape {tuple(value.shape)}" for name, value in tensors.items()}


def structure_of(content: Mapping[str, Any]) -> dict[str, str]:
    """Return path -> kind of everything in ``content``: a type, the shape of a tensor, the length of a list of numbers.

    Args:
        content: nested mappings, lists and tuples of plain values and tensors.

    Example:
        >>> structure_of({"a": [1, 2], "b": {"c": None}})
        {'a': 'list of 2 int', 'b': 'mapping', 'b.c': 'NoneType'}
    """
    return {path: kind for name, value in content.items() for path, kind in _described(str(name), value)}


def difference(content: Mapping[str, Any]) -> str | None:
    """Return how a checkpoint differs from the structure stored in it; None if it does not differ or stores none.

    Whole entries may be missing or added: code that needs an entry checks for it.

    Args:
        content: content of the checkpoint.
    """
    header = content.get("fcco")
    stored = header.get(STRUCTURE, {}) if isinstance(header, Mapping) else {}
    if not isinstance(stored, Mapping):
        return f"its entry `fcco.{STRUCTURE}` is {type(stored).__name__}"
    structure = structure_of({name: value for name, value in content.items() if name in stored})
    for path, kind in stored.items():
        present = structure.get(path, "missing")
        if present != kind and str(path).partition(".")[0] in structure:
            return f"its entry `{path}` is {present}, and was {kind} when it was saved"
    return None


def _described(path: str, value: Any) -> Iterable[tuple[str, str]]:
    """The kind of a value, followed by the kinds of its members."""
    kind, members = _kind(value)
    inside = [entry for key, member in members for entry in _described(f"{path}.{key}", member)]
    if len(members) > _MOST_MEMBERS:
        digest = hashlib.sha256(str(inside).encode()).hexdigest()[:16]
        return [(path, f"{kind} of {len(members)} members ({digest})")]
    return [(path, kind), *inside]


def _kind(value: Any) -> tuple[str, list[tuple[Any, Any]]]:
    """The kind of a value, and its members by key; lists of plain values are described as a whole."""
    if isinstance(value, Tensor):
        return f"tensor {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}", []
    if isinstance(value, Mapping):
        return "mapping", list(value.items())
    if not isinstance(value, list | tuple):
        return type(value).__name__, []
    kind, types = "list" if isinstance(value, list) else "tuple", {type(member) for member in value}
    if len(types) == 1 and types <= set(_PLAIN):
        return f"{kind} of {len(value)} {types.pop().__name__}", []
    return kind, list(enumerate(value))

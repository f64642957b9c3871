"""Reading of checkpoint files: complete, of a known format and structure, and without running code in them."""

import io
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fcco_lightning.errors import CheckpointError, FCCOError
from fcco_lightning.state.archives import invalid_checkpoint, opened
from fcco_lightning.state.checkpoint_schema import misfit_of_checkpoint
from fcco_lightning.state.parts import FOLDER, put_back, rows_folder

CHECKPOINT_VERSION = 6
_MISSING = "is missing"
WEIGHTS_ALONE = (
    "has no optimizer_states: it was saved with save_weights_only=True and can be evaluated, but not resumed. Resume "
    "from a complete checkpoint, or start without --ckpt_path."
)


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
    content["fcco"][FOLDER] = str(rows_folder(path))
    if whole:
        put_back(content)
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
        raise invalid_checkpoint(path, "it has no entry `fcco`, the state of the algorithm")
    if not isinstance(header, Mapping):
        raise invalid_checkpoint(path, "its entry `fcco` is not a mapping")
    if header.get("version") != CHECKPOINT_VERSION:
        raise CheckpointError(f"checkpoint {path}: {another_format(header)}")
    if to_continue and "optimizer_states" not in content:
        raise CheckpointError(f"checkpoint {path} {WEIGHTS_ALONE}")
    misfit = misfit_of_checkpoint(content, to_continue=to_continue)
    if misfit is not None:
        raise invalid_checkpoint(path, misfit)


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
            f"{name} cannot be loaded ({type(error).__name__}: {reason}): it is incomplete, or belongs to another "
            "class or configuration. Use another checkpoint, or start without --ckpt_path."
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
        more = f"; {num_more} more differ" if num_more else ""
        raise CheckpointError(
            f"{file} has the weights of another network: {name} {stored_shapes.get(name, _MISSING)} in the checkpoint "
            f"and {present_shapes.get(name, _MISSING)} in this network{more}.{way_out}"
        ) from error


def _shapes(weights: Mapping[str, Any]) -> dict[str, str]:
    """Phrases with the shapes of tensors by name, without lazy tensors, which accept any shape."""
    tensors = {k: v for k, v in weights.items() if isinstance(v, Tensor) and not is_lazy(v)}
    return {name: f"has shape {tuple(value.shape)}" for name, value in tensors.items()}

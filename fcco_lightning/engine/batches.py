"""A loader's batch as a record of named parts of columns."""

import dataclasses
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models import BatchNetwork
from fcco_lightning.models.batch import SAMPLE_WEIGHT, TARGET, Batch, Columns
from fcco_lightning.objectives.base import require

_REMEDIES = {
    "index": "Give the position 0..n-1 of every sample in the training split, shape (B,): IndexedDataset(dataset) adds "
    "it.",
    "y": "Number the labels: 0 and 1, or 0..C-1 for C classes.",
    "weight": "Give a real number >= 0 for every sample.",
}
_BESIDE = {  # columns that need another column, its name, and the reason
    SAMPLE_WEIGHT: (
        "weight",
        "by which means over it are taken. Give the weights of all samples, and both are there: "
        f"IndexedDataset(dataset, columns={{'y': labels, '{SAMPLE_WEIGHT}': weights}}).",
    ),
    "stratum": (
        "stratum_size",
        "which together say how batches are drawn. Give both, or call a column of your own otherwise.",
    ),
}
_PLAIN = frozenset((torch.float32, torch.int64, torch.float64))
_WHOLE = frozenset(("group", "task", "query", "bag", "event"))  # one whole number per sample, (B,) int64
_ONE_EACH = _WHOLE | {"time", "weight"}  # one number per sample, (B,)
_NUMBERS = ("y", "index", *sorted(_WHOLE))  # used in arithmetic such as 2 y - 1, which overflows small integers
_NARROW = frozenset(
    (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64)
)


def fields_of(value: Any) -> Any:
    """The fields of a named tuple or a dataclass by name; anything else as it is."""
    if isinstance(value, dict):
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return value


def as_columns(loaded: Mapping[str, Any]) -> Columns:
    """One part of a batch, or a whole split, as columns: arrays and lists of numbers become tensors.

    ``group``, ``task``, ``query``, ``bag``, ``event``, ``time`` and ``weight`` of shape (B, 1) become (B,), and the
    first five become int64 if they are floats and all of their numbers are whole.  Everything else stays as it is, also
    lists of tensors, which some networks take for images of different sizes.

    Args:
        loaded: columns by name; tensors among them have the same first dimension B.

    Returns: the columns; the same mapping where nothing has to be converted.

    Raises:
        DataError: if ``index``, ``y`` or ``weight`` is complex or a text, ``index`` does not have one dimension,
            tensors differ in length, or a number that must be whole is not.
    """
    if _is_plain(loaded):
        return loaded
    columns = loaded
    if not all(isinstance(column, Tensor) for column in loaded.values()):
        columns = {name: _as_tensor(column) for name, column in loaded.items()}
    narrow = [name for name in _NUMBERS if _is_narrow(columns.get(name))]
    if narrow:
        columns = {**columns, **{name: columns[name].long() for name in narrow}}
    _require_real(columns)
    for name in _ONE_EACH & columns.keys():
        if (column := _one_each(name, columns[name])) is not columns[name]:
            columns = {**columns, name: column}
    _require_one_length(columns)
    return columns


def _is_plain(columns: Mapping[str, Any]) -> bool:
    """Whether nothing has to be converted, as with most loaders; cheap, since every step asks."""
    sizes = set()
    for name, column in columns.items():
        if not isinstance(column, Tensor) or column.dtype not in _PLAIN or not column.ndim:
            return False
        if name in _ONE_EACH and (column.ndim > 1 or (name in _WHOLE and column.dtype is not torch.int64)):
            return False
        if name in _BESIDE and _BESIDE[name][0] not in columns:
            return False
        sizes.add(column.size(0))
    return len(sizes) == 1 and ("index" not in columns or columns["index"].ndim == 1)


def _one_each(name: str, column: Any) -> Any:
    """A column of one number per sample as a vector, as int64 where its numbers must be whole.

    Raises:
        DataError: naming a number that is not whole, and its position; or if a sample has several weights.
    """
    if not isinstance(column, Tensor):
        return column
    if column.ndim == 2 and column.shape[1] == 1:
        column = column.squeeze(1)
    if name == "weight" and column.ndim > 1:
        raise DataError(f"the column `{name}` of a batch has shape {tuple(column.shape)}. {_REMEDIES[name]}")
    if name not in _WHOLE or not column.is_floating_point():
        return column
    rule = f"the column `{name}` of a batch must hold whole numbers"
    whole = column.isfinite() & (column == column.round())
    require(whole, column, rule, "Number what it names from 0, for example with pandas.factorize.")
    return column.long()


def described(column: Any) -> str:
    """The type of a column, for messages."""
    if isinstance(column, Tensor):
        return f"a tensor of {column.dtype} and shape {tuple(column.shape)}"
    inside = f" of {type(column[0]).__name__}" if isinstance(column, list | tuple) and len(column) else ""
    return f"a {type(column).__name__}{inside}"


def _as_tensor(column: Any) -> Any:
    first = _first(column)
    if isinstance(first, Tensor):
        return torch.stack(list(column)) if first.dim() == 0 and first is not column else column
    if not isinstance(first, Real | np.generic) and not hasattr(first, "__array__"):
        return column
    try:
        array = np.array(column)  # a copy: torch cannot share the memory of some arrays
        array = np.array(array.tolist()) if array.dtype.kind == "O" else array  # objects may be numbers
    except ValueError:  # lists of different lengths
        return column
    if array.dtype.kind not in "biufc":
        return column
    narrow = type(first) is float and array.dtype == np.float64  # as torch.tensor converts Python's floats
    return torch.from_numpy(array.astype(np.float32 if narrow else array.dtype.newbyteorder("=")))


def _is_narrow(column: Any) -> bool:
    return isinstance(column, Tensor) and column.dtype in _NARROW


def _first(column: Any) -> Any:
    """The first entry of nested lists, or of an array of texts; anything else as it is."""
    while isinstance(column, list | tuple) and len(column):
        column = column[0]
    return column.flat[0] if isinstance(column, np.ndarray) and column.dtype.kind in "OU" and column.size else column


def _require_real(columns: Columns) -> None:
    """Refuse an ``index``, labels or weights that are no real numbers."""
    for name, remedy in _REMEDIES.items():
        column = columns.get(name)
        wrong = isinstance(column, Tensor) and (column.is_complex() or (name == "index" and column.dim() != 1))
        unread = name == "weight" and not isinstance(column, Tensor | None)  # or it would silently be ignored
        if wrong or unread or isinstance(_first(column), str):
            raise DataError(f"the column `{name}` of a batch is {described(column)}. {remedy}")


def _require_one_length(columns: Columns) -> None:
    """Refuse tensors whose first dimension is not the number of samples."""
    shapes = {name: column.shape for name, column in columns.items() if isinstance(column, Tensor)}
    if len({shape[:1] for shape in shapes.values()}) > 1 or torch.Size() in shapes.values():
        raise DataError(
            "all columns of a batch must have the number of samples as their first dimension; the shapes are "
            f"{ {name: tuple(shape) for name, shape in shapes.items()} }. Slice all columns alike in the collate "
            "function, and leave out what does not belong to single samples."
        )


def as_batch(loaded: Any) -> Batch:
    """Convert a loader's batch to parts by name; the columns of a single loader become the part "target".

    Args:
        loaded: a mapping, a named tuple or a dataclass of columns, or of parts that have columns.

    Raises:
        DataError: if it has no named columns, a column cannot be read, or a column is missing that another one needs.
    """
    loaded = fields_of(loaded)
    if not isinstance(loaded, Mapping):
        raise DataError(
            "a batch must be a mapping from column names to columns, among them the samples' `index`; got a "
            f"{type(loaded).__name__}. Wrap a data set of (x, y) pairs: DataLoader(IndexedDataset(dataset), ...)."
        )
    if isinstance(next(iter(loaded.values()), None), Tensor):
        return {TARGET: _complete(loaded)}
    parts = {name: fields_of(part) for name, part in loaded.items()}
    if loaded and all(isinstance(part, Mapping) for part in parts.values()):
        columns = {name: _complete(part) for name, part in parts.items()}
        return loaded if all(columns[name] is part for name, part in loaded.items()) else columns
    return {TARGET: _complete(loaded)}


def _complete(loaded: Mapping[str, Any]) -> Columns:
    """The columns of a part of a batch, see :func:`as_columns`.

    Raises:
        DataError: as :func:`as_columns`, and if a column is missing that another one needs, which would be ignored.
    """
    for name, (other, remedy) in _BESIDE.items():
        if name in loaded and other not in loaded:
            raise DataError(f"a batch has a column `{name}` and no `{other}`, {remedy}")
    return as_columns(loaded)


def part_name(batch: Mapping[str, Any], name: str | None) -> str:
    """The name of the part on which a term is measured: ``name``, or the first part for None.

    Raises:
        ConfigError: if there is no such part.
    """
    if name is None:
        return next(iter(batch))
    if name not in batch:
        raise ConfigError(
            f"a term is computed on the part {name!r} of a batch, but the loaders give the parts {sorted(batch)}."
        )
    return name


def _input(columns: Columns, network: nn.Module) -> Any:
    """The column ``x``, converted to the type of the weights if that is wider, or if ``x`` is float64.

    Raises:
        DataError: if there is no such column.
    """
    if "x" not in columns:
        raise DataError(f"a batch has no column `x`, the network's input; it has {sorted(columns)}.")
    x, dtype = columns["x"], type_of_weights(network)
    if not isinstance(x, Tensor) or dtype is None or not x.is_floating_point() or x.dtype == dtype:
        return x
    return x.to(dtype) if x.dtype == torch.float64 or dtype.itemsize > x.dtype.itemsize else x


def type_of_weights(network: nn.Module) -> torch.dtype | None:
    """The type of the first weights of a network; None where it has none."""
    for module in network.modules():  # faster than `parameters()`, which walks over all names
        for p in module._parameters.values():
            if p is not None and p.is_floating_point():
                return p.dtype
    return None


def columns_of(loaded: Any) -> Columns:
    """The columns of a loader's batch, as used in evaluation; of the first part, if there are several.

    Raises:
        DataError: as of :func:`as_batch`.
    """
    return next(iter(as_batch(loaded).values()))


def as_read(loaded: Mapping[str, Any]) -> Columns:
    """The columns of a whole split, converted as those of a batch, without those that are no tensors.

    Raises:
        DataError: see :func:`as_columns`.
    """
    return {name: column for name, column in as_columns(loaded).items() if isinstance(column, Tensor)}


def other_columns(network: nn.Module, columns: Columns) -> dict[str, Tensor]:
    """All columns that objectives, constraints and metrics may use: the tensors that are not the network's input."""
    inputs = network.inputs if isinstance(network, BatchNetwork) else ("x",)
    return {name: c for name, c in columns.items() if isinstance(c, Tensor) and name not in inputs}


def received(loaded: Any, network: nn.Module, like: Tensor) -> Batch:
    """Convert a loader's batch to parts by name, in the network's input type and on the device of its weights.

    Args:
        loaded: the batch.
        network: the network that is applied to it.
        like: a weight of the network.

    Raises:
        DataError: see :func:`as_batch` and :func:`usable`.
    """
    device, takes_parts = like.device, isinstance(network, BatchNetwork)
    x = loaded.get("x") if type(loaded) is dict and not takes_parts and device.type == "cpu" else None
    if isinstance(x, Tensor) and x.dtype == like.dtype and _is_plain(loaded):
        return {TARGET: loaded}  # as with most loaders
    batch = usable(as_batch(loaded), network)
    if device.type == "cpu":
        return batch
    return {name: {n: _moved(c, device) for n, c in part.items()} for name, part in batch.items()}


def _moved(column: Any, device: torch.device) -> Any:
    # without waiting for the device; on mps the source could be freed before it is copied
    return column.to(device, non_blocking=device.type != "mps") if isinstance(column, Tensor) else column


def usable(batch: Batch, network: nn.Module) -> Batch:
    """The batch with only tensors besides the network's input, and with ``x`` in the type of the network's weights.

    Raises:
        DataError: if a part has no column ``x``.
    """
    if isinstance(network, BatchNetwork):
        return batch
    parts = {}
    for name, columns in batch.items():
        x = _input(columns, network)
        plain = x is columns["x"] and _is_plain(columns)
        parts[name] = columns if plain else {"x": x, **other_columns(network, columns)}
    return parts

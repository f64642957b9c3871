"""What loaders of a user's own give, as columns of tensors."""

import dataclasses
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcco_lightning.errors import DataError
from fcco_lightning.records import Columns

_REMEDIES = {
    "index": "Give the position 0..n-1 of every sample in the training split, shape (B,): IndexedDataset(dataset) adds "
    "it.",
    "y": "Number the labels: 0 and 1, or 0..C-1 for C classes.",
}
_PLAIN = frozenset((torch.float32, torch.int64, torch.float64))
_LABELS = ("y", "group")  # reckoned with, as in 2 y - 1, which small integers do not hold


def fields_of(given: Any) -> Any:
    """The fields of a named tuple or a dataclass by name; anything else as it is."""
    if isinstance(given, tuple) and hasattr(given, "_asdict"):
        return given._asdict()
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    return given


def as_columns(given: Mapping[str, Any]) -> Columns:
    """One part of a batch as columns: arrays and lists of numbers become tensors, all else stays as it is.

    Lists of tensors stay, too: there are networks that take images of different sizes so.

    Args:
        given: columns by name, of one first dimension B where they are tensors.

    Returns: the same mapping where nothing is to be converted.

    Raises:
        DataError: if ``index`` or ``y`` are complex or texts, ``index`` has not one dimension, or tensors differ in
            length.
    """
    if _is_plain(given):
        return given
    columns = given
    if not all(isinstance(column, Tensor) for column in given.values()):
        columns = {name: _as_tensor(column) for name, column in given.items()}
    narrow = [name for name in _LABELS if _is_narrow(columns.get(name))]
    if narrow:
        columns = {**columns, **{name: columns[name].long() for name in narrow}}
    _require_real(columns)
    _require_one_length(columns)
    return columns


def _is_plain(given: Mapping[str, Any]) -> bool:
    """Whether there is nothing to do, as with most loaders: seen at little cost, as every step asks."""
    columns = given.values()
    if not all(isinstance(column, Tensor) and column.dtype in _PLAIN and column.ndim for column in columns):
        return False
    return len({column.size(0) for column in columns}) == 1 and ("index" not in given or given["index"].ndim == 1)


def described(column: Any) -> str:
    """The type of a column, in words for messages."""
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
        array = np.array(column)  # a copy: torch shares memory, and refuses that of some arrays
    except ValueError:  # lists of different lengths
        return column
    if array.dtype.kind not in "biufc":
        return column
    narrow = type(first) is float and array.dtype == np.float64  # as torch takes Python's numbers
    return torch.from_numpy(array.astype(np.float32 if narrow else array.dtype.newbyteorder("=")))


def _is_narrow(column: Any) -> bool:
    return isinstance(column, Tensor) and column.dtype in (torch.bool, torch.uint8, torch.int8, torch.int16)


def _first(column: Any) -> Any:
    """The first entry of nested lists, or of an array of texts; anything else as it is."""
    while isinstance(column, list | tuple) and len(column):
        column = column[0]
    return column.flat[0] if isinstance(column, np.ndarray) and column.dtype.kind in "OU" and column.size else column


def _require_real(columns: Columns) -> None:
    """Refuse an ``index`` or labels that no objective can reckon with."""
    for name, remedy in _REMEDIES.items():
        column = columns.get(name)
        wrong = isinstance(column, Tensor) and (column.is_complex() or (name == "index" and column.dim() != 1))
        if wrong or isinstance(_first(column), str):
            raise DataError(f"the column `{name}` of a batch is {described(column)}. {remedy}")


def _require_one_length(columns: Columns) -> None:
    """Refuse tensors of which not every row belongs to a sample."""
    shapes = {name: column.shape for name, column in columns.items() if isinstance(column, Tensor)}
    if len({shape[:1] for shape in shapes.values()}) > 1 or torch.Size() in shapes.values():
        raise DataError(
            "the columns of a batch must have one first dimension, the number of its samples; they have the shapes "
            f"{ {name: tuple(shape) for name, shape in shapes.items()} }. Cut them alike in the collate function, and "
            "leave out what does not belong to single samples."
        )

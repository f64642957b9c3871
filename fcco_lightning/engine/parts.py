"""A loader's batch as a record of named parts, and the network's outputs for it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fcco_lightning.engine.loader_columns import as_columns, described, fields_of
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models import BatchNetwork
from fcco_lightning.records import TARGET, Batch, Columns

_OF_SHAPES = ("shape", "size", "channels", "dimension")  # words of torch's errors about them


def as_batch(given: Any) -> Batch:
    """A batch as the loaders gave it, as parts by name: the columns of a single loader are the part "target".

    Args:
        given: a mapping, a named tuple or a dataclass of columns, or of parts with columns of their own.

    Raises:
        DataError: if it has no columns by name, or one of them cannot be read.
    """
    given = fields_of(given)
    if not isinstance(given, Mapping):
        raise DataError(
            f"a batch must be a mapping of columns with the samples' `index`, got a {type(given).__name__}. Wrap the "
            "data set of (x, y) samples: DataLoader(IndexedDataset(dataset), ...)."
        )
    if isinstance(next(iter(given.values()), None), Tensor):
        return {TARGET: as_columns(given)}
    parts = {name: fields_of(part) for name, part in given.items()}
    if given and all(isinstance(part, Mapping) for part in parts.values()):
        columns = {name: as_columns(part) for name, part in parts.items()}
        return given if all(columns[name] is part for name, part in given.items()) else columns
    return {TARGET: as_columns(given)}


def part_name(batch: Mapping[str, Any], name: str | None) -> str:
    """The name of the part that a term is measured on; the first one for None.

    Raises:
        ConfigError: if there is no such part.
    """
    if name is None:
        return next(iter(batch))
    if name not in batch:
        raise ConfigError(f"a term is measured on the part {name!r} of a batch, the loaders give {sorted(batch)}.")
    return name


def outputs_of(network: nn.Module, batch: Batch) -> dict[str, Any]:
    """The network's outputs by part of the batch; all parts pass through it together.

    Args:
        network: a :class:`BatchNetwork` is given the batch, any other module the columns ``x`` of all parts at once.
        batch: parts by name, see :func:`usable`.
    """
    if isinstance(network, BatchNetwork):
        return dict(network(batch))
    if len(batch) == 1:
        ((name, columns),) = batch.items()
        return {name: _call(network, columns["x"])}
    inputs = [columns["x"] for columns in batch.values()]
    sizes = [len(x) for x in inputs]
    leaves, structure = pytree.tree_flatten(_call(network, torch.cat(inputs)))
    pieces = zip(*(torch.split(leaf, sizes) for leaf in leaves), strict=True)
    return {name: pytree.tree_unflatten(list(one), structure) for name, one in zip(batch, pieces, strict=True)}


def _input(columns: Columns, network: nn.Module) -> Any:
    """The column ``x``, in the type of the weights where that is wider, or where it is float64.

    Raises:
        DataError: if there is no such column.
    """
    if "x" not in columns:
        raise DataError(f"a batch has no column `x`, the network's input; it has {sorted(columns)}.")
    x, dtype = columns["x"], _type_of_weights(network)
    if not isinstance(x, Tensor) or dtype is None or not x.is_floating_point() or x.dtype == dtype:
        return x
    return x.to(dtype) if x.dtype == torch.float64 or dtype.itemsize > x.dtype.itemsize else x


def _type_of_weights(network: nn.Module) -> torch.dtype | None:
    # the first module with weights is near: `parameters()` would walk over all names
    held = (p for module in network.modules() for p in module._parameters.values())
    return next((p.dtype for p in held if p is not None and p.is_floating_point()), None)


def _call(network: nn.Module, x: Any) -> Any:
    """The network's outputs.

    Raises:
        DataError: if it does not take an input of this type.
    """
    dtype = x.dtype if isinstance(x, Tensor) else None
    try:
        return network(x)
    except (TypeError, RuntimeError) as error:
        known, text = dtype is not None and dtype == _type_of_weights(network), str(error)
        misshapen = isinstance(error, RuntimeError) and any(word in text for word in _OF_SHAPES)
        if not misshapen and (known or not (isinstance(error, TypeError | NotImplementedError) or "type" in text)):
            raise
        raise DataError(
            f"the network does not take the column `x` of a batch, {described(x)}: {error}. Give one tensor of real "
            "numbers, with a row for every sample and as many columns as the network has inputs: torch.stack, .float()."
        ) from error


def outputs_of_columns(network: nn.Module, columns: Columns) -> Any:
    """The network's outputs for the columns of one loader, as in evaluation."""
    return next(iter(outputs_of(network, usable(as_batch(columns), network)).values()))


def columns_of(given: Any) -> Columns:
    """The columns of one loader as it gave them, as in evaluation; of several, those of the first.

    Raises:
        DataError: as of :func:`as_batch`.
    """
    return next(iter(as_batch(given).values()))


def other_columns(network: nn.Module, columns: Columns) -> dict[str, Tensor]:
    """All columns that objectives, constraints and metrics may name: those that are not the network's input."""
    inputs = network.inputs if isinstance(network, BatchNetwork) else ("x",)
    return {name: c for name, c in columns.items() if isinstance(c, Tensor) and name not in inputs}


def received(batch: Batch, network: nn.Module, device: torch.device) -> Batch:
    """The batch as the network takes it, and on its device."""
    batch = usable(batch, network)
    if device.type == "cpu":
        return batch
    return {name: {n: _moved(c, device) for n, c in part.items()} for name, part in batch.items()}


def _moved(column: Any, device: torch.device) -> Any:
    # without waiting for the device; Apple's copies do not hold on to their source
    return column.to(device, non_blocking=device.type != "mps") if isinstance(column, Tensor) else column


def usable(batch: Batch, network: nn.Module) -> Batch:
    """The batch without what is no tensor and no input of the network, and with ``x`` in the type of its weights.

    Raises:
        DataError: if a part has no column ``x``.
    """
    if isinstance(network, BatchNetwork):
        return batch
    return {name: _usable(part, network) for name, part in batch.items()}


def _usable(columns: Columns, network: nn.Module) -> Columns:
    x = _input(columns, network)
    if x is columns["x"] and all(isinstance(column, Tensor) for column in columns.values()):
        return columns
    return {"x": x, **other_columns(network, columns)}

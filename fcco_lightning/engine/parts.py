"""A loader's batch as a record of named parts, and the network's outputs for it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.hosted import to_device
from fcco_lightning.models import BatchNetwork
from fcco_lightning.records import TARGET, Batch, Columns


def as_batch(given: Mapping[str, Any]) -> Batch:
    """A batch as the loaders gave it, as parts by name: the columns of a single loader are the part "target".

    Raises:
        DataError: if it has no columns by name.
    """
    if not isinstance(given, Mapping):
        raise DataError(
            f"a batch must be a mapping of columns with the samples' `index`, got a {type(given).__name__}. Wrap the "
            "data set of (x, y) samples: DataLoader(IndexedDataset(dataset), ...)."
        )
    if given and all(isinstance(part, Mapping) for part in given.values()):
        return given
    return {TARGET: given}


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


def outputs_of(network: nn.Module, batch: Batch, call: Callable[..., Any] | None = None) -> dict[str, Any]:
    """The network's outputs by part of the batch; all parts pass through it together.

    Args:
        network: a :class:`BatchNetwork` is given the batch, any other module the columns ``x`` of all parts at once.
        batch: parts by name.
        call: takes the place of the network.
    """
    run = call or network
    if isinstance(network, BatchNetwork):
        return dict(run(batch))
    if len(batch) == 1:
        ((name, columns),) = batch.items()
        return {name: run(columns["x"])}
    sizes = [len(columns["x"]) for columns in batch.values()]
    leaves, structure = pytree.tree_flatten(run(torch.cat([columns["x"] for columns in batch.values()])))
    pieces = zip(*(torch.split(leaf, sizes) for leaf in leaves), strict=True)
    return {name: pytree.tree_unflatten(list(one), structure) for name, one in zip(batch, pieces, strict=True)}


def outputs_of_columns(network: nn.Module, columns: Columns) -> Any:
    """The network's outputs for the columns of one loader, as in evaluation."""
    return next(iter(outputs_of(network, as_batch(columns)).values()))


def other_columns(network: nn.Module, columns: Columns) -> dict[str, Tensor]:
    """All columns that objectives, constraints and metrics may name: those that are not the network's input."""
    inputs = network.inputs if isinstance(network, BatchNetwork) else ("x",)
    return {name: c for name, c in columns.items() if isinstance(c, Tensor) and name not in inputs}


def received(batch: Batch, network: nn.Module, device: torch.device) -> Batch:
    """The batch on the network's device, where the host keeps the columns that it has."""
    if device.type == "cpu":
        return batch
    return {name: to_device(part, device, other_columns(network, part)) for name, part in batch.items()}

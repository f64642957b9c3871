"""Batches of one loader and of several: which part a term is measured on, and how the network is called."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fcco_lightning.errors import ConfigError
from fcco_lightning.models import BatchNetwork
from fcco_lightning.records import Batch


def parts_of(batch: Mapping[str, Any]) -> dict[str, Batch] | None:
    """The parts of a batch to which several loaders contribute; None if it is one mapping of columns."""
    return dict(batch) if batch and all(isinstance(v, Mapping) for v in batch.values()) else None


def part(outputs: Any, batch: Mapping[str, Any], name: str | None) -> tuple[Any, Batch]:
    """Outputs and columns of the part ``name``, the first by default; everything where there are no parts.

    Raises:
        ConfigError: if there is no such part.
    """
    parts = parts_of(batch)
    if parts is None:
        return outputs, batch
    name = next(iter(parts)) if name is None else name
    if name not in parts:
        raise ConfigError(f"a term is measured on the part {name!r} of a batch, the loaders give {sorted(parts)}.")
    return outputs[name], parts[name]


def outputs_of(network: nn.Module, batch: Mapping[str, Any], call: Callable[..., Any] | None = None) -> Any:
    """What the network says of a batch: of each part, where there are several, which it sees together.

    Args:
        network: a :class:`BatchNetwork` is given the batch, any other module ``batch["x"]``.
        batch: columns, or parts.
        call: takes the place of the network.
    """
    run = call or network
    if isinstance(network, BatchNetwork):
        return run(batch)
    parts = parts_of(batch)
    if parts is None:
        return run(batch["x"])
    sizes = [len(columns["x"]) for columns in parts.values()]
    leaves, structure = pytree.tree_flatten(run(torch.cat([columns["x"] for columns in parts.values()])))
    pieces = zip(*(torch.split(leaf, sizes) for leaf in leaves), strict=True)
    return {name: pytree.tree_unflatten(list(own), structure) for name, own in zip(parts, pieces, strict=True)}


def other_columns(network: nn.Module, columns: Batch) -> dict[str, Tensor]:
    """All columns that objectives, constraints and metrics may name: those that are not the network's input."""
    inputs = network.inputs if isinstance(network, BatchNetwork) else ("x",)
    return {name: c for name, c in columns.items() if isinstance(c, Tensor) and name not in inputs}

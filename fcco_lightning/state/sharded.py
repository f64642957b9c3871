"""Sharded tensors: every process holds consecutive rows of them.

Rows of a large :class:`~fcco_lightning.state.DualState` are sharded, and weights (``DTensor``) by FSDP2.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn


def shard_of(num_rows: int, rank: int, size: int) -> tuple[int, int]:
    """First row and number of rows of a process: ceil(n/P) each as ``torch.chunk`` does, so the last may hold none."""
    rows_per_process = -(-num_rows // size)
    first = min(rank * rows_per_process, num_rows)
    return first, min(rows_per_process, num_rows - first)


def is_sharded(value: object) -> bool:
    """Whether a value is a ``DTensor``."""
    return hasattr(value, "to_local")


def is_gathered(network: nn.Module) -> bool:
    """Whether the weights of a network are sharded by FSDP2, which gathers them when they are used.

    While weights are gathered, :func:`is_sharded` is false for them.
    """
    return any(hasattr(module, "set_reshard_after_forward") for module in network.modules())


def part_of(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds, in the same memory and without graph; a plain tensor unchanged."""
    if not is_sharded(tensor):
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


def sharded_as(tensor: Tensor, other: Tensor | None) -> Tensor:
    """Shard a plain tensor like ``other``, which has the same shape; unchanged if ``other`` is not sharded."""
    reference: Any = other
    if not is_sharded(reference) or is_sharded(tensor):
        return tensor
    mesh = reference.device_mesh
    first, count = shard_of(len(tensor), mesh.get_local_rank(), mesh.size())
    return from_part(tensor[first : first + count], tensor.shape, mesh)


def from_part(part: Tensor, shape: torch.Size, mesh: Any) -> Tensor:
    """The sharded tensor of a shape of which this process holds ``part``; ``mesh`` is the device mesh of all."""
    from torch.distributed.tensor import DTensor, Shard  # noqa: PLC0415 - a third of the time that torch takes to load

    strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    return DTensor.from_local(part.contiguous(), mesh, [Shard(0)], run_check=False, shape=shape, stride=strides)

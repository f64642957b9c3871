"""Batches that pass through the network in pieces of bounded size, with the gradient of the whole batch."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from fcco_lightning.models.batch import Batch, Columns


def micro_batches(batch: Batch, size: int, by_all: Callable[[int], int] | None = None) -> list[Batch]:
    """Cut every part of a batch into the same number of pieces of consecutive samples, as few as ``size`` allows.

    Args:
        batch: parts by name.
        size: largest number of samples of a part in a micro-batch, >= 1.  It is exceeded only if another part has fewer
            samples than the number of micro-batches needed.
        by_all: maps this process's number of pieces to the largest of all processes, which is then used; some pieces
            may be empty.  None for one process.
    """
    lengths = {name: len(next(iter(columns.values()))) for name, columns in batch.items()}
    count = max(1, min(-(-max(lengths.values()) // size), *lengths.values()))
    count = count if by_all is None else by_all(count)
    return [
        {
            name: _cut(columns, lengths[name] * i // count, lengths[name] * (i + 1) // count)
            for name, columns in batch.items()
        }
        for i in range(count)
    ]


def _cut(columns: Columns, start: int, stop: int) -> Columns:
    return {name: column[start:stop] for name, column in columns.items()}


def recomputed(
    run: Callable[[Batch], Mapping[str, Any]],
    batch: Batch,
    size: int,
    network: nn.Module,
    by_all: Callable[[int], int] | None = None,
) -> dict[str, Any]:
    """Outputs of a whole batch; the activations of only one micro-batch at a time are in memory.

    The first pass keeps no activations.  The backward pass runs every micro-batch again with its graph and the same
    dropout masks, and leaves buffers, such as the statistics of BatchNorm, unchanged.  The gradient is that of one pass
    over the whole batch up to rounding, if an output depends on its own sample only.  BatchNorm in training mode uses
    the statistics of a micro-batch.

    Args:
        run: evaluates the network on a batch; returns outputs by part, nested tensors with one row per sample.
        batch: parts by name.
        size: largest number of samples of a part in one pass.
        network: the network, whose buffers stay unchanged.
        by_all: see :func:`micro_batches`.
    """
    pieces = micro_batches(batch, size, by_all)
    if len(pieces) == 1:
        return dict(run(batch))
    if torch.is_grad_enabled():
        outputs = [checkpoint(run, piece, use_reentrant=False, context_fn=lambda: _passes(network)) for piece in pieces]
    else:
        outputs = [run(piece) for piece in pieces]
    return {
        name: pytree.tree_map(lambda *leaves: torch.cat(leaves), *[piece[name] for piece in outputs]) for name in batch
    }


def _passes(network: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The contexts of the first pass, and of the passes for the backward pass."""
    return nullcontext(), _BuffersStay(network)


class _BuffersStay(AbstractContextManager[None]):
    """A context in which buffers, such as running statistics, are copies; entered once per micro-batch."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._kept: list[tuple[dict[str, Tensor | None], str, Tensor]] = []

    def __enter__(self) -> None:
        places = [(m._buffers, name, b) for m in self._network.modules() for name, b in m._buffers.items()]
        self._kept = [(members, name, buffer) for members, name, buffer in places if buffer is not None]
        copies = {id(buffer): buffer.clone() for _, _, buffer in self._kept}
        for members, name, buffer in self._kept:
            members[name] = copies[id(buffer)]

    def __exit__(self, *_: object) -> None:
        for members, name, buffer in self._kept:
            members[name] = buffer

"""The batches of all processes as one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fcco_lightning.engine.batches import other_columns
from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import HERE, Batch
from fcco_lightning.state.processes import Processes

# marks: a process was asked to stop; a batch is the last one of an epoch
STOP, LAST = 1, 2


def unite(
    outputs: Sequence[dict[str, Any]],
    batch: Batch,
    network: nn.Module,
    processes: Processes,
    *,
    stop: bool = False,
    last: bool = False,
) -> tuple[list[dict[str, Any]], Batch, bool]:
    """Gather outputs and columns of all processes, with the graph of this process's outputs.

    One collective for every part of the batch.

    Args:
        outputs: of the network by part, for every point of evaluation: tensors or nested tuples, lists and dicts of
            tensors with first dimension b.
        batch: this process's columns by part, the objective's first.
        network: whose inputs are left out.
        processes: of the job.
        stop: whether this process was asked to stop.
        last: whether this process's epoch ends with the batch.

    Returns: the outputs at every point and the columns, for the samples of all processes, and whether any was asked to
        stop.

    Raises:
        DataError: on all processes, if the epoch ends with the batch on some of them only.
        PeerError: if another process has failed.
    """
    if processes.size == 1:
        return list(outputs), batch, stop
    united: list[dict[str, Any]] = [{} for _ in outputs]
    together: dict[str, dict[str, Tensor]] = {}
    for name, part in batch.items():
        columns = other_columns(network, part)
        leaves, structure = pytree.tree_flatten([of_point[name] for of_point in outputs])
        union = processes.gather([*leaves, *columns.values()], STOP * stop | LAST * last)
        _require_same_end([bool(mark & LAST) for mark in union.marks])
        for point, whole in zip(united, pytree.tree_unflatten(union.tensors[: len(leaves)], structure), strict=True):
            point[name] = whole
        together[name] = dict(zip(columns, union.tensors[len(leaves) :], strict=True))
        owner = torch.arange(len(union.sizes)).repeat_interleave(torch.tensor(union.sizes))
        together[name][HERE] = owner == processes.rank
        stop = union.any_mark(STOP)
    return united, together, stop


def _require_same_end(last: Sequence[bool]) -> None:
    """Refuse epochs that end on some processes only: the others would wait for them for ever."""
    if any(last) and not all(last):
        ends, goes_on = last.index(True), last.index(False)
        raise DataError(
            f"the epoch of process {ends} ends with this batch, that of process {goes_on} does not. Give every process "
            "the same number of batches, with a datamodule of this package or --trainer.limit_train_batches."
        )

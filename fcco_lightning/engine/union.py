"""The batches of all processes as one."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fcco_lightning.distributed import Processes
from fcco_lightning.engine.parts import other_columns
from fcco_lightning.errors import DataError
from fcco_lightning.hosted import on_host, to_device
from fcco_lightning.numerics import send
from fcco_lightning.records import HERE, Batch, Columns
from fcco_lightning.state import DualState

# marks: a process was asked to stop; a batch holds samples whose rows are elsewhere; it is the last one of an epoch
STOP, SCATTERED, LAST = 1, 2, 4


class KnownRows:
    """Rows of a sharded state that came along with the batches of the processes that hold them.

    Args:
        index: the rows, on the host, shape (b,); those of repeated samples may repeat.
        values: what they hold, shape (b, k).
    """

    def __init__(self, index: Tensor, values: Tensor) -> None:
        self._order = index.argsort()
        self._index, self._values = index[self._order], values

    def select(self, index: Tensor) -> Tensor | None:
        """Values (b, k) of rows ``index`` (b,), on the host, or None if one of them did not come along."""
        if not len(self._index):
            return None
        at = torch.searchsorted(self._index, index).clamp(max=len(self._index) - 1)
        if not bool((self._index[at] == index).all()):
            return None
        return self._values.index_select(0, send(self._order[at], self._values))


class Union(NamedTuple):
    """What the inner functions are measured on.

    Attributes:
        outputs: of the network by part, one entry per point of evaluation, for the samples of all processes.
        batch: their columns, all but the network's input.
        known: the rows that came along, by the state that they belong to.
        stop: whether a process was asked to stop.
    """

    outputs: list[dict[str, Any]]
    batch: Batch
    known: dict[DualState, KnownRows]
    stop: bool


def unite(
    outputs: Sequence[dict[str, Any]],
    batch: Batch,
    network: nn.Module,
    states: Sequence[DualState],
    processes: Processes,
    *,
    stop: bool = False,
    last: bool = False,
) -> Union:
    """Gather outputs and columns of all processes, with the graph of this process's outputs.

    One collective for every part of the batch.  Where every process holds the rows of its own samples
    (:class:`~fcco_lightning.data.plans.OwnerPlan` sees to it), these come along, and reading the state needs no
    collective of its own.

    Args:
        outputs: of the network by part: tensors or nested tuples, lists and dicts of tensors with first dimension b.
        batch: this process's columns by part, the objective's first.
        network: whose inputs are left out.
        states: the dual states in which row i belongs to sample i of the first part.
        processes: of the job.
        stop: whether this process was asked to stop.
        last: whether this process's epoch ends with the batch.

    Raises:
        DataError: on all processes, if the epoch ends with the batch on some of them only.
        PeerError: if another process has failed.
    """
    if processes.size == 1:
        return Union(list(outputs), batch, {}, stop)
    marks = STOP * stop | LAST * last
    united: list[dict[str, Any]] = [{} for _ in outputs]
    columns: dict[str, Columns] = {}
    known: dict[DualState, KnownRows] = {}
    for position, (name, part) in enumerate(batch.items()):
        one = _unite_part(
            [o[name] for o in outputs], other_columns(network, part), [] if position else states, processes, marks
        )
        columns[name], stop = one.batch["part"], one.stop
        known |= one.known
        for point, whole in zip(united, one.outputs, strict=True):
            point[name] = whole["part"]
    return Union(united, columns, known, stop)


def _unite_part(
    outputs: list[Any], columns: Columns, states: Sequence[DualState], processes: Processes, marks: int
) -> Union:
    with processes.guard():
        leaves, structure = pytree.tree_flatten(outputs)
        divided = [s for s in states if s.divided and "index" in columns]
        places = [s.locate(on_host(columns)["index"]) for s in divided]
        scattered = any(place.positions is not None for place in places)
        rows = [
            s.rows.new_zeros(len(columns["index"]), s.width) if scattered else s.rows.index_select(0, place.local)
            for s, place in zip(divided, places, strict=True)
        ]
    union = processes.gather([*leaves, *columns.values(), *rows], marks | SCATTERED * scattered)
    _require_same_end([bool(mark & LAST) for mark in union.marks])
    whole = iter(union.tensors)
    united = pytree.tree_unflatten([next(whole) for _ in leaves], structure)
    together = {name: next(whole) for name in columns}
    together[HERE] = torch.arange(len(union.sizes)).repeat_interleave(torch.tensor(union.sizes)) == processes.rank
    gathered = to_device(together, leaves[0].device, together)
    known: dict[DualState, KnownRows] = {}
    if not union.any_mark(SCATTERED):
        known = {s: KnownRows(on_host(gathered)["index"], rows) for s, rows in zip(divided, whole, strict=True)}
    return Union([{"part": o} for o in united], {"part": gathered}, known, union.any_mark(STOP))


def _require_same_end(last: Sequence[bool]) -> None:
    """Refuse epochs that end on some processes only: the others would wait for them for ever."""
    if any(last) and not all(last):
        ends, goes_on = last.index(True), last.index(False)
        raise DataError(
            f"the epoch of process {ends} ends with this batch, that of process {goes_on} does not. Give every process "
            "the same number of batches, with a datamodule of this package or --trainer.limit_train_batches."
        )

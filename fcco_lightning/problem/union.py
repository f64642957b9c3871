"""The batches of all processes as one."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.utils import _pytree as pytree

from fcco_lightning.distributed import Processes
from fcco_lightning.problem.parts import other_columns, parts_of
from fcco_lightning.records import Batch
from fcco_lightning.state import DualState

STOP, SCATTERED = 1, 2  # marks: a process was asked to stop; a batch holds samples whose rows are elsewhere


class Union(NamedTuple):
    """What the inner functions are measured on.

    Attributes:
        outputs: of the network, one entry per point of evaluation, for the samples of all processes.
        batch: their columns, all but the network's input.
        stop: whether a process was asked to stop.
    """

    outputs: list[Any]
    batch: Batch
    stop: bool


def unite(
    outputs: Sequence[Any],
    batch: Batch,
    network: nn.Module,
    states: Sequence[DualState],
    processes: Processes,
    *,
    stop: bool = False,
) -> Union:
    """Gather outputs and columns of all processes, with the graph of this process's outputs.

    One collective, or one for every part of a batch that has several.  Where every process holds the rows of its own
    samples (:class:`~fcco_lightning.data.plans.OwnerBatches` sees to it), these come along, and reading the state
    needs no collective of its own.

    Args:
        outputs: of the network, tensors or nested tuples, lists and dicts of tensors with first dimension b.
        batch: this process's columns, b samples; or parts with b_1, b_2, ... samples, the objective's first.
        network: whose inputs are left out.
        states: the dual states with a row per sample of the objective.
        processes: of the job.
        stop: whether this process was asked to stop.
    """
    if processes.size == 1:
        return Union(list(outputs), batch, stop)
    parts = parts_of(batch)
    if parts is None:
        return _unite(outputs, other_columns(network, batch), states, processes, stop=stop)
    united: list[dict[str, Any]] = [{} for _ in outputs]
    columns: dict[str, Batch] = {}
    for position, (name, own) in enumerate(parts.items()):
        mine = [] if position else states
        one = _unite([o[name] for o in outputs], other_columns(network, own), mine, processes, stop=stop)
        columns[name], stop = one.batch, one.stop
        for point, found in zip(united, one.outputs, strict=True):
            point[name] = found
    return Union(united, columns, stop)  # type: ignore[arg-type]


def _unite(
    outputs: Sequence[Any], columns: Batch, states: Sequence[DualState], processes: Processes, *, stop: bool
) -> Union:
    with processes.guard():
        leaves, structure = pytree.tree_flatten(list(outputs))
        divided = [s for s in states if s.divided and "index" in columns]
        scattered = not all(s.owns(s.checked_index(columns["index"])) for s in divided)
        brought = [
            s.rows.new_zeros(len(columns["index"]), s.width) if scattered else s.read_own(columns["index"])
            for s in divided
        ]
    union = processes.gather([*leaves, *columns.values(), *brought], STOP * stop | SCATTERED * scattered)
    whole = iter(union.tensors)
    united = pytree.tree_unflatten([next(whole) for _ in leaves], structure)
    together = {name: next(whole) for name in columns}
    if not union.any_mark(SCATTERED):
        for state, rows in zip(divided, whole, strict=True):
            state.bring(together["index"], rows)
    return Union(united, together, union.any_mark(STOP))

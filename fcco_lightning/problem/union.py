"""The batches of all processes as one."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree

from fcco_lightning.distributed import Processes
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
    outputs: Sequence[Any], batch: Batch, states: Sequence[DualState], processes: Processes, *, stop: bool = False
) -> Union:
    """Gather outputs and columns of all processes, in one collective, with the graph of this process's outputs.

    Where every process holds the rows of its own samples (:class:`~fcco_lightning.data.samplers.OwnerBatches` sees to
    it), these come along, and reading the state needs no collective of its own.

    Args:
        outputs: of the network, tensors or nested tuples, lists and dicts of tensors with first dimension b.
        batch: this process's columns, b samples.
        states: the dual states with a row per sample.
        processes: of the job.
        stop: whether this process was asked to stop.
    """
    if processes.size == 1:
        return Union(list(outputs), batch, stop)
    with processes.guard():
        leaves, structure = pytree.tree_flatten(list(outputs))
        columns = {name: c for name, c in batch.items() if isinstance(c, Tensor) and name != "x"}
        divided = [s for s in states if s.divided and "index" in batch]
        scattered = not all(s.owns(s.checked_index(batch["index"])) for s in divided)
        brought = [
            s.rows.new_zeros(len(batch["index"]), s.width) if scattered else s.read_own(batch["index"]) for s in divided
        ]
    union = processes.gather([*leaves, *columns.values(), *brought], STOP * stop | SCATTERED * scattered)
    whole = iter(union.tensors)
    united = pytree.tree_unflatten([next(whole) for _ in leaves], structure)
    together = {name: next(whole) for name in columns}
    if not union.any_mark(SCATTERED):
        for state, rows in zip(divided, whole, strict=True):
            state.bring(together["index"], rows)
    return Union(united, together, union.any_mark(STOP))

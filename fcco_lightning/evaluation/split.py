"""A whole split: its samples from all processes, and all of its figures."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fcco_lightning.constraints import Constraint, unique_names
from fcco_lightning.distributed import Processes
from fcco_lightning.errors import DataError
from fcco_lightning.evaluation.base import Evaluation
from fcco_lightning.records import Columns


def summarise(
    evaluation: Evaluation, constraints: Sequence[Constraint], outputs: Tensor, batch: Columns
) -> tuple[dict[str, float], str | None]:
    """Compute all figures of a split: those of the evaluation and those of the constraints.

    With constraints, ``worst_violation`` is max_i h_i, so that the weights are feasible where it is <= 0, ``vacuous``
    is 1.0 or 0.0, and there is ``h/NAME`` of every constraint (:func:`constraint_values`).

    Args:
        evaluation: The evaluation.
        constraints: The constraints, any number.
        outputs: The network's outputs on the whole split.
        batch: The columns of the split.

    Returns:
        ``(figures, reason)``: the figures by name, and why a constraint is vacuous (None if none is).
    """
    summary = evaluation(outputs, batch)
    values = constraint_values(constraints, outputs, batch)
    reason = None
    if constraints:
        reasons = [r for r in (c.vacuous(outputs, batch) for c in constraints) if r]
        reason = "; ".join(dict.fromkeys(reasons)) or None
        summary["worst_violation"] = max(values.values(), default=float("nan"))
        summary["vacuous"] = float(bool(reasons))
    return summary | values, reason


def constraint_values(constraints: Sequence[Constraint], outputs: Tensor, batch: Columns) -> dict[str, float]:
    """Compute h_i of every constraint on the whole split, in float64.

    Args:
        constraints: The constraints, any number.
        outputs: The network's outputs on the whole split.
        batch: The columns of the split.

    Returns:
        h_i by ``h/NAME``.  A constraint of which the split has no sample is absent.  Where two constraints have one
        name, the later one gets an apostrophe.
    """
    values: dict[str, float] = {}
    names = unique_names([name for c in constraints for name in c.names])
    for c in constraints:
        own, names = names[: c.num_rows], names[c.num_rows :]
        inner = c.inner(outputs.double(), batch)
        for i, h in zip(inner.index.tolist(), c.violation(inner.values).tolist(), strict=True):
            values[f"h/{own[i]}"] = h
    return values


def concatenate(parts: Sequence[tuple[Any, dict[str, Tensor]]], processes: Processes) -> tuple[Any, dict[str, Tensor]]:
    """Join the outputs and the columns of all batches of all processes, with every sample once.

    Args:
        parts: The outputs (nested tensors) and the columns of each batch of this process.
        processes: The processes of the job; all of them call this function.

    Returns:
        The outputs and the columns of the whole split, the same on every process.

    Raises:
        DataError: if a process has no sample.
    """
    with processes.guard():
        if not parts:
            raise DataError("a split has fewer samples than there are processes: use fewer processes or more samples.")
        names, structure = list(parts[0][1]), pytree.tree_structure(parts[0][0])
        leaves = [torch.cat(some) for some in zip(*(pytree.tree_leaves(o) for o, _ in parts), strict=True)]
        columns = [torch.cat([c[name] for _, c in parts]) for name in names]
    gathered = processes.gather([*leaves, *columns]).tensors
    leaves, together = gathered[: len(leaves)], dict(zip(names, gathered[len(leaves) :], strict=True))
    if processes.size > 1 and "index" in together and torch.unique(together["index"]).numel() < len(leaves[0]):
        # Lightning's own sampler repeats samples so that all processes have equally many.
        first = first_occurrences(together["index"])
        leaves, together = [leaf[first] for leaf in leaves], {name: c[first] for name, c in together.items()}
    return pytree.tree_unflatten(leaves, structure), together


def first_occurrences(index: Tensor) -> Tensor:
    """Return the positions at which a value occurs for the first time, ordered by the value.

    Example:
        >>> first_occurrences(torch.tensor([2, 0, 2, 1, 0])).tolist()
        [1, 3, 0]
    """
    order = index.argsort(stable=True)
    ranked = index[order]
    new = torch.ones_like(ranked, dtype=torch.bool)
    new[1:] = ranked[1:] != ranked[:-1]
    return order[new]

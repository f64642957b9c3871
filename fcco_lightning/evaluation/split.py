"""Collection of a whole split from all processes, and computation of all its figures."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fcco_lightning.constraints import Constraint, unique_names
from fcco_lightning.errors import DataError
from fcco_lightning.evaluation.base import Evaluation
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.vacuity import by_chance
from fcco_lightning.state.processes import Processes


class Split(NamedTuple):
    """The network's outputs on a split, with the columns of its samples.

    Attributes:
        outputs: The outputs (nested tensors) of all n samples, each with first dimension n.
        columns: The columns of these samples, each with first dimension n.
    """

    outputs: Any
    columns: dict[str, Tensor]


def summarise(
    evaluation: Evaluation,
    constraints: Sequence[Constraint],
    outputs: Tensor,
    batch: Columns,
    *,
    decisions: bool = False,
) -> tuple[dict[str, float], str | None]:
    """Compute all figures of a split: those of the evaluation and those of the constraints.

    With constraints, ``worst_violation`` is the largest of the enforced h_i, ``vacuous`` is 1.0 or 0.0, and there are
    ``h/NAME`` and ``decided/NAME`` of every constraint (:func:`constraint_values`).  The weights are feasible if
    ``worst_violation`` <= 0 and the constraints are not vacuous (:func:`is_feasible`).

    Args:
        evaluation: The evaluation.
        constraints: The constraints, any number.
        outputs: The network's outputs on the whole split.
        batch: The columns of the split.
        decisions: Whether constraints that smooth decisions are enforced on the decisions themselves.

    Returns:
        ``(figures, reason)``: the figures by name, and why a constraint is vacuous (None if none is).
    """
    summary = evaluation(outputs, batch)
    values = constraint_values(constraints, outputs, batch)
    reason = None
    if constraints:
        reasons = [r for r in (c.vacuous(outputs, batch, decisions=decisions) for c in constraints) if r]
        if "auc" in summary and batch["y"].dim() == 1 and any(c.comparison.equalises for c in constraints):
            reasons += [r for r in [by_chance(summary["auc"], batch["y"], batch.get("weight"))] if r]
        reason = "; ".join(dict.fromkeys(reasons)) or None
        names = [name.removeprefix("h/") for name in values if name.startswith("h/")]
        enforced = [values[f"decided/{n}" if decisions and f"decided/{n}" in values else f"h/{n}"] for n in names]
        summary["worst_violation"] = max(enforced, default=float("nan"))
        summary["vacuous"] = float(bool(reasons))
    return summary | values, reason


def constraint_values(constraints: Sequence[Constraint], outputs: Tensor, batch: Columns) -> dict[str, float]:
    """Compute h_i of every constraint on the whole split, in float64; arguments as for :func:`summarise`.

    Returns:
        ``h/NAME``, the values h_i, and ``decided/NAME``, the values on decisions of constraints that smooth decisions.
        A constraint without samples in the split is absent.  If two constraints have the same name, the later one gets
        an apostrophe.
    """
    smooth: dict[str, float] = {}
    decided: dict[str, float] = {}
    outputs, names = pytree.tree_map(Tensor.double, outputs), unique_names(constraints)
    for c in constraints:
        row_names, names = names[: c.num_rows], names[c.num_rows :]
        index, inner = inner_values(c, outputs, batch)
        rows = [row_names[i] for i in index.tolist()]
        smooth |= {f"h/{name}": h for name, h in zip(rows, c.violation(inner).tolist(), strict=True)}
        if c.smooths:
            violations = c.violation(c.decided(outputs, batch)[index])
            decided |= {f"decided/{name}": h for name, h in zip(rows, violations.tolist(), strict=True)}
    return smooth | decided


def inner_values(constraint: Constraint, outputs: Any, batch: Columns) -> tuple[Tensor, Tensor]:
    """Compute the inner functions of a constraint on a split; outputs and batch as for :func:`summarise`.

    Returns:
        The rows that have samples in the split, in increasing order, shape (r,), and their inner values with graph,
        shape (r, k).

    Raises:
        DataError: if the split lacks a column, or if values are not finite because the constraint does not fit it.
    """
    _, rows = constraint.measure(outputs, batch)
    assert rows is not None  # noqa: S101 - constraints always have rows
    if not bool(rows.values.isfinite().all()):
        constraint.check(outputs, batch)
    index = rows.weight.nonzero().squeeze(1)
    return index, rows.values[index]


def concatenate(parts: Sequence[Split], processes: Processes) -> Split:
    """Join the outputs and the columns of all batches of all processes, with every sample once.

    Args:
        parts: The outputs and the columns of each batch of this process.
        processes: The processes of the job; all of them call this function.

    Returns:
        The whole split, the same on every process.

    Raises:
        DataError: if a process has no sample.
    """
    with processes.guard():
        if not parts:
            raise DataError("a split has fewer samples than there are processes. Use fewer processes, or more samples.")
        local = pytree.tree_map(lambda *leaves: torch.cat(leaves), *parts)
        leaves, structure = pytree.tree_flatten(local)
    joined: Split = pytree.tree_unflatten(processes.gather(leaves).tensors, structure)
    index = joined.columns.get("index")
    if processes.size > 1 and index is not None and torch.unique(index).numel() < len(index):
        # Lightning's sampler repeats samples to give processes equally many
        first = first_occurrences(index)
        joined = pytree.tree_map(lambda leaf: leaf[first], joined)
    return joined


def first_occurrences(index: Tensor) -> Tensor:
    """Return the position of the first occurrence of every distinct value, ordered by value.

    Example:
        >>> first_occurrences(torch.tensor([2, 0, 2, 1, 0])).tolist()
        [1, 3, 0]
    """
    return torch.from_numpy(np.unique(index.cpu().numpy(), return_index=True)[1]).to(index.device)

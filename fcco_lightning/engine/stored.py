"""Checks that a loaded engine state belongs to the problem, and that rows and optimizer state were loaded with it."""

import warnings
from collections.abc import Collection, Mapping
from typing import Any

from torch.optim import Optimizer

from fcco_lightning.constraints import Constraint, Multipliers
from fcco_lightning.engine.problem import Problem
from fcco_lightning.errors import CheckpointError


def what_is_solved(problem: Problem) -> dict[str, Any]:
    """A description of the problem to which rows belong, without numbers such as kappas, which may change later."""
    rule = problem.penalty
    enforcement = (
        f"{type(rule).__name__}(decisions={rule.decisions})" if isinstance(rule, Multipliers) else "a fixed penalty"
    )
    return {
        "objective": type(problem.objective).__name__,
        "constraints": [[_kind(c), list(c.names)] for c in problem.constraints],
        "enforcement": enforcement if problem.constraints else "",
    }


def _kind(constraint: Constraint) -> str:
    """The class of a constraint, or of those that it joins."""
    return type(getattr(constraint, "joined", [constraint])[0]).__name__


def require_same_problem(stored: Mapping[str, Any], present: Mapping[str, Any]) -> None:
    """Refuse a state whose rows belong to another objective or other constraints, even if the shapes agree.

    Raises:
        CheckpointError: naming the difference.
    """
    for name, value in present.items():
        if stored[name] != value:
            raise CheckpointError(
                f"the checkpoint was written with the {name} {_description(stored[name])}, but this run has "
                f"{_description(value)}. Use the same {name}, or start without the checkpoint (without --ckpt_path)."
            )


def _description(part: Any) -> str:
    if isinstance(part, str):
        return part
    rows = [f"{kind} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" for kind, names in part]
    return ", ".join(rows) or "none"


def remembers(problem: Problem) -> bool:
    """Whether the rows of this process contain information from any batch."""
    tables = [*problem.states, *([] if problem.row_parameters is None else [problem.row_parameters.state])]
    counts = [term.counts for term in problem.all_terms if term.counts is not None]
    units = [multipliers.unit for multipliers in problem.multipliers_of_terms]
    return (
        any(bool(count[-1] > 0) for count in counts)
        or any(not bool(unit.isnan()) for unit in units)
        or any(bool(table.seen.any()) for table in tables)
    )


def require_whole(
    stored: Mapping[str, Any] | None, problem: Problem, memories: Collection[str], optimizer: Optimizer
) -> None:
    """Check before the first batch after loading that states which belong together were loaded together.

    A missing state of the algorithm or the optimizer only causes a warning, as it may be intended.

    Args:
        stored: the engine's state; None if only the rows were loaded.
        problem: the problem, whose rows are not part of that state.
        memories: names of the algorithm's states besides the rows.
        optimizer: the user's optimizer, which is not part of that state either.

    Raises:
        CheckpointError: if the engine's state was saved with rows that are missing now.
    """
    if stored is None:
        if memories and remembers(problem):
            warnings.warn(
                "the rows were loaded without the engine's state, so that the algorithm's other state "
                f"({', '.join(sorted(memories))}) belongs to another step. Load it, too: engine.load_state_dict.",
                stacklevel=4,
            )
        return
    then, now = bool(stored.get("remembers")), remembers(problem)
    if any(state.partial for state in problem.states):  # all processes agree: one may hold none of the rows
        then, now = (bool(problem.processes.largest(some)) for some in (then, now))
    if then and not now:
        raise CheckpointError(
            "the engine's state was saved after training, but the rows of the problem are empty and would start "
            "anew. Load the rows, too: problem.load_state_dict(rows), with rows = problem.state_dict() of the "
            "saved problem; or create a new engine and do not load its state."
        )
    name = stored.get("optimizer")
    if name and not optimizer.state:
        warnings.warn(
            f"the engine's state was saved with the optimizer {name}, which had accumulated moments; the state of "
            f"this {type(optimizer).__name__} is empty. To continue exactly, load its state, too: "
            "optimizer.load_state_dict.",
            stacklevel=4,
        )

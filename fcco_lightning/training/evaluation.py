"""What is reported of a whole split: metrics on raw scores and the values of all constraints."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fcco_lightning.constraints import Constraint
from fcco_lightning.distributed import Processes
from fcco_lightning.errors import DataError
from fcco_lightning.metrics.functional import auc, roc_gap
from fcco_lightning.objectives import binary_scores
from fcco_lightning.records import Batch


class Evaluation(ABC):
    """Metrics of the network's outputs on a split; a task brings its own subclass."""

    @abstractmethod
    def __call__(self, outputs: Tensor, batch: Batch) -> dict[str, float]:
        """Metrics by name; one that the split leaves undefined (a class is absent) is NaN."""


class BinaryEvaluation(Evaluation):
    """AUC, range of the scores and, with two groups, the hard ROC gap.

    Args:
        num_thresholds: quantiles of the pooled scores at which the gap is taken.
    """

    def __init__(self, num_thresholds: int = 200) -> None:
        self.num_thresholds = num_thresholds

    def __call__(self, outputs: Tensor, batch: Batch) -> dict[str, float]:
        scores, y = binary_scores(outputs).float(), batch["y"]
        summary = {"auc": float("nan"), "score_min": scores.min().item(), "score_max": scores.max().item()}
        if _both(y):
            summary["auc"] = float(auc(scores, y))
        if "group" in batch and _both(batch["group"]):
            group = batch["group"]
            complete = all(_both(y[group == g]) for g in (0, 1))
            gap = roc_gap(scores, y, group, self.num_thresholds) if complete else float("nan")
            summary["roc_gap"] = float(gap)
        return summary


def constraint_values(constraints: Sequence[Constraint], outputs: Tensor, batch: Batch) -> dict[str, float]:
    """``h/NAME`` -> h_i on the whole split, in float64; a row without samples is absent.  Names are made distinct."""
    values: dict[str, float] = {}
    for c in constraints:
        index, inner = c.inner(outputs.double(), batch)
        for i, h in zip(index.tolist(), c.violation(inner).tolist(), strict=True):
            name = f"h/{c.names[i]}"
            while name in values:
                name += "'"
            values[name] = h
    return values


def summarise(
    evaluation: Evaluation, constraints: Sequence[Constraint], outputs: Tensor, batch: Batch
) -> tuple[dict[str, float], str | None]:
    """All figures of a split, and why a constraint is vacuous (None if none is).

    ``worst_violation`` is max_i h_i: feasible where it is <= 0.  ``vacuous`` is 1.0 or 0.0.
    """
    summary = evaluation(outputs, batch)
    values = constraint_values(constraints, outputs, batch)
    reason = None
    if constraints:
        reasons = [r for r in (c.vacuous(outputs, batch) for c in constraints) if r]
        reason = "; ".join(reasons) or None
        summary["worst_violation"] = max(values.values(), default=float("nan"))
        summary["vacuous"] = float(bool(reasons))
    return summary | values, reason


def _both(labels: Tensor) -> bool:
    return bool(torch.unique(labels).numel() == 2)


def evaluation_columns(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One value per sample: all columns that constraints and metrics may name."""
    return {name: column for name, column in batch.items() if column.dim() == 1}


def concatenate(
    parts: Sequence[tuple[Tensor, dict[str, Tensor]]], processes: Processes
) -> tuple[Tensor, dict[str, Tensor]]:
    """Outputs and columns of all batches of all processes as one, every sample once.

    Raises:
        DataError: if a process has no sample.
    """
    with processes.guard():
        if not parts:
            raise DataError("a split has fewer samples than there are processes: use fewer processes or more samples.")
        names = list(parts[0][1])
        own = [torch.cat([o for o, _ in parts]), *(torch.cat([c[name] for _, c in parts]) for name in names)]
    outputs, *columns = processes.gather(own).tensors
    together = dict(zip(names, columns, strict=True))
    if processes.size > 1 and "index" in together and torch.unique(together["index"]).numel() < len(outputs):
        # Lightning's own sampler repeats samples to make the processes' parts equal
        first = first_occurrences(together["index"])
        outputs, together = outputs[first], {name: c[first] for name, c in together.items()}
    return outputs, together


def first_occurrences(index: Tensor) -> Tensor:
    """Positions at which a value occurs for the first time, in increasing order of the value."""
    order = index.argsort(stable=True)
    ranked = index[order]
    new = torch.ones_like(ranked, dtype=torch.bool)
    new[1:] = ranked[1:] != ranked[:-1]
    return order[new]

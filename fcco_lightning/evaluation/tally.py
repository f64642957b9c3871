"""Figures of splits that do not fit into memory: what is counted of every batch."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fcco_lightning.evaluation.base import Tally, correct_and_loss, require_columns
from fcco_lightning.evaluation.metrics.group_accuracy import group_sums
from fcco_lightning.evaluation.metrics.streaming import Bounded, ScoreCounts
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives import binary_scores
from fcco_lightning.state.processes import Processes


class ScoreTally(Tally):
    """Figures of two classes that are ranked by one score: area, average precision, gap, and head of the list.

    Args:
        num_thresholds: The number of quantiles at which the gap between two groups is taken, >= 1; None for no gap.
        top: The lengths k of the head of the list.
        with_range: Whether the range of the scores is a figure.
        with_precision: Whether the average precision is one.
    """

    def __init__(
        self,
        num_thresholds: int | None = None,
        top: Sequence[int] = (),
        *,
        with_range: bool = False,
        with_precision: bool = False,
    ) -> None:
        self.num_thresholds, self.top = num_thresholds, top
        self.with_range, self.with_precision = with_range, with_precision
        self._counts = ScoreCounts()
        self._groups: set[int] = set()  # up to three of their numbers: then there are not two
        self._low, self._high = math.inf, -math.inf

    def update(self, outputs: Tensor, batch: Columns) -> None:
        require_columns(batch, "y", figures="figures of a ranking")
        scores = binary_scores(outputs).float()
        groups = batch.get("group") if self.num_thresholds is not None and len(self._groups) < 3 else None
        if groups is not None:
            self._groups |= set(torch.unique(groups)[:3].tolist())
        self._counts.update(scores, batch["y"], groups if self._groups <= {0, 1} else None)
        if self.with_range:
            low, high = torch.stack(scores.aminmax()).tolist()
            self._low, self._high = min(self._low, low), max(self._high, high)

    def figures(self, processes: Processes) -> dict[str, float]:
        self._counts.sum_(processes)
        seen = processes.everyone((self._low, self._high, self._groups))
        counts, found = self._counts, dict[str, Bounded]()
        sizes = counts.counts.sum(2)
        unknown = Bounded(math.nan, math.nan)
        both = bool(sizes.sum(0).all())
        found["auc"] = counts.auc() if both else unknown
        if self.with_precision:
            found["average_precision"] = counts.average_precision() if both else unknown
        for k in self.top:
            found[f"precision_at_{k}"], found[f"recall_at_{k}"] = counts.head(k) if both else (unknown, unknown)
        groups: set[int] = set().union(*(one for _, _, one in seen))
        if self.num_thresholds is not None and len(groups) == 2:
            known = groups == {0, 1} and bool(sizes.all())
            found["roc_gap"] = counts.roc_gap(self.num_thresholds) if known else unknown
        figures = {name: one.value for name, one in found.items()}
        figures |= {f"{name}_error": one.error for name, one in found.items()}
        if self.with_range:
            figures |= {"score_min": min(low for low, _, _ in seen), "score_max": max(high for _, high, _ in seen)}
        return figures


class GroupTally(Tally):
    """Figures of groups, from their sizes, correct classifications and losses.

    Args:
        compute: The figures from these sums, shape (G, 3), float64, a row for every group 0, 1, ... up to the highest
            one that was counted.
    """

    def __init__(self, compute: Callable[[Tensor], dict[str, float]]) -> None:
        self._compute = compute
        self.sums = torch.zeros(1, 3, dtype=torch.float64)

    def update(self, outputs: Tensor, batch: Columns) -> None:
        counted = sums_by_group(outputs, batch)
        self.sums = self._padded(len(counted)).to(counted.device)
        self.sums[: len(counted)] += counted

    def figures(self, processes: Processes) -> dict[str, float]:
        self.sums = self._padded(max(processes.everyone(len(self.sums))))
        return self._compute(processes.sum_(self.sums))

    def _padded(self, groups: int) -> Tensor:
        return torch.nn.functional.pad(self.sums, (0, 0, 0, max(0, groups - len(self.sums))))


def sums_by_group(outputs: Tensor, batch: Columns) -> Tensor:
    """Return the size, the number of correct classifications and the sum of the losses of every group.

    Returns:
        Shape (G, 3), float64, a row for every group 0, 1, ... up to the highest one of the batch, at least one.

    Raises:
        DataError: if y or group is missing or contains a value out of range, or if the shapes do not fit.
    """
    require_columns(batch, "y", "group", figures="figures by group")
    correct, losses = correct_and_loss(outputs, batch["y"])
    group = batch["group"]
    size = max(1, int(group.max()) + 1) if len(group) else 1
    of_losses, sizes = group_sums(losses, group, size)
    of_correct, _ = group_sums(correct, group, size)
    return torch.stack([sizes.double(), of_correct, of_losses], dim=1)

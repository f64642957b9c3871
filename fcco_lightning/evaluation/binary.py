"""Figures of two classes that are ranked by one score."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.errors import DataError
from fcco_lightning.evaluation.base import Evaluation, written
from fcco_lightning.evaluation.metrics.functional import auc, roc_gap
from fcco_lightning.evaluation.metrics.group import split_roc
from fcco_lightning.evaluation.pictures import plot_constraints, plot_objective_and_violation, plot_roc_by_group
from fcco_lightning.evaluation.pictures.style import History
from fcco_lightning.evaluation.samples import require_columns
from fcco_lightning.evaluation.tally import ScoreTally, Tally
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives import binary_scores


class BinaryEvaluation(Evaluation):
    """Area under the ROC curve, range of the scores and, where there are two groups, the hard ROC gap.

    The outputs are one score per sample, shape (n,) or (n, 1); the column ``y`` (n,) contains the classes 0 and 1.

    - ``auc``: the area under the ROC curve, NaN where the split lacks a class;
    - ``score_min``, ``score_max``: the range of the scores;
    - ``roc_gap``: the hard ROC gap between the groups of the column ``group`` (n,), if it contains exactly two values;
      NaN where a group lacks a class, or where the two are not called 0 and 1.

    Args:
        num_thresholds: The number of quantiles of the pooled scores at which the gap is taken, >= 1.

    Raises:
        ConfigError: if ``num_thresholds`` is not a whole number >= 1.
    """

    bar = ("auc",)

    def __init__(self, num_thresholds: int = 200) -> None:
        self.num_thresholds = at_least("num_thresholds", num_thresholds, 1)

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        """Compute the figures.

        Raises:
            DataError: if the outputs are not one score per sample, or if the column ``y`` is missing.
        """
        scores = _scores(outputs)
        require_columns(batch, "y", figures="binary figures")
        y = batch["y"]
        summary = {"auc": float("nan"), "score_min": scores.min().item(), "score_max": scores.max().item()}
        if _both(y):
            summary["auc"] = float(auc(scores, y))
        else:
            self.warn_of_undefined(
                "the figures of the ROC curve (auc)",
                f": all {len(y)} samples of a split are of one class. Divide the data by class (splits)",
            )
        if "group" in batch and _both(batch["group"]):
            group = batch["group"]
            gap = roc_gap(scores, y, group, self.num_thresholds) if _two_groups(batch) else float("nan")
            summary["roc_gap"] = float(gap)
        return summary

    def tally(self, outputs: Tensor) -> Tally:  # noqa: ARG002
        """Return what counts all of the figures, those of the ROC curve with a bound of their error."""
        return ScoreTally(self.num_thresholds, with_range=True)

    def draw(self, history: History, final: Mapping[str, tuple[Tensor, Columns]], folder: Path) -> list[Path]:
        """Draw ``auc_and_violation.png``, ``constraints.png`` and, of splits with two groups, ``roc_by_group.png``."""
        known = self.group_names
        names = (str(known[0]), str(known[1])) if len(known) > 1 else ("group 0", "group 1")
        curves = {
            split: split_roc(_scores(outputs), batch["y"], batch["group"], names)
            for split, (outputs, batch) in final.items()
            if _two_groups(batch)
        }
        return written(
            plot_objective_and_violation(history, folder / "auc_and_violation.png"),
            plot_constraints(history, folder / "constraints.png"),
            plot_roc_by_group(curves, folder / "roc_by_group.png"),
        )


def _scores(outputs: Tensor) -> Tensor:
    """Return the scores, shape (n,), float32."""
    if outputs.dim() == 1 or (outputs.dim() == 2 and outputs.shape[1] == 1):
        return binary_scores(outputs).float()
    raise DataError(
        f"BinaryEvaluation needs one score per sample, shape (n,) or (n, 1), got outputs of shape "
        f"{tuple(outputs.shape)}. Choose the evaluation that fits them with --model.evaluation, for example "
        "GroupEvaluation for classes and groups, or give the network a single output."
    )


def _two_groups(batch: Columns) -> bool:
    """Return whether there are the groups 0 and 1 and no other, each with both classes."""
    if "group" not in batch or not _both(batch["group"]):
        return False
    return all(_both(batch["y"][batch["group"] == g]) for g in (0, 1))


def _both(labels: Tensor) -> bool:
    return bool(torch.unique(labels).numel() == 2)

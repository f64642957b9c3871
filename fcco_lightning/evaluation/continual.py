"""Figures of continual learning: what a model has learnt on a target task and forgotten on earlier tasks."""

from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fcco_lightning.checks import non_negative
from fcco_lightning.evaluation.base import (
    Evaluation,
    Final,
    Pictures,
    correct_and_loss,
    require_columns,
    whole_numbers,
)
from fcco_lightning.evaluation.metrics.ranking import same_rows
from fcco_lightning.evaluation.pairs import PairEvaluation
from fcco_lightning.evaluation.pictures import History, plot_continual
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.base import require

TARGET = -1
"""The value of the column ``task`` for samples of the target; protected tasks are >= 0, all other samples are lower."""


class ContinualEvaluation(Evaluation):
    r"""Changes of accuracy and loss on a target task and on protected tasks, compared with the old model.

    The outputs are class scores, shape (n, C).  The column ``y`` (n,) contains the class, the column ``task`` (n,) the
    protected task k >= 0 of a sample, -1 for a sample of the target, and a lower number for a sample that belongs to
    neither.  Let a_k and L_k be the accuracy and the mean cross-entropy on the samples of task k, in float64.  A task
    without samples in the split is left out everywhere.

    - ``accuracy``: the accuracy over all samples; ``target_accuracy``: over the samples of the target;
    - ``protected_accuracy``: the mean of a_k over the protected tasks.

    Further figures compare with the old model w_old, if the columns ``old_correct`` and ``old_loss`` contain its
    results on every sample (:meth:`reference`):

    - ``delta_target``: Delta ACC of the target, its accuracy minus that of the old model;
    - ``worst_change``: min_k of a_k - a_k(w_old), which is >= 0 where nothing was forgotten;
    - ``satisfied``: the share of protected tasks with a_k - a_k(w_old) >= -tolerance;
    - ``worst_loss_change``: max_k h_k with h_k = L_k(w) - L_k(w_old);
    - ``satisfied_loss``: the share of protected tasks with h_k <= tolerance_loss;
    - ``change/NAME``, ``loss_change/NAME``: a_k - a_k(w_old) and h_k of each protected task.

    A split of image-text pairs, of which the outputs are embeddings instead of class scores, has the figures of
    :class:`PairEvaluation`.

    Accuracies lie in [0, 1] and losses are in nats.  ``report.json`` contains a table ``tasks``: first the target, then
    the protected tasks, the one with the worst change first.

    Source: SONEX paper, Section 6 and F.3; Figures 3 to 5 draw ``delta_target`` and the negated ``change/NAME``.

    Args:
        tolerance: The loss of accuracy that a protected task may suffer and still counts as satisfied, >= 0.
        tolerance_loss: The same for its loss, in nats, >= 0.

    Raises:
        ConfigError: if a tolerance is negative or not finite.
    """

    bar: tuple[str, ...] = ("target_accuracy", "worst_change")
    merit = "target_accuracy"

    def __init__(self, tolerance: float = 0.0, tolerance_loss: float = 0.0) -> None:
        self._of_pairs = PairEvaluation()
        self.tolerance = non_negative("tolerance", tolerance)
        self.tolerance_loss = non_negative("tolerance_loss", tolerance_loss)

    def take_names(self, datamodule: Any) -> None:
        """Take over the names of tasks, or where there are pairs without classes, what counts of these."""
        super().take_names(datamodule)
        if hasattr(datamodule, "pairs") and not self.class_names:
            self.bar, self.merit = self._of_pairs.bar, self._of_pairs.merit

    def reference(self, outputs: Tensor, batch: Columns) -> dict[str, Tensor]:
        """Return ``old_loss`` (n,), float32, and ``old_correct`` (n,), int64 with values 0 or 1, of the old model.

        Raises:
            DataError: if y is missing or contains a value out of range, or if the shapes do not fit.
        """
        require_columns(batch, "y", figures="figures by task")
        correct, losses = correct_and_loss(outputs, batch["y"])
        return {"old_loss": losses.float(), "old_correct": correct.long()}

    def __call__(self, outputs: Any, batch: Columns) -> dict[str, float]:
        if not isinstance(outputs, Tensor):
            return self._of_pairs(outputs, batch)
        samples = _samples(outputs, batch, self)
        tasks = _by_task(samples)
        target, protected = tasks.reindex([TARGET]).iloc[0], tasks.drop(index=TARGET, errors="ignore")
        figures = {
            "accuracy": samples["accuracy"].mean(),
            "target_accuracy": target["accuracy"],
            "protected_accuracy": protected["accuracy"].mean(),
        }
        if "change" in tasks:
            change, loss_change = protected["change"], protected["loss_change"]
            figures |= {
                "delta_target": target["change"],
                "worst_change": change.min(),
                "satisfied": (change >= -self.tolerance).mean(),
                "worst_loss_change": loss_change.max(),
                "satisfied_loss": (loss_change <= self.tolerance_loss).mean(),
            }
            for number, gain, h in zip(protected.index, change, loss_change, strict=True):
                name = self.group_name(number)
                figures |= {f"change/{name}": gain, f"loss_change/{name}": h}
        return {name: float(value) for name, value in figures.items()}

    def details(self, outputs: Any, batch: Columns) -> dict[str, Any]:
        """Return ``tasks``: name, size, accuracy and loss of each present task, now, before, and their change.

        The target comes first, then the protected task whose accuracy fell most.  Without an old model the protected
        task with the lowest accuracy is the first.
        """
        if not isinstance(outputs, Tensor):
            return self._of_pairs.details(outputs, batch)
        tasks = _by_task(_samples(outputs, batch, self))
        tasks["name"] = ["target" if number == TARGET else self.group_name(number) for number in tasks.index]
        tasks["protected"] = tasks.index != TARGET
        sort_key = "change" if "change" in tasks else "accuracy"
        ordered = tasks.sort_values(["protected", sort_key, "loss"], ascending=[True, True, False])
        columns = ("name", "size", "accuracy", "old_accuracy", "change", "loss", "old_loss", "loss_change")
        return {"tasks": ordered[[name for name in columns if name in tasks]].to_dict("records")}

    def pictures(self, history: History, final: Final) -> Pictures:
        """Return ``continual.png`` and ``constraints.png``, which shows the constraints on the surrogate loss."""
        return {"continual.png": partial(plot_continual, history), **super().pictures(history, final)}


def _samples(outputs: Tensor, batch: Columns, needed_by: Evaluation) -> pd.DataFrame:
    """Return a table with the task of every sample and the values that are averaged over tasks, as float64."""
    require_columns(batch, "y", "task", figures="figures by task")
    correct, losses = correct_and_loss(outputs, batch["y"])
    task = whole_numbers(batch, needed_by, "task")
    same_rows(y=batch["y"], task=task)
    columns = {"accuracy": correct, "loss": losses} | _compared(correct, losses, batch)
    return pd.DataFrame({"task": task.cpu()} | {name: column.double().cpu() for name, column in columns.items()})


def _by_task(samples: pd.DataFrame) -> pd.DataFrame:
    """Return for every task with samples the means over these and their number ``size``, indexed by task."""
    tasks = samples[samples["task"] >= TARGET].groupby("task")
    return tasks.mean().assign(size=tasks.size())


def _compared(correct: Tensor, losses: Tensor, batch: Columns) -> dict[str, Tensor]:
    """Compare with the old model on every sample, columns (n,); empty without columns of the old model."""
    if not {"old_loss", "old_correct"} & set(batch):
        return {}
    require_columns(batch, "old_loss", "old_correct", figures="figures by task")
    old_loss, old_correct = batch["old_loss"], batch["old_correct"]
    same_rows(y=batch["y"], old_loss=old_loss, old_correct=old_correct)
    require(torch.isfinite(old_loss), old_loss, "old_loss must be finite", "Measure the old model again.")
    # compared in the stored precision, so that the change of the old model itself is exactly 0
    change = losses.to(old_loss.dtype).double() - old_loss.double()
    return {
        "old_accuracy": old_correct,
        "old_loss": old_loss,
        "change": correct.double() - old_correct.double(),
        "loss_change": change,
    }

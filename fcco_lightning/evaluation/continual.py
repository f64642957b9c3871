"""What a model has learnt of a target task and forgotten of the tasks that it already knew."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.checks import non_negative
from fcco_lightning.errors import DataError
from fcco_lightning.evaluation.base import Evaluation, written
from fcco_lightning.evaluation.metrics.group_accuracy import group_means
from fcco_lightning.evaluation.metrics.validation import same_rows
from fcco_lightning.evaluation.pictures import plot_continual
from fcco_lightning.evaluation.pictures.style import History
from fcco_lightning.evaluation.samples import correct_and_loss, require_columns
from fcco_lightning.models.batch import Columns

TARGET = -1
"""The value of the column ``task`` for samples of the target; protected tasks are >= 0, all other samples are lower."""


class ContinualEvaluation(Evaluation):
    r"""What a model has learnt of the target and forgotten of the protected tasks.

    The outputs are class scores, shape (n, C).  The column ``y`` (n,) contains the class, the column ``task`` (n,) the
    protected task k >= 0 of a sample, -1 for a sample of the target, and a lower number for a sample that belongs to
    neither.  Let a_k and L_k be the accuracy and the mean cross-entropy on the samples of task k, in float64.  A task
    that the split lacks counts nowhere.

    - ``accuracy``: the accuracy over all samples; ``target_accuracy``: over the samples of the target;
    - ``protected_accuracy``: the mean of a_k over the protected tasks.

    Further figures compare with the old model, if the columns ``old_correct`` and ``old_loss`` contain what it made of
    every sample (:meth:`reference`):

    - ``delta_target``: Delta ACC of the target, its accuracy minus that of the old model;
    - ``worst_change``: min_k of a_k - a_k(w_old), which is >= 0 where nothing was forgotten;
    - ``satisfied``: the share of protected tasks with a_k - a_k(w_old) >= -tolerance;
    - ``worst_loss_change``: max_k h_k with h_k = L_k(w) - L_k(w_old);
    - ``satisfied_loss``: the share of protected tasks with h_k <= tolerance_loss;
    - ``change/NAME``, ``loss_change/NAME``: a_k - a_k(w_old) and h_k of each protected task.

    Accuracies lie in [0, 1] and losses are in nats.  ``report.json`` contains a table ``tasks``: first the target, then
    the protected tasks, the one with the worst change first.

    Source: SONEX paper, Section 6 and F.3; Figures 3 to 5 draw ``delta_target`` and the negated ``change/NAME``.

    Args:
        tolerance: The loss of accuracy that a protected task may suffer and still counts as satisfied, >= 0.
        tolerance_loss: The same for its loss, in nats, >= 0.

    Raises:
        ConfigError: if a tolerance is negative or not finite.
    """

    bar = ("target_accuracy", "worst_change")
    merit = "target_accuracy"

    def __init__(self, tolerance: float = 0.0, tolerance_loss: float = 0.0) -> None:
        self.tolerance = non_negative("tolerance", tolerance)
        self.tolerance_loss = non_negative("tolerance_loss", tolerance_loss)

    def reference(self, outputs: Tensor, batch: Columns) -> dict[str, Tensor]:
        """Return ``old_loss`` (n,), float32, and ``old_correct`` (n,), int64 with values 0 or 1, of the old model.

        Raises:
            DataError: if y is missing or contains a value out of range, or if the shapes do not fit.
        """
        require_columns(batch, "y", figures="figures by task")
        correct, losses = correct_and_loss(outputs, batch["y"])
        return {"old_loss": losses.float(), "old_correct": correct.long()}

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        """Compute the figures.

        Raises:
            DataError: if y or task is missing or contains a value out of range, if the shapes do not fit, or if only
                one of the two columns of the old model is there.
        """
        present = _tasks(outputs, batch)
        protected = present.numbers > TARGET
        # The mean over no sample is NaN where the split lacks the target.
        target = {name: float(means[~protected].mean()) for name, means in present.means.items()}
        tasks = {name: means[protected] for name, means in present.means.items()}
        summary = {
            "accuracy": present.mean_accuracy,
            "target_accuracy": target["accuracy"],
            "protected_accuracy": float(tasks["accuracy"].mean()),
        }
        if "change" not in tasks:
            return summary
        change, loss_change = tasks["change"], tasks["loss_change"]
        summary |= {
            "delta_target": target["change"],
            "worst_change": min(change.tolist(), default=float("nan")),
            "satisfied": float((change >= -self.tolerance).double().mean()),
            "worst_loss_change": max(loss_change.tolist(), default=float("nan")),
            "satisfied_loss": float((loss_change <= self.tolerance_loss).double().mean()),
        }
        columns = present.numbers[protected].tolist(), change.tolist(), loss_change.tolist()
        for number, gain, h in zip(*columns, strict=True):
            name = self.group_name(number)
            summary |= {f"change/{name}": gain, f"loss_change/{name}": h}
        return summary

    def details(self, outputs: Tensor, batch: Columns) -> dict[str, Any]:
        """Return ``tasks``: name, size, accuracy and loss of each present task, now, before, and their change.

        The target comes first, then the protected task whose accuracy fell most.  Without an old model the protected
        task with the lowest accuracy is the first.
        """
        present = _tasks(outputs, batch)
        shown = ("accuracy", "old_accuracy", "change", "loss", "old_loss", "loss_change")
        means = {name: present.means[name].tolist() for name in shown if name in present.means}
        table = []
        for place, (number, size) in enumerate(zip(present.numbers.tolist(), present.sizes.tolist(), strict=True)):
            name = "target" if number == TARGET else self.group_name(number)
            table.append({"name": name, "size": size} | {key: values[place] for key, values in means.items()})
        first = int((present.numbers == TARGET).sum())
        by = "change" if "change" in means else "accuracy"
        return {"tasks": table[:first] + sorted(table[first:], key=lambda row: (row[by], -row["loss"]))}

    def draw(self, history: History, final: Mapping[str, tuple[Tensor, Columns]], folder: Path) -> list[Path]:
        """Draw ``continual.png`` and ``constraints.png``, which shows the constraints in the surrogate loss."""
        return written(plot_continual(history, folder / "continual.png"), *super().draw(history, final, folder))


class _Tasks(NamedTuple):
    """The tasks that are present in a split, the target first.

    Attributes:
        numbers: The numbers of the tasks, shape (T,), int64, rising from ``TARGET``.
        sizes: The number of samples of each task, shape (T,), int64.
        means: The means over the samples of each task, by name, shape (T,), float64.
        mean_accuracy: The accuracy over all samples of the split, whatever their task.
    """

    numbers: Tensor
    sizes: Tensor
    means: dict[str, Tensor]
    mean_accuracy: float


def _tasks(outputs: Tensor, batch: Columns) -> _Tasks:
    require_columns(batch, "y", "task", figures="figures by task")
    correct, losses = correct_and_loss(outputs, batch["y"])
    same_rows(y=batch["y"], task=batch["task"])
    columns = {"accuracy": correct, "loss": losses} | _compared(correct, losses, batch)
    counted = batch["task"] >= TARGET
    task = batch["task"][counted] - TARGET  # the target is group 0
    size = int(task.max()) + 1 if len(task) else 1
    means = {name: group_means(column[counted], task, size) for name, column in columns.items()}
    sizes = means["accuracy"][1]
    present = sizes.nonzero().squeeze(1)
    return _Tasks(
        present + TARGET,
        sizes[present],
        {name: of_tasks[present] for name, (of_tasks, _) in means.items()},
        float(correct.double().mean()),
    )


def _compared(correct: Tensor, losses: Tensor, batch: Columns) -> dict[str, Tensor]:
    """Compare with the old model on every sample, columns (n,); empty if the old model was not measured."""
    if not {"old_loss", "old_correct"} & set(batch):
        return {}
    require_columns(batch, "old_loss", "old_correct", figures="figures by task")
    old_loss, old_correct = batch["old_loss"], batch["old_correct"]
    same_rows(y=batch["y"], old_loss=old_loss, old_correct=old_correct)
    if not bool(torch.isfinite(old_loss).all()):
        where = int((~torch.isfinite(old_loss)).nonzero()[0])
        raise DataError(
            f"old_loss must be finite, got {old_loss[where].item()} at position {where}. Measure the old model again."
        )
    # Compared in the precision in which it was stored, so that the old model itself has changed by exactly 0.
    change = losses.to(old_loss.dtype).double() - old_loss.double()
    return {
        "old_accuracy": old_correct,
        "old_loss": old_loss,
        "change": correct.double() - old_correct.double(),
        "loss_change": change,
    }

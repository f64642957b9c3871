"""What is reported of a whole split: the task's metrics and the values of all constraints."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fcco_lightning.checks import at_least, fraction, non_negative
from fcco_lightning.constraints import Constraint
from fcco_lightning.distributed import Processes
from fcco_lightning.errors import DataError
from fcco_lightning.metrics.functional import auc, roc_gap
from fcco_lightning.metrics.group import split_roc
from fcco_lightning.metrics.group_accuracy import cvar, cvar_weights, group_means, worst_fraction, worst_group
from fcco_lightning.metrics.validation import same_rows
from fcco_lightning.objectives import binary_scores
from fcco_lightning.pictures import (
    plot_constraints,
    plot_continual,
    plot_group_curves,
    plot_groups,
    plot_objective_and_violation,
    plot_roc_by_group,
)
from fcco_lightning.pictures.style import History
from fcco_lightning.records import Columns


class Evaluation(ABC):
    """What a run reports of the network's outputs on a split; a task brings its own subclass.

    Attributes:
        bar: figures that the progress bar shows.
        group_names: what the groups 0, 1, ... are called; :class:`FCCOModule` takes them from the datamodule.
    """

    bar: tuple[str, ...] = ()
    group_names: Sequence[str] = ()

    @abstractmethod
    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        """Metrics by name; one that the split leaves undefined (a class is absent) is NaN.

        Those with a ``/`` in their name are parts of a whole (``group_accuracy/a``): logged, but not in the table.
        """

    def details(self, outputs: Tensor, batch: Columns) -> dict[str, Any]:  # noqa: ARG002
        """What ``report.json`` holds of a split beside the metrics, as plain numbers.

        A list of records is a table of its own, whose first rows are printed: let it begin with what matters.
        """
        return {}

    def reference(self, outputs: Tensor, batch: Columns) -> dict[str, Tensor]:  # noqa: ARG002
        """Columns (n,) to be kept of the model that training starts from; every later batch of the split has them.

        Args:
            outputs: of that model on a whole split.
            batch: the columns of the split.
        """
        return {}

    def draw(self, history: History, final: Mapping[str, tuple[Tensor, Columns]], folder: Path) -> list[Path]:  # noqa: ARG002
        """Draw the pictures of a finished run.

        Args:
            history: all figures of every validation, see :mod:`fcco_lightning.pictures.style`.
            final: outputs and columns of every split, with the final weights.
            folder: where to write.

        Returns:
            The files written; by default a picture of the constraints, if there are any.
        """
        return _written(plot_constraints(history, folder / "constraints.png"))

    def group_name(self, group: int) -> str:
        """What a group is called; its number if that is not known."""
        return str(self.group_names[group]) if group < len(self.group_names) else str(group)


def _written(*paths: Path | None) -> list[Path]:
    return [path for path in paths if path is not None]


class BinaryEvaluation(Evaluation):
    """AUC, range of the scores and, with two groups, the hard ROC gap.

    Args:
        num_thresholds: quantiles of the pooled scores at which the gap is taken.
    """

    bar = ("auc",)

    def __init__(self, num_thresholds: int = 200) -> None:
        self.num_thresholds = num_thresholds

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        scores, y = binary_scores(outputs).float(), batch["y"]
        summary = {"auc": float("nan"), "score_min": scores.min().item(), "score_max": scores.max().item()}
        if _both(y):
            summary["auc"] = float(auc(scores, y))
        if "group" in batch and _both(batch["group"]):
            group = batch["group"]
            gap = roc_gap(scores, y, group, self.num_thresholds) if _two_groups(batch) else float("nan")
            summary["roc_gap"] = float(gap)
        return summary

    def draw(self, history: History, final: Mapping[str, tuple[Tensor, Columns]], folder: Path) -> list[Path]:
        """Draw ``auc_and_violation.png``, ``constraints.png`` and, of splits with two groups, ``roc_by_group.png``."""
        known = self.group_names
        names = (str(known[0]), str(known[1])) if len(known) > 1 else ("group 0", "group 1")
        curves = {
            split: split_roc(binary_scores(outputs).float(), batch["y"], batch["group"], names)
            for split, (outputs, batch) in final.items()
            if _two_groups(batch)
        }
        return _written(
            plot_objective_and_violation(history, folder / "auc_and_violation.png"),
            plot_constraints(history, folder / "constraints.png"),
            plot_roc_by_group(curves, folder / "roc_by_group.png"),
        )


class _Groups(NamedTuple):
    """The groups that are present in a split, and the accuracy and loss over its samples.

    Attributes:
        numbers: of the groups, shape (G,), int64, rising.
        sizes: samples of each, shape (G,), int64.
        accuracy: share of its samples classified correctly, shape (G,), float64.
        loss: mean over its samples, shape (G,), float64, nats.
        mean_accuracy: over all samples.
        mean_loss: over all samples.
    """

    numbers: Tensor
    sizes: Tensor
    accuracy: Tensor
    loss: Tensor
    mean_accuracy: float
    mean_loss: float


class GroupEvaluation(Evaluation):
    r"""Accuracy and loss on average and for the worst groups.

    With a_g and L_g the accuracy and mean loss of group g, over the G groups that are present in the split (an absent
    one counts nowhere), in float64:

    - ``accuracy``, ``loss``: means over samples;
    - ``group_balanced_accuracy``: mean of a_g;
    - ``worst_group_accuracy``: min a_g; ``worst_group_loss``: max L_g;
    - ``tail_accuracy``: mean of the ``ceil(alpha G)`` lowest a_g, see :func:`~fcco_lightning.metrics.worst_fraction`;
    - ``cvar_loss``: the mean of the worst alpha G of the L_g, see :func:`~fcco_lightning.metrics.cvar`;
    - ``group_accuracy/NAME``, ``group_loss/NAME``: a_g and L_g, if at most ``most_groups`` groups are present.

    Accuracies are in [0, 1].  A single score per sample, (B,) or (B, 1), predicts class 1 where it is > 0 and has the
    logistic loss; (B, C) outputs predict the largest and have the softmax loss; losses are in nats.

    ``report.json`` gets a table ``groups``, the worst first, with ``weight``: q_g of the CVaR, of sum 1.

    Args:
        alpha: share of the groups that are the worst ones, in (0, 1].
        most_groups: log the figures of each group only if there are at most so many, >= 0.
        pooled: take the tail accuracy over the samples of the worst groups together, not over groups.

    Raises:
        ConfigError: if ``alpha`` lies outside (0, 1], or ``most_groups`` is not a whole number >= 0.
    """

    bar = ("accuracy", "worst_group_accuracy")

    def __init__(self, alpha: float = 0.1, most_groups: int = 32, pooled: bool = False) -> None:
        self.alpha, self.most_groups = fraction("alpha", alpha), at_least("most_groups", most_groups, 0)
        self.pooled = pooled

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        """The figures.

        Raises:
            DataError: if y or group is missing, or holds a value out of range, or the outputs' shape is another.
        """
        found = _groups(outputs, batch)
        tail = worst_fraction(found.accuracy, self.alpha, found.sizes if self.pooled else None)
        summary = {
            "accuracy": found.mean_accuracy,
            "worst_group_accuracy": float(worst_group(found.accuracy)),
            "tail_accuracy": float(tail),
            "group_balanced_accuracy": float(found.accuracy.mean()),
            "loss": found.mean_loss,
            "worst_group_loss": float(worst_group(found.loss, highest=True)),
            "cvar_loss": float(cvar(found.loss, self.alpha)),
        }
        if len(found.numbers) <= self.most_groups:
            columns = found.numbers.tolist(), found.accuracy.tolist(), found.loss.tolist()
            for number, accuracy, loss in zip(*columns, strict=True):
                name = self.group_name(number)
                summary |= {f"group_accuracy/{name}": accuracy, f"group_loss/{name}": loss}
        return summary

    def details(self, outputs: Tensor, batch: Columns) -> dict[str, Any]:
        """``groups``: number, name, size, accuracy, loss and weight of each that is present, the worst first."""
        found = _groups(outputs, batch)
        weights = cvar_weights(found.loss, self.alpha)
        columns = [c.tolist() for c in (found.numbers, found.sizes, found.accuracy, found.loss, weights)]
        table = [
            {"group": g, "name": self.group_name(g), "size": n, "accuracy": a, "loss": loss, "weight": q}
            for g, n, a, loss, q in zip(*columns, strict=True)
        ]
        return {"groups": sorted(table, key=lambda row: (row["accuracy"], -row["loss"]))}

    def draw(self, history: History, final: Mapping[str, tuple[Tensor, Columns]], folder: Path) -> list[Path]:
        """Draw ``group_curves.png``, ``groups.png`` (of the test split, or else the last) and ``constraints.png``."""
        paths = [plot_group_curves(history, folder / "group_curves.png"), *super().draw(history, final, folder)]
        for split in [name for name in final if name == "test"] or [*final][-1:]:
            groups, average = self.details(*final[split])["groups"], _groups(*final[split]).mean_accuracy
            paths.append(plot_groups(groups, folder / "groups.png", average=average, split=split))
        return _written(*paths)


class TaskEvaluation(Evaluation):
    r"""Accuracy and loss of T tasks in G groups: outputs (B, T), 0/1 labels y (B, T), column group.

    With a_tg and L_tg the accuracy and mean logistic loss of task t in group g (groups that the split lacks count
    nowhere): ``accuracy``, ``loss`` are means over samples and tasks, ``worst_accuracy`` is min a_tg,
    ``worst_group_accuracy`` the mean over tasks of min_g a_tg, ``worst_group_loss`` the mean over tasks of max_g L_tg
    (the multi-task objective), ``task_accuracy/T`` the worst group's of each task.
    """

    bar = ("accuracy", "worst_group_accuracy")

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        """The figures.

        Raises:
            DataError: if the labels are not of the shape of the outputs.
        """
        y, scores = batch["y"], outputs.double()
        if scores.dim() != 2 or y.shape != scores.shape:
            raise DataError(
                f"figures by task need outputs and y of one shape (n, T), got {tuple(scores.shape)} and "
                f"{tuple(y.shape)}. Use another evaluation (--model.evaluation)."
            )
        correct = ((scores > 0) == (y == 1)).double()
        losses = binary_cross_entropy_with_logits(scores, y.double(), reduction="none")
        size = int(batch["group"].max()) + 1
        there = torch.bincount(batch["group"], minlength=size) > 0
        accuracy, loss = (
            torch.stack([group_means(column, batch["group"], size)[0][there] for column in values.unbind(1)])
            for values in (correct, losses)
        )
        lowest = accuracy.amin(1)
        return {
            "accuracy": float(correct.mean()),
            "worst_accuracy": float(lowest.min()),
            "worst_group_accuracy": float(lowest.mean()),
            "loss": float(losses.mean()),
            "worst_group_loss": float(loss.amax(1).mean()),
        } | {f"task_accuracy/{t}": a for t, a in enumerate(lowest.tolist())}


TARGET = -1  # of column task; a protected task is >= 0, what belongs to neither is lower


class _Tasks(NamedTuple):
    """The tasks that are present in a split, the target first.

    Attributes:
        numbers: of the tasks, shape (T,), int64, rising from ``TARGET``.
        sizes: samples of each, shape (T,), int64.
        means: over the samples of each, by name, shape (T,), float64.
        mean_accuracy: over all samples of the split, whatever their task.
    """

    numbers: Tensor
    sizes: Tensor
    means: dict[str, Tensor]
    mean_accuracy: float


class ContinualEvaluation(Evaluation):
    r"""What a model has learnt of the target and forgotten of the protected tasks.

    The outputs are class scores (n, C); column ``y`` is the class, ``task`` the protected task k >= 0 of a sample, -1
    for a sample of the target, lower for one that belongs to neither.  With a_k and L_k the accuracy and mean
    cross-entropy on the samples of task k, in float64; tasks that the split lacks count nowhere:

    - ``accuracy``: over all samples; ``target_accuracy``: over those of the target;
    - ``protected_accuracy``: mean of a_k over the protected tasks.

    Where columns ``old_correct`` and ``old_loss`` hold what the old model made of every sample (:meth:`reference`):

    - ``delta_target``: Delta ACC of the target, its accuracy minus that of the old model;
    - ``worst_change``: min_k of a_k - a_k(w_old); >= 0 where nothing was forgotten;
    - ``satisfied``: share of protected tasks with a_k - a_k(w_old) >= -tolerance;
    - ``worst_loss_change``: max_k h_k, h_k = L_k(w) - L_k(w_old);
    - ``satisfied_loss``: share of protected tasks with h_k <= tolerance_loss;
    - ``change/NAME``, ``loss_change/NAME``: a_k - a_k(w_old) and h_k of each protected task.

    Accuracies are in [0, 1], losses in nats.  ``report.json`` gets a table ``tasks``: the target, then the protected
    tasks, the worst change first.

    Source: 004 Section 6 and F.3; Figures 3 to 5 draw ``delta_target`` and the negated ``change/NAME``.

    Args:
        tolerance: loss of accuracy that a protected task may suffer and still be satisfied, >= 0.
        tolerance_loss: the same for its loss, in nats, >= 0.

    Raises:
        ConfigError: if a tolerance is negative or not finite.
    """

    bar = ("target_accuracy", "worst_change")

    def __init__(self, tolerance: float = 0.0, tolerance_loss: float = 0.0) -> None:
        self.tolerance = non_negative("tolerance", tolerance)
        self.tolerance_loss = non_negative("tolerance_loss", tolerance_loss)

    def reference(self, outputs: Tensor, batch: Columns) -> dict[str, Tensor]:
        """``old_loss`` (n,) float32 and ``old_correct`` (n,) int64, 0 or 1, of the old model.

        Raises:
            DataError: if y is missing or holds a value out of range, or the outputs' shape is another.
        """
        _require_columns(batch, "y")
        correct, losses = correct_and_loss(outputs, batch["y"])
        return {"old_loss": losses.float(), "old_correct": correct.long()}

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        """The figures.

        Raises:
            DataError: if y or task is missing, or holds a value out of range, the shapes do not fit, or the old model
                was measured in part only.
        """
        found = _tasks(outputs, batch)
        protected = found.numbers > TARGET
        target = {name: float(means[~protected].mean()) for name, means in found.means.items()}  # NaN without target
        tasks = {name: means[protected] for name, means in found.means.items()}
        summary = {
            "accuracy": found.mean_accuracy,
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
        columns = found.numbers[protected].tolist(), change.tolist(), loss_change.tolist()
        for number, gain, h in zip(*columns, strict=True):
            name = self.group_name(number)
            summary |= {f"change/{name}": gain, f"loss_change/{name}": h}
        return summary

    def details(self, outputs: Tensor, batch: Columns) -> dict[str, Any]:
        """``tasks``: name, size, accuracy and loss of each that is present, now, before and their change.

        The target comes first, then the protected task whose accuracy fell most (or, without an old model, is lowest).
        """
        found = _tasks(outputs, batch)
        shown = ("accuracy", "old_accuracy", "change", "loss", "old_loss", "loss_change")
        means = {name: found.means[name].tolist() for name in shown if name in found.means}
        table = []
        for place, (number, size) in enumerate(zip(found.numbers.tolist(), found.sizes.tolist(), strict=True)):
            name = "target" if number == TARGET else self.group_name(number)
            table.append({"name": name, "size": size} | {key: values[place] for key, values in means.items()})
        first = int((found.numbers == TARGET).sum())
        by = "change" if "change" in means else "accuracy"
        return {"tasks": table[:first] + sorted(table[first:], key=lambda row: (row[by], -row["loss"]))}

    def draw(self, history: History, final: Mapping[str, tuple[Tensor, Columns]], folder: Path) -> list[Path]:
        """Draw ``continual.png`` and, of the constraints in the surrogate loss, ``constraints.png``."""
        return _written(plot_continual(history, folder / "continual.png"), *super().draw(history, final, folder))


EVALUATIONS: dict[str, type[Evaluation]] = {
    "binary": BinaryEvaluation,
    "groups": GroupEvaluation,
    "tasks": TaskEvaluation,
    "continual": ContinualEvaluation,
}


def _require_columns(batch: Columns, *names: str) -> None:
    for name in names:
        if name not in batch:
            raise DataError(
                f"figures by task need a column {name!r} with one value per sample, the split has {sorted(batch)}. "
                "Use another evaluation (--model.evaluation), or add the column to the data."
            )


def _tasks(outputs: Tensor, batch: Columns) -> _Tasks:
    _require_columns(batch, "y", "task")
    correct, losses = correct_and_loss(outputs, batch["y"])
    same_rows(y=batch["y"], task=batch["task"])
    columns = {"accuracy": correct, "loss": losses} | _compared(correct, losses, batch)
    counted = batch["task"] >= TARGET
    task = batch["task"][counted] - TARGET  # the target is group 0
    size = int(task.max()) + 1 if len(task) else 1
    means = {name: group_means(column[counted], task, size) for name, column in columns.items()}
    sizes = means["accuracy"][1]
    there = sizes.nonzero().squeeze(1)
    return _Tasks(
        there + TARGET,
        sizes[there],
        {name: of_tasks[there] for name, (of_tasks, _) in means.items()},
        float(correct.double().mean()),
    )


def _compared(correct: Tensor, losses: Tensor, batch: Columns) -> dict[str, Tensor]:
    """What the old model made of the samples and how this one differs, shapes (n,); nothing if it was not measured."""
    if not {"old_loss", "old_correct"} & set(batch):
        return {}
    _require_columns(batch, "old_loss", "old_correct")
    old_loss, old_correct = batch["old_loss"], batch["old_correct"]
    same_rows(y=batch["y"], old_loss=old_loss, old_correct=old_correct)
    if not bool(torch.isfinite(old_loss).all()):
        where = int((~torch.isfinite(old_loss)).nonzero()[0])
        raise DataError(
            f"old_loss must be finite, got {old_loss[where].item()} at position {where}. Measure the old model again."
        )
    # Compared in the precision in which it was kept: the old model itself has not changed, exactly.
    change = losses.to(old_loss.dtype).double() - old_loss.double()
    return {
        "old_accuracy": old_correct,
        "old_loss": old_loss,
        "change": correct.double() - old_correct.double(),
        "loss_change": change,
    }


def _groups(outputs: Tensor, batch: Columns) -> _Groups:
    for name in ("y", "group"):
        if name not in batch:
            raise DataError(
                f"figures by group need a column {name!r} with one value per sample, the split has {sorted(batch)}. "
                "Use another evaluation (--model.evaluation), or add the column to the data."
            )
    correct, losses = correct_and_loss(outputs, batch["y"])
    group = batch["group"]
    size = max(1, int(group.max()) + 1) if len(group) else 1
    accuracy, sizes = group_means(correct, group, size)
    loss, _ = group_means(losses, group, size)
    there = sizes.nonzero().squeeze(1)
    if len(there) == 0:
        raise DataError("figures by group need at least one sample, got none. Is the split empty?")
    return _Groups(
        there, sizes[there], accuracy[there], loss[there], float(correct.double().mean()), float(losses.mean())
    )


def correct_and_loss(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each sample is classified correctly, and its loss.

    Args:
        outputs: one score per sample, shape (n,) or (n, 1), for the classes 0 and 1; or shape (n, C).
        y: classes, shape (n,), whole numbers.

    Returns:
        ``(correct, loss)``, shape (n,): bool; and the logistic or softmax loss, float64, nats.

    Raises:
        DataError: if the shapes do not fit, or a class does not exist.
    """
    several = outputs.dim() == 2 and outputs.shape[1] > 1
    scores = outputs.double() if several else binary_scores(outputs).double()
    classes = scores.shape[1] if several else 2
    if y.shape != scores.shape[:1]:
        raise DataError(f"y must have one class per sample, shape {tuple(scores.shape[:1])}, got {tuple(y.shape)}.")
    bad = (y < 0) | (y >= classes)
    if bad.any():
        where = int(bad.nonzero()[0])
        raise DataError(
            f"y must lie in 0..{classes - 1} for outputs of shape {tuple(outputs.shape)}, got {y[where].item()} at "
            f"position {where}. Give the network one output per class."
        )
    if several:
        return scores.argmax(1) == y, cross_entropy(scores, y.long(), reduction="none")
    return (scores > 0) == (y == 1), binary_cross_entropy_with_logits(scores, y.double(), reduction="none")


def constraint_values(constraints: Sequence[Constraint], outputs: Tensor, batch: Columns) -> dict[str, float]:
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
    evaluation: Evaluation, constraints: Sequence[Constraint], outputs: Tensor, batch: Columns
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


def _two_groups(batch: Columns) -> bool:
    """The groups 0 and 1, each with both classes, and no other."""
    if "group" not in batch or not _both(batch["group"]):
        return False
    return all(_both(batch["y"][batch["group"] == g]) for g in (0, 1))


def _both(labels: Tensor) -> bool:
    return bool(torch.unique(labels).numel() == 2)


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

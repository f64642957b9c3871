"""Figures of the groups of a split, in particular the worst groups, for one task or several."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from torch import Tensor

from fcco_lightning.checks import at_least, fraction
from fcco_lightning.errors import DataError, NonFiniteError
from fcco_lightning.evaluation.base import (
    Evaluation,
    Final,
    Pictures,
    correct_and_loss,
    require_columns,
    shown_split,
    weight_of,
    whole_numbers,
)
from fcco_lightning.evaluation.pictures import History, plot_group_curves, plot_groups
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.base import one_tensor, require

_ROUNDING = 1e-9  # 0.1 * 30 is 3.0000000000000004: three groups, not four


class GroupEvaluation(Evaluation):
    r"""Accuracy and loss on average and for the worst groups.

    The column ``y`` (n,) contains the classes, the column ``group`` (n,) the groups.  Let a_g and L_g be the accuracy
    and the mean loss of group g, in float64, and let G be the number of groups that are present in the split.  Absent
    groups, and samples of group -1, which belong to no group, are left out.

    - ``accuracy``, ``loss``: the means over samples;
    - ``group_balanced_accuracy``: the mean of a_g over groups;
    - ``worst_group_accuracy``: min a_g; ``worst_group_loss``: max L_g;
    - ``tail_accuracy``: the mean of the ``ceil(alpha G)`` lowest a_g; groups that tie for the last of these places
      share it;
    - ``cvar_loss``: the conditional value at risk of the L_g, the mean of the worst ``alpha G`` groups,
      ``min_s  s + (1 / (alpha G)) sum_g [L_g - s]_+ = max_q sum_g q_g L_g`` (:func:`worst_weights`), where the last
      group counts by the fractional part of ``alpha G``; alpha = 1 gives the mean, alpha <= 1/G the maximum;
    - ``group_accuracy/NAME``, ``group_loss/NAME``: a_g and L_g, if at most ``most_groups`` groups are present.

    Accuracies lie in [0, 1] and losses are in nats.  A single score per sample, shape (n,) or (n, 1), predicts class 1
    where it is > 0 and has the logistic loss; outputs (n, C) predict the class of the largest score and have the
    softmax loss.

    ``report.json`` contains a table ``groups`` with the worst groups first.  Its column ``weight`` is q_g of the CVaR;
    the weights sum to 1.

    Args:
        alpha: The share of the groups that counts as the worst ones, in (0, 1].
        most_groups: The figures of single groups are logged only if at most so many groups are present, >= 0.
        pooled: Whether the tail accuracy is taken over the samples of the worst groups together, not over groups.

    Raises:
        ConfigError: if ``alpha`` lies outside (0, 1], or if ``most_groups`` is not a whole number >= 0.
    """

    bar = ("accuracy", "worst_group_accuracy")
    merit = "worst_group_accuracy"

    def __init__(self, alpha: float = 0.1, most_groups: int = 32, pooled: bool = False) -> None:
        self.alpha, self.most_groups = fraction("alpha", alpha), at_least("most_groups", most_groups, 0)
        self.pooled = pooled

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        groups = _by_group(outputs, batch, self)
        worst = worst_weights(-groups["accuracy"], math.ceil(self.alpha * len(groups) - _ROUNDING))
        figures = {
            "accuracy": np.average(groups["accuracy"], weights=groups["weight"]),
            "worst_group_accuracy": groups["accuracy"].min(),
            "tail_accuracy": np.average(groups["accuracy"], weights=worst * (groups["weight"] if self.pooled else 1)),
            "group_balanced_accuracy": groups["accuracy"].mean(),
            "loss": np.average(groups["loss"], weights=groups["weight"]),
            "worst_group_loss": groups["loss"].max(),
            "cvar_loss": worst_weights(groups["loss"], self.alpha * len(groups)) @ groups["loss"],
        }
        if len(groups) <= self.most_groups:
            for number, accuracy, loss in groups[["accuracy", "loss"]].itertuples():
                name = self.group_name(number)
                figures |= {f"group_accuracy/{name}": accuracy, f"group_loss/{name}": loss}
        return {name: float(value) for name, value in figures.items()}

    def details(self, outputs: Tensor, batch: Columns) -> dict[str, Any]:
        """Return ``groups``: number, name, size, accuracy, loss and weight of each present group, the worst first."""
        groups = _by_group(outputs, batch, self).reset_index()
        groups["weight"] = worst_weights(groups["loss"], self.alpha * len(groups))
        groups["name"] = groups["group"].map(self.group_name)
        ordered = groups.sort_values(["accuracy", "loss"], ascending=[True, False])
        return {"groups": ordered[["group", "name", "size", "accuracy", "loss", "weight"]].to_dict("records")}

    def pictures(self, history: History, final: Final) -> Pictures:
        """Return ``group_curves.png``, ``constraints.png`` and ``groups.png``, of the test split or else the last."""
        return {
            "group_curves.png": partial(plot_group_curves, history),
            **super().pictures(history, final),
            "groups.png": partial(self._draw_groups, final),
        }

    def _draw_groups(self, final: Final, path: Path) -> Path | None:
        split = shown_split(final)
        if not split:
            return None
        groups, average = self.details(*final[split])["groups"], self(*final[split])["accuracy"]
        return plot_groups(groups, path, average=average, split=split)


class TaskEvaluation(Evaluation):
    r"""Accuracy and loss of T binary tasks in groups of samples.

    The outputs are one score per task, shape (n, T); the column ``y`` (n, T) contains the labels 0 and 1, the column
    ``group`` (n,) the groups.  Let a_tg and L_tg be the accuracy and the mean logistic loss (nats) of task t in group
    g.  Absent groups are left out.

    - ``accuracy``, ``loss``: the means over samples and tasks;
    - ``worst_accuracy``: min over tasks and groups of a_tg;
    - ``worst_group_accuracy``: the mean over tasks of min_g a_tg;
    - ``worst_group_loss``: the mean over tasks of max_g L_tg, which is the multi-task objective;
    - ``task_accuracy/T``: min_g a_tg of each task.
    """

    bar = ("accuracy", "worst_group_accuracy")
    merit = "worst_group_accuracy"

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        require_columns(batch, "y", "group", figures="figures by task")
        y, outputs = batch["y"], one_tensor(outputs)
        if outputs.dim() != 2 or y.shape != outputs.shape:
            raise DataError(
                f"figures by task need outputs and y of one shape (n, T), got {tuple(outputs.shape)} and "
                f"{tuple(y.shape)}. Use another evaluation (--model.evaluation)."
            )
        tasks = pd.concat(
            {t: _by_group(outputs[:, t], {**batch, "y": y[:, t]}, self) for t in range(y.shape[1])}, names=["task"]
        )
        lowest = tasks["accuracy"].groupby("task").min()
        figures = {
            "accuracy": np.average(tasks["accuracy"], weights=tasks["weight"]),
            "worst_accuracy": lowest.min(),
            "worst_group_accuracy": lowest.mean(),
            "loss": np.average(tasks["loss"], weights=tasks["weight"]),
            "worst_group_loss": tasks["loss"].groupby("task").max().mean(),
        } | {f"task_accuracy/{t}": accuracy for t, accuracy in lowest.items()}
        return {name: float(value) for name, value in figures.items()}


def worst_weights(losses: "pd.Series[float]", number: float) -> npt.NDArray[np.float64]:
    r"""The weights q (G,) that maximise ``sum_g q_g L_g`` where ``sum_g q_g = 1, 0 <= q_g <= 1 / number``.

    They are those of the mean of the ``number`` highest losses: ``q_g = 1 / number`` above the threshold (the
    ``ceil(number)``-th highest loss), 0 below it, and the remaining weight is divided evenly among the groups whose
    loss equals the threshold.

    Args:
        losses: L_g, shape (G,).
        number: number of groups, at most G; a number below 1 counts as 1.

    Example:
        >>> worst_weights(pd.Series([4.0, 2.0, 2.0, 1.0]), 2).tolist()
        [0.5, 0.25, 0.25, 0.0]
    """
    number, values = max(1.0, number), losses.to_numpy()
    threshold = np.sort(values)[-math.ceil(number - _ROUNDING)]
    q: npt.NDArray[np.float64] = (values > threshold) / number
    is_last = values == threshold
    q[is_last] = max(0.0, 1 - q.sum()) / is_last.sum()
    return q


def _by_group(outputs: Tensor, batch: Columns, needed_by: Evaluation) -> pd.DataFrame:
    """The present groups by number: ``size``, sum of the samples' weights ``weight``, and ``accuracy`` and ``loss``."""
    require_columns(batch, "y", "group", figures="figures by group")
    correct, losses = correct_and_loss(outputs, batch["y"])
    group, weight = whole_numbers(batch, needed_by, "group"), weight_of(batch, losses, needed_by)
    require(group >= -1, group, "group must be >= 0, or -1 for no group", "Number the groups from 0.")
    columns = (group, weight, weight * correct, weight * losses)
    number, *values = (column[group >= 0].cpu().numpy() for column in columns)
    sums = [np.bincount(number, weights=weights) for weights in (None, *values)]
    groups = pd.DataFrame(dict(zip(("size", "weight", "accuracy", "loss"), sums, strict=True))).rename_axis("group")
    groups = groups[groups["weight"] > 0]
    if groups.empty:
        raise DataError("figures by group need at least one sample, got none. Is the split empty?")
    means = groups[["accuracy", "loss"]].div(groups["weight"], axis=0)
    not_finite = means.index[~np.isfinite(means["loss"])]
    if len(not_finite):
        raise NonFiniteError(
            f"the loss of group {not_finite[0]} is {means['loss'][not_finite[0]]}: outputs of its samples are NaN or "
            "infinite. The weights diverged, or the features hold such values: lower the learning rate."
        )
    return groups.assign(accuracy=means["accuracy"], loss=means["loss"])

"""Figures of the groups of a split, in particular the worst groups, for one task or several."""

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fcco_lightning.checks import at_least, fraction
from fcco_lightning.errors import DataError
from fcco_lightning.evaluation.base import (
    Evaluation,
    Final,
    Pictures,
    correct_and_loss,
    require_columns,
    shown_split,
    weight_of,
)
from fcco_lightning.evaluation.metrics.group_accuracy import (
    cvar,
    cvar_weights,
    group_sums,
    worst_fraction,
    worst_group,
)
from fcco_lightning.evaluation.pictures import History, plot_group_curves, plot_groups
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.base import one_label_each, one_tensor


class GroupEvaluation(Evaluation):
    r"""Accuracy and loss on average and for the worst groups.

    The column ``y`` (n,) contains the classes, the column ``group`` (n,) the groups.  Let a_g and L_g be the accuracy
    and the mean loss of group g, in float64, and let G be the number of groups that are present in the split.  Absent
    groups, and samples of group -1, which belong to no group, are left out.

    - ``accuracy``, ``loss``: the means over samples;
    - ``group_balanced_accuracy``: the mean of a_g over groups;
    - ``worst_group_accuracy``: min a_g; ``worst_group_loss``: max L_g;
    - ``tail_accuracy``: the mean of the ``ceil(alpha G)`` lowest a_g, see
      :func:`~fcco_lightning.evaluation.metrics.worst_fraction`;
    - ``cvar_loss``: the mean of the worst alpha G of the L_g, see :func:`~fcco_lightning.evaluation.metrics.cvar`;
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
        numbers, (sizes, correct, losses) = _present(_sums_by_group(outputs, batch, self))
        accuracy, loss = correct / sizes, losses / sizes
        tail = worst_fraction(accuracy, self.alpha, sizes if self.pooled else None)
        figures = {
            "accuracy": float(correct.sum() / sizes.sum()),
            "worst_group_accuracy": float(worst_group(accuracy)),
            "tail_accuracy": float(tail),
            "group_balanced_accuracy": float(accuracy.mean()),
            "loss": float(losses.sum() / sizes.sum()),
            "worst_group_loss": float(worst_group(loss, highest=True)),
            "cvar_loss": float(cvar(loss, self.alpha)),
        }
        if len(numbers) <= self.most_groups:
            for number, a, own_loss in zip(numbers.tolist(), accuracy.tolist(), loss.tolist(), strict=True):
                name = self.group_name(number)
                figures |= {f"group_accuracy/{name}": a, f"group_loss/{name}": own_loss}
        return figures

    def details(self, outputs: Tensor, batch: Columns) -> dict[str, Any]:
        """Return ``groups``: number, name, size, accuracy, loss and weight of each present group, the worst first."""
        numbers, (sizes, correct, losses) = _present(_sums_by_group(outputs, batch, self))
        columns = {
            "group": numbers,
            "name": [self.group_name(number) for number in numbers.tolist()],
            "size": [int((batch["group"] == number).sum()) for number in numbers.tolist()],
            "accuracy": correct / sizes,
            "loss": losses / sizes,
            "weight": cvar_weights(losses / sizes, self.alpha),
        }
        table = pd.DataFrame({k: c.cpu() if isinstance(c, Tensor) else c for k, c in columns.items()})
        return {"groups": table.sort_values(["accuracy", "loss"], ascending=[True, False]).to_dict("records")}

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
        pairs = zip(outputs.unbind(1), y.unbind(1), strict=True)
        others = {name: batch[name] for name in ("group", "weight") if name in batch}
        tasks = [_present(_sums_by_group(scores, {"y": labels, **others}, self))[1] for scores, labels in pairs]
        sizes, correct, losses = (torch.stack(sums) for sums in zip(*tasks, strict=True))
        lowest = (correct / sizes).amin(1)
        return {
            "accuracy": float(correct.sum() / sizes.sum()),
            "worst_accuracy": float(lowest.min()),
            "worst_group_accuracy": float(lowest.mean()),
            "loss": float(losses.sum() / sizes.sum()),
            "worst_group_loss": float((losses / sizes).amax(1).mean()),
        } | {f"task_accuracy/{t}": a for t, a in enumerate(lowest.tolist())}


def _sums_by_group(outputs: Tensor, batch: Columns, needed_by: Evaluation) -> Tensor:
    """Size, number of correct classifications and sum of losses of every group 0..G-1, (G, 3), float64.

    If samples have weights, all three are weighted sums.
    """
    require_columns(batch, "y", "group", figures="figures by group")
    correct, losses = correct_and_loss(outputs, batch["y"])
    group = one_label_each(batch, needed_by, "group")
    in_group = group != -1
    columns = (correct, losses, group, weight_of(batch, losses, needed_by))
    correct, losses, group, weight = (column[in_group] for column in columns)
    size = max(1, int(group.max()) + 1) if len(group) else 1
    sums = [group_sums(weight * values, group, size)[0] for values in (torch.ones_like(losses), correct, losses)]
    return torch.stack(sums, dim=1)


def _present(sums: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The numbers of the groups that are present, and the columns of :func:`_sums_by_group` for these groups."""
    present = sums[:, 0].nonzero().squeeze(1)
    if len(present) == 0:
        raise DataError("figures by group need at least one sample, got none. Is the split empty?")
    return present, sums[present].unbind(1)

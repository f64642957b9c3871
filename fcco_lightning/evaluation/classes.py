"""Figures of classifiers: of one task, and of several binary tasks on the same samples by group."""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fcco_lightning.errors import DataError
from fcco_lightning.evaluation.base import Evaluation, correct_and_loss, require_columns
from fcco_lightning.evaluation.metrics.group_accuracy import group_means
from fcco_lightning.models.batch import Columns


class ClassEvaluation(Evaluation):
    """Accuracy, and the exact cross-entropy over all classes.

    The outputs are one score per class, shape (n, C), or for two classes one score per sample, shape (n,) or (n, 1);
    the column ``y`` (n,) contains the classes 0, 1, ...

    - ``accuracy``: share of the samples whose class has the highest score;
    - ``top5_accuracy``: share of the samples whose class is among the five highest scores, if there are more;
    - ``loss``: mean cross-entropy (nats).
    """

    bar = ("accuracy", "loss")
    merit = "accuracy"

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        require_columns(batch, "y", figures="figures of a classifier")
        correct, loss = correct_and_loss(outputs, batch["y"])
        figures = {"accuracy": correct.double().mean().item(), "loss": loss.mean().item()}
        if outputs.dim() == 2 and outputs.shape[1] > 5:
            own = outputs.gather(1, batch["y"].unsqueeze(1))
            figures["top5_accuracy"] = (torch.sum(outputs > own, 1) < 5).double().mean().item()
        return figures


class TaskEvaluation(Evaluation):
    r"""Accuracy and loss of T binary tasks in groups of samples.

    The outputs are one score per task, shape (n, T); the column ``y`` (n, T) contains the labels 0 and 1, the column
    ``group`` (n,) the groups.  Let a_tg and L_tg be the accuracy and the mean logistic loss (nats) of task t in group
    g.  A group that the split lacks counts nowhere.

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
        y, scores = batch["y"], outputs.double()
        if scores.dim() != 2 or y.shape != scores.shape:
            raise DataError(
                f"figures by task need outputs and y of one shape (n, T), got {tuple(scores.shape)} and "
                f"{tuple(y.shape)}. Use another evaluation (--model.evaluation)."
            )
        correct = ((scores > 0) == (y == 1)).double()
        losses = binary_cross_entropy_with_logits(scores, y.double(), reduction="none")
        size = int(batch["group"].max()) + 1
        present = torch.bincount(batch["group"], minlength=size) > 0
        accuracy, loss = (
            torch.stack([group_means(column, batch["group"], size)[0][present] for column in values.unbind(1)])
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

"""Figures of several binary tasks on the same samples, by group."""

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fcco_lightning.errors import DataError
from fcco_lightning.evaluation.base import Evaluation
from fcco_lightning.evaluation.metrics.group_accuracy import group_means
from fcco_lightning.evaluation.samples import require_columns
from fcco_lightning.models.batch import Columns


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
        """Compute the figures.

        Raises:
            DataError: if y or group is missing, or if the labels are not of the shape of the outputs.
        """
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

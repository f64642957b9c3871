"""Figures of a classifier."""

import torch
from torch import Tensor

from fcco_lightning.evaluation.base import Evaluation
from fcco_lightning.evaluation.samples import correct_and_loss, require_columns
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
        """Compute the figures.

        Raises:
            DataError: if ``y`` is missing, or does not fit the outputs.
        """
        require_columns(batch, "y", figures="figures of a classifier")
        correct, loss = correct_and_loss(outputs, batch["y"])
        figures = {"accuracy": correct.double().mean().item(), "loss": loss.mean().item()}
        if outputs.dim() == 2 and outputs.shape[1] > 5:
            own = outputs.gather(1, batch["y"].unsqueeze(1))
            figures["top5_accuracy"] = (torch.sum(outputs > own, 1) < 5).double().mean().item()
        return figures

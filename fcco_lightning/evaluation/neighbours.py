"""Figures of embeddings: what the neighbours of a sample say of its class."""

import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.errors import DataError
from fcco_lightning.evaluation.base import Evaluation
from fcco_lightning.evaluation.samples import require_columns
from fcco_lightning.records import Columns

_AT_ONCE = 1024  # rows of the matrix of similarities that are formed together


class NeighbourEvaluation(Evaluation):
    """Accuracy of k nearest neighbours within a split, every sample being left out of its own vote.

    The outputs are embeddings, shape (n, d), compared by cosine; the column ``y`` (n,) contains the classes.  Of
    classes with equally many votes the smallest number wins.

    - ``knn_accuracy``: share of the samples whose neighbours vote for their class;
    - ``spread``: root mean square distance of the unit embeddings from their mean, 0 where all have collapsed to one
      point, 1 where they cancel out.

    Args:
        k: neighbours, >= 1; at most n - 1 are there.

    Raises:
        ConfigError: if k is not a whole number >= 1.
    """

    bar = ("knn_accuracy",)

    def __init__(self, k: int = 5) -> None:
        self.k = at_least("k", k, 1)

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        """Compute the figures.

        Raises:
            DataError: if the outputs are not embeddings of two samples or more, or ``y`` is missing.
        """
        require_columns(batch, "y", figures="figures of neighbours")
        if outputs.dim() != 2 or len(outputs) < 2:
            raise DataError(
                f"figures of neighbours need embeddings of two samples or more, shape (n, d), got "
                f"{tuple(outputs.shape)}. Use another evaluation (--model.evaluation)."
            )
        unit = torch.nn.functional.normalize(outputs.float(), dim=1)
        y, classes = batch["y"].long(), int(batch["y"].max()) + 1
        correct = 0
        for start in range(0, len(unit), _AT_ONCE):
            rows = torch.arange(start, min(start + _AT_ONCE, len(unit)))
            similarity = unit[rows] @ unit.T
            similarity[torch.arange(len(rows)), rows] = -torch.inf
            nearest = similarity.topk(min(self.k, len(unit) - 1), dim=1).indices
            votes = torch.nn.functional.one_hot(y[nearest], classes).sum(1)
            correct += int((votes.argmax(1) == y[rows]).sum())
        spread = 1 - unit.double().mean(0).square().sum()
        return {"knn_accuracy": correct / len(unit), "spread": max(spread.item(), 0.0) ** 0.5}

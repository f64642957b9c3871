"""Figures of embeddings: what the neighbours of a sample say of its class."""

from typing import Literal

import torch
from torch import Tensor

from fcco_lightning.checks import at_least, one_of
from fcco_lightning.errors import DataError
from fcco_lightning.evaluation.base import Evaluation, require_columns
from fcco_lightning.models.batch import Columns

_AT_ONCE = 1024  # rows of the matrix of similarities that are formed together


class NeighbourEvaluation(Evaluation):
    """Accuracy of k nearest neighbours within a split, every sample being left out of its own vote.

    The outputs are embeddings, shape (n, d); the column ``y`` (n,) contains the classes.  Of classes with equally many
    votes the smallest number wins.

    - ``knn_accuracy``: share of the samples whose neighbours vote for their class;
    - ``spread``: root mean square distance of the unit embeddings from their mean, 0 where all have collapsed to one
      point, 1 where they cancel out; left out where distances are Euclidean.

    Args:
        k: neighbours, >= 1; at most n - 1 are there.
        distance: how embeddings are compared.

    Raises:
        ConfigError: if k is not a whole number >= 1, or the distance is not known.
    """

    bar = ("knn_accuracy",)
    separable = False

    def __init__(self, k: int = 5, distance: Literal["cosine", "euclidean"] = "cosine") -> None:
        self.k = at_least("k", k, 1)
        self.distance = one_of("distance", distance, ("cosine", "euclidean"))

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        require_columns(batch, "y", figures="figures of neighbours")
        if outputs.dim() != 2 or len(outputs) < 2:
            raise DataError(
                f"figures of neighbours need embeddings of two samples or more, shape (n, d), got "
                f"{tuple(outputs.shape)}. Use another evaluation (--model.evaluation)."
            )
        cosine = self.distance == "cosine"
        points = torch.nn.functional.normalize(outputs.float(), dim=1) if cosine else outputs.float()
        names, y = torch.unique(batch["y"].long(), return_inverse=True)
        correct = 0
        for start in range(0, len(points), _AT_ONCE):
            rows = torch.arange(start, min(start + _AT_ONCE, len(points)))
            closeness = points[rows] @ points.T if cosine else -torch.cdist(points[rows], points)
            closeness[torch.arange(len(rows)), rows] = -torch.inf
            nearest = closeness.topk(min(self.k, len(points) - 1), dim=1).indices
            votes = torch.nn.functional.one_hot(y[nearest], len(names)).sum(1)
            correct += int((votes.argmax(1) == y[rows]).sum())
        figures = {"knn_accuracy": correct / len(points)}
        if cosine:
            figures["spread"] = max(1 - points.double().mean(0).square().sum().item(), 0.0) ** 0.5
        return figures

"""Figures of a classifier, and of nearest neighbours of embeddings."""

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fcco_lightning.checks import at_least, one_of
from fcco_lightning.errors import DataError
from fcco_lightning.evaluation.base import Evaluation, correct_and_loss, mean_of, require_columns, weight_of
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.base import one_label_each, one_tensor

_AT_ONCE = 1024  # rows of the similarity matrix that are computed together


class ClassEvaluation(Evaluation):
    """Accuracy, and the exact cross-entropy over all classes.

    The outputs are one score per class, shape (n, C), or for two classes one score per sample, shape (n,) or (n, 1);
    the column ``y`` (n,) contains the classes 0, 1, ...

    - ``accuracy``: share of the samples whose class has the highest score;
    - ``top5_accuracy``: share of the samples whose class is among the five highest scores, if there are more than five
      classes; ties are broken at random, and the expected value is computed;
    - ``loss``: mean cross-entropy (nats).

    With three classes or more the report has a record for each, ``classes``, see :meth:`details`.
    """

    bar = ("accuracy", "loss")
    merit = "accuracy"

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        require_columns(batch, "y", figures="figures of a classifier")
        correct, loss = correct_and_loss(outputs, batch["y"])
        weight = weight_of(batch, loss, self)
        figures = {"accuracy": mean_of(correct.double(), weight), "loss": mean_of(loss, weight)}
        if outputs.dim() == 2 and outputs.shape[1] > 5:
            score_of_class = outputs.gather(1, one_label_each(batch, self).long().unsqueeze(1))
            # a NaN is equal to no score
            higher, equal = (outputs > score_of_class).sum(1), (outputs == score_of_class).sum(1)
            figures["top5_accuracy"] = mean_of(((5 - higher) / equal).nan_to_num(0, 0).clamp(0, 1), weight)
        return figures

    def details(self, outputs: Tensor, batch: Columns) -> dict[str, Any]:
        """Return ``classes``: a record for every class, those with the lowest recall first.

        A record has the number of the class's ``samples``, its ``recall`` and ``precision``, and the class that its
        samples are most often ``mistaken for``; null if the denominator is 0.  All of these except the number use the
        samples' ``weight``.
        """
        if outputs.dim() != 2 or outputs.shape[1] < 3:
            return {}  # decision_details describes two classes
        y = one_label_each(batch, self).long()
        decided = outputs.argmax(1)
        size = outputs.shape[1]
        weight = weight_of(batch, y, self)
        confusion = weight.new_zeros(size * size).index_add(0, size * y + decided, weight).view(size, size)
        right, missed = confusion.diagonal(), confusion.clone().fill_diagonal_(0)
        recall, precision = (right / confusion.sum(1)).tolist(), (right / confusion.sum(0)).tolist()
        names = list(self.class_names) if len(self.class_names) == size else range(size)
        records = [
            {
                "class": str(names[c]),
                "samples": samples,
                "recall": recall[c],
                "precision": precision[c],
                "mistaken for": str(names[int(missed[c].argmax())]) if bool(missed[c].any()) else None,
            }
            for c, samples in enumerate(torch.bincount(y, minlength=size).tolist())
        ]
        return {"classes": sorted(records, key=lambda record: (math.isnan(record["recall"]), record["recall"]))}


class NeighbourEvaluation(Evaluation):
    """Leave-one-out accuracy of the k nearest neighbours within a split.

    The outputs are embeddings, shape (n, d); the column ``y`` (n,) contains the classes.  If several samples tie for
    the last of the k places, they share the votes of these places equally.  Among classes with equally many votes the
    one with the smallest number wins.

    - ``knn_accuracy``: share of the samples whose neighbours vote for their class;
    - ``spread``: root mean square distance of the unit embeddings from their mean, 0 if all have collapsed to one
      point, 1 if their mean is 0; absent for Euclidean distances.

    Args:
        k: number of neighbours, >= 1; at most n - 1 are used.
        distance: distance of embeddings, "cosine" or "euclidean".

    Raises:
        ConfigError: if k is not a whole number >= 1, or the distance is another word.
    """

    bar = ("knn_accuracy",)
    separable = False

    def __init__(self, k: int = 5, distance: Literal["cosine", "euclidean"] = "cosine") -> None:
        self.k = at_least("k", k, 1)
        self.distance = one_of("distance", distance, ("cosine", "euclidean"))

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        require_columns(batch, "y", figures="figures of neighbours")
        outputs = one_tensor(outputs)
        if outputs.dim() != 2 or len(outputs) < 2:
            raise DataError(
                f"figures of neighbours need embeddings of two samples or more, shape (n, d), got "
                f"{tuple(outputs.shape)}. Use another evaluation (--model.evaluation)."
            )
        cosine = self.distance == "cosine"
        points = outputs.float()
        points = normalize(points, dim=1) if cosine else points - points.mean(0)  # centring improves precision
        names, y = torch.unique(one_label_each(batch, self).long(), return_inverse=True)
        correct = 0
        for rows in torch.split(torch.arange(len(points), device=points.device), _AT_ONCE):
            closeness = points[rows] @ points.T if cosine else -torch.cdist(points[rows], points)
            closeness[rows - rows[0], rows] = -torch.inf
            correct += int((self._votes(closeness, y, len(names)).argmax(1) == y[rows]).sum())
        figures = {"knn_accuracy": correct / len(points)}
        if cosine:
            figures["spread"] = max(1 - points.double().mean(0).square().sum().item(), 0.0) ** 0.5
        return figures

    def _votes(self, closeness: Tensor, y: Tensor, classes: int) -> Tensor:
        """Votes of the k nearest other samples, shape (rows, classes), in whole numbers of fractions of a vote."""
        k = min(self.k, closeness.shape[1] - 1)
        last = closeness.topk(k, dim=1).values[:, -1:]
        nearer, tied = closeness > last, closeness == last
        vote, part = tied.sum(1, keepdim=True), k - nearer.sum(1, keepdim=True)
        votes = torch.zeros(len(closeness), classes, dtype=torch.int64, device=y.device)
        return votes.index_add(1, y, nearer * vote + tied * part)

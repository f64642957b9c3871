"""Figures of embeddings whose neighbours tell the class."""

import math

from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.errors import DataError
from fcco_lightning.evaluation.base import Evaluation
from fcco_lightning.evaluation.samples import require_columns
from fcco_lightning.records import Columns


class NeighbourEvaluation(Evaluation):
    """Accuracy of classifying every sample by its nearest neighbours in the embedding.

    The outputs are embeddings, shape (n, d); the column ``y`` (n,) contains the classes.

    - ``knn_accuracy``: the share of samples whose class is the most frequent one among their k nearest other samples of
      the same split (leave one out); NaN where the split has no more than k samples.

    Args:
        k: The number of neighbours, >= 1.

    Raises:
        ConfigError: if ``k`` is not a whole number >= 1.
    """

    bar = ("knn_accuracy",)

    def __init__(self, k: int = 5) -> None:
        self.k = at_least("k", k, 1)

    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        """Compute the figure.

        Raises:
            DataError: if the outputs are not embeddings, or if the column ``y`` is missing.
        """
        from sklearn.neighbors import KNeighborsClassifier  # noqa: PLC0415 (slow to import)

        require_columns(batch, "y", figures="figures of neighbours")
        if outputs.dim() != 2:
            raise DataError(
                f"NeighbourEvaluation needs embeddings, shape (n, d), got outputs of shape {tuple(outputs.shape)}. "
                "Give the network several outputs, or choose another evaluation with --model.evaluation."
            )
        y = batch["y"].numpy()
        if len(y) <= self.k:
            return {"knn_accuracy": math.nan}
        classifier = KNeighborsClassifier(self.k).fit(outputs.double().numpy(), y)
        return {"knn_accuracy": float((classifier.predict(None) == y).mean())}  # None leaves each sample out in turn

"""Objectives of one score per sample."""

from abc import ABC
from typing import Any

from torch import Tensor

from fcco_lightning.checks import non_negative
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.base import Objective, binary_scores, mean_over_data
from fcco_lightning.objectives.quantities import LogisticLoss


class BinaryObjective(Objective, ABC):
    r"""An objective of one score s_i per sample: the network's output of shape (B,) or (B, 1), or its sigmoid.

    A loss of differences of scores pulls at the positives as long as some negative is near, however high they stand, so
    that few positives are soon learnt by heart.  The sigmoid is flat where they stand high, which leaves them alone; it
    is what LibAUC's losses are given.  With some hundred positives it hardly matters.

    Args:
        sigmoid: whether s_i is the sigmoid of the output, in (0, 1), in the place of the output itself.
        cross_entropy: c, >= 0, the weight of the cross-entropy beside the objective, see :class:`Objective`; None for
            0, or where training is as recommended for :attr:`recommended_mixture`.

    Raises:
        ConfigError: if ``cross_entropy`` is negative or not finite.
    """

    def __init__(self, *, sigmoid: bool = False, cross_entropy: float | None = None) -> None:
        super().__init__()
        self.sigmoid = sigmoid
        self.cross_entropy = None if cross_entropy is None else non_negative("cross_entropy", cross_entropy)

    def scores(self, outputs: Any) -> Tensor:
        """The s_i, shape (B,).

        Raises:
            DataError: if the outputs have another shape.
        """
        scores = binary_scores(outputs)
        return scores.sigmoid() if self.sigmoid else scores

    def entropy(self, outputs: Any, batch: Columns) -> Tensor:
        return mean_over_data(LogisticLoss()(outputs, batch), batch)

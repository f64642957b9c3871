"""Means of a loss over the samples, without inner functions."""

from torch import Tensor

from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.base import Objective, mean_over_data
from fcco_lightning.objectives.quantities import CrossEntropyLoss, Quantity, SquaredLoss


class CrossEntropy(Objective):
    r"""``g_0(w) = mean_i l(scores_i, y_i)``: logistic loss for one score per sample, softmax for (B, C) outputs.

    If samples are not drawn uniformly (class-balanced batches), the batch's weights make the estimate of the mean over
    the data unbiased.
    """

    loss: Quantity = CrossEntropyLoss()

    def check(self, outputs: Tensor, batch: Columns) -> None:
        self.loss.check(outputs, batch)

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[Tensor, None]:
        return mean_over_data(self.loss(outputs, batch), batch), None


class SquaredError(Objective):
    r"""``g_0(w) = mean_i (output_i - y_i)^2``, summed over the outputs of a sample, for labels that are numbers.

    If samples are not drawn uniformly, the batch's weights make the estimate of the mean over the data unbiased.
    """

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[Tensor, None]:
        return mean_over_data(SquaredLoss()(outputs, batch), batch), None

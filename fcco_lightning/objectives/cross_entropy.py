"""Plain cross-entropy."""

import torch
from torch import Tensor

from fcco_lightning.objectives.base import Objective, mean_over_data
from fcco_lightning.objectives.quantities import CrossEntropyLoss
from fcco_lightning.records import Columns, Usual


class CrossEntropy(Objective):
    r"""``g_0(w) = mean_i l(scores_i, y_i)``: logistic loss for one score per sample, softmax for (B, C) outputs.

    Where samples are not drawn uniformly (class-balanced batches), the batch's weights make it an unbiased estimate of
    the mean over the data.
    """

    def check(self, outputs: Tensor, batch: Columns) -> None:
        CrossEntropyLoss().check(outputs, batch)

    def arrange_direct(self, batch: Columns, like: Tensor) -> Columns:  # noqa: ARG002
        return batch

    def arrange_direct_usual(self, batch: Columns, like: Tensor) -> Usual:
        return Usual(batch, like.new_ones((), dtype=torch.bool))

    def direct_value(self, outputs: Tensor, given: Columns) -> Tensor:
        return mean_over_data(CrossEntropyLoss()(outputs, given), given)

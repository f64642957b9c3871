"""Plain cross-entropy."""

from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fcco_lightning.objectives.base import Objective, binary_scores
from fcco_lightning.records import Batch


class CrossEntropy(Objective):
    r"""``g_0(w) = mean_i l(scores_i, y_i)``: logistic loss for one score per sample, softmax for (B, C) outputs."""

    def direct(self, outputs: Tensor, batch: Batch) -> Tensor:
        if outputs.dim() == 2 and outputs.shape[1] > 1:
            return cross_entropy(outputs, batch["y"])
        scores = binary_scores(outputs)
        return binary_cross_entropy_with_logits(scores, batch["y"].to(scores.dtype))

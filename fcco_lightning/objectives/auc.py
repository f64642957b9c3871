"""Area under the ROC curve as a mean over pairs."""

from collections.abc import Sequence

from torch import Tensor

from fcco_lightning.objectives.base import Objective, binary_scores
from fcco_lightning.objectives.pairwise import PairLoss, SigmoidPair
from fcco_lightning.records import Columns


class AUC(Objective):
    r"""``g_0(w) = mean over positives i and negatives j of l(s_i - s_j)`` (004 F.2).

    The mean over the pairs of a batch is an unbiased estimate, so no rows are kept.  A batch without one of the classes
    says nothing: value 0, gradient 0; where batches are drawn by a plan, the others weigh as much more as such batches
    are frequent.

    Args:
        loss: l, the surrogate loss of a pair.
    """

    def __init__(self, loss: PairLoss | None = None) -> None:
        super().__init__()
        self.loss = loss or SigmoidPair()

    def direct_subsets(self, columns: Columns) -> Sequence[Tensor] | None:
        return [columns["y"] == 1, columns["y"] != 1]

    def direct(self, outputs: Tensor, batch: Columns) -> Tensor:
        scores = binary_scores(outputs)
        is_positive = batch["y"] == 1
        positives, negatives = scores[is_positive], scores[~is_positive]
        if positives.numel() == 0 or negatives.numel() == 0:
            return 0.0 * scores.sum()
        return self.loss(positives.unsqueeze(1) - negatives).mean()

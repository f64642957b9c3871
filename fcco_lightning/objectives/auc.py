"""Area under the ROC curve as a mean over pairs."""

from collections.abc import Sequence

from torch import Tensor

from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.base import BinaryObjective, require_binary_labels, required_column
from fcco_lightning.objectives.pair_sums import pair_mean
from fcco_lightning.objectives.pairwise import PairLoss, SigmoidPair
from fcco_lightning.objectives.ranking import both_classes, class_shares, few, warn_of_ratios


class AUC(BinaryObjective):
    r"""``g_0(w) = mean over positives i and negatives j of l(s_i - s_j)`` (SONEX paper, F.2).

    No rows are kept: the mean over the pairs of a batch is an unbiased estimate where every batch holds both classes,
    as balanced batches do.  A batch without one of the classes says nothing, value 0 and gradient 0; where the plan of
    the batches is known, the others weigh as much more as such batches are frequent.  Where samples are not drawn
    uniformly, pairs weigh by the column ``weight``.  Memory is O(B) for large batches, and the squared losses take
    O(B log B) operations there; see :func:`~fcco_lightning.objectives.pair_sums.pair_sums`.

    Args:
        loss: l, the surrogate loss of a pair.
        sigmoid: whether the scores are sigmoids of the network's outputs, which helps where positives are few; see
            :class:`BinaryObjective`.
    """

    def __init__(self, loss: PairLoss | None = None, *, sigmoid: bool = False) -> None:
        super().__init__(sigmoid=sigmoid)
        self.loss = loss or SigmoidPair()

    def kinds(self, columns: Columns) -> Sequence[Tensor]:
        return both_classes(columns, self)[:1]

    def direct_subsets(self, columns: Columns) -> Sequence[Tensor] | None:
        return both_classes(columns, self)

    def check(self, outputs: Tensor, batch: Columns) -> None:  # noqa: ARG002
        require_binary_labels(batch, self)
        warn_of_ratios(batch, self)

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[Tensor, None]:
        """The mean over the pairs of the batch."""
        scores, positive = self.scores(outputs), required_column(batch, "y", self) == 1
        (w, v), _ = class_shares(positive, batch.get("weight"), scores.dtype)
        return pair_mean(self.loss, scores, v, w, few(positive, self.most)), None

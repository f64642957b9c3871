"""Area under the ROC curve as a mean over pairs."""

from collections.abc import Sequence

from torch import Tensor

from fcco_lightning.hosted import SameAgain, on_host
from fcco_lightning.numerics import send
from fcco_lightning.objectives.base import BinaryObjective, nothing, require_binary_labels, required_column
from fcco_lightning.objectives.pairwise import FEW_PAIRS, PairLoss, SigmoidPair, shares
from fcco_lightning.objectives.ranking import both_classes, class_shares, warn_of_ratios
from fcco_lightning.records import Columns, Usual


class AUC(BinaryObjective):
    r"""``g_0(w) = mean over positives i and negatives j of l(s_i - s_j)`` (SONEX paper, F.2).

    No rows are kept: the mean over the pairs of a batch is an unbiased estimate where every batch holds both classes,
    as balanced batches do.  A batch without one of the classes says nothing, value 0 and gradient 0; where the plan of
    the batches is known, the others weigh as much more as such batches are frequent.  Where samples are not drawn
    uniformly, pairs weigh by the column ``weight``.  Memory is O(B) for large batches, and the squared losses take
    O(B log B) operations there; see :meth:`PairLoss.mean`.

    Args:
        loss: l, the surrogate loss of a pair.
        sigmoid: whether the scores are sigmoids of the network's outputs, which helps where positives are few; see
            :class:`BinaryObjective`.
    """

    def __init__(self, loss: PairLoss | None = None, *, sigmoid: bool = False) -> None:
        super().__init__(sigmoid=sigmoid)
        self.loss = loss or SigmoidPair()
        self._places = SameAgain[tuple[Tensor, ...]]()

    def direct_subsets(self, columns: Columns) -> Sequence[Tensor] | None:
        return both_classes(columns, self)

    def check(self, outputs: Tensor, batch: Columns) -> None:  # noqa: ARG002
        require_binary_labels(batch, self)
        warn_of_ratios(batch, self)

    def arrange_direct(self, batch: Columns, like: Tensor) -> tuple[Tensor, ...]:
        """Positions of the positives and of the negatives, and what each counts; nothing without both classes."""
        batch = on_host(batch)
        y, weight = required_column(batch, "y", self), batch.get("weight")
        return self._places((y, weight), (like.device, like.dtype), lambda: self._of_classes(y, weight, like))

    def _of_classes(self, y: Tensor, weight: Tensor | None, like: Tensor) -> tuple[Tensor, ...]:
        is_positive = y == 1
        positives, negatives = is_positive.nonzero().squeeze(1), (~is_positive).nonzero().squeeze(1)
        if not len(positives) or not len(negatives):
            return ()
        v, w = (shares(weight, of_class, like) for of_class in (positives, negatives))
        return send(positives, like), send(negatives, like), v, w

    def arrange_direct_usual(self, batch: Columns, like: Tensor) -> Usual | None:
        """What every sample counts among the positives and among the negatives, shape (B,) each, where B^2 is small."""
        y = required_column(batch, "y", self)
        if len(y) ** 2 > FEW_PAIRS:
            return None
        shares, known = class_shares(y, batch.get("weight"), like)
        return Usual((shares[1], shares[0]), known)

    def direct_value(self, outputs: Tensor, given: tuple[Tensor, ...]) -> Tensor:
        scores = self.scores(outputs)
        if len(given) == 2:
            return self.loss.mean_over_all(scores, *given)
        return self.loss.mean(scores, *given) if given else nothing(scores)

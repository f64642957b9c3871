"""Area under the ROC curve: as a mean over pairs, and the margin loss that is made of two means."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fcco_lightning.checks import positive
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.auc.pairwise import PairLoss, SigmoidPair
from fcco_lightning.objectives.base import RowDomain, one_label_each, require_binary_labels
from fcco_lightning.objectives.binary import BinaryObjective
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.objectives.pair_sums import pair_mean
from fcco_lightning.objectives.ranking.ranking import both_classes, few, warn_of_class_ratios
from fcco_lightning.objectives.ratios import shares_of
from fcco_lightning.outer import Linear, OuterFunction, SquaredHinge


class AUC(BinaryObjective):
    r"""``g_0(w) = mean over positives i and negatives j of l(s_i - s_j)`` (SONEX paper, F.2).

    No rows are kept: the mean over the pairs of a batch is an unbiased estimate where every batch holds both classes,
    as balanced batches do.  A batch without one of the classes measures nothing, with value 0 and gradient 0; where the
    plan of the batches is known, the others weigh as much more as such batches are frequent.  Where samples are not
    drawn uniformly, pairs weigh by the column ``weight``.  Memory is O(B) for large batches, and the squared losses
    take O(B log B) operations there; see :func:`~fcco_lightning.objectives.pair_sums.pair_sums`.

    The pairs alone can learn few positives by heart, and see only what is out of order.  So
    :class:`~fcco_lightning.FCCOModule` trains on the sum of the mean over pairs and the mean cross-entropy
    (``examples/benchmarks/results/tables_pay.md``).  ``cross_entropy=0`` leaves that out, as does ``pretrain=None`` or
    a pretraining of your own.  In a loop of your own around an Engine or a Criterion ``cross_entropy=1`` adds it.

    Args:
        loss: l, the surrogate loss of a pair.
        sigmoid: whether the scores are sigmoids of the network's outputs, which helps where positives are few; see
            :class:`BinaryObjective`.
        cross_entropy: weight of the cross-entropy beside the mean over pairs, see :class:`BinaryObjective`; None for 0,
            the papers' objective, or where FCCOModule trains as is recommended for 1.
    """

    recommended_mixture = (1.0, 1.0)

    def __init__(
        self, loss: PairLoss | None = None, *, sigmoid: bool = False, cross_entropy: float | None = None
    ) -> None:
        super().__init__(sigmoid=sigmoid, cross_entropy=cross_entropy)
        self.loss = loss or SigmoidPair()

    def kinds(self, columns: Columns) -> Sequence[Tensor]:
        return both_classes(columns, self)[:1]

    def direct_subsets(self, columns: Columns) -> Sequence[Tensor] | None:
        return both_classes(columns, self)

    def check(self, outputs: Tensor, batch: Columns) -> None:  # noqa: ARG002
        require_binary_labels(batch, self)
        warn_of_class_ratios(batch, self)

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[Tensor | None, None]:
        """The mean over the pairs of the batch, perhaps beside the cross-entropy."""
        scores, is_positive = self.scores(outputs), one_label_each(batch, self) == 1
        (w, v), _ = shares_of(torch.stack([~is_positive, is_positive]), batch, scores.dtype)
        pairs = pair_mean(self.loss, scores, v, w, few(is_positive, self.most))
        return self.with_cross_entropy(pairs, outputs, batch), None


class AUCMargin(BinaryObjective):
    r"""``E[(s - a)^2 | y = 1] + E[(s - b)^2 | y = 0] + [margin + E[s | y = 0] - E[s | y = 1]]_+^2``.

    Source: Yuan et al., Large-scale robust deep AUC maximization (2021).

    At the best a and b, which are trained with the network, the first two terms are the variances of the scores s of
    positives and negatives.  The last term is ``max over alpha >= 0 of 2 alpha (margin + u_2 - u_1) - alpha^2``, so
    this is that paper's min-max problem without its dual variable: one row remembers the mean scores u_2 of the
    negatives and u_1 of the positives, in this order.  With alpha of either sign it would be the mean of
    ``(margin - (s_i - s_j))^2`` over all pairs.

    Where samples are not drawn uniformly, means are weighted by the column ``weight``.

    Args:
        margin: wanted distance between the mean scores, > 0.
        sigmoid: whether the scores are sigmoids of the network's outputs, which helps where positives are few; see
            :class:`BinaryObjective`.

    Raises:
        ConfigError: if the margin is out of range.
    """

    width = 2

    def __init__(self, margin: float = 1.0, *, sigmoid: bool = False) -> None:
        super().__init__(sigmoid=sigmoid)
        self.outer: OuterFunction = Linear(SquaredHinge(rho=2.0, kappa=-positive("margin", margin)), (1.0, -1.0))
        self.margin = margin
        self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """One row."""
        return RowDomain(1)

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]] | None:
        """A batch measures the means if it holds both classes."""
        return [self.direct_subsets(columns)]

    def direct_subsets(self, columns: Columns) -> Sequence[Tensor]:
        return both_classes(columns, self)

    def check(self, outputs: Any, batch: Columns) -> None:  # noqa: ARG002
        require_binary_labels(batch, self)
        warn_of_class_ratios(batch, self)

    def measure(self, outputs: Any, batch: Columns) -> tuple[Tensor, Rows]:
        """The mean squared distances from a and b, and the mean scores; nothing of a batch that lacks a class."""
        scores, is_positive = self.scores(outputs), one_label_each(batch, self) == 1
        shares, totals = shares_of(torch.stack([~is_positive, is_positive]), batch, scores.dtype)
        known = totals.all()
        scores = scores.where(known, 0.0)
        centres = torch.stack([self.b, self.a]).unsqueeze(1)
        spread = ((scores - centres).square() * (shares * known)).sum()
        return spread, Rows((shares @ scores).unsqueeze(0), known.unsqueeze(0))

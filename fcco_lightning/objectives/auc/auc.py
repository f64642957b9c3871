"""Area under the ROC curve: as a mean over pairs, and as the margin loss of two means."""

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

_PAIRS = 0.03  # recommended weight beside cross-entropy, found on other tables than those of the tests


class AUC(BinaryObjective):
    r"""``g_0(w) = mean over positives i and negatives j of l(s_i - s_j)`` (SONEX paper, F.2).

    There are no rows: the mean over the pairs of a batch is an unbiased estimate if every batch holds both classes, as
    balanced batches do.  A batch without one of the classes has the value 0 and the gradient 0; if the plan of the
    batches is known, other batches get a larger weight to correct for it.  If samples are not drawn uniformly, pairs
    are weighted by the column ``weight``; with unequal weights within a class the mean is a ratio of two estimates, and
    biased where a batch has few samples of the class.  For large batches memory is O(B), and squared losses take O(B
    log B) operations; see :func:`~fcco_lightning.objectives.pair_sums.pair_sums`.

    The pairs alone can overfit a few positives, and have little gradient once these are ranked correctly.  So
    :class:`~fcco_lightning.FCCOModule` trains on the mean cross-entropy plus .03 times the mean over pairs; with equal
    weights the top of the ranking is worse (``examples/benchmarks/results/tables_pay.md``).  ``cross_entropy=0`` leaves
    out the cross-entropy, as does ``pretrain=None`` or your own pretraining.  In your own loop with an Engine or a
    Criterion ``cross_entropy=30`` adds it.

    Args:
        loss: l, the surrogate loss of a pair; None for :class:`SigmoidPair`.
        sigmoid: whether the scores are sigmoids of the network's outputs, which helps with few positives; see
            :class:`BinaryObjective`.
        cross_entropy: weight of the additional cross-entropy, see :class:`BinaryObjective`; None for 0, the papers'
            objective, or for the recommended weights if FCCOModule trains as recommended.
    """

    recommended_mixture = (1.0, _PAIRS)

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
        """The mean over the pairs of the batch, with the cross-entropy if it has a weight."""
        scores, is_positive = self.scores(outputs), one_label_each(batch, self) == 1
        (w, v), _ = shares_of(torch.stack([~is_positive, is_positive]), batch, scores.dtype)
        pairs = pair_mean(self.loss, scores, v, w, few(is_positive, self.most))
        return self.with_cross_entropy(pairs, outputs, batch), None


class AUCMargin(BinaryObjective):
    r"""``E[(s - a)^2 | y = 1] + E[(s - b)^2 | y = 0] + [margin + E[s | y = 0] - E[s | y = 1]]_+^2``.

    Source: Yuan et al., Large-scale robust deep AUC maximization (2021).

    For the optimal a and b, which are trained with the network, the first two terms are the variances of the scores s
    of positives and negatives.  The last term is ``max over alpha >= 0 of 2 alpha (margin + u_2 - u_1) - alpha^2``, so
    this is that paper's min-max problem without its dual variable: one row remembers the mean scores u_2 of the
    negatives and u_1 of the positives, in this order.  Without the restriction to alpha >= 0 it would be the mean of
    ``(margin - (s_i - s_j))^2`` over all pairs.

    If samples are not drawn uniformly, means are weighted by the column ``weight``.

    Args:
        margin: desired distance between the mean scores, > 0.
        sigmoid: whether the scores are sigmoids of the network's outputs, which helps with few positives; see
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
        """The mean squared distances from a and b, and the mean scores; 0 for a batch that lacks a class."""
        scores, is_positive = self.scores(outputs), one_label_each(batch, self) == 1
        shares, totals = shares_of(torch.stack([~is_positive, is_positive]), batch, scores.dtype)
        known = totals.all()
        scores = scores.where(known, 0.0)
        centres = torch.stack([self.b, self.a]).unsqueeze(1)
        spread = ((scores - centres).square() * (shares * known)).sum()
        return spread, Rows((shares @ scores).unsqueeze(0), known.unsqueeze(0))

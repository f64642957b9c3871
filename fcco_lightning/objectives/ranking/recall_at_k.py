"""Recall, and thereby precision, among the k samples with the highest scores."""

from typing import Any

import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.errors import ConfigError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.auc.pairwise import PairLoss
from fcco_lightning.objectives.base import RowDomain
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.objectives.ranking.ranking import RankingObjective, sums_over_data
from fcco_lightning.outer import Hinge, OuterFunction

_RANKS = 0.03  # recommended weight beside cross-entropy, in units of k/n, found on other tables than those of the tests


class RecallAtK(RankingObjective):
    r"""``(1/n_+) sum over positives i of [rank_i / k - 1]_+``, ``rank_i = sum over all samples j of l(s_i - s_j)``.

    Source: ALEXR paper, App. B, erratum ALEXR-10.

    The loss of a positive grows with the distance of its smooth rank behind position k.  Precision at k is ``n_+ / k``
    times recall at k, so that maximising one also maximises the other.  The rank contains the positive itself, with the
    loss l(0).  Row i remembers ``rank_i / n``, which is at least ``l(0) / n``; its estimate is unbiased in the same
    batches as that of :class:`AveragePrecision`.

    f is convex and non-decreasing; if the pair losses are convex in the weights, the objective is convex, as ALEXR
    needs.  With ``sigmoid`` they are not.

    Alone, the ranks overfit a few positives, and the result is worse than that of cross-entropy.  So
    :class:`~fcco_lightning.FCCOModule` takes sigmoids, and minimises the cross-entropy plus ``0.03 k/n`` times the
    objective: average precision then equals that of cross-entropy, while recall is not better with any weight
    (``examples/benchmarks/results/tables_pay.md``).  The factor k/n makes the weight independent of k.

    Args:
        k: length of the head of the list, >= 1 and less than the number of training samples.
        loss: l, non-negative, a surrogate of 1 for d < 0; the squared hinge with margin 1 by default.
        sigmoid: whether the scores are sigmoids of the network's outputs, see :class:`BinaryObjective`.
        cross_entropy: c, the weight of the additional cross-entropy, >= 0, see :class:`BinaryObjective`.

    Raises:
        ConfigError: if ``k`` or ``cross_entropy`` is out of range; before the first batch, if k is not less than the
            number of samples.
    """

    weighs_samples = False
    needs_partner = False
    of_sigmoids = True
    seen_alone = (
        "On 14 imbalanced tables the recall of raw ranks alone ended .011 to .014 below that of cross-entropy: compare "
        "with the default (nothing said of cross_entropy, sigmoid and pretrain), or with --model.objective "
        "CrossEntropy."
    )

    def __init__(
        self, k: int, loss: PairLoss | None = None, *, sigmoid: bool = True, cross_entropy: float | None = None
    ) -> None:
        super().__init__(loss, sigmoid=sigmoid, cross_entropy=cross_entropy)
        self.k = at_least("k", k, 1)

    @property
    def recommended_mixture(self) -> tuple[float, float]:  # type: ignore[override]
        """The cross-entropy, plus a small weight of the objective."""
        return 1.0, _RANKS * self.k / (self.num_samples or self.k + 1)

    @property
    def outer(self) -> OuterFunction:  # type: ignore[override]
        """``[n u / k - 1]_+``."""
        n = self.num_samples or self.k + 1
        return Hinge(rho=n / self.k, kappa=self.k / n)

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:
        """One row for every positive, if there are more samples than k."""
        if self.k >= num_samples:
            raise ConfigError(
                f"k={self.k} is not less than the number of training samples, {num_samples}: all positives are among "
                "the first k of them. Lower k."
            )
        return super().row_domain(num_samples, columns)

    def measure(self, outputs: Any, batch: Columns) -> tuple[Tensor | None, Rows]:
        """The cross-entropy, and estimates of ``rank_i / n``."""
        scores, positive = self.scores(outputs), self._owners(batch)
        ones = torch.ones_like(scores.detach()).unsqueeze(0)
        sums = sums_over_data(self.loss, scores, ones, batch, self.num_samples, self.itself, positive, self.most)
        return self.with_cross_entropy(None, outputs, batch), Rows(sums, self.row_weights(positive, sums.dtype))

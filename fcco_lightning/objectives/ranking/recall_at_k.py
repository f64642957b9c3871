"""Recall, and thereby precision, among the k samples with the highest scores."""

from typing import Any

import torch

from fcco_lightning.checks import at_least
from fcco_lightning.errors import ConfigError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.auc.pairwise import PairLoss
from fcco_lightning.objectives.base import RowDomain
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.objectives.ranking.ranking import RankingObjective, sums_over_data
from fcco_lightning.outer import Hinge, OuterFunction


class RecallAtK(RankingObjective):
    r"""``(1/n_+) sum over positives i of [rank_i / k - 1]_+``, ``rank_i = sum over all samples j of l(s_i - s_j)``.

    Source: ALEXR paper, App. B, erratum ALEXR-10.

    A positive counts by how far its smooth rank lies behind position k.  Precision at k is ``n_+ / k`` times recall at
    k, so that maximising one maximises the other, and there is no class of its own for it.  The rank contains the
    positive itself, with the loss l(0).  Row i remembers ``rank_i / n``, which is at least ``l(0) / n``; its estimate
    is unbiased in the batches in which that of :class:`AveragePrecision` is.

    f is convex and non-decreasing; where the pair losses are convex in the weights, the whole is convex, as ALEXR
    needs.

    Args:
        k: length of the head of the list, >= 1 and less than the number of training samples.
        loss: l, non-negative, a surrogate of 1 for d < 0; the squared hinge with margin 1 by default.

    Raises:
        ConfigError: if ``k`` is out of range; where it exceeds the list, before the first batch.
    """

    weighs_samples = False
    needs_partner = False

    def __init__(self, k: int, loss: PairLoss | None = None) -> None:
        super().__init__(loss)
        self.k = at_least("k", k, 1)

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

    def measure(self, outputs: Any, batch: Columns) -> tuple[None, Rows]:
        """Estimates of ``rank_i / n``."""
        scores, positive = self.scores(outputs), self._owners(batch)
        every = torch.ones_like(scores.detach()).unsqueeze(0)
        sums = sums_over_data(self.loss, scores, every, batch, self.num_samples, self.itself, positive, self.most)
        return None, Rows(sums, positive)

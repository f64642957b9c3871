"""The exposure of an item in a ranked list: its share of the users' attention."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.auc.pairwise import PairLoss, SigmoidPair
from fcco_lightning.objectives.base import binary_scores
from fcco_lightning.objectives.quantities import Quantity
from fcco_lightning.objectives.ranking.lists import graded
from fcco_lightning.objectives.self_weights import Comparisons
from fcco_lightning.outer import Range


@dataclass(frozen=True)
class Exposure(Quantity):
    r"""``1 / log2(1 + r_i)`` with the smooth rank ``r_i = 1 + sum over j != i in the list of l(h_i - h_j)`` of an item.

    Source: the position bias of DCG as exposure (Singh and Joachims, Fairness of exposure in rankings, 2018), with the
    smooth ranks of :class:`NDCG`.

    The outputs are scores h, shape (n,) or (n, 1), with the columns ``query`` (n,) int64, which names an item's list,
    and ``y``.  A constraint on means of exposure caps it for a group of items, or the difference between two groups:
    ``MeanDifferenceAtMost(Exposure(), 0.02, {"group": 1}, {"group": 0})``.

    The strata of batches (``QuerySampling``) determine how many items of the list each item in a batch represents.  The
    estimate of r_i is then unbiased.  The exposure is exact if batches hold whole lists, as for a whole split, and
    otherwise slightly too high for items at the top, since it is convex in the rank.

    Args:
        loss: l, which should lie in [0, 1], so that smooth ranks are close to the true ranks; :class:`SigmoidPair` with
            the scale 0.1 by default.

    Raises:
        DataError: from ``check``, if batches do not describe how they were drawn, or hold a single item of a larger
            part of a list.
    """

    loss: PairLoss = field(default_factory=lambda: SigmoidPair(0.1))
    range = Range(least=0.0)

    def check(self, outputs: Tensor, batch: Columns) -> None:  # noqa: ARG002
        graded(batch, self)
        if "stratum" not in batch:
            raise DataError(
                f"{type(self).__name__} compares an item with all others of its list, but the batch has no column "
                "`stratum`, which tells what part of the list it holds. Set `batches: QuerySampling`."
            )
        _of_list(batch, self).check()

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:
        scores, (query, _) = binary_scores(outputs), graded(batch, self, look=False)
        above = self._of_batch(scores, batch) if "stratum" in batch else self._of_split(scores, query)
        return math.log(2) / torch.log1p(1 + above)

    def _of_batch(self, scores: Tensor, batch: Columns) -> Tensor:
        """Sum of l over the other items of an item's list, (B,), estimated from those in the batch."""
        stands = _of_list(batch, self).table(dtype=scores.dtype)
        difference = torch.where(stands == 0, 0.0, scores.unsqueeze(1) - scores)  # between lists l may overflow
        return (stands * self.loss(difference)).sum(1)

    def _of_split(self, scores: Tensor, query: Tensor) -> Tensor:
        """The same for whole lists, one after the other, so that memory is that of the longest list."""
        order = query.argsort(stable=True)
        sizes = torch.unique_consecutive(query[order], return_counts=True)[1]
        above = []
        for h in torch.split(scores[order], sizes.tolist()):
            pairs = self.loss(h.unsqueeze(1) - h)
            above.append(pairs.sum(1) - pairs.diagonal())
        return torch.cat(above)[order.argsort()]


def _of_list(batch: Columns, needed_by: object) -> Comparisons:
    """Comparisons of every item with the items of its list in the batch."""
    query, _ = graded(batch, needed_by, look=False)
    same_list = query.unsqueeze(1) == query
    return Comparisons(batch, len(same_list), within=same_list)

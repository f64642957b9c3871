"""Losses of pairs of bags: an outer function of all rows of a batch together."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.errors import ConfigError
from fcco_lightning.objectives.auc.pairwise import PairLoss
from fcco_lightning.objectives.auc.pooling import Pooling
from fcco_lightning.outer import OuterFunction

_PAIRS = 2**18
"""Number of pairs whose losses are in memory at once."""


@dataclass(frozen=True, eq=False, repr=False)
class PooledPairs(OuterFunction):
    r"""Losses of pairs of a positive and a negative bag, half of which belongs to each of the two bags.

    With the scores ``h_i = h(u_i)`` of the bags, a positive bag i, one of n_i positive bags among n bags, has

    ``f_i = n / (2 n_i) mean over the rows j of the other class of l(h_i - h_j)``, and a negative one ``l(h_j - h_i)``,

    so that the mean of f_i over all n bags is ``F = mean over pairs of l``.  As f_j also depends on u_i, the gradient
    returned for u_i is ``n dF / du_i``, which is ``2 df_i / du_i``.  Both are unbiased if all bags of the other class
    are equally likely to be in the batch.  If a class has no rows, all values and gradients are 0.  Rows that are
    copies of the same bag have the values and gradients of a single row.

    It acts on the rows that it was made for together; it is not convex, and smooth if l is smooth.

    Args:
        pooling: h.
        loss: l.
        positive: whether each row is a positive bag, shape (b,), bool.
        share: n / n_i of every row, shape (b,).
        copies: number of rows of the same bag, shape (b,); None if all bags are different.
    """

    pooling: Pooling
    loss: PairLoss
    positive: Tensor
    share: Tensor
    copies: Tensor | None = None
    smooth = True

    def __repr__(self) -> str:
        return f"PooledPairs({self.pooling!r}, {self.loss!r}), which compares bags with one another,"

    def __call__(self, u: Tensor) -> Tensor:
        score, share = self.pooling.score(u), self._share_of_a_pair(u)
        h = score.detach()
        sums = self._sums(h, lambda gaps: self.loss.with_slope(gaps)[1])
        slope = share * torch.where(self.positive.to(u.device), sums, -sums)
        return share / 2 * self._sums(h, self.loss) + slope * (score - h)

    def _share_of_a_pair(self, u: Tensor) -> Tensor:
        """Weight of a pair in the mean over all rows: n / n_i over the number of bags of the other class, (b,)."""
        positive, negative = self._counts(u)
        partners = torch.where(positive > 0, negative.sum(), positive.sum())
        return self.share.to(u) / partners.clamp(min=1)

    def _counts(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of the rows among the positive bags and among the negative bags, 1/copies or 0, shape (b,) each."""
        if len(u) != len(self.positive):
            raise ConfigError(
                f"{self!r} was made for {len(self.positive)} bags, not for {len(u)}. Pass the rows of all of them."
            )
        positive, copies = self.positive.to(u), 1.0 if self.copies is None else self.copies.to(u)
        return positive / copies, (1 - positive) / copies

    def _sums(self, h: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """The sums of a function of ``h_i - h_j`` over the partners of every row, shape (b,).

        The tables contain all rows, as selecting positives and negatives would need their numbers on the host.  Rows of
        the wrong class get the highest or lowest score, so that their losses, which have the weight 0, are small.
        """
        positive, negative = self._counts(h)
        high, low = torch.where(positive > 0, h, h.max()), torch.where(negative > 0, h, h.min())
        rows = []
        columns = torch.zeros_like(h)
        size = max(_PAIRS // len(h), 1)
        for start in range(0, len(h), size):
            table = function(high[start : start + size].unsqueeze(1) - low)
            rows.append(table @ negative)
            columns = columns + positive[start : start + size] @ table
        return torch.where(positive > 0, torch.cat(rows), columns)

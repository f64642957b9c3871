"""Losses of pairs of bags, which act on the rows of a batch together."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fcco_lightning.errors import ConfigError
from fcco_lightning.outer.base import OuterFunction


class Pooled(Protocol):
    """What makes one score of the means of a bag."""

    def score(self, u: Tensor) -> Tensor:
        """H of every bag: (m, k) -> (m,), differentiable."""


@dataclass(frozen=True, eq=False, repr=False)
class PooledPairs(OuterFunction):
    r"""Losses of pairs of a positive and a negative bag, divided between the bags: the rows of a batch together.

    With the scores ``h_i = h(u_i)`` of the bags, row i of the n bags, of which n_i are of its class, has

    ``f_i = n / (2 n_i) mean over the rows j of the other class of l(h_i - h_j)``, of negative i ``l(h_j - h_i)``,

    so that the mean of f_i over all n bags is ``F = mean over pairs of l``.  As u_i is in f_j, too,
    :meth:`subgradient` is not the slope of f_i but ``n dF / du_i``, which is ``2 df_i / du_i``.  Both are right on
    average where the rows of the other class are any of its bags with equal chances.  Where a class has no rows, all
    values and slopes are 0.

    It acts on the rows that it was made for, not on single rows, so it is not convex, and smooth as far as l is.

    Args:
        pooling: h.
        loss: l of differences, elementwise and differentiable.
        positive: which rows are positive bags, shape (b,), bool.
        share: n / n_i of every row, shape (b,).
    """

    pooling: Pooled
    loss: Callable[[Tensor], Tensor]
    positive: Tensor
    share: Tensor
    convex = False
    smooth = True

    def __repr__(self) -> str:
        return f"PooledPairs({self.pooling!r}, {self.loss!r}), which compares bags with one another,"

    def take(self, positions: Tensor) -> OuterFunction:
        return PooledPairs(self.pooling, self.loss, self.positive[positions], self.share[positions])

    def value(self, u: Tensor) -> Tensor:
        losses = self._losses(u)
        return self._share_of_a_pair(u) / 2 * (losses.sum(1) + losses.sum(0))

    def subgradient(self, u: Tensor) -> Tensor:
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self._losses(u).sum(), u)
        return self._share_of_a_pair(u).unsqueeze(1) * slope

    def _share_of_a_pair(self, u: Tensor) -> Tensor:
        """What a pair counts in the mean over all rows: n / n_i over the rows of the other class, shape (b,)."""
        positives = self.positive.sum()
        partners = torch.where(self.positive, len(self.positive) - positives, positives)
        return (self.share / partners.clamp(min=1)).to(u.dtype)

    def _losses(self, u: Tensor) -> Tensor:
        """The losses of all pairs (b, b): l in the row of a positive and the column of a negative, 0 elsewhere.

        How many there are of each would have to be read from the device.
        """
        if len(u) != len(self.positive):
            raise ConfigError(
                f"{self!r} was made for {len(self.positive)} bags, not for {len(u)}. Use take(positions) for some of "
                "its rows."
            )
        h = self.pooling.score(u)
        pairs = self.positive.unsqueeze(1) & ~self.positive
        losses = self.loss(torch.where(pairs, h.unsqueeze(1) - h, 0.0))
        return torch.where(pairs, losses, 0.0)

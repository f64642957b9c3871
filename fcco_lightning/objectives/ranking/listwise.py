"""Listwise losses with exponentials of scores: ListNet and ListMLE."""

from typing import Literal

import torch
from torch import Tensor

from fcco_lightning.checks import one_of
from fcco_lightning.numerics import exp_with_tangent
from fcco_lightning.objectives.ranking.lists import ListObjective, Lists
from fcco_lightning.outer import Log


class ListNet(ListObjective):
    r"""Cross-entropy of the softmax of the scores of a list against a distribution given by its grades.

    Source: SOX paper, section 5 (listwise ranking); Cao et al. (2007).

    ``F(w) = -(1/Q) sum_q sum over items i of q of P(y_i) log softmax(h)_i``, that is ``f = log`` and
    ``g_i = sum over j in the list of exp(h_j - h_i)``, weighted by P(y_i).  For differences above 60 exp is continued
    by its tangent, so that it does not overflow.  See :class:`ListObjective` for columns and batches.

    Args:
        target: "softmax" is ``P(y_i) = exp(y_i) / sum_j exp(y_j)`` of the original method, with a row for every item;
            "proportional" is ``P(y_i) = y_i / sum_j y_j`` (SOX paper), with rows for items with y_i > 0.

    Raises:
        ConfigError: if ``target`` is neither.
    """

    outer = Log()

    def __init__(self, target: Literal["softmax", "proportional"] = "softmax") -> None:
        super().__init__()
        self.target = one_of("target", target, ("softmax", "proportional"))

    def importance(self, lists: Lists) -> Tensor:
        """P(y_i); for "proportional" 0 in lists without a relevant item."""
        if self.target == "softmax":
            return lists.softmax()
        return lists.grade / lists.total(lists.grade)[lists.of].clamp(min=torch.finfo(torch.float64).tiny)

    def compared(self, difference: Tensor, grades: Tensor, others: Tensor) -> Tensor:  # noqa: ARG002
        """exp(h_j - h_i)."""
        return exp_with_tangent(difference)


class ListMLE(ListObjective):
    r"""Negative log likelihood of the correct order of every list in the Plackett-Luce model.

    Source: named in the SOX paper, section 5; Xia et al. (2008).

    ``F(w) = (1/Q) sum_q sum over items i of q of log g_i``, ``g_i = exp(0) + sum over j with y_j < y_i of exp(h_j -
    h_i)``: item i is chosen before all less relevant items.  Items with equal grades are not compared with each other;
    without ties F is exactly ListMLE.  The least relevant items of a list own no row, and lists with a single grade
    have no influence.  For differences above 60 exp is continued by its tangent, so that it does not overflow.  See
    :class:`ListObjective` for columns and batches.
    """

    outer = Log()

    def importance(self, lists: Lists) -> Tensor:
        """1 for every item that is not among the least relevant of its list."""
        return (lists.grade > lists.extreme("amin")[lists.of]).double()

    def compared(self, difference: Tensor, grades: Tensor, others: Tensor) -> Tensor:
        """exp(h_j - h_i) where j is less relevant than i, else 0."""
        return exp_with_tangent(difference) * (others < grades)

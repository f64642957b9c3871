"""ListNet: cross-entropy between the distributions that grades and scores define on a list."""

from typing import Literal

import torch
from torch import Tensor

from fcco_lightning.checks import one_of
from fcco_lightning.numerics import exp_with_tangent
from fcco_lightning.objectives.lists import ListObjective, Lists
from fcco_lightning.outer import Log


class ListNet(ListObjective):
    r"""Cross-entropy of the softmax of the scores of a list against a distribution made of its grades.

    Source: SOX paper, section 5 (listwise ranking); Cao et al. (2007).

    ``F(w) = -(1/Q) sum_q sum over items i of q of P(y_i) log softmax(h)_i``, that is ``f = log`` and
    ``g_i = sum over j in the list of exp(h_j - h_i)``, weighted by P(y_i).  Beyond a difference of 60, exp goes on as
    its tangent, so that none overflows.  See :class:`ListObjective` for the columns and the batches.

    Args:
        target: "softmax" is ``P(y_i) = exp(y_i) / sum_j exp(y_j)`` of the original method, in which every item owns a
            row; "proportional" is ``P(y_i) = y_i / sum_j y_j`` (SOX paper), in which those with y_i > 0 do.

    Raises:
        ConfigError: if ``target`` is neither.
    """

    outer = Log()

    def __init__(self, target: Literal["softmax", "proportional"] = "softmax") -> None:
        super().__init__()
        self.target = one_of("target", target, ("softmax", "proportional"))

    def importance(self, lists: Lists) -> Tensor:
        """P(y_i); 0 in lists without a relevant item, if it is proportional."""
        if self.target == "softmax":
            return lists.softmax()
        return lists.grade / lists.total(lists.grade)[lists.of].clamp(min=torch.finfo(torch.float64).tiny)

    def compared(self, difference: Tensor, own: Tensor, others: Tensor) -> Tensor:  # noqa: ARG002
        """exp(h_j - h_i)."""
        return exp_with_tangent(difference)

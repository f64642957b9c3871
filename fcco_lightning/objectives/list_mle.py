"""ListMLE: the likelihood of the order of a list."""

from torch import Tensor

from fcco_lightning.numerics import exp_with_tangent
from fcco_lightning.objectives.lists import ListObjective, Lists
from fcco_lightning.outer import Log


class ListMLE(ListObjective):
    r"""Negative log likelihood of the right order of every list in the Plackett-Luce model.

    Source: named in the SOX paper, section 5; Xia et al. (2008).

    ``F(w) = (1/Q) sum_q sum over items i of q of log g_i``, ``g_i = exp(0) + sum over j with y_j < y_i of exp(h_j -
    h_i)``: item i is chosen before all items that are less relevant.  Items of equal grades are in no order, so they
    are not compared with each other; without ties F is exactly ListMLE.  Items with none below them own no row, and
    lists of one grade do not count.  Beyond a difference of 60, exp goes on as its tangent, so that none overflows.
    See :class:`ListObjective` for the columns and the batches.
    """

    outer = Log()

    def importance(self, lists: Lists) -> Tensor:
        """1 for every item that is not among the least relevant of its list."""
        return (lists.grade > lists.extreme("amin")[lists.of]).double()

    def compared(self, difference: Tensor, own: Tensor, others: Tensor) -> Tensor:
        """exp(h_j - h_i) where j is less relevant than i, else 0."""
        return exp_with_tangent(difference) * (others < own)

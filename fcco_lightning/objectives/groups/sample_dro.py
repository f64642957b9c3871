"""Distributionally robust learning: a worst case over weights of the training samples."""

from typing import Any

import torch

from fcco_lightning.ambiguity import AmbiguitySet, DivergencePenalty, Simplex
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.base import Objective, RowDomain
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.objectives.quantities import CrossEntropyLoss, Quantity, one_number_each
from fcco_lightning.outer import OuterFunction, WorstCase


class SampleDRO(Objective):
    r"""``max_{q in Q} sum_i q_i l(w; z_i) - nu D(q, 1/n)`` over the n training samples, for algorithms that keep q.

    With the whole simplex and no penalty it is the largest loss, with a capped simplex the mean of the largest losses
    (CVaR), and with the penalty ``KLPenalty(theta)`` it is ``theta log mean_i exp(l(w; z_i) / theta)``.

    A row is a weight q_i, so every step costs O(n) besides the network.

    Args:
        ambiguity: Q; None for the whole simplex.
        penalty: ``nu D(q, 1/n)``; None for none.
        loss: l; cross-entropy by default.
    Source: PG-SMD paper, eq. (2); DRAGO paper, eq. (1).
    """

    weighs_samples = False
    dtype = torch.float64  # the weights of many samples are small

    def __init__(
        self,
        ambiguity: AmbiguitySet | None = None,
        penalty: DivergencePenalty | None = None,
        loss: Quantity | None = None,
    ) -> None:
        super().__init__()
        self.ambiguity = ambiguity or Simplex()
        self.penalty = penalty
        self.loss = loss or CrossEntropyLoss()
        self.outer: OuterFunction = WorstCase(self.ambiguity)

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:
        """One row for every sample; the ambiguity set must fit the number of samples."""
        self.ambiguity.check(num_samples)
        return super().row_domain(num_samples, columns)

    def check(self, outputs: Any, batch: Columns) -> None:
        self.loss.check(outputs, batch)

    def max_form(self) -> Objective:
        return self

    def measure(self, outputs: Any, batch: Columns) -> tuple[None, Rows]:
        losses = one_number_each(self.loss, outputs, batch, self, "Use another loss, such as CrossEntropyLoss.")
        return None, Rows(losses.unsqueeze(1), torch.ones_like(losses, dtype=torch.bool))

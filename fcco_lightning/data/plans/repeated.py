"""Batches in which every sample comes several times, each time perturbed anew."""

import copy
from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.plans.base import BatchPlan, with_strata


class RepeatedBatches(BatchPlan):
    """The batches of another plan, each of them ``copies`` times in a row: samples x perturbations.

    For objectives whose inner function is an expectation over perturbations of a sample: every copy is perturbed
    independently by the network or the data set, and the copies of a sample have one row, which is given the mean of
    their inner values.  The two halves of a batch hold the same samples with independent perturbations (for an even
    number of copies), as methods need that move dual and primal variables by independent draws.

    Args:
        plan: batches of samples.
        copies: how often a sample comes in its batch, >= 2.

    Example:
        >>> from fcco_lightning.data.plans import UniformBatches
        >>> batch = next(RepeatedBatches(UniformBatches(8, batch_size=2), copies=3).batches(epoch=0)).tolist()
        >>> len(batch), batch[:2] == batch[2:4] == batch[4:]
        (6, True)
    """

    def __init__(self, plan: BatchPlan, copies: int) -> None:
        self.copies = at_least("copies", copies, 2)
        super().__init__(plan.num_rows, plan.batch_size * copies, plan.seed)
        self.plan, self.num_batches, self.stream = plan, plan.num_batches, plan.stream

    def batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield batches of shape (copies B,)."""
        for batch in self.plan.batches(epoch):
            yield torch.tile(batch, (self.copies,))

    @property
    def strata(self) -> Tensor | None:
        """Strata of the plan."""
        return self.plan.strata

    @property
    def stratum_kinds(self) -> Tensor:
        """Kinds of the plan."""
        return self.plan.stratum_kinds

    def weights(self) -> Tensor | None:
        """Weights of the plan: every sample of a batch is repeated equally often."""
        return self.plan.weights()

    def columns(self) -> dict[str, Tensor]:
        """Columns of the plan, and its strata: the pairs of a sample with itself are more likely than others.

        Without weights all samples are one stratum, as if batches without copies were uniform.
        """
        columns = self.plan.columns()
        if "replaced" in columns:
            columns["replaced"] = columns["replaced"] * self.copies
        if "stratum" in columns:
            return columns
        strata = self.plan.strata if columns else None
        return with_strata(columns, torch.zeros(self.num_rows, dtype=torch.int64) if strata is None else strata)

    def second_draw(self) -> Self:
        """Return the copies of the plan's second draw."""
        return type(self)(self.plan.second_draw(), self.copies)

    def _second_half(self) -> Self:
        return copy.copy(self)  # it holds a whole copy of the batch

    def _absence(self, counts: Tensor) -> float:
        return self.plan.absence(counts)

    def _most(self, counts: Tensor) -> int:
        return self.copies * self.plan.most(counts)

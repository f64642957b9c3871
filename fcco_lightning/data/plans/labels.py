"""Batches of a few labels with a fixed number of positives and negatives of each."""

import copy
from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.data.plans.base import (
    BatchPlan,
    cycle,
    mean_product,
    none_drawn_of_each,
    spread_evenly,
    sum_of_largest,
)
from fcco_lightning.errors import ConfigError, DataError


class LabelBatches(BatchPlan):
    r"""Every batch holds positives and negatives of a few labels, as mean average precision over many labels needs.

    A row of the table is a sample with one of its labels (:class:`~fcco_lightning.data.table.LabelTable`).  A batch is
    ``labels_per_batch`` different labels, drawn uniformly, with ``positives_per_label`` and ``negatives_per_label``
    rows of each.  Both classes of every label are gone through in a random order and shuffled anew when exhausted, so
    no row occurs twice in a batch.  It is laid out row by row: one of every label, then the next of every label in the
    same order, with the positives spread evenly.  Contiguous equal parts of it (one per process) therefore hold equal
    shares of every class of every label if their number divides both counts.

    Args:
        task: label t of every row, shape (N,), int64, every number of 0..T-1 at least once.
        y: value of that label, shape (N,), in {0, 1}.
        labels_per_batch: labels in a batch (L), <= T.
        positives_per_label: positives of each of them, over all processes together.
        negatives_per_label: negatives of each of them, likewise.
        seed: whole number >= 0.
        num_batches: batches in an epoch; None for as many as hold, on average, every positive once.

    Raises:
        ConfigError: if ``labels_per_batch`` > T.
        DataError: if the columns are not as described, or a class of a label has fewer rows than a batch asks for.
    """

    def __init__(
        self,
        task: Tensor,
        y: Tensor,
        labels_per_batch: int,
        positives_per_label: int,
        negatives_per_label: int,
        seed: int = 0,
        *,
        num_batches: int | None = None,
    ) -> None:
        self.labels_per_batch = at_least("labels_per_batch", labels_per_batch, 1)
        self.drawn = (
            at_least("negatives_per_label", negatives_per_label, 1),
            at_least("positives_per_label", positives_per_label, 1),
        )
        super().__init__(len(task), self.labels_per_batch * sum(self.drawn), seed)
        self._check(task, y)
        self._strata = 2 * task + (y == 1)
        self.num_labels = int(task.max()) + 1
        self._sizes = torch.bincount(self._strata, minlength=2 * self.num_labels)
        self._check_sizes()
        if num_batches is None:
            num_batches = max(1, int(self._sizes[1::2].sum()) // (self.labels_per_batch * self.drawn[1]))
        self.num_batches = at_least("num_batches", num_batches, 1)
        self._rows = torch.split(torch.argsort(self._strata, stable=True), self._sizes.tolist())  # by stratum
        self._is_positive = spread_evenly(self.drawn[1], sum(self.drawn))

    def batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield batches of shape (L (P + M),); entry j belongs to the batch's label number j mod L."""
        choices, generator = self.generators(epoch)
        chosen_labels = [
            torch.randperm(self.num_labels, generator=choices)[: self.labels_per_batch] for _ in range(self.num_batches)
        ]
        cycles = [cycle(rows, self.drawn[stratum % 2], generator) for stratum, rows in enumerate(self._rows)]
        for chosen in chosen_labels:
            batch = torch.empty(len(self._is_positive), self.labels_per_batch, dtype=torch.int64)
            for place, label in enumerate(chosen.tolist()):
                for value, mask in enumerate((~self._is_positive, self._is_positive)):
                    batch[mask, place] = next(cycles[2 * label + value])
            yield batch.flatten()

    @property
    def strata(self) -> Tensor:
        """``2 t + y`` of every row, shape (N,), int64."""
        return self._strata

    @property
    def num_strata(self) -> int:
        """Two for every label."""
        return 2 * self.num_labels

    @property
    def distinct(self) -> bool:
        """Always: every class of a label has as many rows as a batch asks for."""
        return True

    def weights(self) -> Tensor | None:
        """Weights by class of a label; None where all are 1."""
        drawn = torch.tensor(self.drawn, dtype=torch.float64).repeat(self.num_labels)
        expected = drawn * self.labels_per_batch / self.num_labels
        weights = (self._sizes * self.batch_size / (self.num_rows * expected))[self._strata].float()
        return None if bool((weights == 1).all()) else weights

    def _absence(self, counts: Tensor) -> float:
        """Mean over all choices of labels of the product of the absences from the draws of their classes."""
        own = none_drawn_of_each(self._sizes, counts, torch.tensor(self.drawn).repeat(self.num_labels))
        return mean_product(own[::2] * own[1::2], self.labels_per_batch)

    def _most(self, counts: Tensor) -> int:
        own = torch.minimum(counts.view(-1, 2), torch.tensor(self.drawn)).sum(1)
        return sum_of_largest(own, self.labels_per_batch)

    def _second_half(self) -> Self:
        """Half the rows of every label, exactly so where their number is even."""
        half, rest = copy.copy(self), self._is_positive[len(self._is_positive) // 2 :]
        half.drawn = int((~rest).sum()), int(rest.sum())
        return half

    def _stratum_sizes(self) -> Tensor:
        return self._sizes

    def _check(self, task: Tensor, y: Tensor) -> None:
        if task.shape != y.shape or task.ndim != 1 or not len(task) or task.is_floating_point() or int(task.min()) < 0:
            raise DataError(
                f"task and y must be of one shape (N,) with N >= 1 and task must hold the numbers 0..T-1, got "
                f"{tuple(task.shape)} {task.dtype} and {tuple(y.shape)}. Use LabelSampling with several label columns."
            )
        if not bool(((y == 0) | (y == 1)).all()):
            raise DataError(f"y must hold 0 and 1, got {sorted(set(y.tolist()))[:12]}. Leave out rows without a label.")

    def _check_sizes(self) -> None:
        if self.labels_per_batch > self.num_labels:
            raise ConfigError(
                f"labels_per_batch={self.labels_per_batch} exceeds the {self.num_labels} labels. Lower it."
            )
        needed = torch.tensor(self.drawn).repeat(self.num_labels)
        short = (self._sizes < needed).nonzero().flatten().tolist()
        if short:
            label, value = divmod(short[0], 2)
            name = ("negatives_per_label", "positives_per_label")[value]
            raise DataError(
                f"A batch takes {name}={self.drawn[value]} rows of a label (with several processes it counts those of "
                f"all of them), but label {label} has {int(self._sizes[short[0]])}. Lower {name}, or leave out labels "
                f"that are too rare ({len(short)} classes are too small)."
            )

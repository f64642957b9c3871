"""Batches with a fixed number of positives."""

import copy
from collections.abc import Iterator
from typing import Literal, Self

import torch
from torch import Tensor

from fcco_lightning.checks import fraction
from fcco_lightning.data.plans.base import (
    BatchPlan,
    cycle,
    enough_rows,
    listed_numbers,
    most_of_each,
    none_drawn,
    spread_evenly,
    stratum_weights,
    with_strata,
)
from fcco_lightning.errors import ConfigError, DataError

Prevalence = Literal["data", "batch"]


class BalancedBatches(BatchPlan):
    """Every batch holds the same number of positives, as losses over pairs of a positive and a negative need.

    Each class is gone through in a random order and shuffled anew when exhausted, so within an epoch the counts of any
    two rows of a class differ by one at most.  An epoch is n // batch_size batches.  Positives are spread evenly over
    the positions of a batch, so that contiguous parts of it (one per process) are balanced too.

    Args:
        labels: classes of all rows, shape (n,), values in {0, 1}.
        batch_size: rows in a batch, <= n.
        seed: whole number >= 0.
        positive_fraction: share of positives in a batch, in (0, 1); rounded to whole rows.
        allow_repeats: let a row occur twice in a batch that asks for more rows of a class than there are.
        prevalence: "data" gives every row the weight N_s B / (n B_s), N_s of the n rows and B_s of the B in a batch
            being of its class, so that weighted means over batches estimate means over the data without bias; "batch"
            gives none, and means over batches are those of a population with this share of positives.

    Raises:
        ConfigError: if a batch would hold no positive or no negative.
        DataError: if a class has no rows, or fewer than a batch asks for.
    """

    def __init__(
        self,
        labels: Tensor,
        batch_size: int,
        seed: int = 0,
        *,
        positive_fraction: float = 0.5,
        allow_repeats: bool = False,
        prevalence: Prevalence = "data",
    ) -> None:
        if labels.ndim != 1:
            raise DataError(
                f"Balanced batches need one label per row, shape (n,), got {tuple(labels.shape)}. Use LabelSampling "
                "for several labels, or uniform batches."
            )
        super().__init__(len(labels), batch_size, seed)
        self.num_batches = enough_rows(len(labels), self.batch_size) // self.batch_size
        self.prevalence = checked_prevalence(prevalence)
        self.num_positive = _positives(self.batch_size, positive_fraction)
        self.num_negative = self.batch_size - self.num_positive
        self.allow_repeats = allow_repeats
        if not bool(((labels == 0) | (labels == 1)).all()):
            raise DataError(
                f"Balanced batches need labels in {{0, 1}}, got {listed_numbers(sorted(set(labels.tolist())))}. Use "
                "uniform or grouped batches."
            )
        self._strata = (labels == 1).long()
        self._positives = self._rows_of(labels, 1, self.num_positive)
        self._negatives = self._rows_of(labels, 0, self.num_negative)
        self._is_positive = spread_evenly(self.num_positive, self.batch_size)

    def batches(self, epoch: int) -> Iterator[Tensor]:
        """Yield batches of shape (batch_size,) with ``num_positive`` positives each."""
        generator = self.generator(epoch)
        positives = cycle(self._positives, self.num_positive, generator)
        negatives = cycle(self._negatives, self.num_negative, generator)
        for _ in range(self.num_batches):
            batch = torch.empty(self.batch_size, dtype=torch.int64)
            batch[self._is_positive] = next(positives)
            batch[~self._is_positive] = next(negatives)
            yield batch

    @property
    def strata(self) -> Tensor:
        """Class of every row, shape (n,), int64 in {0, 1}."""
        return self._strata

    def weights(self) -> Tensor | None:
        """Weights by class; None with ``prevalence="batch"``, or if batches have the share of positives of the data."""
        if self.prevalence == "batch":
            return None
        return stratum_weights(self._strata, [self.num_negative, self.num_positive])

    @property
    def distinct(self) -> bool:
        """Whether both classes have as many rows as a batch asks for."""
        return self.num_positive <= len(self._positives) and self.num_negative <= len(self._negatives)

    def columns(self) -> dict[str, Tensor]:
        """``weight``, and the strata where weights do not tell the classes apart, or a batch may hold a row twice."""
        columns = super().columns()
        if self.prevalence == "batch" or (columns and self.distinct):
            return columns
        return with_strata(columns, self._strata)

    def _second_half(self) -> Self:
        half, rest = copy.copy(self), self._is_positive[self.batch_size // 2 :]
        half.num_positive, half.num_negative = int(rest.sum()), int((~rest).sum())
        return half

    def _absence(self, counts: Tensor) -> float:
        """Product over the classes, which are drawn from independently."""
        negative = none_drawn(len(self._negatives), int(counts[0]), self.num_negative)
        return negative * none_drawn(len(self._positives), int(counts[1]), self.num_positive)

    def _most(self, counts: Tensor) -> int:
        drawn = torch.tensor([self.num_negative, self.num_positive])
        return int(most_of_each(self._stratum_sizes(), counts, drawn).sum())

    def _rows_of(self, labels: Tensor, label: int, needed: int) -> Tensor:
        rows = (labels == label).nonzero().flatten()
        if len(rows) == 0:
            raise DataError(f"labels must hold both classes 0 and 1, but none of its {len(labels)} rows is {label}.")
        if len(rows) < needed and not self.allow_repeats:
            raise DataError(
                f"A batch of {self.batch_size} asks for {needed} rows of class {label}, which has {len(rows)}. "
                "Lower batch_size, change positive_fraction, or set allow_repeats=True."
            )
        return rows


def checked_prevalence(prevalence: Prevalence) -> Prevalence:
    """Return ``prevalence``, or raise :class:`ConfigError` if it is neither "data" nor "batch"."""
    if prevalence not in {"data", "batch"}:
        raise ConfigError(
            "prevalence must be 'data' (weights make means over batches estimate means over the data) or 'batch' (no "
            f"weights), got {prevalence!r}."
        )
    return prevalence


def _positives(batch_size: int, positive_fraction: float) -> int:
    count = round(fraction("positive_fraction", positive_fraction) * batch_size)
    if not 1 <= count <= batch_size - 1:
        raise ConfigError(
            f"positive_fraction={positive_fraction!r} of batch_size={batch_size} is {count} positives and "
            f"{batch_size - count} negatives; both must be >= 1. Raise batch_size or move positive_fraction to 0.5."
        )
    return count

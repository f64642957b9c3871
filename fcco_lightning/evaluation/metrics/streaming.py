"""Ranking metrics of splits that do not fit into memory: counts of scores, each figure with a bound of its error."""

from typing import NamedTuple

import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.evaluation.metrics.ranking import binary_labels, finite_scores, same_rows
from fcco_lightning.state.processes import Processes

_MOST_BITS = 24  # 2^24 cells of four counts are 512 MiB


class Bounded(NamedTuple):
    """A figure that is known up to an error.

    Attributes:
        value: The middle of the interval in which the exact figure lies.
        error: Half the length of that interval, so that ``|exact - value| <= error`` (NaN if the value is NaN).
    """

    value: float
    error: float


class ScoreCounts:
    r"""How many samples of each class and group have scores in each of ``2^bits`` cells.

    Samples are added a chunk at a time (:meth:`update`).  The memory is ``2^(bits + 5)`` bytes, 32 MiB by default,
    whatever the number of samples, and so is what processes exchange (:meth:`sum_`).  The counts are sums, hence
    neither the division into chunks or processes nor the order of the samples changes a figure.

    A cell contains the float32 numbers that agree in their first ``bits`` bits: the sign, the 8 bits of the exponent
    and the rest of the mantissa.  The cells therefore need no range of the scores, and two scores of one sign share a
    cell only if they differ by less than the share ``2^-(bits - 9)`` of their size (.0005 by default).

    Every figure is returned with the bound of its error that follows from the counts: no arrangement of the samples
    within their cells lies further away.  That of the area is 0 where no cell contains samples of both classes.  It is
    large where all scores are close to one large number; subtract that number first.

    Args:
        bits: The number of bits that distinguish cells, 10 <= bits <= 24.

    Raises:
        ConfigError: if ``bits`` is not a whole number in 10..24.

    Example:
        >>> counts = ScoreCounts()
        >>> for chunk in torch.tensor([[0.1, 0.4], [0.2, 0.8]]):
        ...     counts.update(chunk, torch.tensor([0, 1]))
        >>> counts.auc()
        Bounded(value=1.0, error=0.0)
    """

    def __init__(self, bits: int = 20) -> None:
        if at_least("bits", bits, 10) > _MOST_BITS:
            raise ConfigError(f"bits must be at most {_MOST_BITS}, got {bits}: the memory is 2^(bits + 5) bytes.")
        self.bits = bits
        self.counts = torch.zeros(2, 2, 2**bits, dtype=torch.int64)  # by group, class and cell, from the lowest score

    def update(self, scores: Tensor, labels: Tensor, groups: Tensor | None = None) -> None:
        """Count the samples of a chunk.

        Args:
            scores: Raw scores, shape (n,), floating point, finite.  Those beyond the range of float32 count as its end.
            labels: Shape (n,), values 0 or 1; a chunk may lack a class.
            groups: Shape (n,), values 0 or 1; None if only figures without groups are wanted.

        Raises:
            DataError: if the shapes differ, there is no sample, or a label or group is not 0 or 1.  No sample of the
                chunk is counted then.
            NonFiniteError: likewise, if a score is NaN or infinite.
        """
        groups = torch.zeros_like(labels) if groups is None else groups
        same_rows(scores=scores, labels=labels, groups=groups)
        cells = _cells(finite_scores(scores), self.bits)
        row = 2 * binary_labels("groups", groups).long() + binary_labels("labels", labels).long()
        self.counts = self.counts.to(row.device)  # on a GPU that is where the processes exchange them
        self.counts.view(-1).index_add_(0, row * 2**self.bits + cells, torch.ones_like(cells))

    def sum_(self, processes: Processes) -> None:
        """Add up the counts of all processes, which all call this once, after their last chunk.

        Args:
            processes: The processes of the job.
        """
        processes.sum_(self.counts)

    def auc(self) -> Bounded:
        r"""Area under the ROC curve, see :func:`~fcco_lightning.evaluation.metrics.auc`.

        Pairs within a cell may be ordered in either way, so that the error is at most
        ``sum over cells of n+_c n-_c / (2 n+ n-)``.

        Raises:
            DataError: if a class has no sample.
        """
        negative, positive = self._classes()
        pairs = positive.sum() * negative.sum()
        below = negative.cumsum(0) - negative
        within = (positive * negative).sum() / (2 * pairs)
        return Bounded(float((positive * below).sum() / pairs + within), float(within))

    def average_precision(self) -> Bounded:
        r"""Average precision, see :func:`~fcco_lightning.evaluation.metrics.average_precision`.

        Let P and N be the positives and negatives above a cell that contains p positives and m negatives.  Its
        positives contribute most where they are equal and lead, ``p (P + p) / (P + N + p)``.  They contribute least
        where the negatives lead and the positives differ, ``sum_{k=1..p} (P + k) / (P + N + m + k)``, which is at least
        p times the mean of the first and the last term, as the terms are concave in k.

        Raises:
            DataError: if a class has no sample.
        """
        m, p = (of_class.flip(0) for of_class in self._classes())
        listed, above = p.cumsum(0) + m.cumsum(0), p.cumsum(0) - p
        highest = p * (above + p) / (listed - m).clamp(min=1)
        first, last = (above + 1) / (listed - p + 1), (above + p) / listed.clamp(min=1)
        return _between(float((p * (first + last)).sum() / 2 / p.sum()), float(highest.sum() / p.sum()))

    def head(self, k: int) -> tuple[Bounded, Bounded]:
        r"""Precision and recall among the k highest scores.

        See :func:`~fcco_lightning.evaluation.metrics.precision_recall_at`.

        Let the cell of the k-th score contain p positives and m negatives, r of which are among the k.  Between
        ``max(0, r - m)`` and ``min(p, r)`` of these are positives.

        Args:
            k: Length of the head of the list, >= 1.

        Raises:
            ConfigError: if ``k`` is not a whole number >= 1.
            DataError: if a class has no sample.
        """
        negative, positive = (of_class.flip(0) for of_class in self._classes())
        listed, found = (negative + positive).cumsum(0), positive.cumsum(0)
        places = min(at_least("k", k, 1), int(listed[-1]))
        cell = int(torch.searchsorted(listed, float(places)))
        m, p, total = float(negative[cell]), float(positive[cell]), float(found[-1])
        r, above = places - (float(listed[cell]) - m - p), float(found[cell]) - p
        low, high = above + max(0.0, r - m), above + min(p, r)
        return _between(low / k, high / k), _between(low / total, high / total)

    def roc_gap(self, num_thresholds: int = 200) -> Bounded:
        r"""Hard ROC gap between the groups, see :func:`~fcco_lightning.evaluation.metrics.roc_gap`.

        The cell of each of the quantiles of the pooled scores is known exactly.  The rate of a group at a threshold
        within a cell lies between the group's rates at the two ends of the cell.

        Args:
            num_thresholds: The number T of quantiles, >= 1.

        Raises:
            ConfigError: if ``num_thresholds`` is not a whole number >= 1.
            DataError: if a class has no sample in one of the groups.
        """
        levels = at_least("num_thresholds", num_thresholds, 1)
        self._require(self.counts.sum(2), "in each group")
        pooled = self.counts.sum((0, 1)).cumsum(0)
        k = torch.arange(levels, device=pooled.device)
        cell = torch.searchsorted(pooled, (2 * k + 1) * pooled[-1] // (2 * levels), right=True)
        sizes = self.counts.sum(2, keepdim=True).double()
        within = self.counts[:, :, cell] / sizes
        most = 1 - self.counts.cumsum(2)[:, :, cell] / sizes + within  # the rates at the lower ends of the cells
        low, high = most[0] - within[0] - most[1], most[0] - most[1] + within[1]
        nearest = torch.maximum(low, -high).clamp(min=0)
        return _between(float(nearest.max()), float(torch.maximum(-low, high).max()))

    def _classes(self) -> Tensor:
        """Return the counts of both classes, shape (2, 2^bits), float64: products of counts exceed whole numbers."""
        counts = self.counts.sum(0)
        self._require(counts.sum(1), "in all")
        return counts.double()

    @staticmethod
    def _require(sizes: Tensor, where: str) -> None:
        if not sizes.all():
            raise DataError(
                f"Ranking metrics need samples of both classes {where}, got {sizes.tolist()} (classes 0 and 1). "
                "Count the whole split, in all processes, before a figure is taken."
            )


def _cells(scores: Tensor, bits: int) -> Tensor:
    """Return the cell of each score, int64: the first bits of float32, arranged so that they rise with the score."""
    limits = torch.finfo(torch.float32)
    # adding 0 turns -0.0 into 0.0, which is equal to it but has other bits
    single = (scores.clamp(limits.min, limits.max).float() + 0.0).contiguous().view(torch.int32).long()
    rising = torch.where(single < 0, -1 - (single & 0x7FFFFFFF), single)
    return (rising + 2**31) >> (32 - bits)


def _between(low: float, high: float) -> Bounded:
    return Bounded((low + high) / 2, (high - low) / 2)

"""How differently a scorer treats two groups: the hard ROC gap of a split, and the curves behind it."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from fcco_lightning.evaluation.metrics import functional


class GroupROC(NamedTuple):
    """The ROC curve of one group.

    Attributes:
        name: The name of the group in a picture.
        fpr: The false positive rates, rising from 0 to 1.
        tpr: The true positive rates at the same thresholds, rising from 0 to 1.
        auc: The area under the curve, in [0, 1].
    """

    name: str
    fpr: Sequence[float]
    tpr: Sequence[float]
    auc: float


class SplitROC(NamedTuple):
    """The ROC curves of both groups on one split.

    Attributes:
        groups: One curve for each group.
        gap: The hard ROC gap, in [0, 1]; None if unknown.
        widest: The (fpr, tpr) point of each group at the threshold where the gap is reached; None if unknown.
    """

    groups: Sequence[GroupROC]
    gap: float | None = None
    widest: Sequence[tuple[float, float]] | None = None


def split_roc(
    scores: Tensor,
    labels: Tensor,
    groups: Tensor,
    names: tuple[str, str] = ("group 0", "group 1"),
    num_thresholds: int = 200,
) -> SplitROC:
    """Collect the ROC curves of two groups, their AUCs, and the hard gap with the points where it is reached.

    Args:
        scores: Raw scores, shape (n,), floating point, finite.
        labels: Shape (n,), values 0 or 1.
        groups: Shape (n,), values 0 or 1; each group needs both labels.
        names: The names of the groups 0 and 1.
        num_thresholds: The number of quantiles for the gap, >= 1.

    Returns:
        Plain numbers, ready for a picture; ``gap`` equals
        :func:`~fcco_lightning.evaluation.metrics.functional.roc_gap`.

    Raises:
        ConfigError: if ``num_thresholds`` is not a whole number >= 1.
        DataError: if the shapes differ, there is no sample, a label or group is not 0 or 1, or a group lacks a class.
        NonFiniteError: if a score is NaN or infinite.
    """
    _, tpr, fpr = functional.group_rates(scores, labels, groups, num_thresholds)
    gaps = (tpr[0] - tpr[1]).abs().maximum((fpr[0] - fpr[1]).abs())
    worst = int(gaps.argmax())
    curves = [_group_roc(name, scores[groups == k], labels[groups == k]) for k, name in enumerate(names)]
    widest = [(float(fpr[k, worst]), float(tpr[k, worst])) for k in range(2)]
    return SplitROC(curves, float(gaps[worst]), widest)


def _group_roc(name: str, scores: Tensor, labels: Tensor) -> GroupROC:
    fpr, tpr = functional.roc_curve(scores, labels)
    return GroupROC(name, fpr.tolist(), tpr.tolist(), float(functional.auc(scores, labels)))

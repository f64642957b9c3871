"""How differently a scorer treats two groups: the hard ROC gap of a split, and the curves behind it."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.metrics import functional
from fcco_lightning.metrics.base import CollectedMetric


class ROCGap(CollectedMetric):
    """Hard ROC gap between two groups, see :func:`~fcco_lightning.metrics.functional.roc_gap`.

    Args:
        num_thresholds: number of quantiles of the pooled scores at which the rates are compared, >= 1.
        kwargs: options of ``torchmetrics.Metric``.

    Raises:
        ConfigError: if ``num_thresholds`` is not a whole number >= 1.
    """

    columns: ClassVar[tuple[str, ...]] = ("scores", "labels", "groups")
    higher_is_better = False

    def __init__(self, num_thresholds: int = 200, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_thresholds = at_least("num_thresholds", num_thresholds, 1)

    def update(self, scores: Tensor, labels: Tensor, groups: Tensor) -> None:
        """Keep one batch.

        Args:
            scores: raw scores, shape (b,), floating point.
            labels: shape (b,), values 0 or 1.
            groups: shape (b,), values 0 or 1; a batch may lack a group or a class of it.

        Raises:
            DataError: if the columns are not of one shape (b,).
        """
        self._append(scores=scores, labels=labels, groups=groups)

    def compute(self) -> Tensor:
        """Return the hard ROC gap of all kept samples, shape (), float64."""
        scores, labels, groups = (self._column(name) for name in self.columns)
        return functional.roc_gap(scores, labels, groups, self.num_thresholds)


class GroupROC(NamedTuple):
    """The ROC curve of one group.

    Attributes:
        name: how the group is called in a picture.
        fpr: false positive rates, rising from 0 to 1.
        tpr: true positive rates at the same thresholds, rising from 0 to 1.
        auc: area under the curve, in [0, 1].
    """

    name: str
    fpr: Sequence[float]
    tpr: Sequence[float]
    auc: float


class SplitROC(NamedTuple):
    """The ROC curves of both groups on one split.

    Attributes:
        groups: one curve a group.
        gap: hard ROC gap, in [0, 1]; None if unknown.
        widest: the (fpr, tpr) point of each group at the threshold where the gap is reached; None if unknown.
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
        scores: raw scores, shape (n,), floating point, finite.
        labels: shape (n,), values 0 or 1.
        groups: shape (n,), values 0 or 1; each group needs both labels.
        names: what to call groups 0 and 1.
        num_thresholds: number of quantiles for the gap, >= 1.

    Returns:
        Plain numbers, ready for a picture; ``gap`` equals :func:`~fcco_lightning.metrics.functional.roc_gap`.

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
    fpr, tpr, _ = functional.roc_curve(scores, labels)
    return GroupROC(name, fpr.tolist(), tpr.tolist(), float(functional.auc(scores, labels)))

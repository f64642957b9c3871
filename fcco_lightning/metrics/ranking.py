"""Ranking metrics of a split as torchmetrics: AUC, average precision, partial AUC.

All take raw scores and are unchanged by strictly increasing maps of them; see :mod:`fcco_lightning.metrics.functional`
for the formulas and the errors that ``compute`` raises.
"""

from typing import Any

from torch import Tensor

from fcco_lightning.metrics import functional
from fcco_lightning.metrics.base import CollectedMetric


class RankingMetric(CollectedMetric):
    """Base of the metrics of scores against binary labels."""

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Keep one batch.

        Args:
            scores: raw scores, shape (b,), floating point.
            labels: shape (b,), values 0 or 1; a batch may hold only one of them.

        Raises:
            DataError: if the columns are not of one shape (b,).
        """
        self._append(scores=scores, labels=labels)


class AUC(RankingMetric):
    """Area under the ROC curve, see :func:`~fcco_lightning.metrics.functional.auc`.

    Args:
        kwargs: options of ``torchmetrics.Metric``.

    Example:
        >>> import torch
        >>> metric = AUC()
        >>> metric.update(torch.tensor([0.1, 0.4]), torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([0.4, 0.8]), torch.tensor([0, 1]))
        >>> metric.compute().item()
        0.875
    """

    def compute(self) -> Tensor:
        """Return the AUC of all kept samples, shape (), float64."""
        return functional.auc(self._column("scores"), self._column("labels"))


class AveragePrecision(RankingMetric):
    """Average precision, see :func:`~fcco_lightning.metrics.functional.average_precision`.

    Args:
        kwargs: options of ``torchmetrics.Metric``.
    """

    def compute(self) -> Tensor:
        """Return the average precision of all kept samples, shape (), float64."""
        return functional.average_precision(self._column("scores"), self._column("labels"))


class PartialAUC(RankingMetric):
    """One-way partial AUC, see :func:`~fcco_lightning.metrics.functional.partial_auc`.

    Args:
        max_fpr: largest false positive rate, in (0, 1].
        min_tpr: smallest true positive rate, in [0, 1).  Give exactly one of the two.
        standardize: 0.5 for chance and 1 for a perfect ranking (McClish) instead of the raw area.
        kwargs: options of ``torchmetrics.Metric``.

    Raises:
        ConfigError: if not exactly one range is given, or it lies outside its interval.
    """

    def __init__(
        self,
        *,
        max_fpr: float | None = None,
        min_tpr: float | None = None,
        standardize: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        functional.partial_auc_width(max_fpr, min_tpr)  # refuse a wrong range before the first epoch, not after it
        self.max_fpr, self.min_tpr, self.standardize = max_fpr, min_tpr, standardize

    def compute(self) -> Tensor:
        """Return the partial AUC of all kept samples, shape (), float64."""
        return functional.partial_auc(
            self._column("scores"),
            self._column("labels"),
            max_fpr=self.max_fpr,
            min_tpr=self.min_tpr,
            standardize=self.standardize,
        )

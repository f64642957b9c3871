"""Ranking metrics of raw scores, as pure tensor functions.

Every function depends only on the order of the scores: a strictly increasing map of them changes no value, so the
scores may be raw outputs of any size.  Scores are compared in float64, so that rounding makes no two different scores
equal, and neither the order of the samples nor the device (CPU or CUDA) changes a value.

Shapes: ``n`` samples, ``m`` distinct scores, ``T`` thresholds.  A sample is predicted positive at a threshold t when
its score is >= t.  TPR is the share of the positives (label 1) that are predicted positive, FPR is the share of the
negatives (label 0) that are.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fcco_lightning.checks import at_least
from fcco_lightning.evaluation.metrics.validation import checked_groups, checked_pair


def auc(scores: Tensor, labels: Tensor) -> Tensor:
    r"""Area under the ROC curve: the Mann-Whitney statistic, with ties counted one half.

    AUC = (1 / (n+ n-)) * sum over positives i, negatives j of  1[s_i > s_j] + 1[s_i = s_j] / 2.
    The cost is O(n log n).

    Args:
        scores: Raw scores, shape (n,), floating point, finite.
        labels: Shape (n,), values 0 or 1, both present.

    Returns:
        The share of correctly ordered pairs, in [0, 1], shape (), float32.

    Raises:
        DataError: if the shapes differ, there is no sample, a label is not 0 or 1, or one class is missing.
        NonFiniteError: if a score is NaN or infinite.

    Example:
        >>> auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 1, 0, 1])).item()
        0.875
    """
    from torchmetrics.functional.classification import binary_auroc  # noqa: PLC0415 - it imports torchvision

    scores, positive = checked_pair(scores, labels)
    area: Tensor = binary_auroc(_ranks(scores), positive.long(), validate_args=False)
    return area


def roc_curve(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute all points of the ROC curve, from (0, 0) to (1, 1), one for each distinct score.

    Args:
        scores: Raw scores, shape (n,), floating point, finite.
        labels: Shape (n,), values 0 or 1, both present.

    Returns:
        ``(fpr, tpr)``, each of shape (m + 1,), float32, rising.

    Raises:
        DataError: if the shapes differ, there is no sample, a label is not 0 or 1, or one class is missing.
        NonFiniteError: if a score is NaN or infinite.

    Example:
        >>> fpr, tpr = roc_curve(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
        >>> fpr.tolist(), tpr.tolist()
        ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    from torchmetrics.functional.classification import binary_roc  # noqa: PLC0415 - it imports torchvision

    scores, positive = checked_pair(scores, labels)
    fpr, tpr, _ = binary_roc(_ranks(scores), positive.long(), validate_args=False)
    return fpr, tpr


def _ranks(scores: Tensor) -> Tensor:
    """Replace scores by their ranks, scaled into (0, 1]; equal scores have equal ranks.

    torchmetrics applies a sigmoid to scores outside [0, 1], which makes large scores equal.  It leaves ranks alone.
    """
    rank: Tensor = torch.unique(scores, return_inverse=True)[1]
    return (rank + 1).double() / len(scores)


class GroupRates(NamedTuple):
    """The rates of both groups at common thresholds.

    Attributes:
        thresholds: Shape (T,), rising, in the unit of the scores, float64.
        tpr: Row k is the true positive rate of group k, shape (2, T), float64.
        fpr: Row k is the false positive rate of group k, shape (2, T), float64.
    """

    thresholds: Tensor
    tpr: Tensor
    fpr: Tensor


def group_rates(scores: Tensor, labels: Tensor, groups: Tensor, num_thresholds: int = 200) -> GroupRates:
    """Compute the rates of both groups at ``num_thresholds`` quantiles of the pooled scores.

    The thresholds are scores themselves (levels (k + 1/2) / T, no interpolation), so they follow any strictly
    increasing map; with T >= n every score is one of them.

    Args:
        scores: Raw scores, shape (n,), floating point, finite.
        labels: Shape (n,), values 0 or 1.
        groups: Shape (n,), values 0 or 1; each group needs both labels.
        num_thresholds: The number T of thresholds, >= 1.

    Returns:
        The rates, see :class:`GroupRates`.

    Raises:
        ConfigError: if ``num_thresholds`` is not a whole number >= 1.
        DataError: if the shapes differ, there is no sample, a label or group is not 0 or 1, or a group lacks a class.
        NonFiniteError: if a score is NaN or infinite.
    """
    levels = at_least("num_thresholds", num_thresholds, 1)
    scores, positive, favoured = checked_groups(scores, labels, groups)
    k = torch.arange(levels, device=scores.device)
    thresholds = scores.sort().values[(2 * k + 1) * len(scores) // (2 * levels)]
    tpr = [_share_at_least(scores[positive & of], thresholds) for of in (~favoured, favoured)]
    fpr = [_share_at_least(scores[~positive & of], thresholds) for of in (~favoured, favoured)]
    return GroupRates(thresholds, torch.stack(tpr), torch.stack(fpr))


def _share_at_least(scores: Tensor, thresholds: Tensor) -> Tensor:
    below = torch.searchsorted(scores.sort().values, thresholds)
    return (len(scores) - below).double() / len(scores)


def roc_gap(scores: Tensor, labels: Tensor, groups: Tensor, num_thresholds: int = 200) -> Tensor:
    r"""Hard ROC gap between two groups, the quantity for which ROC-fairness constraints are a surrogate.

    gap = max over thresholds t of  max(|TPR_0(t) - TPR_1(t)|, |FPR_0(t) - FPR_1(t)|),  t at quantiles of the pooled
    scores (see :func:`group_rates`).  Unlike the surrogate at fixed thresholds it cannot be made small by shifting or
    shrinking all scores.

    Args:
        scores: Raw scores, shape (n,), floating point, finite.
        labels: Shape (n,), values 0 or 1.
        groups: Shape (n,), values 0 or 1; each group needs both labels.
        num_thresholds: The number of quantiles, >= 1.

    Returns:
        The gap in [0, 1] (0: the groups have equal rates at every threshold), shape (), float64.

    Raises:
        ConfigError: if ``num_thresholds`` is not a whole number >= 1.
        DataError: if the shapes differ, there is no sample, a label or group is not 0 or 1, or a group lacks a class.
        NonFiniteError: if a score is NaN or infinite.

    Example:
        >>> scores = torch.tensor([0.1, 0.9, 0.1, 0.2, 0.3])
        >>> roc_gap(scores, torch.tensor([0, 1, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 1])).item()
        1.0
    """
    rates = group_rates(scores, labels, groups, num_thresholds)
    gaps = torch.stack([rates.tpr[0] - rates.tpr[1], rates.fpr[0] - rates.fpr[1]])
    return gaps.abs().max()

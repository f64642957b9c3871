"""Ranking metrics of parts of the list: average precision, partial areas, precision and recall at its head.

As those of :mod:`fcco_lightning.evaluation.metrics.functional`, they depend on the order of the scores only.
"""

import torch
from torch import Tensor

from fcco_lightning.checks import at_least, finite, fraction
from fcco_lightning.errors import ConfigError
from fcco_lightning.evaluation.metrics.functional import roc_curve
from fcco_lightning.evaluation.metrics.validation import checked_pair


def average_precision(scores: Tensor, labels: Tensor) -> Tensor:
    """Average precision: the mean over the positives of the precision among all samples that score no less.

    Args:
        scores: Raw scores, shape (n,), floating point, finite.
        labels: Shape (n,), values 0 or 1, both present.

    Returns:
        The average precision in (0, 1], shape (), float64.

    Raises:
        DataError: if the shapes differ, there is no sample, a label is not 0 or 1, or one class is missing.
        NonFiniteError: if a score is NaN or infinite.

    Example:
        >>> round(average_precision(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])).item(), 4)
        0.8333
    """
    precision, recall = precision_recall_curve(scores, labels)
    return (precision[1:] * recall.diff()).sum()


def precision_recall_curve(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute precision and recall at every distinct score, from the highest score on.

    Args:
        scores: Raw scores, shape (n,), floating point, finite.
        labels: Shape (n,), values 0 or 1, both present.

    Returns:
        ``(precision, recall)``, each of shape (m + 1,), float64.  Recall rises from 0, where the precision counts as 1.

    Raises:
        DataError: if the shapes differ, there is no sample, a label is not 0 or 1, or one class is missing.
        NonFiniteError: if a score is NaN or infinite.
    """
    scores, positive = checked_pair(scores, labels)
    level = torch.unique(scores, return_inverse=True)[1]  # torchmetrics works in float32 here
    found = torch.bincount(level, positive.double()).flip(0).cumsum(0)
    listed = torch.bincount(level).flip(0).cumsum(0)
    precision, recall = found / listed, found / found[-1]
    return torch.cat([precision.new_ones(1), precision]), torch.cat([recall.new_zeros(1), recall])


def partial_auc(scores: Tensor, labels: Tensor, max_fpr: float = 1.0, min_tpr: float = 0.0) -> Tensor:
    r"""Standardised area of the part of the ROC curve with FPR <= max_fpr and TPR >= min_tpr.

    With A the area under the curve within that rectangle, ``(1 + (A - low) / (high - low)) / 2``, where ``high`` is the
    area of the rectangle and ``low`` that under the diagonal in it: 1 for a perfect ranking, 1/2 for a random one.  For
    ``min_tpr = 0`` that is McClish's correction, ``roc_auc_score(max_fpr=...)`` of scikit-learn.

    Args:
        scores: Raw scores, shape (n,), floating point, finite.
        labels: Shape (n,), values 0 or 1, both present.
        max_fpr: Largest false positive rate, in (0, 1].
        min_tpr: Smallest true positive rate, in [0, 1).

    Returns:
        The standardised area, shape (), float64.

    Raises:
        ConfigError: if a rate is out of range.
        DataError: if the shapes differ, there is no sample, a label is not 0 or 1, or one class is missing.
        NonFiniteError: if a score is NaN or infinite.

    Example:
        >>> scores, labels = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])
        >>> round(partial_auc(scores, labels, max_fpr=0.5).item(), 4), partial_auc(scores, labels).item()
        (0.6667, 0.75)
    """
    fraction("max_fpr", max_fpr)
    if not 0 <= finite("min_tpr", min_tpr) < 1:
        raise ConfigError(f"min_tpr must lie in [0, 1), got {min_tpr!r}.")
    fpr, tpr = (rate.double() for rate in roc_curve(scores, labels))
    left, right, low, high = fpr[:-1], fpr[1:].clamp(max=max_fpr), tpr[:-1], tpr[1:]
    width = (right - left).clamp(min=0)
    step = fpr.diff()
    end = torch.where(step > 0, low + (high - low) * width / step.clamp(min=1e-300), high)  # at the cut
    below, above = low - min_tpr, end - min_tpr
    # within a piece the curve rises from `below` to `above`; only what is above 0 counts
    share = torch.where(below >= 0, 1.0, (above / (above - below).clamp(min=1e-300)).clamp(min=0))
    area = (width * share * (below.clamp(min=0) + above.clamp(min=0)) / 2).sum()
    most, least = max_fpr * (1 - min_tpr), max(0.0, max_fpr - min_tpr) ** 2 / 2
    return (1 + (area - least) / (most - least)) / 2


def precision_recall_at(scores: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Precision and recall among the k samples with the highest scores.

    Of samples with equal scores, of which only some fit into the k, the expectation over their order is taken.  Hits
    are divided by k also where the list is shorter, as torchmetrics does by default: places that stay empty are misses.

    Args:
        scores: Raw scores, shape (n,), floating point, finite.
        labels: Shape (n,), values 0 or 1, both present.
        k: Length of the head of the list, >= 1.

    Returns:
        ``(precision, recall)``, both of shape (), float64.

    Raises:
        ConfigError: if ``k`` is not a whole number >= 1.
        DataError: if the shapes differ, a label is not 0 or 1, or one class is missing.
        NonFiniteError: if a score is NaN or infinite.

    Example:
        >>> precision, recall = precision_recall_at(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1]), 2)
        >>> precision.item(), recall.item()
        (0.75, 0.75)
    """
    scores, positive = checked_pair(scores, labels)
    head = min(at_least("k", k, 1), len(scores))
    last = scores.topk(head).values[-1]
    above, tied = scores > last, scores == last
    places = (head - above.sum()).double()
    hits = positive[above].sum() + places * positive[tied].double().mean()
    return hits / k, hits / positive.sum()

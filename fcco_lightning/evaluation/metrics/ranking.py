"""Ranking metrics of raw scores: areas, gaps between groups, and the head of the list.

Every function depends only on the order of the scores and is invariant under strictly increasing maps, so the
scores may be raw outputs of any size.  Scores are compared in float64, so that rounding makes no two different scores
equal; results do not depend on the order of the samples.  Curves and their areas, with ties and weights, are those of
scikit-learn.  (torchmetrics applies a sigmoid in float32 to scores outside [0, 1], which makes large scores equal.)

Shapes: ``n`` samples, ``m`` distinct scores, ``T`` thresholds.  A sample is predicted positive at a threshold t when
its score is >= t.  TPR is the share of the positives (label 1) that are predicted positive, FPR is the share of the
negatives (label 0) that are.

All functions take ``scores``, raw, shape (n,), floating point and finite, and ``labels``, shape (n,), values 0 or 1,
both present.  ``weight``, shape (n,), are weights of the samples (1 by default); both labels need a positive weight.
Figures are floats, curves are arrays of float64.  Invalid arguments raise :class:`DataError` if the shapes differ,
there is no sample, a label is not 0 or 1, or a class is missing, and :class:`NonFiniteError` if a score is NaN or
infinite.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fcco_lightning.checks import at_least, below_one, fraction
from fcco_lightning.errors import DataError, NonFiniteError
from fcco_lightning.objectives.base import require

Array = npt.NDArray[np.float64]


def auc(scores: Tensor, labels: Tensor, weight: Tensor | None = None) -> float:
    r"""Area under the ROC curve: the Mann-Whitney statistic, with ties counted one half.

    AUC = (1 / (n+ n-)) * sum over positives i, negatives j of  1[s_i > s_j] + 1[s_i = s_j] / 2.
    The cost is O(n log n).

    Args, errors: see the module.

    Returns:
        The share of correctly ordered pairs, in [0, 1].

    Example:
        >>> auc(Tensor([0.1, 0.4, 0.4, 0.8]), Tensor([0, 1, 0, 1]))
        0.875
    """
    return float(_by_sklearn("roc_auc_score", scores, labels, weight))


def roc_curve(scores: Tensor, labels: Tensor, weight: Tensor | None = None) -> tuple[Array, Array]:
    """Compute all points of the ROC curve, from (0, 0) to (1, 1), one for each distinct score.

    Args, errors: see the module.

    Returns:
        ``(fpr, tpr)``, each of shape (m + 1,), rising.

    Example:
        >>> fpr, tpr = roc_curve(Tensor([0.1, 0.4, 0.35, 0.8]), Tensor([0, 0, 1, 1]))
        >>> fpr.tolist(), tpr.tolist()
        ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    fpr, tpr, _ = _by_sklearn("roc_curve", scores, labels, weight, drop_intermediate=False)
    return fpr, tpr


def precision_recall_curve(scores: Tensor, labels: Tensor, weight: Tensor | None = None) -> tuple[Array, Array]:
    """Compute precision and recall at every distinct score, from the highest score on.

    Args, errors: see the module.

    Returns:
        ``(precision, recall)``, each of shape (m + 1,).  Recall rises from 0, where the precision counts as 1.
    """
    precision, recall, _ = _by_sklearn("precision_recall_curve", scores, labels, weight)
    return precision[::-1], recall[::-1]


def average_precision(scores: Tensor, labels: Tensor, weight: Tensor | None = None) -> float:
    """Average precision: the mean over the positives of the precision among all samples that score no less.

    Args, errors: see the module.

    Returns:
        The average precision in (0, 1].

    Example:
        >>> round(average_precision(Tensor([0.1, 0.4, 0.35, 0.8]), Tensor([0, 0, 1, 1])), 4)
        0.8333
    """
    return float(_by_sklearn("average_precision_score", scores, labels, weight))


def partial_auc(
    scores: Tensor, labels: Tensor, max_fpr: float = 1.0, min_tpr: float = 0.0, weight: Tensor | None = None
) -> float:
    r"""Standardised area of the part of the ROC curve with FPR <= max_fpr and TPR >= min_tpr.

    With A the area under the curve within that rectangle, ``(1 + (A - low) / (high - low)) / 2``, where ``high`` is the
    area of the rectangle and ``low`` that under the diagonal in it: 1 for a perfect ranking, 1/2 for a random one.  For
    ``min_tpr = 0`` that is McClish's correction, ``roc_auc_score(max_fpr=...)`` of scikit-learn.

    Args:
        scores: See the module, also for errors of scores and labels.
        labels: Likewise.
        max_fpr: Largest false positive rate, in (0, 1].
        min_tpr: Smallest true positive rate, in [0, 1).
        weight: Likewise.

    Raises:
        ConfigError: if a rate is out of range.

    Example:
        >>> scores, labels = Tensor([0.1, 0.4, 0.35, 0.8]), Tensor([0, 0, 1, 1])
        >>> round(partial_auc(scores, labels, max_fpr=0.5), 4), partial_auc(scores, labels)
        (0.6667, 0.75)
    """
    fraction("max_fpr", max_fpr)
    below_one("min_tpr", min_tpr)
    fpr, tpr = roc_curve(scores, labels, weight)
    cut = np.searchsorted(fpr, max_fpr, "right")  # the curve up to max_fpr, and its point there
    x, y = np.append(fpr[:cut], max_fpr), np.append(tpr[:cut], np.interp(max_fpr, fpr, tpr))
    level = np.searchsorted(y, min_tpr)  # where it reaches min_tpr
    x, y = np.insert(x, level, np.interp(min_tpr, y, x)), np.insert(y, level, min_tpr)
    area = np.trapezoid((y - min_tpr).clip(min=0), x)
    largest, smallest = max_fpr * (1 - min_tpr), max(0.0, max_fpr - min_tpr) ** 2 / 2
    return float((1 + (area - smallest) / (largest - smallest)) / 2)


def precision_recall_at(scores: Tensor, labels: Tensor, k: int, weight: Tensor | None = None) -> tuple[float, float]:
    """Precision and recall among the k samples with the highest scores, where a sample fills ``weight`` places.

    If samples tie for the last of the k places, the expectation over their order is computed.  The number of positives
    is divided by k even if the list is shorter, as torchmetrics does by default: empty places are misses.

    Args:
        scores: See the module, also for errors of scores and labels.
        labels: Likewise.
        k: Length of the head of the list, >= 1.
        weight: Likewise.

    Returns:
        ``(precision, recall)``.

    Raises:
        ConfigError: if ``k`` is not a whole number >= 1.

    Example:
        >>> precision_recall_at(Tensor([0.1, 0.4, 0.4, 0.8]), Tensor([0, 0, 1, 1]), 2)
        (0.75, 0.75)
    """
    s, positive, count = _checked(scores, labels, weight)
    head = min(at_least("k", k, 1), count.sum())
    order = np.argsort(-s)
    filled = count[order].cumsum()
    last = s[order][min((filled < head * (1 - 1e-12)).sum(), len(s) - 1)]
    higher, tied, hit = s > last, s == last, count * positive
    hits = hit[higher].sum() + (head - count[higher].sum()) * hit[tied].sum() / count[tied].sum()
    return float(hits / k), float(hits / hit.sum())


def group_rates(
    scores: Tensor, labels: Tensor, groups: Tensor, num_thresholds: int = 200, weight: Tensor | None = None
) -> tuple[Array, Array]:
    """Compute the rates of two groups at ``num_thresholds`` quantiles of the pooled scores.

    The thresholds are scores themselves (levels (k + 1/2) / T, no interpolation), so they follow any strictly
    increasing map; with T >= n every score is one of them.

    Args:
        scores: See the module, also for errors of scores and labels.
        labels: Likewise.
        groups: The groups, shape (n,), values 0 or 1, each with both labels.
        num_thresholds: The number T of thresholds, >= 1.
        weight: Likewise.

    Returns:
        ``(thresholds, rates)``: the thresholds, shape (T,), rising; and the false (``rates[0]``) and the true positive
        rates (``rates[1]``) of both groups, shape (2, 2, T).

    Raises:
        ConfigError: if ``num_thresholds`` is not a whole number >= 1.
        DataError: also if a group is not 0 or 1, or lacks a label.
    """
    levels = at_least("num_thresholds", num_thresholds, 1)
    same_rows(scores=scores, labels=labels, groups=groups)
    s, positive, count = _checked(scores, labels, weight)
    favoured = _binary("groups", groups)
    order = np.argsort(s)
    filled = count[order].cumsum()
    positions = (np.arange(levels) + 0.5) / levels * filled[-1] * (1 + 1e-12)  # so that rounding decides on no quantile
    thresholds = s[order][np.searchsorted(filled, positions, "right").clip(max=len(s) - 1)]
    rates = np.empty((2, 2, levels))
    for label, group in np.ndindex(2, 2):
        members = order[(positive[order] == label) & (favoured[order] == group)]
        if not len(members):
            raise DataError(
                f"Each group must hold both labels, got no sample with groups == {group} and labels == {label}. "
                "Use a larger or a stratified split, or another grouping."
            )
        below = np.append(0, count[members].cumsum())
        rates[label, group] = 1 - below[np.searchsorted(s[members], thresholds)] / below[-1]
    return thresholds, rates


def roc_gap(
    scores: Tensor, labels: Tensor, groups: Tensor, num_thresholds: int = 200, weight: Tensor | None = None
) -> float:
    r"""Hard ROC gap between two groups, the quantity for which ROC-fairness constraints are a surrogate.

    gap = max over thresholds t of  max(|TPR_0(t) - TPR_1(t)|, |FPR_0(t) - FPR_1(t)|),  t at quantiles of the pooled
    scores.  Unlike the surrogate at fixed thresholds it cannot be made small by shifting or shrinking all scores.

    Args, errors: as of :func:`group_rates`.

    Returns:
        The gap in [0, 1] (0: the groups have equal rates at every threshold).

    Example:
        >>> scores = Tensor([0.1, 0.9, 0.1, 0.2, 0.3])
        >>> roc_gap(scores, Tensor([0, 1, 0, 1, 1]), Tensor([0, 0, 1, 1, 1]))
        1.0
    """
    _, rates = group_rates(scores, labels, groups, num_thresholds, weight)
    return float(np.abs(rates[:, 0] - rates[:, 1]).max())


def same_rows(**columns: Tensor) -> None:
    """Raise :class:`DataError` unless all columns have one shape (n,)."""
    shapes = {name: tuple(column.shape) for name, column in columns.items()}
    if len(set(shapes.values())) != 1 or any(len(shape) != 1 for shape in shapes.values()):
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise DataError(f"Metrics need columns of one shape (n,), got {listed}. Flatten a trailing 1 with squeeze(-1).")


def _by_sklearn(metric: str, scores: Tensor, labels: Tensor, weight: Tensor | None, **options: Any) -> Any:
    """The value of a metric of scikit-learn for scores and labels, after checking them."""
    from sklearn import metrics  # noqa: PLC0415 - no command waits for it at its start

    s, positive, count = _checked(scores, labels, weight)
    return getattr(metrics, metric)(positive, s, sample_weight=None if weight is None else count, **options)


def _checked(scores: Tensor, labels: Tensor, weight: Tensor | None) -> tuple[Array, npt.NDArray[np.bool_], Array]:
    """Scores, ``labels == 1`` and weights, shape (n,) each, after the checks that the module names."""
    same_rows(scores=scores, labels=labels, **({} if weight is None else {"weight": weight}))
    if not scores.is_floating_point():
        raise DataError(f"scores must be floating point (raw model outputs), got {scores.dtype}.")
    if scores.numel() == 0:
        raise DataError("Metrics need at least one sample, got none. Is the split empty?")
    finite = scores.isfinite()
    if not finite.all():
        position = int((~finite).nonzero()[0])
        count = f"{int((~finite).sum())} of {len(scores)} are not"
        raise NonFiniteError(f"scores must be finite, got {scores[position].item()} at position {position} ({count}).")
    positive = _binary("labels", labels)
    if positive.all() or not positive.any():
        present = int(positive[0])
        raise DataError(
            f"labels must hold both classes, got {len(labels)} samples of class {present} and none of class "
            f"{1 - present}. Compute ranking metrics over a whole split, not over a batch."
        )
    weights = np.ones(len(labels)) if weight is None else weight.detach().double().cpu().numpy()
    for label in (1, 0):
        if not weights[positive == label].any():
            raise DataError(f"all samples with the label {label} have the weight 0. Give some of them a weight > 0.")
    return scores.detach().double().cpu().numpy(), positive, weights


def _binary(name: str, values: Tensor) -> npt.NDArray[np.bool_]:
    """``values == 1`` (n,), or an error if a value is not 0 or 1."""
    is_one = values == 1
    require(is_one | (values == 0), values, f"{name} must be 0 or 1", "Recode them.")
    return is_one.cpu().numpy()

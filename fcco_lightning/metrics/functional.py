"""Ranking metrics of raw scores, as pure tensor functions.

Every function reads only the order of the scores: a strictly increasing map of them changes no value, and nothing here
applies a sigmoid.  Scores are compared in float64, so that no two different scores become equal on the way in, and the
rankings are counted in int64, so the value does not depend on the order of the samples nor on the device (CPU or CUDA).

Shapes: ``n`` samples, ``m`` distinct scores, ``T`` thresholds.  A sample is predicted positive at a threshold t when
its score is >= t.  TPR is the share of the positives (label 1) predicted positive, FPR that of the negatives (label 0).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fcco_lightning.checks import at_least, fraction
from fcco_lightning.errors import ConfigError
from fcco_lightning.metrics.validation import checked_groups, checked_pair, checked_thresholds


class _Counts(NamedTuple):
    """Cumulative counts at the distinct scores, from the highest down; each shape (m,)."""

    thresholds: Tensor
    tp: Tensor
    fp: Tensor


def _counts(scores: Tensor, positive: Tensor) -> _Counts:
    order = scores.argsort(descending=True)
    ranked = scores[order]
    # Tied samples enter together: only the last one of each run of equal scores is a point of the curve.
    ends = torch.cat([ranked[1:] != ranked[:-1], ranked.new_ones(1, dtype=torch.bool)]).nonzero().squeeze(1)
    tp = positive[order].cumsum(0)[ends]
    return _Counts(ranked[ends], tp, ends + 1 - tp)


def _with_origin(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts])


def auc(scores: Tensor, labels: Tensor) -> Tensor:
    r"""Area under the ROC curve, as the Mann-Whitney statistic with ties counted one half.

    AUC = (1 / (n+ n-)) * sum over positives i, negatives j of  1[s_i > s_j] + 1[s_i = s_j] / 2.
    Costs O(n log n); the sum is exact (integers), only the final division rounds.

    Args:
        scores: raw scores, shape (n,), floating point, finite.
        labels: shape (n,), values 0 or 1, both present.

    Returns:
        Share of correctly ordered pairs in [0, 1], shape (), float64, on the device of ``scores``.

    Raises:
        DataError: if the shapes differ, there is no sample, a label is not 0 or 1, or one class is missing.
        NonFiniteError: if a score is NaN or infinite.

    Example:
        >>> auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 1, 0, 1])).item()
        0.875
    """
    counts = _counts(*checked_pair(scores, labels))
    tp, fp = _with_origin(counts.tp), _with_origin(counts.fp)
    twice_area = (fp.diff() * (tp[1:] + tp[:-1])).sum()
    return twice_area.double() / (2 * tp[-1] * fp[-1]).double()


def average_precision(scores: Tensor, labels: Tensor) -> Tensor:
    r"""Area under the precision-recall curve as a step function: sum over k of (R_k - R_{k-1}) P_k.

    P_k and R_k are precision and recall at the k-th highest distinct score, so tied samples share one precision
    (the convention of scikit-learn).

    Args:
        scores: raw scores, shape (n,), floating point, finite.
        labels: shape (n,), values 0 or 1, both present.

    Returns:
        Average precision in (0, 1], shape (), float64; about the share of positives for random scores.

    Raises:
        DataError: if the shapes differ, there is no sample, a label is not 0 or 1, or one class is missing.
        NonFiniteError: if a score is NaN or infinite.

    Example:
        >>> average_precision(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])).item()
        0.8333333333333333
    """
    counts = _counts(*checked_pair(scores, labels))
    precision = counts.tp.double() / (counts.tp + counts.fp).double()
    return (_with_origin(counts.tp).diff() * precision).sum() / counts.tp[-1]


def roc_curve(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All points of the ROC curve, from (0, 0) to (1, 1), one for each distinct score.

    Args:
        scores: raw scores, shape (n,), floating point, finite.
        labels: shape (n,), values 0 or 1, both present.

    Returns:
        ``(fpr, tpr, thresholds)``, each shape (m + 1,), float64.  The thresholds fall; the first is +inf (nothing is
        predicted positive).  As scikit-learn's with ``drop_intermediate=False``.

    Raises:
        DataError: if the shapes differ, there is no sample, a label is not 0 or 1, or one class is missing.
        NonFiniteError: if a score is NaN or infinite.

    Example:
        >>> fpr, tpr, _ = roc_curve(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
        >>> fpr.tolist(), tpr.tolist()
        ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    thresholds, tp, fp = _counts(*checked_pair(scores, labels))
    highest = thresholds.new_full((1,), torch.inf)
    tpr, fpr = _with_origin(tp).double() / tp[-1], _with_origin(fp).double() / fp[-1]
    return fpr, tpr, torch.cat([highest, thresholds])


def partial_auc(
    scores: Tensor,
    labels: Tensor,
    *,
    max_fpr: float | None = None,
    min_tpr: float | None = None,
    standardize: bool = True,
) -> Tensor:
    r"""One-way partial AUC: the area under the ROC curve within FPR <= ``max_fpr`` or within TPR >= ``min_tpr``.

    With ``max_fpr = b``:  A = integral over fpr in [0, b] of TPR(fpr).
    With ``min_tpr = a``:  A = integral over tpr in [a, 1] of 1 - FPR(tpr), and b = 1 - a below.
    The curve is linear between its points.  ``standardize`` applies McClish's map (1 + (A - b^2/2) / (b - b^2/2)) / 2,
    after which chance is 0.5 and a perfect ranking is 1; without it A lies in [0, b].

    Args:
        scores: raw scores, shape (n,), floating point, finite.
        labels: shape (n,), values 0 or 1, both present.
        max_fpr: largest false positive rate, in (0, 1]; 1 gives the full AUC.
        min_tpr: smallest true positive rate, in [0, 1); 0 gives the full AUC.  Give exactly one of the two.
        standardize: return the standardised value (as scikit-learn's ``roc_auc_score(max_fpr=...)``) instead of A.

    Returns:
        Shape (), float64, on the device of ``scores``.

    Raises:
        ConfigError: if not exactly one range is given, or it lies outside its interval.
        DataError: if the shapes differ, there is no sample, a label is not 0 or 1, or one class is missing.
        NonFiniteError: if a score is NaN or infinite.

    Source:
        D. McClish, Analyzing a portion of the ROC curve, Medical Decision Making (1989).

    Example:
        >>> scores, labels = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])
        >>> partial_auc(scores, labels, max_fpr=0.5, standardize=False).item()
        0.25
    """
    width = partial_auc_width(max_fpr, min_tpr)
    scores, positive = checked_pair(scores, labels)
    if min_tpr is not None:
        # Swapping the classes and the order turns (FPR, TPR) into (1 - TPR, 1 - FPR): the same area.
        scores, positive = -scores, ~positive
    area = _area_up_to(_counts(scores, positive), width)
    chance = width**2 / 2
    return (1 + (area - chance) / (width - chance)) / 2 if standardize else area


def partial_auc_width(max_fpr: float | None, min_tpr: float | None) -> float:
    """Return the width b of the range of :func:`partial_auc`; raises :class:`ConfigError` as documented there."""
    if (max_fpr is None) == (min_tpr is None):
        raise ConfigError(f"Give exactly one of max_fpr and min_tpr, got max_fpr={max_fpr!r}, min_tpr={min_tpr!r}.")
    if max_fpr is not None:
        return fraction("max_fpr", max_fpr)
    if min_tpr is None or not 0 <= min_tpr < 1:
        raise ConfigError(f"min_tpr must lie in [0, 1), got {min_tpr!r}.")
    return 1 - min_tpr


def _area_up_to(counts: _Counts, width: float) -> Tensor:
    tpr = _with_origin(counts.tp).double() / counts.tp[-1]
    fpr = _with_origin(counts.fp).double() / counts.fp[-1]
    steps = fpr.diff()
    kept = (width - fpr[:-1]).clamp(min=0).minimum(steps)
    share = torch.where(steps > 0, kept / steps, 0.0)  # how much of each segment lies inside the range
    ends = tpr[:-1] + share * tpr.diff()
    return (kept * (tpr[:-1] + ends)).sum() / 2


def rates_at(scores: Tensor, labels: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """True and false positive rates at given thresholds.

    TPR(t) = #{i: y_i = 1, s_i >= t} / n+  and  FPR(t) = #{i: y_i = 0, s_i >= t} / n-.

    Args:
        scores: raw scores, shape (n,), floating point, finite.
        labels: shape (n,), values 0 or 1, both present.
        thresholds: any shape (T,), floating point, in the unit of the scores; infinities are allowed.

    Returns:
        ``(tpr, fpr)``, each of the shape of ``thresholds``, float64.

    Raises:
        DataError: if the shapes differ, there is no sample, a label is not 0 or 1, or one class is missing.
        NonFiniteError: if a score is NaN or infinite, or a threshold is NaN.

    Example:
        >>> tpr, fpr = rates_at(torch.tensor([-2.0, 0.0, 1.0]), torch.tensor([0, 1, 1]), torch.tensor([-2.0, 0.5]))
        >>> tpr.tolist(), fpr.tolist()
        ([1.0, 0.5], [1.0, 0.0])
    """
    scores, positive = checked_pair(scores, labels)
    thresholds = checked_thresholds(thresholds)
    return _share_at_least(scores[positive], thresholds), _share_at_least(scores[~positive], thresholds)


def _share_at_least(scores: Tensor, thresholds: Tensor) -> Tensor:
    below = torch.searchsorted(scores.sort().values, thresholds.contiguous())
    return (len(scores) - below).double() / len(scores)


class GroupRates(NamedTuple):
    """Rates of both groups at common thresholds.

    Attributes:
        thresholds: shape (T,), rising, unit of the scores, float64.
        tpr: row k is the true positive rate of group k, shape (2, T), float64.
        fpr: row k is the false positive rate of group k, shape (2, T), float64.
    """

    thresholds: Tensor
    tpr: Tensor
    fpr: Tensor


def group_rates(scores: Tensor, labels: Tensor, groups: Tensor, num_thresholds: int = 200) -> GroupRates:
    """Rates of both groups at ``num_thresholds`` quantiles of the pooled scores.

    The thresholds are scores themselves (levels (k + 1/2) / T, no interpolation), so they follow any strictly
    increasing map; with T >= n every score is one of them.

    Args:
        scores: raw scores, shape (n,), floating point, finite.
        labels: shape (n,), values 0 or 1.
        groups: shape (n,), values 0 or 1; each group needs both labels.
        num_thresholds: T >= 1.

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


def roc_gap(scores: Tensor, labels: Tensor, groups: Tensor, num_thresholds: int = 200) -> Tensor:
    r"""Hard ROC gap between two groups, the quantity that ROC-fairness constraints are a surrogate of.

    gap = max over thresholds t of  max(|TPR_0(t) - TPR_1(t)|, |FPR_0(t) - FPR_1(t)|),  t at quantiles of the pooled
    scores (see :func:`group_rates`).  Unlike the surrogate at fixed thresholds it cannot be made small by shifting or
    shrinking all scores.

    Args:
        scores: raw scores, shape (n,), floating point, finite.
        labels: shape (n,), values 0 or 1.
        groups: shape (n,), values 0 or 1; each group needs both labels.
        num_thresholds: number of quantiles, >= 1.

    Returns:
        Gap in [0, 1] (0: the groups have equal rates at every threshold), shape (), float64.

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

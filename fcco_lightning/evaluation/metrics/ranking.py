"""Ranking metrics of raw scores: areas, gaps between groups, and the head of the list.

Every function depends only on the order of the scores and is invariant under strictly increasing maps, so the
scores may be raw outputs of any size.  Scores are compared in float64, so that rounding makes no two different scores
equal; results depend neither on the order of the samples nor on the device (CPU or CUDA).  Figures are float64 on
the CPU.  Curves and their areas, with ties and weights, are those of scikit-learn.  (torchmetrics applies a
sigmoid in float32 to scores outside [0, 1], which makes large scores equal.)

Shapes: ``n`` samples, ``m`` distinct scores, ``T`` thresholds.  A sample is predicted positive at a threshold t when
its score is >= t.  TPR is the share of the positives (label 1) that are predicted positive, FPR is the share of the
negatives (label 0) that are.

All functions take ``scores``, raw, shape (n,), floating point and finite, and ``labels``, shape (n,), values 0 or 1,
both present.  Functions that compare two groups have ``groups``, shape (n,), values 0 or 1, each group with both
labels.  ``weight``, shape (n,), are weights of the samples (1 by default); both labels need a positive weight.
Invalid arguments raise :class:`DataError` if the shapes differ, there is no sample, a label or group is
not 0 or 1, or a class is missing, and :class:`NonFiniteError` if a score is NaN or infinite.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.checks import at_least, below_one, fraction
from fcco_lightning.errors import DataError, NonFiniteError
from fcco_lightning.objectives.base import require


def auc(scores: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    r"""Area under the ROC curve: the Mann-Whitney statistic, with ties counted one half.

    AUC = (1 / (n+ n-)) * sum over positives i, negatives j of  1[s_i > s_j] + 1[s_i = s_j] / 2.
    The cost is O(n log n).

    Args, errors: see the module.

    Returns:
        The share of correctly ordered pairs, in [0, 1], shape ().

    Example:
        >>> auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 1, 0, 1])).item()
        0.875
    """
    return torch.tensor(_by_sklearn("roc_auc_score", scores, labels, weight), dtype=torch.float64)


def roc_curve(scores: Tensor, labels: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute all points of the ROC curve, from (0, 0) to (1, 1), one for each distinct score.

    Args, errors: see the module.

    Returns:
        ``(fpr, tpr)``, each of shape (m + 1,), rising.

    Example:
        >>> fpr, tpr = roc_curve(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
        >>> fpr.tolist(), tpr.tolist()
        ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    fpr, tpr, _ = _by_sklearn("roc_curve", scores, labels, weight, drop_intermediate=False)
    return torch.from_numpy(fpr), torch.from_numpy(tpr)


def precision_recall_curve(scores: Tensor, labels: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute precision and recall at every distinct score, from the highest score on.

    Args, errors: see the module.

    Returns:
        ``(precision, recall)``, each of shape (m + 1,).  Recall rises from 0, where the precision counts as 1.
    """
    precision, recall, _ = _by_sklearn("precision_recall_curve", scores, labels, weight)
    return torch.from_numpy(precision).flip(0), torch.from_numpy(recall).flip(0)


def average_precision(scores: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Average precision: the mean over the positives of the precision among all samples that score no less.

    Args, errors: see the module.

    Returns:
        The average precision in (0, 1], shape ().

    Example:
        >>> round(average_precision(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])).item(), 4)
        0.8333
    """
    return torch.tensor(_by_sklearn("average_precision_score", scores, labels, weight), dtype=torch.float64)


def partial_auc(
    scores: Tensor, labels: Tensor, max_fpr: float = 1.0, min_tpr: float = 0.0, weight: Tensor | None = None
) -> Tensor:
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

    Returns:
        The standardised area, shape ().

    Raises:
        ConfigError: if a rate is out of range.

    Example:
        >>> scores, labels = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])
        >>> round(partial_auc(scores, labels, max_fpr=0.5).item(), 4), partial_auc(scores, labels).item()
        (0.6667, 0.75)
    """
    fraction("max_fpr", max_fpr)
    below_one("min_tpr", min_tpr)
    fpr, tpr = roc_curve(scores, labels, weight)
    left = fpr[:-1]
    right = fpr[1:].clamp(max=max_fpr)
    low = tpr[:-1]
    high = tpr[1:]
    width = (right - left).clamp(min=0)
    step = fpr.diff()
    end = torch.where(step > 0, low + (high - low) * width / step.clamp(min=1e-300), high)  # at the cut
    bottom, top = low - min_tpr, end - min_tpr
    # within a piece the curve rises from `bottom` to `top`; only what is above 0 counts
    share = torch.where(bottom >= 0, 1.0, (top / (top - bottom).clamp(min=1e-300)).clamp(min=0))
    area = (width * share * (bottom.clamp(min=0) + top.clamp(min=0)) / 2).sum()
    largest, smallest = max_fpr * (1 - min_tpr), max(0.0, max_fpr - min_tpr) ** 2 / 2
    return (1 + (area - smallest) / (largest - smallest)) / 2


def precision_recall_at(scores: Tensor, labels: Tensor, k: int, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Precision and recall among the k samples with the highest scores, where a sample fills ``weight`` places.

    If samples tie for the last of the k places, the expectation over their order is computed.  The number of positives
    is divided by k even if the list is shorter, as torchmetrics does by default: empty places are misses.

    Args:
        scores: See the module, also for errors of scores and labels.
        labels: Likewise.
        k: Length of the head of the list, >= 1.
        weight: Likewise.

    Returns:
        ``(precision, recall)``, both of shape ().

    Raises:
        ConfigError: if ``k`` is not a whole number >= 1.

    Example:
        >>> precision, recall = precision_recall_at(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1]), 2)
        >>> precision.item(), recall.item()
        (0.75, 0.75)
    """
    scores, positive = _checked_pair(scores, labels)
    count = _sample_counts(weight, positive)
    head = count.sum().clamp(max=at_least("k", k, 1))
    ranked, order = scores.sort(descending=True)
    filled = count[order].cumsum(0)
    last = ranked[(filled < head * (1 - 1e-12)).sum().clamp(max=len(ranked) - 1)]
    higher, tied, hit = scores > last, scores == last, count * positive
    places = head - count[higher].sum()
    hits = hit[higher].sum() + places * hit[tied].sum() / count[tied].sum()
    return hits / k, hits / hit.sum()


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

    @property
    def gaps(self) -> Tensor:
        """The larger of |TPR_0 - TPR_1| and |FPR_0 - FPR_1| at each threshold, shape (T,)."""
        return (self.tpr[0] - self.tpr[1]).abs().maximum((self.fpr[0] - self.fpr[1]).abs())


def group_rates(
    scores: Tensor, labels: Tensor, groups: Tensor, num_thresholds: int = 200, weight: Tensor | None = None
) -> GroupRates:
    """Compute the rates of both groups at ``num_thresholds`` quantiles of the pooled scores.

    The thresholds are scores themselves (levels (k + 1/2) / T, no interpolation), so they follow any strictly
    increasing map; with T >= n every score is one of them.

    Args:
        scores: See the module, also for errors of scores, labels and groups.
        labels: Likewise.
        groups: Likewise.
        num_thresholds: The number T of thresholds, >= 1.
        weight: Likewise.

    Raises:
        ConfigError: if ``num_thresholds`` is not a whole number >= 1.
    """
    levels = at_least("num_thresholds", num_thresholds, 1)
    scores, positive, favoured = _checked_groups(scores, labels, groups)
    count = _sample_counts(weight, positive)
    k, (ranked, order) = torch.arange(levels, dtype=torch.float64, device=scores.device), scores.sort()
    filled = count[order].cumsum(0)
    positions = (2 * k + 1) / (2 * levels) * filled[-1] * (1 + 1e-12)  # so that rounding decides on no quantile
    thresholds = ranked[torch.searchsorted(filled, positions, right=True).clamp(max=len(ranked) - 1)]
    classes = [
        [positive & group for group in (~favoured, favoured)],
        [~positive & group for group in (~favoured, favoured)],
    ]
    tpr, fpr = (
        torch.stack([_share_at_least(scores[part], count[part], thresholds) for part in pair]) for pair in classes
    )
    return GroupRates(thresholds, tpr, fpr)


def _share_at_least(scores: Tensor, count: Tensor, thresholds: Tensor) -> Tensor:
    ranked, order = scores.sort()
    cumulative = torch.nn.functional.pad(count[order].cumsum(0), (1, 0))
    return 1 - cumulative[torch.searchsorted(ranked, thresholds)] / cumulative[-1]


def _sample_counts(weight: Tensor | None, positive: Tensor) -> Tensor:
    """The weights of the samples, (n,), float64."""
    if weight is None:
        return torch.ones_like(positive, dtype=torch.float64)
    same_rows(weight=weight, labels=positive)
    counted = weight.double()
    empty = [label for label, members in ((1, positive), (0, ~positive)) if not bool(counted[members].any())]
    if empty:
        raise DataError(f"all samples with the label {empty[0]} have the weight 0. Give some of them a weight > 0.")
    return counted


def roc_gap(
    scores: Tensor, labels: Tensor, groups: Tensor, num_thresholds: int = 200, weight: Tensor | None = None
) -> Tensor:
    r"""Hard ROC gap between two groups, the quantity for which ROC-fairness constraints are a surrogate.

    gap = max over thresholds t of  max(|TPR_0(t) - TPR_1(t)|, |FPR_0(t) - FPR_1(t)|),  t at quantiles of the pooled
    scores.  Unlike the surrogate at fixed thresholds it cannot be made small by shifting or shrinking all scores.

    Args, errors: as of :func:`group_rates`.

    Returns:
        The gap in [0, 1] (0: the groups have equal rates at every threshold), shape ().

    Example:
        >>> scores = torch.tensor([0.1, 0.9, 0.1, 0.2, 0.3])
        >>> roc_gap(scores, torch.tensor([0, 1, 0, 1, 1]), torch.tensor([0, 0, 1, 1, 1])).item()
        1.0
    """
    return group_rates(scores, labels, groups, num_thresholds, weight).gaps.max()


def _by_sklearn(metric: str, scores: Tensor, labels: Tensor, weight: Tensor | None, **options: Any) -> Any:
    """The value of a metric of scikit-learn for scores and labels, after checking them."""
    from sklearn import metrics  # noqa: PLC0415 - no command waits for it at its start

    scores, positive = _checked_pair(scores, labels)
    count = None if weight is None else _sample_counts(weight, positive).cpu().numpy()
    return getattr(metrics, metric)(positive.cpu().numpy(), scores.cpu().numpy(), sample_weight=count, **options)


def same_rows(**columns: Tensor) -> None:
    """Raise :class:`DataError` unless all columns have one shape (n,)."""
    shapes = {name: tuple(column.shape) for name, column in columns.items()}
    if len(set(shapes.values())) != 1 or any(len(shape) != 1 for shape in shapes.values()):
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise DataError(f"Metrics need columns of one shape (n,), got {listed}. Flatten a trailing 1 with squeeze(-1).")


def finite_scores(scores: Tensor) -> Tensor:
    """Return finite ``scores`` (n,) as float64 without graph, or raise."""
    if not scores.is_floating_point():
        raise DataError(f"scores must be floating point (raw model outputs), got {scores.dtype}.")
    if scores.numel() == 0:
        raise DataError("Metrics need at least one sample, got none. Is the split empty?")
    nonfinite = ~scores.isfinite()
    if nonfinite.any():
        position = int(nonfinite.nonzero()[0])
        count = f"{int(nonfinite.sum())} of {len(scores)} are not"
        raise NonFiniteError(f"scores must be finite, got {scores[position].item()} at position {position} ({count}).")
    return scores.detach().double()


def binary_labels(name: str, values: Tensor) -> Tensor:
    """Return ``values == 1`` (n,) as bool, or raise if a value is not 0 or 1."""
    positive = values == 1
    require(positive | (values == 0), values, f"{name} must be 0 or 1", "Recode them.")
    return positive


def _checked_pair(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return finite ``scores`` (n,) as float64 without graph and ``labels == 1`` (n,) as bool, or raise."""
    same_rows(scores=scores, labels=labels)
    scores, positive = finite_scores(scores), binary_labels("labels", labels)
    if positive.all() or not positive.any():
        present, missing = (1, 0) if positive.all() else (0, 1)
        raise DataError(
            f"labels must hold both classes, got {len(labels)} samples of class {present} and none of class {missing}. "
            "Compute ranking metrics over a whole split, not over a batch."
        )
    return scores, positive


def _checked_groups(scores: Tensor, labels: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what :func:`_checked_pair` returns and ``groups == 1`` (n,) as bool; each group must hold both labels."""
    same_rows(scores=scores, labels=labels, groups=groups)
    scores, positive = _checked_pair(scores, labels)
    favoured = binary_labels("groups", groups)
    for group, members in enumerate((~favoured, favoured)):
        for label, class_members in enumerate((~positive, positive)):
            if not (members & class_members).any():
                raise DataError(
                    f"Each group must hold both labels, got no sample with groups == {group} and labels == {label}. "
                    "Use a larger or a stratified split, or another grouping."
                )
    return scores, positive, favoured

"""Means by group, and figures of the worst groups: worst group, tail, CVaR.

Shapes: ``n`` samples, ``G`` groups.  Everything is computed in float64.  A group without samples has the mean NaN, and
functions of means ignore such groups.  These functions refuse values of another shape than (G,), or without any
present group (:class:`DataError`), and infinite ones (:class:`NonFiniteError`); a share ``alpha`` of the groups must be
in (0, 1] (:class:`ConfigError`).
"""

import math

import torch
from torch import Tensor

from fcco_lightning.checks import at_least, fraction
from fcco_lightning.errors import DataError, NonFiniteError
from fcco_lightning.evaluation.metrics.ranking import same_rows
from fcco_lightning.objectives.base import require

_ROUNDING = 1e-9  # 0.1 * 30 is 3.0000000000000004: three groups, not four


def group_means(values: Tensor, groups: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    r"""Mean of a quantity over each group: ``m_g = (1/n_g) sum_{i: group_i = g} values_i``.

    Args:
        values: one per sample, shape (n,).
        groups: shape (n,), whole numbers in 0..G-1.
        num_groups: G >= 1.

    Returns:
        ``(means, counts)``: m_g, shape (G,), float64, NaN where the group is empty; and n_g, shape (G,), int64.

    Raises:
        ConfigError: if ``num_groups`` is not a whole number >= 1.
        DataError: if the shapes differ, or a group is not a whole number in 0..G-1.

    Example:
        >>> means, counts = group_means(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0, 0, 2]), 3)
        >>> means.tolist(), counts.tolist()
        ([0.5, nan, 1.0], [2, 0, 1])
    """
    sums, counts = group_sums(values, groups, num_groups)
    return sums / counts, counts


def group_sums(values: Tensor, groups: Tensor, num_groups: int) -> tuple[Tensor, Tensor]:
    """Sums of a quantity over each group, and the groups' sizes; arguments and errors as for :func:`group_means`.

    Returns:
        Both of shape (G,): the sums as float64, the sizes as int64.
    """
    size = at_least("num_groups", num_groups, 1)
    same_rows(values=values, groups=groups)
    if groups.is_floating_point() or groups.is_complex():
        raise DataError(f"groups must be whole numbers (int64), got {groups.dtype}. Convert them with .long().")
    groups = groups.long()
    rule = f"groups must lie in 0..{size - 1} (num_groups={size})"
    require((groups >= 0) & (groups < size), groups, rule, "Number the groups from 0.")
    counts = torch.bincount(groups, minlength=size)
    # index_add_ has a deterministic form on the GPU, a weighted bincount has none
    sums = torch.zeros(size, dtype=torch.float64, device=values.device).index_add_(0, groups, values.detach().double())
    return sums, counts


def worst_group(values_by_group: Tensor, *, highest: bool = False) -> Tensor:
    """The lowest of the groups' values (accuracies), or with ``highest`` the highest (losses).

    Args:
        values_by_group: shape (G,), NaN for an absent group.
        highest: whether high values are bad.

    Returns:
        Shape (), float64.
    """
    values, _ = _present(values_by_group)
    return values.max() if highest else values.min()


def num_worst(num_groups: int, alpha: float) -> int:
    """The number of groups in the worst share ``alpha`` of G groups: ``ceil(alpha G)``, at least one.

    A product that exceeds a whole number by rounding alone (at most 1e-9) counts as that number.  Raises
    :class:`ConfigError` if ``num_groups`` is not a whole number >= 1.

    Example:
        >>> [num_worst(30, 0.1), num_worst(31, 0.1), num_worst(2, 0.1)]
        [3, 4, 1]
    """
    return max(1, math.ceil(fraction("alpha", alpha) * at_least("num_groups", num_groups, 1) - _ROUNDING))


def worst_fraction(values_by_group: Tensor, alpha: float, counts: Tensor | None = None) -> Tensor:
    r"""Mean over the ``k = ceil(alpha G)`` groups with the lowest values: the accuracy on the worst alpha G groups.

    ``(1/k) sum_{g in W} m_g``, or pooled over their samples ``sum_{g in W} n_g m_g / sum_{g in W} n_g``, where W is the
    set of these groups.  Absent groups are in neither G nor W.  Groups that tie for the last places of W share these
    places, which matters only for the pooled mean.

    Args:
        values_by_group: m_g, shape (G,), NaN for an absent group.
        alpha: share of the groups, in (0, 1]; k is that of :func:`num_worst`.
        counts: n_g, shape (G,), for the pooled mean; None for the mean over groups.

    Returns:
        Shape (), float64.

    Raises:
        DataError: if the shapes differ.

    Example:
        >>> accuracy = torch.tensor([0.9, 0.5, 0.8, 0.6])
        >>> round(worst_fraction(accuracy, 0.5).item(), 6)
        0.55
        >>> round(worst_fraction(accuracy, 0.5, torch.tensor([10, 30, 10, 10])).item(), 6)
        0.525
    """
    values, present = _present(values_by_group)
    k = num_worst(len(values), alpha)
    last = values.sort().values[k - 1]
    is_lower, is_last = values < last, values == last
    weights = is_lower + is_last * ((k - is_lower.sum()).double() / is_last.sum())
    if counts is not None:
        same_rows(values_by_group=values_by_group, counts=counts)
        weights = weights * counts[present].double()
    return (weights * values).sum() / weights.sum()


def cvar(losses: Tensor, alpha: float) -> Tensor:
    r"""Conditional value at risk of the groups' losses, the mean of the worst ``alpha G`` groups.

    ``CVaR_alpha(L) = min_s  s + (1 / (alpha G)) sum_g [L_g - s]_+  =  max_q  sum_g q_g L_g``  over the capped simplex
    ``sum_g q_g = 1, 0 <= q_g <= 1 / (alpha G)``.  The last group counts by the fractional part of ``alpha G``, while
    :func:`worst_fraction` rounds up to whole groups.  alpha = 1 gives the mean, alpha <= 1/G the maximum.

    Args:
        losses: L_g, shape (G,), NaN for an absent group, which is not counted in G.
        alpha: share of the groups, in (0, 1].

    Returns:
        Shape (), float64, unit of the losses.

    Example:
        >>> round(cvar(torch.tensor([4.0, 1.0, 2.0]), 0.5).item(), 6)  # 1.5 groups: 4 and half of 2
        3.333333
    """
    weights = cvar_weights(losses, alpha)
    return (weights * losses.detach().double().nan_to_num(0.0)).sum()


def cvar_weights(losses: Tensor, alpha: float) -> Tensor:
    r"""The weights q of the groups that attain :func:`cvar`: the gradient of CVaR is ``sum_g q_g grad L_g``.

    ``q_g = 1 / (alpha G)`` above the threshold ``t`` (the ``ceil(alpha G)``-th highest loss), 0 below it, and the
    remaining weight is divided evenly among the groups whose loss equals t.

    Args:
        losses: L_g, shape (G,), NaN for an absent group.
        alpha: share of the groups, in (0, 1].

    Returns:
        q, shape (G,), float64, of sum 1; 0 for an absent group.

    Example:
        >>> cvar_weights(torch.tensor([4.0, 2.0, 2.0, 1.0]), 0.5).tolist()
        [0.5, 0.25, 0.25, 0.0]
    """
    values, present = _present(losses)
    threshold = values.sort(descending=True).values[num_worst(len(values), alpha) - 1]
    is_higher, is_threshold = values > threshold, values == threshold
    q = is_higher.double() / max(1.0, alpha * len(values))  # a weight is at most 1
    q[is_threshold] = (1 - q.sum()).clamp(min=0) / is_threshold.sum()
    weights = torch.zeros_like(losses, dtype=torch.float64)
    weights[present] = q
    return weights


def _present(values_by_group: Tensor) -> tuple[Tensor, Tensor]:
    """The values of the present groups, float64 without graph, and the mask (G,) of these groups."""
    if values_by_group.dim() != 1:
        raise DataError(f"one value a group, shape (G,), is needed, got {tuple(values_by_group.shape)}.")
    values = values_by_group.detach().double()
    present = ~values.isnan()
    if not present.any():
        raise DataError(f"all of the {len(values)} groups are absent (NaN). Is the split empty?")
    if values.isinf().any():
        group = int(values.isinf().nonzero()[0])
        raise NonFiniteError(f"the values of groups must be finite, got {values[group].item()} for group {group}.")
    return values[present], present

"""When decisions or scores are such that a constraint on them holds and says nothing."""

import torch
from torch import Tensor

_EDGE = 0.01  # outliers beyond this share on either side are left out of a span


def quantiles(scores: Tensor, levels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Linearly interpolated quantiles; ``torch.quantile`` refuses more than 2^24 values and half precision.

    Equal scores share their weights, so that the quantiles do not depend on the order in which these come.

    Args:
        scores: shape (n,).
        levels: in [0, 1], shape (k,).
        weight: of the scores, shape (n,): between two neighbours lies the mean of their weights.  None for equal ones.
    """
    ranked, order = scores.sort()
    position = levels * (len(scores) - 1)
    if weight is not None:
        ordered = _shared(weight.index_select(0, order).to(scores.dtype), ranked.detach())
        reached = ((ordered[1:] + ordered[:-1]) / 2).cumsum(0)
        reached = torch.cat([reached.new_zeros(1), reached])
        wanted = levels * reached[-1]
        place = (torch.searchsorted(reached, wanted, right=True) - 1).clamp(0, max(len(scores) - 2, 0))
        gap = reached.diff().index_select(0, place) if len(scores) > 1 else reached.new_ones(len(levels))
        position = place + ((wanted - reached.index_select(0, place)) / gap).clamp(0, 1)
    below = position.floor().long().clamp(max=len(scores) - 1)
    above = (below + 1).clamp(max=len(scores) - 1)
    return torch.lerp(ranked[below], ranked[above], position - below)


def _shared(weight: Tensor, ranked: Tensor) -> Tensor:
    """The mean weight of the scores that equal each, both (n,) and in the order of the scores."""
    first, behind = torch.searchsorted(ranked, ranked), torch.searchsorted(ranked, ranked, right=True)
    first = first.clamp(max=len(ranked) - 1)  # a NaN is behind all
    return weight.new_zeros(len(weight)).index_add(0, first, weight)[first] / (behind - first).clamp(min=1)


def spread(scores: Tensor) -> tuple[float, float]:
    """The 1% and the 99% quantile of scores (n,)."""
    wide = scores.detach().double()
    low, high = quantiles(wide, wide.new_tensor([_EDGE, 1 - _EDGE])).tolist()
    return low, high


def constant_decision(rate: Tensor) -> str | None:
    """Why a smoothed decision says nothing of the hard one: all are alike, or it is too soft to tell.

    Args:
        rate: in [0, 1], more than 1/2 for a positive decision, shape (n,).
    """
    if not len(rate):
        return None
    positive = rate > 0.5
    if not bool(positive.any()) or bool(positive.all()):
        decision = "positive" if bool(positive.any()) else "negative"
        return f"the decisions are constant: every sample is decided {decision}"
    low, high = spread(torch.logit(rate.detach().double(), eps=1e-12))
    if high - low < 1:
        return f"the smoothed decisions are too soft: the scores span {high - low:.3g} temperatures, less than one"
    return None


def too_close(scores: Tensor, unit: float) -> str | None:
    """Why smoothed comparisons of scores say nothing of their order: they differ by less than a unit.

    Args:
        scores: shape (n,).
        unit: of the difference of two scores, in which their comparison is smoothed, > 0.
    """
    if not len(scores):
        return None
    low, high = spread(scores)
    return (
        f"the scores span {high - low:.3g}, less than one unit of the pair loss ({unit:g})"
        if high - low < unit
        else None
    )

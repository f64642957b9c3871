"""Detection of decisions or scores for which a constraint holds vacuously."""

from typing import NamedTuple

import torch
from torch import Tensor

from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import mean_of_equals

_EDGE = 0.01  # fraction of outliers left out of a span on either side; less if a class is rare
_EDGES = (_EDGE, _EDGE)
_FEW = 0.1  # of a class
_ROUNDING = 1e-9
_ASK_FOR_BOTH = (
    ". Ask for decisions of both kinds: --decisions balanced, --decisions.costs [1,10] with a larger cost of the class "
    "that is missed, or with an objective that ranks, as AUC, --decisions.share 0.1"
)


class Enough(NamedTuple):
    """The smallest numbers of negative and of positive decisions for which decisions are not nearly all alike.

    They are a tenth of the negatives, and a tenth of the positives.  With fewer positive decisions at least nine of ten
    positives are missed: all groups have true positive rates near 0, and similar selection rates, for any scores. (A
    fraction of all samples would be too lenient if positives are frequent, and too strict if they are rare.)  Samples
    count by their weights, if they have weights.

    Attributes:
        negative, positive: number of samples, or sum of their weights, >= 0.
        edges: fractions of the scores that are left out of their span at the low and at the high end.
    """

    negative: float = 1.0
    positive: float = 1.0
    edges: tuple[float, float] = _EDGES


_ONE_OF_EACH = Enough()


def enough_decisions(batch: Columns, size: int, positive_share: tuple[float, float] = (0.0, 1.0)) -> Enough:
    """The numbers for a split; without labels of 0 and 1, one decision of each kind.

    Args:
        batch: columns of the split, with ``weight`` if samples have weights.
        size: number of its samples.
        positive_share: required bounds of the fraction of positive decisions, such as a budget: a tenth of the required
            number is enough, too.
    """
    y = batch.get("y")
    if y is None or y.shape not in ((size,), (size, 1)) or not bool(((y >= 0) & (y <= 1)).all()):
        return _ONE_OF_EACH
    (total, positives), (least, most) = masses(y.reshape(-1) == 1, batch.get("weight")), positive_share
    negatives, decided_positives = min(total - positives, (1 - least) * total), min(positives, most * total)
    negative, positive = _FEW * negatives, _FEW * decided_positives
    return Enough(negative, positive, (min(_EDGE, negative / (total or 1)), min(_EDGE, positive / (total or 1))))


def masses(marked: Tensor, weight: Tensor | None) -> tuple[float, float]:
    """The numbers of all samples and of the marked samples, (n,) bool; or the sums of their weights (n,)."""
    counts = torch.ones_like(marked, dtype=torch.float64) if weight is None else weight.double()
    return float(counts.sum()), float(counts[marked].sum())


def quantiles(scores: Tensor, levels: Tensor, weight: Tensor | None = None) -> Tensor:
    """Linearly interpolated quantiles, (k,); unlike ``torch.quantile`` for more than 2^24 values and half precision.

    Equal scores share their weights, so that the quantiles do not depend on the order of the samples.

    Args:
        scores: the scores, shape (n,).
        levels: levels of the quantiles, in [0, 1], shape (k,).
        weight: weights of the scores, shape (n,): the distance of two neighbours is the mean of their weights.  None
            for equal weights.
    """
    ranked, order = scores.sort()
    position = levels * (len(scores) - 1)
    if weight is not None:
        ordered = mean_of_equals(weight.index_select(0, order).to(scores.dtype), ranked.detach())
        reached = ((ordered[1:] + ordered[:-1]) / 2).cumsum(0)
        reached = torch.cat([reached.new_zeros(1), reached])
        targets = levels * reached[-1]
        place = (torch.searchsorted(reached, targets, right=True) - 1).clamp(0, max(len(scores) - 2, 0))
        gap = reached.diff().index_select(0, place) if len(scores) > 1 else reached.new_ones(len(levels))
        gap = torch.where(gap > 0, gap, 1.0)  # two neighbours of weight 0 have the distance 0
        position = place + ((targets - reached.index_select(0, place)) / gap).clamp(0, 1)
    below = position.floor().long().clamp(max=len(scores) - 1)
    above = (below + 1).clamp(max=len(scores) - 1)
    return torch.lerp(ranked[below], ranked[above], position - below)


def spread(scores: Tensor, edges: tuple[float, float] = _EDGES, weight: Tensor | None = None) -> tuple[float, float]:
    """The 1% and the 99% quantile of scores (n,), or those with other fractions left out at either end.

    Samples count by their weights (n,), if given; samples of weight 0 are ignored.
    """
    wide = scores.detach().double()
    if weight is not None:
        wide, weight = wide[weight > 0], weight[weight > 0]
    low, high = quantiles(wide, wide.new_tensor([edges[0], 1 - edges[1]]), weight).tolist()
    return low, high


def constant_decision(rate: Tensor, enough: Enough = _ONE_OF_EACH, weight: Tensor | None = None) -> str | None:
    """A sentence on why a constraint on decisions is vacuous (nearly all are alike, or too soft), or None.

    Args:
        rate: smoothed decisions in [0, 1], above 1/2 for a positive decision, shape (n,).
        enough: required numbers of decisions of either kind; one by default.
        weight: weights of the samples in these numbers, shape (n,); None for equal weights.
    """
    size, positive = masses(rate > 0.5, weight)
    if not size:
        return None
    _, negative = masses(~(rate > 0.5), weight)  # not `size - positive`, which rounding may make > 0
    if not positive or not negative:
        kind = "positive" if positive else "negative"
        return f"the decisions are constant: every sample is decided {kind}{_ASK_FOR_BOTH}"
    for kind, number, least in (
        ("positive", positive, enough.positive),
        ("negative", negative, enough.negative),
    ):
        if number * (1 + _ROUNDING) < least:
            counted = "" if weight is None else ", counted by their weights,"
            return (
                f"the decisions are nearly all alike: {_shown(number)} of {_shown(size)} samples{counted} are decided "
                f"{kind}, less than a tenth of those that are {kind} or asked for ({least / _FEW:.3g}){_ASK_FOR_BOTH}"
            )
    low, high = spread(torch.logit(rate.detach().double(), eps=1e-12), enough.edges, weight)
    if high - low < 1:
        return (
            f"the smoothed decisions are too soft: the scores span {high - low:.3g} temperatures, less than one. Lower "
            "the temperature of the rate"
        )
    return None


def _shown(number: float) -> str:
    return f"{number:,.0f}" if number == round(number) else f"{number:,.1f}"


def by_chance(auc: float, y: Tensor, weight: Tensor | None = None) -> str | None:
    """A sentence on why equal treatment is vacuous (the scores rank positives no better than chance), or None.

    Random scores treat all groups alike.  The AUC of a random order of P positives and N negatives has the standard
    error ``sqrt((P + N + 1) / (12 P N))`` around 1/2 (Mann and Whitney, 1947); an AUC less than two standard errors
    above 1/2 cannot be told from chance.  With weights ``P = (sum w)^2 / sum w^2`` over the positives, and N likewise.

    Args:
        auc: AUC of the scores, weighted if samples have weights.
        y: labels 0 and 1, shape (n,).
        weight: weights of the samples, shape (n,); None for equal weights.
    """
    counts = torch.ones_like(y, dtype=torch.float64) if weight is None else weight.double()
    positives, negatives = (_effective(counts[y == c]) for c in (1, 0))
    if not positives or not negatives:
        return None
    least = 0.5 + 2 * ((positives + negatives + 1) / (12 * positives * negatives)) ** 0.5
    if not auc < least:
        return None
    return (
        f"the scores rank no better than chance may: their AUC is {auc:.3f}, that of random orders up to {least:.3f}. "
        "Train longer, allow a larger kappa, or draw more of the rare class (--data.batches CellSampling) if that is "
        "not done yet"
    )


def _effective(weight: Tensor) -> float:
    """Effective number of samples with weights (n,), whose mean is as precise as that of so many equal weights."""
    squares = float(weight.square().sum())
    return float(weight.sum()) ** 2 / squares if squares else 0.0


def too_close(scores: Tensor, unit: float, weight: Tensor | None = None) -> str | None:
    """A sentence on why smoothed comparisons of scores are vacuous (they span less than a unit), or None.

    Args:
        scores: the scores, shape (n,).
        unit: scale of score differences in the smoothed comparison, > 0.
        weight: weights of the samples, shape (n,); None for equal weights.
    """
    if not len(scores):
        return None
    low, high = spread(scores, weight=weight)
    return (
        f"the scores span {high - low:.3g}, less than one unit of the pair loss ({unit:g}). Lower its scale"
        if high - low < unit
        else None
    )

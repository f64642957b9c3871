"""When decisions or scores are such that a constraint on them holds for nearly any network."""

from typing import NamedTuple

import torch
from torch import Tensor

from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import mean_of_equals

_EDGE = 0.01  # outliers beyond this share on either side are left out of a span; fewer where a class is rare
_EDGES = (_EDGE, _EDGE)
_FEW = 0.1  # of a class
_ROUNDING = 1e-9
_ASK_FOR_BOTH = (
    ". Ask for decisions of both kinds: --decisions balanced, --decisions.costs [1,10] with a larger cost of the class "
    "that is missed, or with an objective that ranks, as AUC, --decisions.share 0.1"
)


class Enough(NamedTuple):
    """How many samples have to be decided negative, and how many positive, so that not nearly all are decided alike.

    That is a tenth of the negatives, and a tenth of the positives.  With fewer positive decisions at least nine of ten
    positives are missed whoever is chosen: all groups have true positive rates near 0, and rates of decisions that
    differ little, whatever the scores are.  Against the number of samples a few decisions would always seem enough
    where positives are many, and never where they are rare.

    Samples that have weights count by them.

    Attributes:
        negative, positive: number of samples, or sum of their weights, >= 0.
        edges: shares of the scores, left out of their span on the low and on the high side, that are no outliers.
    """

    negative: float = 1.0
    positive: float = 1.0
    edges: tuple[float, float] = _EDGES


_ONE_OF_EACH = Enough()


def enough_decisions(batch: Columns, size: int, positive_share: tuple[float, float] = (0.0, 1.0)) -> Enough:
    """What is enough on a split; where labels 0 and 1 are not known, one decision of each kind.

    Args:
        batch: columns of the split, with ``weight`` where samples have weights.
        size: number of its samples.
        positive_share: between which shares of all samples the positive decisions are asked to be, such as a budget: a
            tenth of what is asked for is enough, too.
    """
    y = batch.get("y")
    if y is None or y.shape not in ((size,), (size, 1)) or not bool(((y >= 0) & (y <= 1)).all()):
        return _ONE_OF_EACH
    (total, positives), (least, most) = masses(y.reshape(-1) == 1, batch.get("weight")), positive_share
    negatives, decided_positives = min(total - positives, (1 - least) * total), min(positives, most * total)
    negative, positive = _FEW * negatives, _FEW * decided_positives
    return Enough(negative, positive, (min(_EDGE, negative / (total or 1)), min(_EDGE, positive / (total or 1))))


def masses(marked: Tensor, weight: Tensor | None) -> tuple[float, float]:
    """Number of all samples and of those that are marked, (n,) bool, or the sums of their weights (n,)."""
    counts = torch.ones_like(marked, dtype=torch.float64) if weight is None else weight.double()
    return float(counts.sum()), float(counts[marked].sum())


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
        ordered = mean_of_equals(weight.index_select(0, order).to(scores.dtype), ranked.detach())
        reached = ((ordered[1:] + ordered[:-1]) / 2).cumsum(0)
        reached = torch.cat([reached.new_zeros(1), reached])
        targets = levels * reached[-1]
        place = (torch.searchsorted(reached, targets, right=True) - 1).clamp(0, max(len(scores) - 2, 0))
        gap = reached.diff().index_select(0, place) if len(scores) > 1 else reached.new_ones(len(levels))
        gap = torch.where(gap > 0, gap, 1.0)  # between two samples of weight 0 lies nothing
        position = place + ((targets - reached.index_select(0, place)) / gap).clamp(0, 1)
    below = position.floor().long().clamp(max=len(scores) - 1)
    above = (below + 1).clamp(max=len(scores) - 1)
    return torch.lerp(ranked[below], ranked[above], position - below)


def spread(scores: Tensor, edges: tuple[float, float] = _EDGES, weight: Tensor | None = None) -> tuple[float, float]:
    """The 1% and the 99% quantile of scores (n,), or with other shares of them left out on either side.

    Samples count by their weights (n,), if they have some: those of weight 0 do not.
    """
    wide = scores.detach().double()
    if weight is not None:
        wide, weight = wide[weight > 0], weight[weight > 0]
    low, high = quantiles(wide, wide.new_tensor([edges[0], 1 - edges[1]]), weight).tolist()
    return low, high


def constant_decision(rate: Tensor, enough: Enough = _ONE_OF_EACH, weight: Tensor | None = None) -> str | None:
    """Why smoothed decisions do not stand for hard ones: nearly all are alike, or they are too soft to tell.

    Args:
        rate: in [0, 1], more than 1/2 for a positive decision, shape (n,).
        enough: how many decisions have to be of either kind; one by default.
        weight: of the samples, shape (n,), by which they count in ``enough``; None for equal ones.
    """
    size, positive = masses(rate > 0.5, weight)
    if not size:
        return None
    _, negative = masses(~(rate > 0.5), weight)  # which rounding does not make of none
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
    """Why equal treatment is no merit: the scores rank positives no better than a random order may.

    Such scores treat all groups alike because they know nothing of anyone.  The area under the ROC curve of a random
    order of P positives and N negatives has the standard error ``sqrt((P + N + 1) / (12 P N))`` around 1/2 (Mann and
    Whitney, 1947); what lies less than two of them above 1/2 is not told from chance.  With weights it is the same of
    ``P = (sum w)^2 / sum w^2`` over the positives, and N likewise.

    Args:
        auc: of the scores, where samples have weights by these.
        y: labels 0 and 1, shape (n,).
        weight: of the samples, shape (n,); None for equal ones.
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
    """How many samples of equal weight have means as certain as those with weights, shape (n,); 0 of none."""
    squares = float(weight.square().sum())
    return float(weight.sum()) ** 2 / squares if squares else 0.0


def too_close(scores: Tensor, unit: float, weight: Tensor | None = None) -> str | None:
    """Why smoothed comparisons of scores do not depend on their order: they differ by less than a unit.

    Args:
        scores: shape (n,).
        unit: of the difference of two scores, in which their comparison is smoothed, > 0.
        weight: of the samples, shape (n,); None for equal ones.
    """
    if not len(scores):
        return None
    low, high = spread(scores, weight=weight)
    return (
        f"the scores span {high - low:.3g}, less than one unit of the pair loss ({unit:g}). Lower its scale"
        if high - low < unit
        else None
    )

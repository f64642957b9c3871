"""Quantities that only constraints compare: precisions, rates above thresholds, and losses of pairs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fcco_lightning.checks import positive
from fcco_lightning.constraints.score_scales import ScoreScale
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives import PairLoss, Quantity, SigmoidPair, binary_scores
from fcco_lightning.objectives.base import one_label_each
from fcco_lightning.objectives.ratios import only_of
from fcco_lightning.objectives.vacuity import Enough, spread, too_close
from fcco_lightning.outer import Range

_AT_ONCE = 2**20  # pairs of samples compared at once


class PrecisionOf(Quantity):
    """``q y`` and q, shape (B, 2): the ratio of their means is the precision of positive decisions q.

    Args:
        rate: q.
    """

    numbers = 2

    def __init__(self, rate: Quantity) -> None:
        self.rate, self.range, self.smooths = rate, rate.range, rate.smooths

    def check(self, outputs: Tensor, batch: Columns) -> None:
        self.rate.check(outputs, batch)

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:
        return self._of_both(self.rate(outputs, batch), batch)

    def decided(self, outputs: Tensor, batch: Columns) -> Tensor:
        return self._of_both(self.rate.decided(outputs, batch), batch)

    def _of_both(self, q: Tensor, batch: Columns) -> Tensor:
        return torch.stack([q * (one_label_each(batch, self) == 1), q], dim=1)

    def positive_share(self, batch: Columns) -> tuple[float, float]:
        return self.rate.positive_share(batch)

    def vacuous(self, outputs: Tensor, batch: Columns, enough: Enough, decisions: bool) -> str | None:
        """As for the rate."""
        return self.rate.vacuous(outputs, batch, enough, decisions)


class RatesAbove(Quantity):
    """``sigma((s - tau) / T)`` for several thresholds tau, shape (B, t): the means are the rates of scores above them.

    Args:
        thresholds: tau, in units of ``scale``.
        temperature: T, > 0, in units of ``scale``.
        scale: unit of the scores.
    """

    range = Range(0.0, 1.0)
    smooths = True

    def __init__(self, thresholds: Sequence[float], temperature: float, scale: ScoreScale) -> None:
        self.thresholds, self.scale = tuple(thresholds), scale
        self.temperature = positive("temperature", temperature)
        self.numbers = len(self.thresholds)
        self._levels = Known(torch.tensor(self.thresholds, dtype=torch.float64))

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:
        above = self._above(outputs, batch)
        return torch.sigmoid(above if self.temperature == 1 else above / self.temperature)

    def decided(self, outputs: Tensor, batch: Columns) -> Tensor:
        return (self._above(outputs, batch) > 0).to(outputs.dtype)

    def over(self, shares: Tensor, values: Tensor) -> Tensor:
        return shares @ values  # no `only_of`: sigmoids are finite for all samples

    def _above(self, outputs: Tensor, batch: Columns) -> Tensor:
        """The scores minus every threshold, shape (B, t)."""
        scores = self.scale(binary_scores(outputs), batch.get("weight")).unsqueeze(1)
        return scores - self._levels.like(scores, scores.dtype)

    def vacuous(self, outputs: Tensor, batch: Columns, enough: Enough, decisions: bool) -> str | None:
        """Vacuous if fewer than two thresholds separate scores, or the scores span less than one temperature."""
        weight = batch.get("weight")
        low, high = spread(self.scale(binary_scores(outputs).detach().double(), weight), enough.edges, weight)
        inside = sum(low < t < high for t in self.thresholds)
        if inside < min(2, len(self.thresholds)):
            return (
                f"{inside} of {len(self.thresholds)} thresholds in [{min(self.thresholds):g}, "
                f"{max(self.thresholds):g}] lie within the scores' range [{low:.3g}, {high:.3g}]. "
                "Put them at quantiles (scale: QuantileScores)"
            )
        if high - low < self.temperature and not decisions:
            return (
                f"the scores span {high - low:.3g}, less than one temperature ({self.temperature:g}). Lower it, or use "
                "scale: QuantileScores"
            )
        return None


class LossOfPairs(Quantity):
    """The mean loss ``l(s_i - s_j)`` over the pairs of a positive i and a negative j of a side; 1 - AUC for a sigmoid.

    Args:
        loss: l.
    """

    of_both_classes = True

    def __init__(self, loss: PairLoss) -> None:
        self.loss = loss
        self.range = Range(0.0, 1.0) if isinstance(loss, SigmoidPair) else Range()

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:  # noqa: ARG002
        return binary_scores(outputs)

    def over(self, shares: Tensor, values: Tensor) -> Tensor:
        return pair_losses(self.loss, only_of(shares, values), shares[0], shares[1]).unsqueeze(0)

    def vacuous(self, outputs: Tensor, batch: Columns, enough: Enough, decisions: bool) -> str | None:  # noqa: ARG002
        """Vacuous if all scores are nearly equal: then so are the smoothed AUCs, for any order of the scores."""
        if not isinstance(self.loss, SigmoidPair):
            return None
        return too_close(binary_scores(outputs), self.loss.scale, batch.get("weight"))


def pair_losses(loss: PairLoss, scores: Tensor, positive_shares: Tensor, negative_shares: Tensor) -> Tensor:
    """``sum_ij v_i w_j l(s_i - s_j)`` for the shares v and w of every side, shape (s,).

    Many pairs are computed in blocks of rows; positives are then sorted to the front, so that no block needs the
    samples before it.

    Args:
        loss: l.
        scores: s, shape (B,).
        positive_shares: v, shape (s, B), >= 0.
        negative_shares: w, shape (s, B), 0 for samples with v > 0.
    """
    size = len(scores)
    if size * size <= _AT_ONCE:
        return ((positive_shares @ loss(scores.unsqueeze(1) - scores)) * negative_shares).sum(1)
    order = positive_shares.sum(0).argsort(descending=True)
    s, v, w = (t.index_select(-1, order) for t in (scores, positive_shares, negative_shares))
    rows = max(1, _AT_ONCE // size)
    sums: list[Tensor] = []  # torch.compile cannot call list[Tensor]()
    for i in range(0, size, rows):
        losses = loss(s[i : i + rows].unsqueeze(1) - s[i:])
        sums.append(((v[:, i : i + rows] @ losses) * w[:, i:]).sum(1))
    return torch.stack(sums).sum(0)

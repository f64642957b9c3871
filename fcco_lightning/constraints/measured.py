"""Statistics of the samples of a side: a mean, rates above thresholds, a precision, an AUC."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from fcco_lightning.constraints.decisions import TopShare
from fcco_lightning.constraints.score_scales import ScoreScale
from fcco_lightning.constraints.vacuity import constant_decision, enough_decisions, spread, too_close
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives import ErrorProbability, PairLoss, Quantity, SigmoidPair, binary_scores
from fcco_lightning.objectives.base import one_label_each
from fcco_lightning.objectives.quantities import one_number_each
from fcco_lightning.objectives.ratios import only_of
from fcco_lightning.outer import Range

_AT_ONCE = 2**20  # pairs of samples compared at once


class Statistic(ABC):
    """A statistic of the samples of a side, in which decisions are smoothed.

    Attributes:
        range: an interval that contains the statistic.
        smooths: whether it averages smoothed decisions; :meth:`of_decisions` then returns the decisions themselves.
        numbers: number of inner values per side.
        levels: number of levels at which it is measured; every comparison of sides has a row for each level.
        of_both_classes: whether it uses the samples of both classes of a side together.
    """

    range: Range
    smooths: bool = False
    numbers: int = 1
    levels: int = 1
    of_both_classes: bool = False

    def check(self, outputs: Tensor, batch: Columns) -> None:  # noqa: B027 - scores alone are not misread
        """Refuse outputs and columns that would be misread."""

    @abstractmethod
    def of_samples(self, outputs: Tensor, batch: Columns) -> Tensor:
        """Numbers of the samples, shape (B,) or (B, t), with graph.

        Decisions are smoothed: ``sigmoid((score - threshold) / temperature)``.
        """

    def of_decisions(self, outputs: Tensor, batch: Columns) -> Tensor:
        """The decisions, 0 or 1, that :meth:`of_samples` smooths, in the same shape.

        Raises:
            NotImplementedError: for a statistic without :attr:`smooths`, on which it is never called.
        """
        raise NotImplementedError

    def over(self, shares: Tensor, numbers: Tensor) -> Tensor:
        """The statistic of every class and side, (c, s) or (c, s, t); by default the mean.

        Args:
            shares: weights of the samples in the mean over each class and side, shape (c, s, B).
            numbers: the numbers of the samples, (B,) or (B, t).
        """
        return shares @ only_of(shares, numbers)

    def vacuous(
        self,
        outputs: Tensor,  # noqa: ARG002
        batch: Columns,  # noqa: ARG002
        positive_share: tuple[float, float],  # noqa: ARG002
        *,
        decisions: bool = False,  # noqa: ARG002
    ) -> str | None:
        """A sentence on why every comparison holds for any order of the scores, or None.

        Args:
            outputs: the network's outputs.
            batch: columns.
            positive_share: bounds that the constraint sets for the fraction of positive decisions in a split.
            decisions: whether rates of decisions are enforced themselves, not the smoothed ones.
        """
        return None


class MeanOf(Statistic):
    """The mean of a quantity q of the samples.

    Args:
        quantity: q.
    """

    def __init__(self, quantity: Quantity) -> None:
        self.quantity, self.range = quantity, quantity.range

    @property
    def smooths(self) -> bool:  # type: ignore[override]
        return self.quantity.smooths

    def check(self, outputs: Tensor, batch: Columns) -> None:
        self.quantity.check(outputs, batch)

    def of_samples(self, outputs: Tensor, batch: Columns) -> Tensor:
        remedy = "Use a quantity of one of them, such as a class of your own that picks it, in a constraint for each."
        return one_number_each(self.quantity, outputs, batch, self, remedy)

    def of_decisions(self, outputs: Tensor, batch: Columns) -> Tensor:
        return self.quantity.decided(outputs, batch)

    def positive_share(self, batch: Columns) -> tuple[float, float]:
        """Bounds that q itself sets for the fraction of positive decisions in a split."""
        return self.quantity.positive_share(batch) if isinstance(self.quantity, TopShare) else (0.0, 1.0)

    def vacuous(
        self, outputs: Tensor, batch: Columns, positive_share: tuple[float, float], *, decisions: bool = False
    ) -> str | None:
        """A rate is vacuous if nearly all decisions are equal, or smoothed decisions are too soft."""
        if self.quantity.range != (0.0, 1.0) or isinstance(self.quantity, ErrorProbability):
            return None  # a loss has no decisions, and errors may be rare
        low, high = self.positive_share(batch)
        enough = enough_decisions(batch, len(outputs), (max(low, positive_share[0]), min(high, positive_share[1])))
        rate = self.quantity.decided(outputs, batch) if decisions else self.quantity(outputs, batch)
        return constant_decision(rate, enough, batch.get("weight"))


class PrecisionOf(MeanOf):
    """The means of ``q y`` and of q, whose ratio is the precision of positive decisions q."""

    numbers = 2

    def of_samples(self, outputs: Tensor, batch: Columns) -> Tensor:
        return self._of_both(super().of_samples(outputs, batch), batch)

    def of_decisions(self, outputs: Tensor, batch: Columns) -> Tensor:
        return self._of_both(super().of_decisions(outputs, batch), batch)

    def _of_both(self, q: Tensor, batch: Columns) -> Tensor:
        """``q y`` and q, shape (B, 2)."""
        return torch.stack([q * (one_label_each(batch, self) == 1), q], dim=1)


class RatesAbove(Statistic):
    """The rates of scores above thresholds tau: the means of ``sigma((s - tau) / T)``.

    Args:
        thresholds: tau, in units of ``scale``.
        temperature: T, > 0, in units of ``scale``.
        scale: unit of the scores.
    """

    range = Range(0.0, 1.0)
    smooths = True

    def __init__(self, thresholds: Sequence[float], temperature: float, scale: ScoreScale) -> None:
        self.thresholds = tuple(thresholds)
        self.temperature = temperature
        self.scale = scale
        self.levels = len(self.thresholds)
        self._levels = Known(torch.tensor(self.thresholds, dtype=torch.float64))

    def of_samples(self, outputs: Tensor, batch: Columns) -> Tensor:
        above = self._above(outputs, batch)
        return torch.sigmoid(above if self.temperature == 1 else above / self.temperature)

    def of_decisions(self, outputs: Tensor, batch: Columns) -> Tensor:
        return (self._above(outputs, batch) > 0).to(outputs.dtype)

    def over(self, shares: Tensor, numbers: Tensor) -> Tensor:
        return shares @ numbers  # no `only_of`: sigmoids are finite for all samples

    def _above(self, outputs: Tensor, batch: Columns) -> Tensor:
        """The scores minus every threshold, shape (B, t)."""
        scores = self.scale(binary_scores(outputs), batch.get("weight")).unsqueeze(1)
        return scores - self._levels.like(scores, scores.dtype)

    def vacuous(
        self,
        outputs: Tensor,
        batch: Columns,
        positive_share: tuple[float, float],  # noqa: ARG002
        *,
        decisions: bool = False,
    ) -> str | None:
        """Vacuous if fewer than two thresholds separate scores, or the scores span less than one temperature."""
        edges, weight = enough_decisions(batch, len(outputs)).edges, batch.get("weight")
        low, high = spread(self.scale(binary_scores(outputs).detach().double(), weight), edges, weight)
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


class LossOfPairs(Statistic):
    """The mean loss ``l(s_i - s_j)`` over the pairs of a positive i and a negative j of a side; 1 - AUC for a sigmoid.

    Args:
        loss: l.
    """

    of_both_classes = True

    def __init__(self, loss: PairLoss) -> None:
        self.loss = loss
        self.range = Range(0.0, 1.0) if isinstance(loss, SigmoidPair) else Range()

    def of_samples(self, outputs: Tensor, batch: Columns) -> Tensor:  # noqa: ARG002
        return binary_scores(outputs)

    def over(self, shares: Tensor, numbers: Tensor) -> Tensor:
        return pair_losses(self.loss, only_of(shares, numbers), shares[0], shares[1]).unsqueeze(0)

    def vacuous(
        self,
        outputs: Tensor,
        batch: Columns,
        positive_share: tuple[float, float],  # noqa: ARG002
        *,
        decisions: bool = False,  # noqa: ARG002
    ) -> str | None:
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

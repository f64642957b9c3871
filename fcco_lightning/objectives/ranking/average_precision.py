"""Average precision of one label, and mean average precision over several labels."""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fcco_lightning.checks import at_least, finite, no_label
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import POPULATION, SAMPLE_WEIGHT, Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives.auc.pairwise import PairLoss, SquaredHingePair
from fcco_lightning.objectives.base import (
    RowDomain,
    mean_over_data,
    one_label_each,
    one_tensor,
    required_column,
)
from fcco_lightning.objectives.binary import BinaryObjective
from fcco_lightning.objectives.measurable import Rows, nan_where
from fcco_lightning.objectives.pair_sums import Strata, pair_sums
from fcco_lightning.objectives.ranking.ranking import RankingObjective, known_labels, require_known, sums_over_data
from fcco_lightning.objectives.self_weights import Comparisons, by_strata
from fcco_lightning.outer import Range, Ratio

_RATIOS = 0.1  # recommended weight beside cross-entropy, found on other tables than those of the tests


class AveragePrecision(RankingObjective):
    r"""``-(1/n_+) sum over positives i of g_i1 / g_i2``, a surrogate of minus the average precision.

    Source: SOX paper, eq. (7), erratum SOX-2; SOAP (Qi et al., 2021).

    With pi = n_+/n the prevalence and l the loss of a pair, ``g_i1 = pi mean over positives j of l(s_i - s_j)`` and
    ``g_i2 = g_i1 + (1 - pi) mean over negatives j of l(s_i - s_j)``: up to n, smooth ranks of i among the positives and
    among all samples.  The mean over positives includes i itself, with the loss l(0) and the weight 1/n, so that both
    inner values are at least ``l(0)/n``.  Row i remembers (u_i1, u_i2).

    The estimates of both inner values are unbiased in uniform batches and in batches that describe how they are drawn
    (:class:`~fcco_lightning.objectives.self_weights.Comparisons`): by class or group with weights, with or without
    replacement, with copies.  A batch without samples to represent some of the others is refused.  Balanced batches
    without weights estimate the ranks in a population with the batches' fraction of positives, which is then "the data"
    below; i itself keeps the weight 1/n.

    From random weights the ratio is hard to optimise, so it is better to spend the first three quarters of the epochs
    on cross-entropy, with the same optimizer and schedule.  After that, the ratios alone can overfit a few positives,
    and are better combined with ten times the mean cross-entropy of the network's outputs (figures are in
    ``examples/benchmarks/results/tables_pay.md``). :class:`~fcco_lightning.FCCOModule` does both by default, and
    ``pretrain=None`` switches both off.  In your own loop with an Engine or a Criterion train on :class:`CrossEntropy`
    first, and set ``cross_entropy=10``.

    Args:
        loss: l, non-negative with l(0) > 0; the squared hinge with margin 1 by default.
        prevalence: pi. "data" is that of the training split; a number in (0, 1) sets another one, for example 0.5 for
            the average precision on balanced data.
        sigmoid, cross_entropy: see :class:`BinaryObjective`.  The recommendation is for sigmoids: the cross-entropy
            plus a tenth of the ratios, so that F keeps the scale that it has before.

    Raises:
        ConfigError: if ``prevalence`` is invalid, ``cross_entropy`` is negative or not finite, or l(0) is not positive.
    """

    width = 2
    outer = Ratio()
    recommended_start = (0.75, None)
    recommended_mixture = (1.0, _RATIOS)
    of_sigmoids = True
    seen_alone = (
        "On 12 imbalanced tables average precision without cross-entropy beside it ended behind cross-entropy in its "
        "own figure (-0.010 by fcco fit, at most -0.036): compare with the default (nothing said of cross_entropy, "
        "sigmoid, pretrain and algorithm), or with --model.objective CrossEntropy."
    )
    needs_partner = False  # g_i2 has an unbiased estimate without a negative, too
    _class_changes = (1.0, 1.0)  # weights of negatives and positives for the given prevalence
    _least_weight = 1.0  # smallest weight of a positive, if samples have weights

    def __init__(
        self,
        loss: PairLoss | None = None,
        prevalence: Literal["data"] | float = "data",
        *,
        sigmoid: bool = True,
        cross_entropy: float | None = None,
    ) -> None:
        super().__init__(loss, sigmoid=sigmoid, cross_entropy=cross_entropy)
        require_own_loss(self.loss, self.itself)
        if prevalence != "data" and not 0 < finite("prevalence", prevalence) < 1:
            raise ConfigError(f"prevalence must be 'data' or lie in (0, 1), got {prevalence!r}.")
        self.prevalence = prevalence

    def measure(self, outputs: Any, batch: Columns) -> tuple[Tensor | None, Rows]:
        """The cross-entropy, and for every positive i the estimates of (g_i1, g_i2) of eq. (7)."""
        scores, positive = self.scores(outputs), self._owners(batch)
        among_all = self._counted(positive, scores.dtype)
        among_positives = among_all * positive
        masks = torch.stack([among_positives, among_all])
        sums = sums_over_data(self.loss, scores, masks, batch, self.num_samples, self.itself, positive, self.most)
        return self.with_cross_entropy(None, outputs, batch), Rows(sums, self.row_weights(positive, sums.dtype))

    def _counted(self, positive: Tensor, dtype: torch.dtype) -> Tensor:
        """Weights of the samples for another prevalence than the data's, shape (B,)."""
        negative_change, positive_change = self._class_changes
        if negative_change == positive_change:
            return torch.ones_like(positive, dtype=dtype)
        return negative_change + (positive_change - negative_change) * positive.to(dtype)

    def _know_sizes(self, columns: Columns | None, positive: Tensor) -> tuple[float, float]:
        negatives, positives = super()._know_sizes(columns, positive)
        if self.prevalence != "data":
            n = negatives + positives
            self._class_changes = (1 - self.prevalence) * n / negatives, self.prevalence * n / positives
        if columns is not None and SAMPLE_WEIGHT in columns:
            self._least_weight = float(columns[SAMPLE_WEIGHT][positive].min())
        return negatives, positives

    def _range(self) -> Range:
        """Inner values are at least the contribution of the positive itself."""
        least = self._class_changes[1] * self._least_weight * self.itself
        return Range(least=least / sum(self.class_sizes or (1,)))


class MeanAveragePrecision(BinaryObjective):
    r"""The mean over T labels of :class:`AveragePrecision`: ``-(1/T) sum_t (1/n_t+) sum_i g_ti1 / g_ti2``.

    There is a row for every label t and every positive i of it.  Inner values are those of :class:`AveragePrecision` on
    the n_t samples with a known label t, at least ``l(0)/n_t``.

    Batches come in two forms:

    - all labels of every sample: ``y`` (B, T), outputs (B, T), uniform batches or batches with a column ``weight``;
    - one label of every sample, as :class:`~fcco_lightning.data.LabelSampling` draws them: ``task`` (B,) is its number
      and ``y`` (B,) its value.  Samples are compared within their label only, which needs at least two positives of it
      in a batch, as one must represent the others.

    The ratios alone overfit a few positives, as in :class:`AveragePrecision`.  So :class:`~fcco_lightning.FCCOModule`
    trains on a tenth of them plus the cross-entropy of the labels, ``(1/T) sum_t (1/n_t) sum_i log(1 + exp(-b_ti
    o_ti))`` with the outputs o and b = 1 or -1 for the labels 1 and 0, from the first update on (``pretrain=None``
    switches that off; figures are in ``examples/benchmarks/results/tables_pay.md``).

    Args:
        loss: l, non-negative with l(0) > 0; the squared hinge with margin 1 by default.
        missing: value of ``y`` for an unknown label, such as -1; None if all labels are known.
        sigmoid: whether the scores are sigmoids of the network's outputs, see :class:`BinaryObjective`.
        cross_entropy: c, the weight of the additional cross-entropy, >= 0, see :class:`BinaryObjective`.

    Raises:
        ConfigError: if l(0) is not positive, or ``cross_entropy`` is negative or not finite.
    """

    weighs_samples = False
    width = 2
    outer = Ratio()
    recommended_mixture = (1.0, _RATIOS)
    of_sigmoids = True
    seen_alone = (
        "On four tables with several labels the mean average precision of raw ratios alone ended .05 below that of "
        "cross-entropy: compare with the default (nothing said of cross_entropy, sigmoid and pretrain)."
    )

    def __init__(
        self,
        loss: PairLoss | None = None,
        missing: float | None = None,
        *,
        sigmoid: bool = True,
        cross_entropy: float | None = None,
    ) -> None:
        super().__init__(sigmoid=sigmoid, cross_entropy=cross_entropy)
        self.loss = loss or SquaredHingePair()
        self.itself = float(self.loss(torch.zeros((), dtype=torch.float64)))
        require_own_loss(self.loss, self.itself)
        self.missing = no_label("missing", missing)
        self.one_label_each = False
        self.labels = 0
        # for every label, shape (T,): the numbers of samples with a known label and of positives, the weight of its
        # rows, and the factor from a mean over all samples to a mean over those with a known label
        self.known = self.positives = self._relevance = self._to_known = Known(torch.zeros(0))

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:
        """One row for every positive label of a sample.

        Raises:
            ConfigError: if the columns are not known.
            DataError: if ``y`` is missing or not as described above, or a label has no positive or no negative.
        """
        y = known_labels(columns, self, self.missing)
        task = None if columns is None else columns.get("task")
        if y.dim() == 1 and task is not None:
            self.one_label_each = True
        elif y.dim() == 2:
            task, self.one_label_each = torch.arange(y.shape[1], device=y.device).expand(y.shape), False
        if task is None or task.shape != y.shape:
            raise DataError(
                f"MeanAveragePrecision needs y of shape (n, T), or (n,) beside a column `task`, got {tuple(y.shape)} "
                f"and the columns {sorted(columns or ())}. Name several label columns, or use AveragePrecision for one."
            )
        labels, known_ones = int(task.max()) + 1, (y == 1) | (y == 0)
        known, positives = (torch.bincount(task[of], minlength=labels) for of in (known_ones, y == 1))
        empty = ((positives == 0) | (positives == known)).nonzero().flatten().tolist()
        if empty:
            raise DataError(
                f"label {empty[0]} has {int(positives[empty[0]])} positives among {int(known[empty[0]])} "
                f"known training samples, but needs both classes (so do {len(empty)} labels in all). Leave them out."
            )
        self.labels = labels
        self.known = Known(known)
        self.positives = Known(positives)
        stand_for = torch.ones_like(y, dtype=torch.float64)  # samples of the batches' population that each represents
        if columns is not None and POPULATION in columns:
            stand_for *= columns[POPULATION].view(-1, *[1] * (y.dim() - 1))
        inverse_known, inverse_positives = (
            torch.bincount(task[of], weights=stand_for[of], minlength=labels) for of in (known_ones, y == 1)
        )
        self._relevance = Known(inverse_positives.sum() / (labels * inverse_positives))
        self._to_known = Known((num_samples / labels if self.one_label_each else num_samples) / inverse_known)
        most = max(float(known.max()), float(inverse_known.max()))
        return RowDomain(0, per_sample=True, owners=y == 1, range=Range(least=self.itself / most))

    def check(self, outputs: Tensor, batch: Columns) -> None:  # noqa: ARG002
        """Refuse batches without samples to represent some of the others.

        Raises:
            DataError: if a label with a positive in the batch has no negative, or only one positive where two are
                needed; or see :meth:`Comparisons.check`.
        """
        require_known(batch, self, self.missing)
        if not self.one_label_each:
            if by_strata(batch):
                Comparisons(batch, self.num_samples, owners=(batch["y"] == 1).any(1)).check()
            return
        negatives, positives, lonely = self._held(batch)
        for position in lonely.nonzero().flatten().tolist():
            label = int(batch["task"][position])
            raise DataError(
                f"a batch holds {int(positives[position])} of {int(self.positives.values[label])} positives and "
                f"{int(negatives[position])} negatives of label {label}, so the others cannot be estimated. "
                "Draw them with LabelSampling and set positives_per_label to 2 or more."
            )

    def measure(self, outputs: Tensor, batch: Columns) -> tuple[Tensor | None, Rows]:
        """The cross-entropy, and the inner values of every sample and label, or of every sample for its label."""
        y, outputs = required_column(batch, "y", self), one_tensor(outputs)
        labels = () if self.one_label_each else (self.labels,)
        if y.shape != (len(y), *labels) or outputs.shape != (len(y), self.labels):
            raise DataError(
                f"MeanAveragePrecision needs outputs of shape (B, {self.labels}), one for each of its labels, and "
                f"y of shape {'(B,)' if self.one_label_each else f'(B, {self.labels})'}, got {tuple(outputs.shape)} "
                f"and {tuple(y.shape)}. Give the network one output per label."
            )
        scores = outputs.sigmoid() if self.sigmoid else outputs
        rows = (self._of_one_label_each if self.one_label_each else self._of_all_labels)(scores, y, batch)
        return self.with_cross_entropy(None, outputs, batch), rows

    def entropy(self, outputs: Any, batch: Columns) -> Tensor:
        """The mean over labels of the mean cross-entropy of the samples with a known label, a scalar."""
        y, to_known = batch["y"], self._to_known.like(outputs, outputs.dtype)
        if self.one_label_each:
            task: Tensor = batch["task"]
            outputs, to_known = outputs.gather(1, task.unsqueeze(1)).squeeze(1), to_known[task]
        known = torch.ones_like(y, dtype=torch.bool) if self.missing is None else y != self.missing
        outputs = torch.where(known, outputs, 0.0)  # outputs for unknown labels have no influence
        losses = binary_cross_entropy_with_logits(outputs, (y == 1).to(outputs.dtype), reduction="none")
        # from means over all samples to means over those with a known label
        losses = losses * known * to_known
        losses = losses if self.one_label_each else losses.mean(1)
        return mean_over_data(losses, batch)

    def _of_all_labels(self, outputs: Tensor, y: Tensor, batch: Columns) -> Rows:
        scores, holds = outputs.T.contiguous(), (y == 1).T
        # from weights in means over all n samples to weights in means over those with a known label
        n, to_known = at_least("num_samples", self.num_samples or 0, 1), self._to_known.like(scores, scores.dtype)
        weights = torch.ones_like(scores) if self.missing is None else (y != self.missing).T * to_known.unsqueeze(1)
        if self.missing is not None:  # outputs for unknown labels have no influence
            scores = scores.where(weights > 0, 0.0)
        masks = torch.stack([weights * holds, weights], dim=1).to(scores.dtype)
        owners = holds.any(0)
        sums = sums_over_data(self.loss, scores, masks, batch, n, self.itself, owners)
        relevance = self._relevance.like(scores, scores.dtype).unsqueeze(1)
        index = required_column(batch, "index", self) * self.labels
        names = index + torch.arange(self.labels, device=index.device).unsqueeze(1)  # label by label
        counted = self.row_weights(holds * relevance, scores.dtype)
        return Rows(sums.flatten(0, 1), counted.flatten(), index=names.flatten())

    def _of_one_label_each(self, outputs: Tensor, y: Tensor, batch: Columns) -> Rows:
        task = one_label_each(batch, self, "task")
        positive = y == 1
        dtype = outputs.dtype
        known, positives = (one.like(y)[task].to(dtype) for one in (self.known, self.positives))
        negatives, held_positives, lonely = self._held(batch)
        # weights in the mean over the n_t samples of the label, of each other positive and of each negative
        others = (positives - 1) / (known * (held_positives - 1).clamp(min=1))
        against = (y == 0) * (known - positives) / (known * negatives.clamp(min=1))
        shares = torch.where(positive, others, against).to(dtype)
        scores, masks = outputs.gather(1, task.unsqueeze(1)).squeeze(1), torch.stack([shares * positive, shares])
        same = Strata(task).weighted(torch.zeros_like(shares), torch.ones_like(shares))
        itself = ((1 / known - shares) * self.itself).unsqueeze(1)
        sums = nan_where(lonely.unsqueeze(1), pair_sums(self.loss, scores, masks, table=same) + itself)
        return Rows(sums, self.row_weights(positive * self._relevance.like(y)[task].to(dtype), dtype))

    def _held(self, batch: Columns) -> tuple[Tensor, Tensor, Tensor]:
        """The numbers of negatives and positives of every sample's label in the batch, and a mask of lonely positives.

        Returns: shape (B,) each.  Lonely are positives without a negative, or without another positive although the
        data has one.
        """
        y = batch["y"]
        task = batch["task"]
        none = torch.zeros(self.labels, device=batch["y"].device)
        negatives, positives = (none.index_add(0, task, (y == label).to(none.dtype))[task] for label in (0, 1))
        alone = (positives == 1) & (self.positives.like(y)[task] > 1)
        return negatives, positives, (y == 1) & (alone | (negatives == 0))


def require_own_loss(loss: PairLoss, itself: float) -> None:
    """Refuse a loss l whose l(0), the contribution of a sample to its own smooth rank, is not positive."""
    if itself <= 0:
        raise ConfigError(f"a smooth rank needs a loss with l(0) > 0, {loss!r} has {itself!r}. Use SquaredHingePair.")

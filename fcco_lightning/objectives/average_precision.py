"""Average precision: of one label, and its mean over several."""

from typing import Any, Literal

import torch
from torch import Tensor

from fcco_lightning.checks import at_least, finite
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.estimators import Range
from fcco_lightning.hosted import on_host
from fcco_lightning.numerics import send
from fcco_lightning.objectives.base import Objective, RowDomain, required_column
from fcco_lightning.objectives.pair_sums import label_pair_sums, pair_sums
from fcco_lightning.objectives.pairwise import PairLoss, SquaredHingePair
from fcco_lightning.objectives.ranking import RankingObjective, known_labels
from fcco_lightning.objectives.self_weights import by_strata, common_weights, comparison_weights, self_and_others
from fcco_lightning.outer import Ratio
from fcco_lightning.records import Arrangement, Columns


class AveragePrecision(RankingObjective):
    r"""``-(1/n_+) sum over positives i of g_i1 / g_i2``, a surrogate of minus the average precision.

    Source: SOX paper, eq. (7), erratum SOX-2; SOAP (Qi et al., 2021).

    With pi = n_+/n the prevalence and l the loss of a pair, ``g_i1 = pi mean over positives j of l(s_i - s_j)`` and
    ``g_i2 = g_i1 + (1 - pi) mean over negatives j of l(s_i - s_j)``: up to n, smooth ranks of i among the positives and
    among all samples.  The positive i itself is one of the positives, with the loss l(0) and the weight 1/n, which is
    known: both inner values are at least ``l(0)/n``.  Row i remembers (u_i1, u_i2).

    The estimates of both inner values are unbiased in uniform batches and in those that say how they are drawn
    (:func:`~fcco_lightning.objectives.self_weights.stands_for`): by class or group with weights, with or without
    replacement, with copies.  Where a batch says nothing of some samples it is refused.
    Balanced batches without weights estimate the ranks in a population with the batches' share of positives, and leave
    i itself its weight 1/n.

    Start from a network that was trained with cross-entropy: from scratch the ratio is hard to optimise.

    Args:
        loss: l, non-negative with l(0) > 0; the squared hinge with margin 1 by default.
        prevalence: pi.  "data" takes that of the training split, a number in (0, 1) another one, for example 0.5 if the
            average precision is wanted on balanced data.
        sigmoid: whether the scores are sigmoids of the network's outputs, which helps where positives are few; see
            :class:`BinaryObjective`.

    Raises:
        ConfigError: if ``prevalence`` is neither, or l(0) is not positive.
    """

    width = 2
    outer = Ratio()
    needs_partner = False  # without a negative g_i2 has an estimate too, which is right on average

    def __init__(
        self, loss: PairLoss | None = None, prevalence: Literal["data"] | float = "data", *, sigmoid: bool = False
    ) -> None:
        super().__init__(sigmoid=sigmoid)
        self.loss = loss or SquaredHingePair()
        self.own = _loss_of_itself(self.loss)
        if prevalence != "data" and not 0 < finite("prevalence", prevalence) < 1:
            raise ConfigError(f"prevalence must be 'data' or lie in (0, 1), got {prevalence!r}.")
        self.prevalence = prevalence

    def arrange(self, batch: Columns, like: Tensor) -> Arrangement:
        """The positives of a batch own the rows; every one is compared with all of it.

        Raises:
            DataError: if the batch has fewer than two samples, or no column ``y``.
        """
        batch = on_host(batch)
        y, columns = required_column(batch, "y", self), [batch.get(name) for name in ("y", "weight", "stratum")]
        beside = (self.num_samples, self.class_sizes, like.device, like.dtype)
        owners, given = self._again(columns, beside, lambda: self._compared(y, batch, like))
        if given is None and len(owners):  # every owner has weights of its own, which depend on repeated samples, too
            table = comparison_weights("dataset", owners, batch, self.num_samples, like.dtype)
            changes = self._changes(y == 1, like.dtype)
            given = send(owners, like), send(table if changes is None else table * changes, like), None
        return Arrangement(batch["index"][owners], given, owners=owners)

    def _compared(self, y: Tensor, batch: Columns, like: Tensor) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """The owners; where they are, the samples' weights in both sums (B, 2), and what is added for an owner, (1,).

        The last two where they are the same for all owners.
        """
        positive = y == 1
        owners = positive.nonzero().squeeze(1)
        if not len(owners):
            return owners, None
        common = common_weights(positive, owners, batch, self.num_samples, like.dtype)
        if common is None:
            return owners, None
        (shares, excess), changes = common, self._changes(positive, like.dtype)
        shares = shares if changes is None else shares * changes
        # the positive itself, whose loss is l(0), has a weight of its own
        offset = excess * (self._class_changes()[1] * self.own)
        weights = torch.stack([shares * positive, shares], dim=1)
        return owners, (send(owners, like), send(weights, like), send(offset, like))

    def values(self, outputs: Any, given: tuple[Tensor, Tensor, Tensor | None] | None) -> Tensor:
        """Weighted sums (m, 2) of the losses of the owners over the positives, and over all samples.

        Raises:
            DataError: if there is not one score per sample.
        """
        scores = self.scores(outputs)
        if given is None:
            return scores.new_zeros(0, 2)
        owners, weights, offset = given
        if offset is not None:
            return pair_sums(self.loss, scores, owners, None, weights, offset=offset)
        weighted = self.loss(scores.index_select(0, owners).unsqueeze(1) - scores) * weights
        return torch.stack([weighted.index_select(1, owners).sum(1), weighted.sum(1)], dim=1)

    def _changes(self, positive: Tensor, dtype: torch.dtype) -> Tensor | None:
        """What the weights of samples are multiplied by for another prevalence than the data's, (B,); None for 1."""
        of_negatives, of_positives = self._class_changes()
        return None if of_positives == 1 else torch.where(positive, of_positives, of_negatives).to(dtype)

    def _class_changes(self) -> tuple[float, float]:
        """The same for negatives and positives."""
        if self.class_sizes is None or self.prevalence == "data":
            return 1.0, 1.0
        negatives, positives = self.class_sizes
        n = negatives + positives
        return (1 - self.prevalence) * n / negatives, self.prevalence * n / positives

    def _range(self) -> Range:
        """At least what the positive itself contributes."""
        return Range(least=self._class_changes()[1] * self.own / sum(self.class_sizes or (1,)))


class MeanAveragePrecision(Objective):
    r"""The mean over T labels of :class:`AveragePrecision`: ``-(1/T) sum_t (1/n_t+) sum_i g_ti1 / g_ti2``.

    A row belongs to a label t and a positive i of it; there are as many rows as labels that hold.  Inner values are
    those of :class:`AveragePrecision` on the n_t samples of which the label is known, at least ``l(0)/n_t``.

    Batches come in two forms:

    - all labels of every sample: ``y`` (B, T), outputs (B, T), uniform batches or such with a column ``weight``;
    - one label of every sample, as :class:`~fcco_lightning.data.LabelSampling` draws them: ``task`` (B,) names it and
      ``y`` (B,) is its value.  Samples are compared within their label only, and at least two positives of it are
      needed, of which one represents the others.

    Args:
        loss: l, non-negative with l(0) > 0; the squared hinge with margin 1 by default.
        missing: value of ``y`` that stands for a label that is not known, such as -1; None if all are.

    Raises:
        ConfigError: if l(0) is not positive.
    """

    width = 2
    outer = Ratio()

    def __init__(self, loss: PairLoss | None = None, missing: float | None = None) -> None:
        super().__init__()
        self.loss = loss or SquaredHingePair()
        self.own = _loss_of_itself(self.loss)
        self.missing = missing
        self.num_samples: int | None = None
        self.one_label_each = False
        # numbers of samples of which a label is known, and has the value 1: (T,), on the host
        self.known = self.positives = torch.zeros(0, dtype=torch.int64)
        self._relevance = torch.zeros(0, dtype=torch.float64)  # of the rows of a label in the mean over all rows, (T,)

    def prepare(self, num_samples: int) -> None:
        """Take n."""
        self.num_samples = num_samples

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """One row for every label that a sample has.

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
        labels = int(task.max()) + 1
        self.known = torch.bincount(
            task[y != self.missing] if self.missing is not None else task.flatten(), minlength=labels
        )
        self.positives = torch.bincount(task[y == 1], minlength=labels)
        self._relevance = int(self.positives.sum()) / (labels * self.positives.double())
        empty = ((self.positives == 0) | (self.positives == self.known)).nonzero().flatten().tolist()
        if empty:
            raise DataError(
                f"label {empty[0]} has {int(self.positives[empty[0]])} positives among {int(self.known[empty[0]])} "
                f"known training samples, but needs both classes (so do {len(empty)} labels in all). Leave them out."
            )
        return RowDomain(0, per_sample=True, owners=y == 1, range=Range(least=self.own / int(self.known.max())))

    def arrange(self, batch: Columns, like: Tensor) -> Arrangement:
        """All pairs of a label and a positive of it in a batch.

        Raises:
            DataError: if ``y`` or ``task`` is missing, or if a batch has fewer than two samples, or of a label with a
                positive no negative, or one positive where two are needed.
        """
        batch = on_host(batch)
        y, labels = required_column(batch, "y", self), len(self.known)
        if y.dim() != (1 if self.one_label_each else 2) or (not self.one_label_each and y.shape[1] != labels):
            raise self._unfit("y", y)
        return (self._of_one_label_each if self.one_label_each else self._of_all_labels)(y, batch, like)

    def values(self, outputs: Tensor, given: tuple[Tensor, ...]) -> Tensor:
        """The two sums of every row, shape (r, 2).

        Raises:
            DataError: if there is not one output per sample and label.
        """
        size = given[0].shape[-1]
        if outputs.dim() != 2 or outputs.shape != (size, len(self.known)):
            raise self._unfit("outputs", outputs)
        if self.one_label_each:
            positive, shares, owner, task = given
            scores = outputs.gather(1, task.unsqueeze(1)).squeeze(1)
            losses = shares.to(scores.dtype) * self.loss(scores.index_select(0, owner).unsqueeze(1) - scores)
            return torch.stack([losses @ positive.to(losses.dtype), losses.sum(1)], dim=1)
        positive, shares, owner, label, offset = given
        values = label_pair_sums(self.loss, outputs, owner, label, positive, shares)
        return values if offset is None else values + offset

    def _unfit(self, name: str, found: Tensor) -> DataError:
        labels = len(self.known)
        return DataError(
            f"MeanAveragePrecision needs outputs of shape (B, {labels}), one for each of {labels} labels, and y of "
            f"shape {'(B,)' if self.one_label_each else f'(B, {labels})'}, got {name} of shape {tuple(found.shape)}. "
            "Give the network one output per label."
        )

    def _of_all_labels(self, y: Tensor, batch: Columns, like: Tensor) -> Arrangement:
        size, labels = y.shape
        holds = y == 1
        owner, label = holds.nonzero(as_tuple=True)
        n = at_least("num_samples", self.num_samples or 0, 1)
        offset = None
        # weights of a mean over all n samples, and from them those over the samples of which the label is known
        if by_strata(batch):
            shares = comparison_weights("dataset", torch.arange(size), batch, n, like.dtype)[owner]
        else:
            own, others = self_and_others("dataset", size, n)
            shares = torch.full((1, 1), others, dtype=like.dtype)
            offset = torch.full((1, 1), (own - others) * self.own, dtype=like.dtype) if own != others else None
        if self.missing is not None:
            scale = (n / self.known[label]).unsqueeze(1).to(like.dtype)
            shares = shares * (y != self.missing).T[label] * scale
            offset = None if offset is None else offset * scale
        given = (holds.T.index_select(0, label), shares, owner, label, offset)
        return self._arranged(batch["index"][owner] * labels + label, owner, label, given, like)

    def _of_one_label_each(self, y: Tensor, batch: Columns, like: Tensor) -> Arrangement:
        task = required_column(batch, "task", self)
        positive, negative = y == 1, y == 0
        owner = positive.nonzero().squeeze(1)
        label, known, positives = task[owner], self.known[task], self.positives[task]
        of_negatives, of_positives = (self._held(task[one])[task] for one in (negative, positive))
        lonely = positive & (((of_positives == 1) & (positives > 1)) | (of_negatives == 0))
        if bool(lonely.any()):
            first = int(lonely.nonzero()[0])
            raise DataError(
                f"a batch holds {int(of_positives[first])} of {int(positives[first])} positives and "
                f"{int(of_negatives[first])} negatives of label {int(task[first])}, and so says nothing of the others. "
                "Draw them with LabelSampling and set positives_per_label to 2 or more."
            )
        # of the mean over the n_t samples of the label: itself, each of the other positives, each of the negatives
        others = (positives - 1) / (known * (of_positives - 1).clamp(min=1))
        against = negative * (known - positives) / (known * of_negatives.clamp(min=1))
        shares = torch.where(positive, others, against) * (label.unsqueeze(1) == task)
        shares.scatter_(1, owner.unsqueeze(1), (1 / known[owner]).unsqueeze(1))
        return self._arranged(batch["index"][owner], owner, label, (positive, shares, owner, task), like)

    def _arranged(
        self, index: Tensor, owner: Tensor, label: Tensor, given: tuple[Tensor | None, ...], like: Tensor
    ) -> Arrangement:
        """Rows with the weight 1/(T n_t+) beside that of all alike."""
        there = tuple(None if one is None else send(one, like) for one in given)
        return Arrangement(index, there, self._relevance[label].to(like.dtype), owner)

    def _held(self, task: Tensor) -> Tensor:
        return torch.bincount(task, minlength=len(self.known))


def _loss_of_itself(loss: PairLoss) -> float:
    """l(0).

    Raises:
        ConfigError: if it is not positive.
    """
    own = float(loss(torch.zeros((), dtype=torch.float64)))
    if own <= 0:
        raise ConfigError(f"a smooth rank needs a loss with l(0) > 0, {loss!r} has {own!r}. Use SquaredHingePair.")
    return own

"""Base class of objectives that rank the samples of one class above those of the other."""

from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import POPULATION, SAMPLE_WEIGHT, Columns
from fcco_lightning.objectives.auc.pairwise import PairLoss, SquaredHingePair
from fcco_lightning.objectives.base import (
    Objective,
    RowDomain,
    one_label_each,
    require,
    require_binary_labels,
    required_column,
    whole_split,
)
from fcco_lightning.objectives.binary import BinaryObjective
from fcco_lightning.objectives.pair_sums import FEW_PAIRS, Few, Strata, pair_sums
from fcco_lightning.objectives.ratios import shares_of, warn_of_ratios
from fcco_lightning.objectives.self_weights import Comparisons, by_strata, comparison_weights, self_and_others
from fcco_lightning.outer import Range


class RankingObjective(BinaryObjective, ABC):
    r"""A binary objective with one row for every sample of one class, compared with the samples of the other.

    Batches carry ``y`` (B,) with the labels 0 and 1, the network gives one score per sample, (B,) or (B, 1).  The mean
    over the other class is estimated by the batch's samples of it, weighted by the column ``weight`` if there is one.
    The estimate is unbiased if the samples of that class are drawn alike (uniform and class-balanced batches of any
    prevalence).  A batch with only one class measures nothing; its probability follows from the plan of the batches,
    and the rows of other batches get a larger weight to correct for it.

    Args:
        loss: l of a pair, non-negative; the squared hinge with margin 1 by default.
        sigmoid, cross_entropy: see :class:`BinaryObjective`.

    Attributes:
        owner: label of the class whose samples own the rows.
        needs_partner: whether owners are compared with the other class, as above, and not with all samples of the data,
            including themselves.
        itself: l(0), the loss of a sample against itself.
        class_sizes: numbers of negatives and of positives in the population that batches represent, known after
            :meth:`row_domain`.
    """

    owner: int = 1
    needs_partner: ClassVar[bool] = True
    class_sizes: tuple[float, float] | None = None

    def __init__(
        self, loss: PairLoss | None = None, *, sigmoid: bool = False, cross_entropy: float | None = None
    ) -> None:
        super().__init__(sigmoid=sigmoid, cross_entropy=cross_entropy)
        self.loss = loss or SquaredHingePair()
        self.itself = float(self.loss(torch.zeros((), dtype=torch.float64)))

    def kinds(self, columns: Columns) -> Sequence[Tensor]:
        """The samples that own rows, and the other samples."""
        owners = self._owners(columns)
        return owners, ~owners

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """One row for every sample of the class :attr:`owner`.

        Raises:
            ConfigError: if the columns are not known.
            DataError: if ``y`` is missing, holds other values than 0 and 1, or lacks one of them.
        """
        positive, negative = both_classes(columns, self)
        self._know_sizes(columns, positive)
        owners = positive if self.owner == 1 else negative
        return RowDomain(
            0, per_sample=True, owners=owners, range=self._range(), partners=~owners if self.needs_partner else None
        )

    def check(self, outputs: Any, batch: Columns) -> None:  # noqa: ARG002
        """Warn of biased means over the other class, or refuse batches without samples to represent some of the others.

        See :func:`warn_of_class_ratios`; and :meth:`Comparisons.check`, if samples are compared with all others.
        """
        require_binary_labels(batch, self)
        if self.needs_partner:
            warn_of_class_ratios(batch, self)
        elif by_strata(batch):
            Comparisons(batch, self.num_samples, owners=self._owners(batch)).check()

    def _know_sizes(self, columns: Columns | None, positive: Tensor) -> tuple[float, float]:
        """Set the sizes of the classes, negatives first, from the columns of the training split."""
        known = (columns or {}).get(POPULATION)
        negatives, positives = torch.bincount(positive.long(), weights=known, minlength=2).tolist()
        self.class_sizes = negatives, positives
        return self.class_sizes

    def _range(self) -> Range:
        """The interval in which the inner values lie, given :attr:`class_sizes`."""
        return Range(least=0.0 if self.needs_partner else self.itself / sum(self.class_sizes or (1,)))

    def _owners(self, batch: Columns) -> Tensor:
        """A mask of the samples of a batch that own rows, shape (B,), bool."""
        return one_label_each(batch, self) == self.owner

    def _classes(self, batch: Columns, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """The owners, if a batch holds both classes; and weights in means over owners and over others, (B,) each."""
        owners = self._owners(batch)
        (other_shares, owner_shares), totals = shares_of(torch.stack([~owners, owners]), batch, dtype)
        return owners & totals.all(), owner_shares, other_shares

    def _means(
        self, loss: PairLoss, scores: Tensor, owners: Tensor, share: Tensor, thresholds: Tensor | None = None
    ) -> Tensor:
        """The mean losses of owners against the other class with weights ``share``, or of ``[l - t_i]_+``; (B, 1)."""
        s = scores if self.owner == 1 else -scores
        some, others = (few(owners, self.most[:1]), few(share > 0, self.most[1:])) if self.most else (None, None)
        return pair_sums(loss, s, share.unsqueeze(0), some, partners=others, thresholds=thresholds)


def few(marked: Tensor, most: Sequence[int]) -> Few | None:
    """The marked samples (B,) of a large batch, if they are at most ``most[0]``, less than half of it; else None."""
    size = len(marked)
    return Few(marked, most[0]) if most and 2 * most[0] < size and size**2 > FEW_PAIRS else None


def sums_over_data(
    loss: PairLoss,
    scores: Tensor,
    masks: Tensor,
    batch: Columns,
    num_samples: int | None,
    itself: float,
    owners: Tensor,
    most: Sequence[int] = (),
) -> Tensor:
    r"""``sum_j v_ij M_kj l(s_i - s_j)`` with the weights v_ij of samples j in an estimate of the mean over the data.

    The weights are those of :func:`~fcco_lightning.objectives.self_weights.comparison_weights`, 1/n for i itself, whose
    loss l(0) is ``itself``.  Batches with a column ``weight`` and no strata must hold no sample twice.

    Args:
        loss: l.
        scores: s, shape (B,), or (T, B).
        masks: M, shape (k, B), or (T, k, B).
        batch: columns.
        num_samples: n.
        itself: l(0).
        owners: the samples i, shape (B,), bool; the sums of other samples are arbitrary finite numbers.
        most: the largest number of owners; empty if it is not known.

    Returns: shape (B, k), or (T, B, k); NaN if the batch lacks samples to represent some of the others.
    """
    size, some = len(owners), few(owners, most)
    if SAMPLE_WEIGHT in batch:
        masks = masks * batch[SAMPLE_WEIGHT].to(masks.dtype)
    self_weight, others = self_and_others("dataset", size, num_samples)
    if not by_strata(batch):
        return torch.add(pair_sums(loss, scores, masks * others, some), masks.mT, alpha=(self_weight - others) * itself)
    if "stratum" in batch:

        def table(which: slice) -> Tensor:
            who = which if some is None else some.places[which].clamp(max=size - 1)
            weights = comparison_weights("dataset", batch, num_samples, scores.dtype, owners=owners, anchors=who)
            return torch.where(owners[who], weights.T, 0.0)

        return pair_sums(loss, scores, masks, some, table=table)
    strata, across = Strata(batch["weight"], some), batch["weight"].to(scores.dtype) / size
    fellows, lonely = strata.held() - 1, owners & (across > 1.5 * self_weight)  # NaN without another of its stratum
    more = (across - self_weight) / torch.where(lonely, fellows, fellows.clamp(min=1))
    sums = pair_sums(loss, scores, masks, some, table=strata.weighted(across, more))
    return torch.addcmul(sums, masks.mT, (self_weight - across - more).unsqueeze(1), value=itself)


def both_classes(columns: Columns | None, objective: Objective) -> list[Tensor]:
    """Masks (n,), bool, of the positive and of the negative training samples.

    Raises:
        ConfigError: if the columns are not known.
        DataError: if ``y`` is missing, not (n,) or (n, 1), holds other values than 0 and 1, or lacks one of them.
    """
    y, name = known_labels(columns, objective), type(objective).__name__
    if y.dim() == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if y.dim() != 1:
        raise DataError(
            f"{name} needs one label per sample, shape (n,), the training split has y of shape {tuple(y.shape)}. Name "
            "a single label column, or use MeanAveragePrecision for several."
        )
    positive = y == 1
    if bool(positive.all()) or not bool(positive.any()):
        raise DataError(
            f"{name} compares positives with negatives, but the training split has {int(positive.sum())} samples with "
            f"y = 1 and {int((~positive).sum())} with y = 0. Check which value of the label is positive."
        )
    return [positive, ~positive]


def warn_of_class_ratios(batch: Columns, objective: Objective) -> None:
    """Warn if means over the samples of a class are biased ratios, see :func:`warn_of_ratios`.

    Raises:
        DataError: if the batch lacks ``y``.
    """
    y = one_label_each(batch, objective)
    warn_of_ratios(torch.stack([y == 0, y == 1]), batch, type(objective).__name__)


def known_labels(columns: Columns | None, objective: Objective, missing: float | None = None) -> Tensor:
    """The labels ``y`` of the training split, which determine the samples that own rows.

    Raises:
        ConfigError: if the columns are not known.
        DataError: if ``y`` is missing, or holds another value than 0, 1 and ``missing``.
    """
    columns = whole_split(columns, objective, "labels")
    require_known(columns, objective, missing)
    return required_column(columns, "y", objective)


def require_known(columns: Columns, objective: Objective, missing: float | None = None) -> None:
    """Refuse labels that are neither 0 nor 1 nor ``missing``.

    Raises:
        DataError: naming the first such label.
    """
    y = required_column(columns, "y", objective)
    require(
        (y == 0) | (y == 1) | (y == missing),
        y,
        f"{type(objective).__name__} needs the labels 0 and 1 in `y`",
        "Map the labels, for example -1 and 1, to 0 and 1 (`columns.positive` names the value that becomes 1)"
        + (", or set `missing` to the value of unknown labels." if hasattr(objective, "missing") else "."),
    )

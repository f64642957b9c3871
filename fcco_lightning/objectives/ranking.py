"""What objectives share that rank the samples of one class above those of the other."""

import warnings
from abc import ABC
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.estimators import Range
from fcco_lightning.hosted import SameAgain, on_host
from fcco_lightning.numerics import send
from fcco_lightning.objectives.base import BinaryObjective, Objective, RowDomain, required_column
from fcco_lightning.objectives.pair_sums import pair_sums
from fcco_lightning.objectives.pairwise import PairLoss, shares
from fcco_lightning.records import Arrangement, Columns


class ComparedClasses(NamedTuple):
    """The samples of a batch that own rows, and those of the other class that each of them is compared with.

    Attributes:
        owners: positions in the batch, shape (a,), int64, on the device of the outputs.
        others: positions of the other class, shape (b,), int64, there too.
        share: weights of these in a mean over them, shape (b, 1).
    """

    owners: Tensor
    others: Tensor
    share: Tensor


class RankingObjective(BinaryObjective, ABC):
    r"""A binary objective with one row for every sample of one class, compared with the samples of the other.

    Batches carry ``y`` (B,) with the labels 0 and 1, the network gives one score per sample, (B,) or (B, 1).  The mean
    over the other class is that of the batch's samples of it, weighted by the column ``weight`` where there is one.  It
    is an unbiased estimate wherever the samples of that class are drawn alike (uniform and class-balanced batches of
    any prevalence).  A batch that holds one class only says nothing; how often that happens follows from the plan of
    the batches, and the rows of the other batches weigh as much more.

    Attributes:
        owner: label of the class whose samples own the rows.
        num_samples: n, known from :meth:`prepare` on.
        class_sizes: numbers of the negatives and of the positives, known from :meth:`row_domain` on.
    """

    owner: int = 1
    needs_partner: ClassVar[bool] = True
    num_samples: int | None = None
    class_sizes: tuple[int, int] | None = None

    def __init__(self, *, sigmoid: bool = False) -> None:
        super().__init__(sigmoid=sigmoid)
        self._again = SameAgain[tuple[Tensor, Any]]()  # the owners of rows, and what is given beside

    def prepare(self, num_samples: int) -> None:
        """Take n."""
        self.num_samples = num_samples

    def row_domain(self, num_samples: int, columns: Columns | None) -> RowDomain:  # noqa: ARG002
        """One row for every sample of the class that owns them.

        Raises:
            ConfigError: if the columns are not known.
            DataError: if ``y`` is missing, holds other values than 0 and 1, or lacks one of them.
        """
        positive, negative = both_classes(columns, self)
        self.class_sizes = int(negative.sum()), int(positive.sum())
        owners = positive if self.owner == 1 else negative
        return RowDomain(
            0, per_sample=True, owners=owners, range=self._range(), partners=~owners if self.needs_partner else None
        )

    def check(self, outputs: Any, batch: Columns) -> None:  # noqa: ARG002
        """Warn where means over the other class are ratios: see :func:`warn_of_ratios`."""
        if self.needs_partner:
            warn_of_ratios(batch, self)

    def _range(self) -> Range:
        """The interval in which the inner values lie, once :attr:`class_sizes` are known."""
        return Range(least=0.0)

    def _arranged_pairs(self, batch: Columns, like: Tensor, dtype: torch.dtype | None = torch.float64) -> Arrangement:
        """Owners, the others, and what each of these counts; no rows without both classes.

        Args:
            batch: columns.
            like: as for :meth:`arrange`.
            dtype: of what they count, and of their means; None for that of ``like``.
        """
        batch = on_host(batch)
        y, weight, dtype = required_column(batch, "y", self), batch.get("weight"), dtype or like.dtype
        owners, given = self._again(
            (y, weight), (like.device, dtype), lambda: self._compared_classes(y, weight, like, dtype)
        )
        return Arrangement(batch["index"][owners], given, owners=owners)

    def _compared_classes(
        self, y: Tensor, weight: Tensor | None, like: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, ComparedClasses | None]:
        owners, others = self._classes(y)
        if not len(owners) or not len(others):
            return owners[:0], None
        share = shares(weight, others, like, dtype).unsqueeze(1)
        return owners, ComparedClasses(send(owners, like), send(others, like), share)

    def _means(
        self, loss: PairLoss, outputs: Any, given: ComparedClasses | None, thresholds: Tensor | None = None
    ) -> Tensor:
        """The mean losses of the arranged owners against the other class, or those of ``[l - t_i]_+``, shape (a, 1)."""
        scores = self.scores(outputs)
        if given is None:
            return scores.new_zeros(0, 1, dtype=self.dtype)
        return pair_sums(loss, scores, given.owners, given.others, given.share, thresholds, sign=self._sign)

    @property
    def _sign(self) -> float:
        return 1.0 if self.owner == 1 else -1.0

    def _classes(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Positions of the samples that own rows, and of the others."""
        owns = y == self.owner
        return owns.nonzero().squeeze(1), (~owns).nonzero().squeeze(1)


def both_classes(columns: Columns | None, objective: Objective) -> list[Tensor]:
    """Which training samples are positives and which negatives, as masks (n,), bool.

    Raises:
        ConfigError: if the columns are not known.
        DataError: if ``y`` is missing or not (n,), holds other values than 0 and 1, or lacks one of them.
    """
    y, name = known_labels(columns, objective), type(objective).__name__
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


def class_shares(y: Tensor, weight: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor]:
    """What every sample counts in the means over the negatives and over the positives, and whether there are both.

    Args:
        y: labels, shape (B,).
        weight: of the samples, shape (B,); None where all are alike.
        like: a tensor of the dtype of the result.

    Returns: shares (2, B) of sum 1 each, where they are known; and a bool without dimensions.
    """
    positive = y == 1
    members = torch.stack([~positive, positive])
    weights = members.to(like.dtype) if weight is None else members * weight.to(like.dtype)
    totals = weights.sum(1, keepdim=True)
    return weights / totals, (totals > 0).all()


def warn_of_ratios(batch: Columns, objective: Objective) -> None:
    """Warn where the samples of a class have different weights, so that a weighted mean over it is a ratio of two sums.

    Such a ratio is biased by O(1/B): with batches of 4 of 9 samples by 2% to 40% of the gradient.

    Raises:
        DataError: if the batch lacks ``y``.
    """
    y, weight = required_column(batch, "y", objective), batch.get("weight")
    if weight is None:
        return
    for label in (0, 1):
        of_class = weight[y == label]
        if len(of_class) and bool((of_class != of_class[0]).any()):
            warnings.warn(
                f"{type(objective).__name__} takes means over the samples with y = {label} of a batch, which are drawn "
                "with different probabilities: a weighted mean of them is the ratio of two estimates, and biased where "
                "batches are small. Draw by class (`batches: BalancedSampling`), or larger batches.",
                stacklevel=2,
            )
            return


def known_labels(columns: Columns | None, objective: Objective, missing: float | None = None) -> Tensor:
    """The labels ``y`` of the training split, which say which samples own rows.

    Args:
        columns: of the training split.
        objective: that asks.
        missing: value that stands for a label that is not known; None if there is none.

    Raises:
        ConfigError: if the columns are not known.
        DataError: if ``y`` is missing, or holds other values than 0 and 1.
    """
    name = type(objective).__name__
    if columns is None:
        raise ConfigError(
            f"{name} must know the labels of the whole training split, and how batches are drawn. Use a datamodule "
            "with `sampling()`, or DataLoader(IndexedDataset(dataset), shuffle=True) of a data set whose labels are "
            "known; in a loop of your own pass sampling={'target': Drawn(columns, plan)} to `pose`."
        )
    y = required_column(columns, "y", objective)
    wrong = (y != 0) & (y != 1) & (y != missing)
    if bool(wrong.any()):
        where = tuple(wrong.nonzero()[0].tolist())
        raise DataError(
            f"{name} needs the labels 0 and 1, but y of training sample {where[0]} is {y[where].item()!r}. Map the "
            "labels, for example -1 and 1, to 0 and 1 (`columns.positive` names the value that becomes 1)."
        )
    return y

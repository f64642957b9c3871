"""How much a sample weighs among those that it is compared with, when a batch stands for the whole data."""

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import counts

SelfWeight: TypeAlias = Literal["dataset", "batch", "none"]
"""Weight of a sample among the n samples that it is compared with, itself included: 1/n, 1/B, or 0."""

SELF_WEIGHTS: tuple[SelfWeight, ...] = get_args(SelfWeight)
Some: TypeAlias = slice | Tensor
"""Samples of a batch: consecutive ones, or their positions, shape (m,), int64."""
_EVERY = slice(None)


def self_and_others(kind: SelfWeight, size: int, num_samples: int | None) -> tuple[float, float]:
    r"""Weights with which a uniform batch of B samples estimates a mean over n samples that contains the anchor.

    For an anchor i of the batch, ``self_weight q(i, i) + others sum over j != i in the batch of q(i, j)`` estimates
    ``(1/n) sum_j q(i, j)``.  The anchor is in the batch for certain and each other sample by chance only, so the
    estimate is unbiased with ``self_weight = 1/n`` and ``others = (1 - 1/n) / (B - 1)``, which is "dataset".  With
    "batch" both are 1/B, as mini-batch losses have it, which is biased towards q(i, i); with "none" the mean is over
    the n - 1 other samples, and its estimate is unbiased too.

    Args:
        kind: which of them.
        size: number of samples in the batch B, >= 2.
        num_samples: number of samples n; needed for "dataset" only.

    Returns: the weight of the anchor itself and that of each of the B - 1 other samples; they add up to 1.

    Raises:
        ConfigError: if n is not known.
        DataError: if the batch holds one sample.
    """
    if size < 2:
        raise DataError(
            f"a sample is compared with others, but the batch holds {size}. Raise batch_size to at least 2; if it is "
            "the last batch of an epoch, set drop_last=True."
        )
    if kind == "batch":
        return 1 / size, 1 / size
    self_weight = 1 / _known(num_samples) if kind == "dataset" else 0.0
    return self_weight, (1 - self_weight) / (size - 1)


def comparison_weights(
    kind: SelfWeight,
    batch: Columns,
    num_samples: int | None,
    dtype: torch.dtype = torch.float32,
    *,
    owners: Tensor | None = None,
    anchors: Some = _EVERY,
    others: Some = _EVERY,
) -> Tensor:
    r"""Weights of the samples of a batch for the anchors among them, however the samples are drawn.

    With them a sum over the batch is an unbiased estimate of the mean over n samples, given that the anchor is drawn.
    With "dataset" the anchor has 1/n, another sample the n-th part of the number of samples that it stands for
    (:class:`Comparisons`).  With "none" the anchor is left out, and the others have the (n - 1)-th part; "batch" is
    ``v / B`` for all, with v the column ``weight``.

    Args:
        kind: which weights.
        batch: columns with ``index``; shape (B,) each, B >= 2.
        num_samples: number of samples n; needed for "dataset", and for "none" where samples are not drawn uniformly.
        dtype: of the result.
        owners: which samples own a row, see :class:`Comparisons`.
        anchors: which samples are compared with others.
        others: with which; all by default.

    Returns: shape (m, k) for m anchors and k others.

    Raises:
        ConfigError: if n is needed and not known.
        DataError: if the batch holds one sample.
    """
    index = batch["index"]
    positions = torch.arange(len(index), device=index.device)
    itself = positions[anchors].unsqueeze(1) == positions[others]
    if not by_strata(batch):
        self_weight, rest = self_and_others(kind, len(index), num_samples)
        return torch.full(itself.shape, rest, device=index.device, dtype=dtype).masked_fill(itself, self_weight)
    if kind == "batch":
        weight = batch.get("weight", torch.ones_like(index)).to(dtype)
        return (weight[others] / len(index)).expand(itself.shape)
    n = _known(num_samples)
    share = 1 / (n - 1) if kind == "none" else 1 / n
    table = Comparisons(batch, n, owners=owners).table(anchors, others, share, dtype)
    return table if kind == "none" else table.masked_fill(itself & ~table.isnan(), 1 / n)


def by_strata(batch: Columns) -> bool:
    """Whether not all pairs of samples are equally likely in a batch."""
    return "weight" in batch or "stratum" in batch


class Comparisons:
    r"""How many samples of the data each other sample of a batch stands for, seen from the anchors in the batch.

    With the weights W of :meth:`table`, ``sum_j W_aj x_j`` over the batch is an unbiased estimate of the sum of x over
    all samples but the anchor a, given that a is in the batch.  The anchor itself has W = 0, also where the batch holds
    it twice.

    Where batches have the columns ``stratum`` (whose members are drawn alike) and ``stratum_size`` (their number N_s),
    of which the batch holds m_s each, then ``W = (N_s - 1) / (m_s - c)`` within the anchor's own stratum, c being the
    anchor's copies, and ``W = N_s / m_s`` elsewhere.  With the column ``replaced`` the rows of a stratum are drawn
    independently, and c is how many copies of a sample that is there a batch holds on average
    (:func:`expected_copies`): it says how many of the others there are when the anchor is there, however often.

    Batches hold all strata, or with the column ``strata`` some of S strata, any as likely as any other.  Of these a
    batch with the anchor's has one less for the others: if it holds S_1, the weight elsewhere is multiplied by
    ``(S - 1) / (S_1 - 1)``.

    With the column ``weight`` alone, ``v = N_s B / (n m_s)``, samples of one weight are a stratum; without it all are.

    Args:
        batch: columns with ``index``; shape (B,) each, B >= 2.
        num_samples: n.
        owners: which samples own a row, so that the others may be the only one of their stratum, shape (B,), bool; None
            for all.
        within: which samples are compared with which anchors, shape (B, B), bool; None for all.  Where whole lists are
            drawn (:class:`QuerySampling`) only samples of the anchor's list can be, as it makes sure of its own.

    Raises:
        ConfigError: if n is not known.
        DataError: if the batch holds one sample.
    """

    def __init__(
        self, batch: Columns, num_samples: int | None, *, owners: Tensor | None = None, within: Tensor | None = None
    ) -> None:
        n = _known(num_samples)
        self_and_others("none", len(batch["index"]), n)  # checks the size of the batch
        self.batch, self.num_samples, self.within = batch, n, within
        self.stratum, self.size = _strata(batch, n)
        held, independent = counts(self.stratum), "replaced" in batch
        copies = batch["replaced"] if independent else counts(batch["index"])
        single = held == copies
        met = held - (expected_copies(batch) if independent else copies)
        # how many samples another one stands for: of its own stratum, and seen from another one
        self.in_stratum = torch.where(single, 0.0, (self.size - 1) / torch.where(single, 1.0, met))
        self.elsewhere, unknown = self.size / held, None
        if "strata" in batch:  # some of all strata, of which the anchor's is one for certain
            strata, drawn = batch["strata"][0], (1 / held.double()).sum().round()
            self.elsewhere = self.elsewhere * ((strata - 1) / (drawn - 1).clamp(min=1))
            unknown = (drawn == 1) & (strata > 1)
        elif "stratum" in batch:
            unknown = self.elsewhere.sum() < n - 0.5
        if unknown is not None and within is None:
            self.elsewhere = torch.where(unknown, torch.nan, self.elsewhere)
        alone = single & (self.size > 1.5)
        self.lonely = alone if owners is None else alone & owners

    def table(
        self, anchors: Some = _EVERY, others: Some = _EVERY, share: float = 1.0, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """W of m anchors and k others, times what every sample counts, shape (m, k); all of them by default.

        It is NaN for an anchor of which the batch does not say enough; :meth:`check` names the cause.
        """
        index, lost = self.batch["index"], self.lonely | self.elsewhere.isnan()
        within = torch.where(lost, torch.nan, share * self.in_stratum).to(dtype)
        same = self.stratum[anchors].unsqueeze(1) == self.stratum[others]
        table = torch.where(same, within[anchors].unsqueeze(1), (share * self.elsewhere).to(dtype)[others])
        known = index[anchors].unsqueeze(1) == index[others]
        hidden = known if self.within is None else known | ~self.within[anchors][:, others]
        return table.masked_fill(hidden & ~lost[anchors].unsqueeze(1), 0.0)

    def check(self) -> None:
        """Refuse batches without a sample for some of those with which others are compared.

        Raises:
            DataError: if the batch holds one sample of a stratum that has more, or not all strata (without ``within``)
                and does not say how they are drawn, or one of several.
        """
        if bool(self.lonely.any()):
            first = int(self.lonely.nonzero()[0])
            name = "" if self.stratum.is_floating_point() else f" {int(self.stratum[first])}"
            own = "" if "stratum" in self.batch else " Call weights of samples `sample_weight`, see IndexedDataset."
            raise DataError(
                f"samples are compared with one another, but a batch holds one sample of stratum{name} (a class, or a "
                f"part of a list), which has {round(float(self.size[first]))}, and so none to stand for the others. "
                f"Change `batches` so that they draw two or more of each.{own}"
            )
        if not bool(self.elsewhere.isnan().any()):
            return
        if "strata" in self.batch:
            raise DataError(
                f"samples are compared with all others, but a batch holds one of {int(self.batch['strata'][0])} strata "
                "(groups, or classes), and so none to stand for the others. Set groups_per_batch to 2 or more."
            )
        raise DataError(
            f"samples are compared with all others, but a batch holds strata (bags, or queries) of "
            f"{float((self.size / counts(self.stratum)).sum()):.0f} of {self.num_samples} samples, drawn in a way from "
            "which it does not follow what they say of the rest. Use UniformSampling, BalancedSampling, or "
            "GroupSampling with `prevalence: data`."
        )


def expected_copies(batch: Columns) -> Tensor:
    r"""How often a batch that holds a sample holds it on average, where strata are drawn with replacement.

    That is ``m_s / (N_s p)`` of m_s rows, r copies of every draw, from a stratum of N_s; the sample is among them with
    probability ``p = 1 - (1 - 1/N_s)^(m_s / r)``.

    Args:
        batch: columns ``stratum``, ``stratum_size`` and ``replaced``, which is r; shape (B,) each.

    Returns: shape (B,), float64.
    """
    size, held = batch["stratum_size"].double(), counts(batch["stratum"])
    return held / (size * (1 - (1 - 1 / size) ** (held / batch["replaced"])))


def _strata(batch: Columns, num_samples: int) -> tuple[Tensor, Tensor]:
    """The stratum of every sample of a batch, shape (B,), and its number of samples in the data, (B,), float64."""
    index = batch["index"]
    if "stratum" in batch:
        return batch["stratum"], batch["stratum_size"].double()
    if "weight" not in batch:
        return torch.zeros_like(index), torch.full_like(index, num_samples, dtype=torch.float64)
    weight = batch["weight"].double()
    return weight, weight * counts(weight) * num_samples / len(index)


def _known(num_samples: int | None) -> int:
    if num_samples is None:
        raise ConfigError("the weight 1/n of a sample itself needs the number of samples n: pose the problem first.")
    if num_samples < 2:
        raise ConfigError(f"num_samples must be a whole number >= 2, got {num_samples!r}: samples are compared.")
    return num_samples

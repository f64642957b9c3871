"""Weights of the samples that an anchor is compared with, for unbiased estimates of means over the whole data."""

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import counts

SelfWeight: TypeAlias = Literal["dataset", "batch", "none"]
"""Weight of an anchor itself among the n samples that it is compared with: 1/n, 1/B, or 0."""

SELF_WEIGHTS: tuple[SelfWeight, ...] = get_args(SelfWeight)
Some: TypeAlias = slice | Tensor
"""Samples of a batch: consecutive ones, or their positions, shape (m,), int64."""
_EVERY = slice(None)


def self_and_others(kind: SelfWeight, size: int, num_samples: int | None) -> tuple[float, float]:
    r"""Weights with which a uniform batch of B samples estimates a mean over n samples that contains the anchor.

    For an anchor i of the batch, ``self_weight q(i, i) + others sum over j != i in the batch of q(i, j)`` estimates
    ``(1/n) sum_j q(i, j)``.  The anchor is always in the batch, and each other sample only with some probability, so
    the estimate is unbiased with ``self_weight = 1/n`` and ``others = (1 - 1/n) / (B - 1)`` ("dataset").  With "batch"
    both are 1/B, as in mini-batch losses, which is biased towards q(i, i); with "none" the mean is over the n - 1 other
    samples, and its estimate is also unbiased.

    Args:
        kind: "dataset", "batch" or "none".
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
    r"""Weights of the samples of a batch for the anchors among them, for any way of drawing samples.

    The sum over the batch with these weights is an unbiased estimate of the mean over n samples, given that the anchor
    is drawn.  With "dataset" the anchor has the weight 1/n, and another sample 1/n times the number of samples that it
    represents (:class:`Comparisons`).  With "none" the anchor has the weight 0, and the factor is 1/(n - 1); with
    "batch" the weight is ``v / B`` for all, with v the column ``weight``.

    Args:
        kind: "dataset", "batch" or "none".
        batch: columns with ``index``; shape (B,) each, B >= 2.
        num_samples: number of samples n; needed for "dataset", and for "none" if samples are not drawn uniformly.
        dtype: type of the result.
        owners: the samples that own a row, see :class:`Comparisons`.
        anchors: the anchors; all samples by default.
        others: the samples that they are compared with; all by default.

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
    """Whether some pairs of samples are more likely in a batch than others."""
    return "weight" in batch or "stratum" in batch


class Comparisons:
    r"""The number of samples of the data that each sample of a batch represents, given an anchor in the batch.

    With the weights W of :meth:`table`, ``sum_j W_aj x_j`` over the batch is an unbiased estimate of the sum of x over
    all samples but the anchor a, given that a is in the batch.  The anchor and its copies have W = 0.

    Let batches have the columns ``stratum`` (its members are drawn alike) and ``stratum_size`` (their number N_s), and
    hold m_s samples of stratum s.  Then ``W = (N_s - 1) / (m_s - c)`` within the anchor's stratum, with c the number of
    copies of the anchor, and ``W = N_s / m_s`` elsewhere.  With the column ``replaced`` samples are drawn with
    replacement, and c is the expected number of copies of a sample in the batches that hold it
    (:func:`expected_copies`), which gives the expected number of other samples.

    Batches hold all strata, or, with the column ``strata``, some of S equally likely strata.  The anchor's stratum is
    always one of them: if a batch holds S_1 strata, the weight elsewhere is multiplied by ``(S - 1) / (S_1 - 1)``.

    With the column ``weight`` alone, ``v = N_s B / (n m_s)``, samples with equal weights form a stratum; without it all
    samples form one stratum.

    Args:
        batch: columns with ``index``; shape (B,) each, B >= 2.
        num_samples: n.
        owners: the samples that own a row, shape (B,), bool; None for all.  Only these must not be the only one of
            their stratum in the batch.
        within: the samples that each anchor is compared with, shape (B, B), bool; None for all.  If whole lists are
            drawn (:class:`QuerySampling`), only samples of the anchor's list are possible.

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
        # samples represented by one of the anchor's stratum, and by one of another stratum
        self.in_stratum = torch.where(single, 0.0, (self.size - 1) / torch.where(single, 1.0, met))
        self.elsewhere, unknown = self.size / held, None
        if "strata" in batch:  # some of all strata, always including the anchor's
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
        """W of m anchors and k others, times ``share``, shape (m, k); of all samples by default.

        It is NaN for an anchor without enough other samples in the batch; :meth:`check` names the cause.
        """
        index, lost = self.batch["index"], self.lonely | self.elsewhere.isnan()
        within = torch.where(lost, torch.nan, share * self.in_stratum).to(dtype)
        same = self.stratum[anchors].unsqueeze(1) == self.stratum[others]
        table = torch.where(same, within[anchors].unsqueeze(1), (share * self.elsewhere).to(dtype)[others])
        known = index[anchors].unsqueeze(1) == index[others]
        hidden = known if self.within is None else known | ~self.within[anchors][:, others]
        return table.masked_fill(hidden & ~lost[anchors].unsqueeze(1), 0.0)

    def check(self) -> None:
        """Refuse batches that lack samples to represent some of the others.

        Raises:
            DataError: if the batch holds one sample of a larger stratum; or one of several strata; or, without
                ``within`` and the column ``strata``, not all strata.
        """
        if bool(self.lonely.any()):
            first = int(self.lonely.nonzero()[0])
            name = "" if self.stratum.is_floating_point() else f" {int(self.stratum[first])}"
            own = "" if "stratum" in self.batch else " Call weights of samples `sample_weight`, see IndexedDataset."
            raise DataError(
                f"samples are compared with one another, but a batch holds one sample of stratum{name} (a class, or a "
                f"part of a list), which has {round(float(self.size[first]))}, so the others cannot be estimated. "
                f"Change `batches` so that they draw two or more of each.{own}"
            )
        if not bool(self.elsewhere.isnan().any()):
            return
        if "strata" in self.batch:
            raise DataError(
                f"samples are compared with all others, but a batch holds one of {int(self.batch['strata'][0])} strata "
                "(groups, or classes), so the others cannot be estimated. Set groups_per_batch to 2 or more."
            )
        raise DataError(
            f"samples are compared with all others, but a batch holds strata (bags, or queries) of "
            f"{float((self.size / counts(self.stratum)).sum()):.0f} of {self.num_samples} samples, and the "
            "sampling does not determine their weights in an estimate for the rest. Use UniformSampling, "
            "BalancedSampling, or GroupSampling with `prevalence: data`."
        )


def expected_copies(batch: Columns) -> Tensor:
    r"""Expected number of copies of a sample in a batch that holds it, for draws with replacement from strata.

    It is ``m_s / (N_s p)`` for m_s samples in the batch from a stratum of N_s samples, in r copies of every draw; ``p =
    1 - (1 - 1/N_s)^(m_s / r)`` is the probability that a batch holds the sample.

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

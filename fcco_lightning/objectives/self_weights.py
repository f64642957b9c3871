"""How much a sample weighs among those that it is compared with, when a batch stands for the whole data."""

from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fcco_lightning.checks import at_least, one_of
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.records import Columns

SelfWeight: TypeAlias = Literal["dataset", "batch", "none"]
"""Weight of a sample among the n samples that it is compared with, itself included: 1/n, 1/B, or 0."""

SELF_WEIGHTS: tuple[SelfWeight, ...] = ("dataset", "batch", "none")


def self_and_others(kind: SelfWeight, size: int, num_samples: int | None) -> tuple[float, float]:
    r"""Weights with which a uniform batch of B samples estimates a mean over n samples that contains the anchor.

    For an anchor i of the batch, ``own q(i, i) + others sum over j != i in the batch of q(i, j)`` estimates
    ``(1/n) sum_j q(i, j)``.  The anchor is in the batch for certain and each other sample by chance only, so the
    estimate is unbiased with ``own = 1/n`` and ``others = (1 - 1/n) / (B - 1)``, which is "dataset".  With "batch" both
    are 1/B, as mini-batch losses have it, which is biased towards q(i, i); with "none" the mean is over the n - 1 other
    samples, and its estimate is unbiased too.

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
            f"a sample is compared with others, but the batch holds {size}. Raise batch_size to at least 2."
        )
    if one_of("kind", kind, SELF_WEIGHTS) == "batch":
        return 1 / size, 1 / size
    own = 1 / _known(num_samples) if kind == "dataset" else 0.0
    return own, (1 - own) / (size - 1)


def comparison_weights(
    kind: SelfWeight,
    anchors: Tensor,
    batch: Columns,
    num_samples: int | None,
    dtype: torch.dtype = torch.float32,
    *,
    others: slice | None = None,
) -> Tensor:
    r"""Weights of all samples of a batch for some anchors among them, however the samples are drawn.

    With them a sum over the batch is an unbiased estimate of the mean over n samples, given that the anchor is drawn.
    With "dataset" the anchor has 1/n, another sample the n-th part of the number of samples that it stands for
    (:func:`stands_for`).  With "none" the anchor is left out, and the others have the (n - 1)-th part; "batch" is
    ``v / B`` for all, with v the column ``weight``.

    Args:
        kind: which weights.
        anchors: positions of the anchors in the batch, shape (m,), int64.
        batch: columns with ``index``; shape (B,) each, B >= 2.
        num_samples: number of samples n; needed for "dataset", and for "none" where samples are not drawn uniformly.
        dtype: of the result.
        others: of which samples the weights are wanted; None for all.

    Returns: shape (m, B), or (m, k) for k others.

    Raises:
        ConfigError: if n is needed and not known.
        DataError: if the batch holds one sample, or see :func:`stands_for`.
    """
    index, columns = batch["index"], others or slice(None)
    itself = anchors.unsqueeze(1) == torch.arange(len(index), device=index.device)[columns]
    if not by_strata(batch):
        own, rest = self_and_others(kind, len(index), num_samples)
        return torch.full(itself.shape, rest, device=index.device, dtype=dtype).masked_fill_(itself, own)
    if one_of("kind", kind, SELF_WEIGHTS) == "batch":
        weight = batch.get("weight", torch.ones_like(index)).to(dtype)
        return (weight[columns] / len(index)).expand(itself.shape).clone()
    n = _known(num_samples)
    table = stands_for(batch, anchors, n, others=others)
    return (table / (n - 1) if kind == "none" else (table / n).masked_fill(itself, 1 / n)).to(dtype)


def common_weights(
    mask: Tensor, anchors: Tensor, batch: Columns, num_samples: int | None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, float] | None:
    """The weights "dataset" of :func:`comparison_weights` where they are known to be the same for all anchors.

    They are in uniform batches, and where the anchors are all samples of one class in batches that come with weights by
    class: instead of a table there is then one vector, and a weighted sum is a product of a matrix and a vector.

    Args:
        mask: which samples of the batch are anchors, shape (B,), bool, at least one; on the host.
        anchors: their positions, shape (m,), int64; there too.
        batch: see :func:`comparison_weights`; there too.
        num_samples: n.
        dtype: of the result.

    Returns: the weights of all samples but the anchor itself, shape (B,), and by how much the weight 1/n of the anchor
        exceeds the one that it has there; None where the weights differ between anchors, or may.
    """
    size, count = len(mask), len(anchors)
    if "stratum" in batch:
        return None
    own, others = self_and_others("dataset", size, num_samples)
    if "weight" not in batch:
        return torch.full((size,), others, dtype=dtype), own - others
    weight, within_class = batch["weight"].numpy(), mask.numpy()
    of_anchor = weight[int(anchors[0])]
    if count == 1 or not np.array_equal(weight == of_anchor, within_class):
        return None
    within = max((float(of_anchor) / size * count - own) / (count - 1), 0.0)
    return torch.from_numpy(np.where(within_class, within, weight / np.float64(size))).to(dtype), own - within


def by_strata(batch: Columns) -> bool:
    """Whether not all pairs of samples are equally likely in a batch."""
    return "weight" in batch or "stratum" in batch


def stands_for(
    batch: Columns,
    anchors: Tensor,
    num_samples: int | None,
    *,
    within: Tensor | None = None,
    others: slice | None = None,
) -> Tensor:
    r"""How many samples of the data each other sample of a batch stands for, seen from some anchors in the batch.

    ``sum_j W_aj x_j`` over the batch is an unbiased estimate of the sum of x over all samples but the anchor a, given
    that a is in the batch.  The anchor itself has W = 0, also where the batch holds it twice.

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
        batch: columns with ``index``; shape (B,) each.
        anchors: positions of the anchors, shape (m,), int64.
        num_samples: n.
        within: which samples are compared with which anchors, shape (m, B), bool; None for all.  Where whole lists are
            drawn (:class:`QueryBatches`) only samples of the anchor's list can be, as the anchor makes sure of its own.
        others: for which samples W is wanted; None for all.

    Returns: shape (m, B), or (m, k) for k others, float64.

    Raises:
        ConfigError: if n is not known.
        DataError: if the batch holds one sample, or one of a stratum that has more, or not all strata (without
            ``within``) and does not say how they are drawn, or one of several.
    """
    index, columns, n = batch["index"], others or slice(None), _known(num_samples)
    self_and_others("none", len(index), n)  # checks the size of the batch
    stratum, size = _strata(batch, n)
    kind, held = _counts(stratum)
    independent = "replaced" in batch
    copies = batch["replaced"] if independent else _counts(index)[1]
    lonely = (held == copies)[anchors]
    _refuse_lonely(stratum, size, anchors[lonely & (size[anchors] > 1.5)])
    met = held - (expected_copies(batch) if independent else copies)
    own = ((size - 1) / met)[anchors].masked_fill(lonely, 0.0).unsqueeze(1)
    elsewhere = size / held
    if "strata" in batch:
        elsewhere = elsewhere * _of_other_strata(int(kind.max()) + 1, int(batch["strata"][0]), alone=within is not None)
    elif "stratum" in batch and within is None:
        _refuse_parts(float(elsewhere.sum()), n)
    table = torch.where(stratum[anchors].unsqueeze(1) == stratum[columns], own, elsewhere[columns])
    known = index[anchors].unsqueeze(1) == index[columns]
    return table.masked_fill(known if within is None else known | ~within, 0.0)


def expected_copies(batch: Columns) -> Tensor:
    r"""How often a batch that holds a sample holds it on average, where strata are drawn with replacement.

    That is ``m_s / (N_s p)`` of m_s rows, r copies of every draw, from a stratum of N_s; the sample is among them with
    probability ``p = 1 - (1 - 1/N_s)^(m_s / r)``.

    Args:
        batch: columns ``stratum``, ``stratum_size`` and ``replaced``, which is r; shape (B,) each.

    Returns: shape (B,), float64.
    """
    size, held = batch["stratum_size"].double(), _counts(batch["stratum"])[1]
    return held / (size * (1 - (1 - 1 / size) ** (held / batch["replaced"])))


def _strata(batch: Columns, num_samples: int) -> tuple[Tensor, Tensor]:
    """The stratum of every sample of a batch, shape (B,), and its number of samples in the data, (B,), float64."""
    index = batch["index"]
    if "stratum" in batch:
        return batch["stratum"], batch["stratum_size"].double()
    if "weight" not in batch:
        return torch.zeros_like(index), torch.full_like(index, num_samples, dtype=torch.float64)
    weight = batch["weight"].double()
    return weight, weight * _counts(weight)[1] * num_samples / len(index)


def _counts(values: Tensor) -> tuple[Tensor, Tensor]:
    """The number of every value (B,) among the different ones, and how often it is there, both of shape (B,)."""
    _, place, count = torch.unique(values, return_inverse=True, return_counts=True)
    return place, count[place]


def _refuse_lonely(stratum: Tensor, size: Tensor, lonely: Tensor) -> None:
    if len(lonely):
        first = lonely[0]
        name = "" if stratum.is_floating_point() else f" {int(stratum[first])}"
        raise DataError(
            f"samples are compared with one another, but a batch holds one sample of stratum{name} (a class, or a part "
            f"of a list), which has {round(float(size[first]))}, and so says nothing of the others. Change `batches` "
            "so that they draw two or more of each."
        )


def _of_other_strata(held: int, strata: int, *, alone: bool) -> float:
    """What samples of other strata than the anchor's count more, where a batch holds some of all strata.

    Raises:
        DataError: if it holds one of several, unless a stratum may be ``alone``.
    """
    if held > 1 or alone:
        return (strata - 1) / max(held - 1, 1)
    if strata == 1:
        return 1.0
    raise DataError(
        f"samples are compared with all others, but a batch holds one of {strata} strata (groups, or classes), and so "
        "says nothing of the others. Set groups_per_batch to 2 or more."
    )


def _refuse_parts(covered: float, num_samples: int) -> None:
    """Refuse batches that hold some strata only, with ``covered`` samples in the data, and do not say how drawn."""
    if covered < num_samples - 0.5:
        raise DataError(
            f"samples are compared with all others, but a batch holds strata (bags, or queries) of {covered:.0f} of "
            f"{num_samples} samples, drawn in a way from which it does not follow what they say of the rest. Use "
            "UniformSampling, BalancedSampling, or GroupSampling with `prevalence: data`."
        )


def _known(num_samples: int | None) -> int:
    if num_samples is None:
        raise ConfigError("the weight 1/n of a sample itself needs the number of samples n: call prepare(n) first.")
    return at_least("num_samples", num_samples, 2)

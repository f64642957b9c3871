"""How much a sample weighs among those that it is compared with, when a batch stands for the whole data."""

from typing import Literal, TypeAlias

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
    size: int,
    num_samples: int | None,
    weight: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    stratum: Tensor | None = None,
    others: slice | None = None,
) -> Tensor:
    r"""Weights of all samples of a batch for some anchors among them, also where samples are not drawn uniformly.

    Batches that hold B_s of the N_s samples of every stratum s (classes, for example) come with the column ``weight``,
    ``v_s = N_s B / (n B_s)``.  Given that anchor i of stratum a is in the batch, the B_a - 1 other samples of its
    stratum are drawn from N_a - 1, so that the estimate of the mean over n samples is unbiased with

    ``1/n`` for the anchor, ``(v_a B_a / B - 1/n) / (B_a - 1)`` for the others of its stratum, ``v_s / B`` elsewhere.

    For ``v = 1`` these are the weights of :func:`self_and_others`.  With "none" the anchor's 1/n is left out and the
    others are divided by 1 - 1/n; "batch" is ``v / B`` for all.  An anchor that is alone of its stratum in the batch
    says nothing of the rest of that stratum.  Without a column ``stratum`` strata are told apart by their weights, so
    two with the same weight count as one.

    Args:
        kind: which weights.
        anchors: positions of the anchors in the batch, shape (m,), int64.
        size: number of samples in the batch B, >= 2.
        num_samples: number of samples n; needed for "dataset", and for "none" with ``weight``.
        weight: v, shape (B,); None where all are 1.
        dtype: of the result.
        stratum: stratum of every sample, shape (B,); None where weights tell them apart.
        others: of which samples the weights are wanted; None for all.

    Returns: shape (m, B), or (m, k) for k others.

    Raises:
        ConfigError: if n is needed and not known.
        DataError: if the batch holds one sample.
    """
    columns = others or slice(None)
    itself = anchors.unsqueeze(1) == torch.arange(size, device=anchors.device)[columns]
    if weight is None and stratum is None:
        own, rest = self_and_others(kind, size, num_samples)
        return torch.full(itself.shape, rest, device=anchors.device, dtype=dtype).masked_fill_(itself, own)
    self_and_others(kind, size, num_samples)  # checks the arguments
    weight = torch.ones(size, device=anchors.device, dtype=dtype) if weight is None else weight.to(dtype)
    share = weight / size
    if kind == "batch":
        return share[columns].expand(itself.shape).clone()
    own = 1 / _known(num_samples)
    kinds = weight if stratum is None else stratum
    _, kind_of, held = torch.unique(kinds, return_inverse=True, return_counts=True)
    count = held[kind_of[anchors]].unsqueeze(1)
    within = (share[anchors].unsqueeze(1) * count - own) / (count - 1).clamp(min=1)
    table = torch.where(kinds[anchors].unsqueeze(1) == kinds[columns], within.clamp(min=0), share[columns])
    table = table.masked_fill(itself, own if kind == "dataset" else 0.0)
    return table if kind == "dataset" else table / (1 - own)


def common_weights(
    mask: Tensor,
    anchors: Tensor,
    num_samples: int | None,
    weight: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    stratum: Tensor | None = None,
) -> tuple[Tensor, Tensor] | None:
    """The weights "dataset" of :func:`comparison_weights` where they are the same for all anchors.

    They are in uniform batches, and where the anchors are all samples of one stratum, as all positives are in batches
    by class: instead of a table there is then one vector, and a weighted sum is a product of a matrix and a vector.

    Args:
        mask: which samples of the batch are anchors, shape (B,), bool, at least one.
        anchors: their positions, shape (m,), int64.
        num_samples: n.
        weight: see :func:`comparison_weights`.
        dtype: of the result.
        stratum: see :func:`comparison_weights`.

    Returns: the weights of all samples but the anchor itself, shape (B,), and by how much the weight 1/n of the anchor
        exceeds the one that it has there, shape (1,); None where the weights differ between anchors.
    """
    size, count, first = len(mask), len(anchors), anchors[:1]
    own, others = self_and_others("dataset", size, num_samples)
    if weight is None and stratum is None:
        return mask.new_full((size,), others, dtype=dtype), mask.new_full((1,), own - others, dtype=dtype)
    kinds = weight if stratum is None else stratum
    assert kinds is not None  # noqa: S101 - one of them is given
    if not torch.equal(kinds == kinds.index_select(0, first), mask):
        return None
    share = mask.new_full((size,), 1 / size, dtype=dtype) if weight is None else weight.to(dtype) / size
    rest = max(count - 1, 1)
    within = (share.index_select(0, first) * (count / rest)).sub_(own / rest).clamp_(min=0)
    return torch.where(mask, within, share), own - within


def stands_for(batch: Columns, anchors: Tensor, num_samples: int | None, *, within: Tensor | None = None) -> Tensor:
    r"""How many samples of the data each other sample of a batch stands for, seen from some anchors in the batch.

    ``sum_j W_aj x_j`` over the batch is an unbiased estimate of the sum of x over all samples but the anchor a, given
    that a is in the batch.  The anchor itself has W = 0, also where the batch holds it twice.

    Where batches have the columns ``stratum`` (whose members are drawn alike) and ``stratum_size`` (their number N_s),
    of which the batch holds m_s each, then ``W = (N_s - 1) / (m_s - c)`` within the anchor's own stratum, c being the
    anchor's copies, and ``W = N_s / m_s`` elsewhere.  With the column ``replaced`` the rows of a stratum are drawn
    independently: within the anchor's stratum it is then ``W = N_s / (m_s - 1)``, as each of the m_s - 1 other draws
    may be the anchor again.  If a batch holds G_1 of G groups only (:class:`GroupBatches`), the weight elsewhere is
    multiplied by ``(G - 1) / (G_1 - 1)``, as a batch with the anchor's group has one group less for the others.
    Without these columns W follows from ``weight``, or from the size of the batch: see :func:`comparison_weights`.

    Args:
        batch: columns with ``index``; shape (B,) each.
        anchors: positions of the anchors, shape (m,), int64.
        num_samples: n.
        within: which samples are compared with which anchors, shape (m, B), bool; None for all.  Where whole lists are
            drawn (:class:`QueryBatches`) only samples of the anchor's list can be, as the anchor makes sure of its own.

    Returns: shape (m, B), float64.

    Raises:
        ConfigError: if n is not known.
        DataError: if the batch holds one sample, or one of a stratum that has more.
    """
    index = batch["index"]
    copies = index[anchors].unsqueeze(1) == index
    if "stratum" in batch:
        stratum, size = batch["stratum"], batch["stratum_size"].double()
        same = stratum[anchors].unsqueeze(1) == stratum
        count, rows = same.sum(1, keepdim=True), size[anchors].unsqueeze(1)
        free, able = (count - 1, rows) if "replaced" in batch else (count - copies.sum(1, keepdim=True), rows - 1)
        lonely = ((free == 0) & (rows > 1)).squeeze(1)
        if bool(lonely.any()):
            first = anchors[lonely][0]
            raise DataError(
                f"samples are compared with one another, but a batch holds one sample of stratum {int(stratum[first])} "
                f"(a class, or a part of a list), which has {int(size[first])}, and so says nothing of the others. "
                "Change `batches` so that they draw two or more of each."
            )
        own = able / free.clamp(min=1)
        held = torch.unique(stratum, return_inverse=True, return_counts=True)
        others = size / held[2][held[1]]
        if within is None and len(held[0]) > 1:
            weight = batch["weight"].double() if "weight" in batch else torch.ones_like(others)
            groups = (weight * _known(num_samples) / (len(index) * others)).mean() * len(held[0])
            others = others * (groups - 1) / (len(held[0]) - 1)
        table = torch.where(same, own, others)
    else:
        given = batch.get("weight")
        table = comparison_weights("dataset", anchors, len(index), num_samples, given, torch.float64)
        table = table * _known(num_samples)
    return table.masked_fill(copies if within is None else copies | ~within, 0.0)


def _known(num_samples: int | None) -> int:
    if num_samples is None:
        raise ConfigError("the weight 1/n of a sample itself needs the number of samples n: call prepare(n) first.")
    return at_least("num_samples", num_samples, 2)

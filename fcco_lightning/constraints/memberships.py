"""Means over subsets of the samples of a batch, all at once and in shapes that follow from the batch's size alone."""

import torch
from torch import Tensor

from fcco_lightning.models.batch import Columns


def shares_of(member: Tensor, batch: Columns, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What every sample of a batch counts in the mean over each subset, and of which subsets the batch has samples.

    Samples count alike, or by the column ``weight`` where they are not drawn uniformly.

    Args:
        member: which samples belong to each subset, shape (..., B), bool.
        batch: columns.
        dtype: of the shares.

    Returns: shares of sum 1, or 0 where there is no sample, shape (..., B), and a mask (...,), bool.
    """
    counts = member.to(dtype)
    if "weight" in batch:
        counts = counts * batch["weight"].to(dtype)
    total = counts.sum(-1, keepdim=True)
    return counts / total.clamp(min=torch.finfo(dtype).tiny), total.squeeze(-1) > 0


def only_of(shares: Tensor, values: Tensor) -> Tensor:
    """The values of the samples that count somewhere, and 0 in the place of the others.

    A share of 0 alone would make NaN of an infinite value.  So whatever the network makes of a sample that counts
    nowhere, the means and their gradients stay as they are.

    Args:
        shares: what the samples count, shape (..., B).
        values: theirs, shape (B, ...).
    """
    nowhere = shares.flatten(0, -2).sum(0) == 0
    return values.masked_fill(nowhere.view(-1, *[1] * (values.dim() - 1)), 0.0)


def means_over(member: Tensor, values: Tensor, batch: Columns) -> tuple[Tensor, Tensor]:
    """The means of values over subsets of a batch, as one product of matrices; 0 where there is no sample.

    Args:
        member: see :func:`shares_of`.
        values: of the samples, with graph, shape (B,) or (B, t).
        batch: columns.

    Returns: the means, shape (...,) or (..., t), and which subsets have samples, shape (...,), bool.
    """
    shares, known = shares_of(member, batch, values.dtype)
    return shares @ only_of(shares, values), known

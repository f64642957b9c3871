"""Means over sets of samples, as ratios of weighted sums."""

import warnings

import torch
from torch import Tensor

from fcco_lightning.models.batch import SAMPLE_WEIGHT, Columns

_FEW = 30  # samples; below, the bias of a ratio causes a warning


def shares_of(member: Tensor, batch: Columns, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The weights of a batch's samples in the mean over each subset, and the total weight of each subset.

    Samples have equal weights, or those of the column ``weight`` if they are not drawn uniformly.

    Args:
        member: the samples of each subset, masks (..., B), bool.
        batch: columns.
        dtype: type of the result.

    Returns: the shares, which sum to 1, or to 0 for an empty subset, shape (..., B); and the number of samples or sum
    of weights of each subset, (..., 1).
    """
    counts = member * batch["weight"].to(dtype) if "weight" in batch else member.to(dtype)
    totals = counts.sum(-1, keepdim=True)
    return counts.div_(totals.clamp(min=torch.finfo(dtype).tiny)), totals


def only_of(shares: Tensor, values: Tensor) -> Tensor:
    """The values of the samples with a share above 0 in some subset, and 0 for the others.

    The product of a share of 0 and an infinite value would be NaN.  With this, outputs for samples that belong to no
    subset never affect means or gradients.

    Args:
        shares: the shares of the samples, shape (..., B).
        values: the values of the samples, shape (B, ...).
    """
    nowhere = shares.sum(list(range(shares.dim() - 1))) == 0
    return values.masked_fill(nowhere.view(-1, *(1 for _ in values.shape[1:])), 0.0)


def warn_of_ratios(sets: Tensor, batch: Columns, name: str) -> None:
    """Warn if a batch has few samples of a set, with different weights: its mean is then a biased ratio of random sums.

    The mean over whole strata is no such ratio, as every batch holds equally many samples of a stratum, unless samples
    have weights of their own.

    Args:
        sets: the samples of each set over which a mean is taken, masks (s, B), bool.
        batch: columns.
        name: name of the class that takes the means, with which the message begins.
    """
    if "weight" not in batch:
        return
    weight = batch["weight"]
    known, stratum = "stratum" in batch, batch.get("stratum", weight)
    chosen = "strata" in batch and len(torch.unique(stratum)) < int(batch["strata"][0])
    units = stratum if chosen else torch.arange(len(weight), device=weight.device)
    alike = "these samples alike (UniformSampling, or BalancedSampling by class)"
    if SAMPLE_WEIGHT in batch:
        alike = "more of them"
    reason = "by their own weights" if SAMPLE_WEIGHT in batch else "as they are drawn with different probabilities"
    remedy = "more or all groups (groups_per_batch)" if chosen else alike
    for members in sets:
        count = len(torch.unique(units[members]))
        all_strata = (
            known
            and not chosen
            and SAMPLE_WEIGHT not in batch
            and not bool(torch.isin(stratum[members], stratum[~members]).any())
        )
        if not count or count >= _FEW or all_strata or bool((weight[members] == weight[members][0]).all()):
            continue
        warnings.warn(
            f"{name} takes a mean over {'samples of ' * chosen}{count} {'groups' if chosen else 'samples'} of a batch, "
            f"which weigh differently, {reason}: it is a ratio of two estimates, and biased where these are few. Draw "
            f"{remedy}, or larger batches.",
            stacklevel=2,
        )
        return

"""Means over sets of samples, which may be drawn with different probabilities."""

import warnings

import torch
from torch import Tensor

from fcco_lightning.models.batch import SAMPLE_WEIGHT, Columns

_FEW = 30  # samples, below which the bias of a ratio is worth a warning


def shares_of(member: Tensor, batch: Columns, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """What every sample of a batch counts in the mean over each subset, and how much of each subset the batch has.

    Samples count alike, or by the column ``weight`` where they are not drawn uniformly.

    Args:
        member: which samples belong to each subset, shape (..., B), bool.
        batch: columns.
        dtype: of the shares.

    Returns: shares of sum 1, or 0 where there is no sample, shape (..., B), and the numbers of samples or sums of their
    weights, (..., 1), 0 where there is none.
    """
    counts = member * batch["weight"].to(dtype) if "weight" in batch else member.to(dtype)
    totals = counts.sum(-1, keepdim=True)
    return counts.div_(totals.clamp(min=torch.finfo(dtype).tiny)), totals


def only_of(shares: Tensor, values: Tensor) -> Tensor:
    """The values of the samples that count somewhere, and 0 in the place of the others.

    A share of 0 alone would make NaN of an infinite value.  So whatever the network makes of a sample that counts
    nowhere, the means and their gradients stay as they are.

    Args:
        shares: what the samples count, shape (..., B).
        values: theirs, shape (B, ...).
    """
    nowhere = shares.sum(list(range(shares.dim() - 1))) == 0
    return values.masked_fill(nowhere.view(-1, *(1 for _ in values.shape[1:])), 0.0)


def warn_of_ratios(sets: Tensor, batch: Columns, name: str) -> None:
    """Warn where few samples of a set weigh differently, whose mean is then a ratio of two random sums.

    The mean of a set of whole strata is no such ratio, as every batch holds equally many samples of these, unless they
    have weights of their own.

    Args:
        sets: which samples belong to each of the sets over which means are taken, shape (s, B), bool.
        batch: columns.
        name: of what takes the means, as the message begins.
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

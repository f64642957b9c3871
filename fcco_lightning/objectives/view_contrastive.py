"""Contrastive loss of two augmented views of one sample."""

import math
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.errors import DataError
from fcco_lightning.objectives.contrastive import GlobalContrastive, similarities
from fcco_lightning.records import Columns


class ViewContrastive(GlobalContrastive):
    r"""The global contrastive loss of single images: two views of a sample against the views of all n samples (SogCLR).

    With unit embeddings a_i, b_i of two random views of sample i and ``s_i = <a_i, b_i>``:

    ``F(w) = (1/n) sum_i tau log g_i1(w) + tau log g_i2(w)``, where

    ``g_i1 = (1/m) [1 + sum over j != i of exp((<a_i, b_j> - s_i) / tau) + exp((<a_i, a_j> - s_i) / tau)]``

    is view a_i against both views of all others, m = 2n - 1 values with its own partner's, and g_i2 the same for b_i.
    It is the loss of SimCLR with all n samples for a batch.  Temperatures, rows and algorithms are those of
    :class:`GlobalContrastive`, of which only what is compared differs.

    The network returns :class:`~fcco_lightning.records.Embeddings` of the two views
    (:class:`~fcco_lightning.models.TwoViews`).

    Args:
        tau: temperature, >= 0.004.
        learn: "no", "global" or "per_sample", as of :class:`GlobalContrastive`.
        rho: margin of a learnt temperature, > 0.
        tau_min: lower bound of a learnt temperature, >= 0.004.
        tau_max: upper bound of the samples' own temperatures.
        tau_lr: step size of the samples' own temperatures, > 0.
        positive: the weight of a view's own partner: "dataset" is 1/m, with which the estimate of g_i is unbiased;
            "batch" is the weight of any other value in the batch, as SimCLR has it, and biased; "none" leaves it out
            (SogCLR), g_i being a mean over the 2n - 2 views of others.

    Raises:
        ConfigError: if an argument is out of range.
    """

    by_blocks = False

    def prepare(self, num_samples: int) -> None:
        """Take n: where a view's partner is among what it is compared with, g_i >= 1/m."""
        super().prepare(num_samples)
        if self.positive == "dataset":
            self._floor = 1 / (2 * num_samples - 1)

    def _logs(self, outputs: Any, batch: Columns, tau: Tensor | float) -> Tensor:
        across = similarities(outputs)
        own = across.diagonal()
        first, second = (similarities((view, view)) for view in outputs)
        certain, others = self._shares(across, batch)
        tau = tau.to(across.dtype) if isinstance(tau, Tensor) else tau
        rows = []
        for view, (other, same) in enumerate(((across, first), (across.T, second))):
            each = tau[:, view : view + 1] if isinstance(tau, Tensor) and tau.dim() else tau
            gaps = [others + (s - own.unsqueeze(1)) / each for s in (other, same)]
            rows.append(torch.cat([across.new_full((len(own), 1), certain), *gaps], 1).logsumexp(1))
        return torch.stack(rows, 1)

    def _shares(self, like: Tensor, batch: Columns) -> tuple[float, Tensor]:
        """Logarithms of the weight of the own partner, and of each view of every other sample, shape (B, B)."""
        size, n = len(like), self._num_samples or len(like)
        table = torch.zeros_like(like)
        table += self._weigh(like, batch)(table, slice(0, size), slice(0, size))
        if self.positive == "batch":
            if "weight" in batch:
                raise DataError(
                    "positive='batch' takes all samples of a batch alike, but they come with weights. Use "
                    "positive='dataset', or batches without weights (prevalence: batch)."
                )
            equal = -math.log(2 * size - 1)
            certain, others = equal, torch.full_like(like, equal)
        else:
            # of two views of n - 1 others, 1/m each: the weights of `table` are those of one view in a mean over n
            held = 0.0 if self.positive == "none" else 1 / (2 * n - 1)
            scale = (1 - held) / 2 / (1.0 if self.positive == "none" else 1 - 1 / n)
            certain, others = math.log(held) if held else -math.inf, table + math.log(scale)
        return certain, others.masked_fill(torch.eye(size, dtype=torch.bool, device=like.device), -math.inf)

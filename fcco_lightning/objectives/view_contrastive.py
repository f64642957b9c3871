"""Contrastive loss of two augmented views of one sample."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fcco_lightning.errors import DataError
from fcco_lightning.hosted import on_host
from fcco_lightning.objectives.contrastive import GlobalContrastive, as_tensor, embeddings, similarities
from fcco_lightning.objectives.log_means import log_means
from fcco_lightning.records import HERE, Columns

Between: TypeAlias = Callable[[slice, slice], Tensor]
"""What some samples weigh for others, (anchors, others) -> logarithms of shape (m, k)."""


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

    by_blocks = False  # a single process holds all similarities

    def prepare(self, num_samples: int) -> None:
        """Take n: where a view's partner is among what it is compared with, g_i >= 1/m."""
        super().prepare(num_samples)
        if self.positive == "dataset":
            self._floor = 1 / (2 * num_samples - 1)

    def _logs(self, outputs: Any, batch: Columns, tau: Tensor | float) -> Tensor:
        if HERE in on_host(batch):
            return self._shared_logs(outputs, batch, tau)
        across = similarities(outputs)
        own = across.diagonal()
        first, second = (similarities((view, view)) for view in outputs)
        certain, weights = self._shares(across, batch)
        every, itself = slice(0, len(own)), torch.eye(len(own), dtype=torch.bool, device=own.device)
        others = weights(every, every).masked_fill_(itself, -math.inf)
        tau = tau.to(across.dtype) if isinstance(tau, Tensor) else tau
        rows = []
        for view, (other, same) in enumerate(((across, first), (across.T, second))):
            each = tau[:, view : view + 1] if isinstance(tau, Tensor) and tau.dim() else tau
            gaps = [others + (s - own.unsqueeze(1)) / each for s in (other, same)]
            rows.append(torch.cat([across.new_full((len(own), 1), certain), *gaps], 1).logsumexp(1))
        return torch.stack(rows, 1)

    def _shared_logs(self, outputs: Any, batch: Columns, tau: Tensor | float) -> Tensor:
        """The same where processes share a batch: each forms the similarities of its own views with all others.

        The views 2 i and 2 i + 1 are those of sample i, and the "text" of a view is its partner.
        """
        views = embeddings(outputs)
        one, other = (torch.stack(pair, dim=1).flatten(0, 1) for pair in (views, views[::-1]))
        size = len(views[0])
        shared = self.shared(size, batch, PartnersAndViews(*self._shares(views[0], batch)))
        own = slice(2 * shared.own.start, 2 * shared.own.stop)
        each = as_tensor(tau, one)
        each = each.reshape(-1, 1).expand(-1, 2) if each.dim() else each
        return log_means(one, other, each, shared._replace(own=own))[:, 0].view(size, 2)

    def _shares(self, like: Tensor, batch: Columns) -> tuple[float, Between]:
        """Logarithms of the weight of the own partner, and of each view of other samples, as numbers of samples."""
        size, n = len(like), self._num_samples or len(like)
        if self.positive == "batch":
            if "weight" in on_host(batch):
                raise DataError(
                    "positive='batch' takes all samples of a batch alike, but they come with weights. Use "
                    "positive='dataset', or batches without weights (prevalence: batch)."
                )
            equal = -math.log(2 * size - 1)
            return equal, lambda anchors, others: like.new_full((_length(anchors), _length(others)), equal)
        # of two views of n - 1 others, 1/m each: the weights of `weigh` are those of one view in a mean over n
        held = 0.0 if self.positive == "none" else 1 / (2 * n - 1)
        scale = math.log((1 - held) / 2 / (1.0 if self.positive == "none" else 1 - 1 / n))
        weigh = self._weigh(like, batch)

        def between(anchors: slice, others: slice) -> Tensor:
            table = like.new_zeros(_length(anchors), _length(others))
            offset = weigh(table, anchors, others)
            return table.add_(offset + scale)

        return math.log(held) if held else -math.inf, between


class PartnersAndViews(NamedTuple):
    """Logarithms of what 2 B views weigh for one another, where the views 2 i and 2 i + 1 are those of sample i.

    Attributes:
        partner: weight of the other view of the same sample.
        between: those of each view of other samples, by sample.
    """

    partner: float
    between: Between

    def __call__(self, logits: Tensor, anchors: slice, others: slice) -> float:
        """Add the weights to a block, which has the partner of view k in the column k; a view itself has none."""
        partners = logits.diagonal(anchors.start - others.start)
        with_partner = partners + self.partner
        samples = [slice(s.start // 2, (s.stop + 1) // 2) for s in (anchors, others)]
        table = self.between(*samples).repeat_interleave(2, 0).repeat_interleave(2, 1)
        rows, columns = (slice(s.start % 2, s.start % 2 + _length(s)) for s in (anchors, others))
        logits += table[rows, columns]
        row, column = (torch.arange(s.start, s.stop, device=logits.device) // 2 for s in (anchors, others))
        logits.masked_fill_(row.unsqueeze(1) == column, -math.inf)
        partners.copy_(with_partner)
        return 0.0


def _length(part: slice) -> int:
    return int(part.stop - part.start)

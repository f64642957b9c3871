"""The contrastive loss of two augmented views of a sample."""

from collections.abc import Callable

import torch
from torch import Tensor

from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives.contrastive.contrastive import GlobalContrastive, log, two_of_each
from fcco_lightning.objectives.log_means import by_table, log_means
from fcco_lightning.objectives.self_weights import comparison_weights, self_and_others


class ViewContrastive(GlobalContrastive):
    r"""The global contrastive loss of single images: two views of a sample against the views of all n samples (SogCLR).

    With unit embeddings a_i, b_i of two random views of sample i and ``s_i = <a_i, b_i>``:

    ``F(w) = (1/n) sum_i tau log g_i1(w) + tau log g_i2(w)``, where

    ``g_i1 = (1/m) [1 + sum over j != i of exp((<a_i, b_j> - s_i) / tau) + exp((<a_i, a_j> - s_i) / tau)]``

    compares view a_i with both views of all other samples and with its own partner, m = 2n - 1 values, and g_i2 is the
    same for b_i.  It is the loss of SimCLR with all n samples as the batch.  Temperatures, rows and algorithms are as
    in :class:`GlobalContrastive`.

    The network returns :class:`~fcco_lightning.models.Embeddings` of the two views
    (:class:`~fcco_lightning.models.TwoViews`).

    Args:
        positive: the weight of a view's own partner: "dataset" is 1/m, with which the estimate of g_i is unbiased;
            "batch" is the weight of any other value in the batch, as in SimCLR, which is biased; "none" leaves it out
            (SogCLR), so that g_i is a mean over the 2n - 2 views of other samples.

    Raises:
        ConfigError: if an argument is out of range.
    """

    def _compared(self, num_samples: int) -> int:
        """The number of views of all other samples, plus the view's partner."""
        return 2 * num_samples - 1

    def _logs(self, image: Tensor, text: Tensor, tau: Tensor | float, batch: Columns) -> Tensor:
        # the views of a sample are neighbours, so that the views of a process are consecutive
        views, taus = torch.stack((image, text), 1).flatten(0, 1), two_of_each(tau, image).reshape(-1, 1)
        local, weigh = self.local_samples(batch), by_table(self._weights(image, batch), len(views))
        if local is not None:
            local = slice(2 * local.start, 2 * local.stop)
        return log_means(views, None, taus, weigh, local, self._processes).view(-1, 2)

    def _weights(self, like: Tensor, batch: Columns) -> Callable[[slice, slice], Tensor]:
        """Logarithms of the weights of views, two per sample: p for a view's partner, and 0 for the view itself.

        Other views have ``(1 - p) / 2`` times the weight of their sample in a mean over the n - 1 other samples.

        Raises:
            DataError: if a batch has weights, which "batch" would ignore.
        """
        if self.positive == "batch" and "weight" in batch:
            raise DataError(
                "positive='batch' takes all samples of a batch alike, but they come with weights. Use "
                "positive='dataset', or batches without weights (prevalence: batch)."
            )
        n, columns = self.num_samples, {"index": batch["index"]} if self.positive == "batch" else batch
        partner, _ = self_and_others(self.positive, 2 * len(like) - 1, None if n is None else 2 * n - 1)

        def logs(*views: slice) -> Tensor:
            anchors, others = (slice(v.start // 2, v.stop // 2) for v in views)
            table = comparison_weights("none", columns, n, like.dtype, anchors=anchors, others=others)
            view_logs = table.mul((1 - partner) / 2).log()[:, None, :, None].repeat(1, 2, 1, 2)
            for view in (0, 1):
                view_logs[:, view, :, 1 - view].diagonal(anchors.start - others.start).fill_(log(partner))
            return view_logs.flatten(2).flatten(0, 1)

        return logs

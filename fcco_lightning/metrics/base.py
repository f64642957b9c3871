"""A torchmetrics metric that keeps the scores of a whole split."""

from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

from fcco_lightning.metrics.validation import same_rows


class CollectedMetric(Metric):
    """Keeps columns of a split and computes from their union over batches and ranks.

    Ranking metrics are no mean over batches, so all rows are kept: 8 bytes a column and sample, on the metric's device.
    Ranks may hold different numbers of samples, also none.  A sampler that repeats samples to fill the last batch of a
    rank (Lightning's default under DDP) makes them count twice.

    Call ``update`` on batches and ``compute`` on the split (Lightning's ``self.log(name, metric)`` computes at the end
    of the epoch).  ``forward`` would also compute on the single batch, which raises
    :class:`~fcco_lightning.errors.DataError` where a class is absent.
    """

    columns: ClassVar[tuple[str, ...]] = ("scores", "labels")
    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # One dtype for all columns: float64 holds every score and code, and a rank without samples then sends
        # an empty column of the dtype that the other ranks send.
        self.set_dtype(torch.float64)
        for name in self.columns:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def _append(self, **batch: Tensor) -> None:
        same_rows(**batch)
        for name, column in batch.items():
            getattr(self, name).append(column.detach().double())

    def _column(self, name: str) -> Tensor:
        kept = getattr(self, name)  # a list of batches, or one tensor after a sync
        return torch.zeros(0, dtype=torch.float64) if isinstance(kept, list) and not kept else dim_zero_cat(kept)

"""A network for embeddings of two views of a sample."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from fcco_lightning.checks import non_negative
from fcco_lightning.errors import DataError
from fcco_lightning.models.base import BatchNetwork
from fcco_lightning.models.batch import Columns
from fcco_lightning.models.head import head_of
from fcco_lightning.models.outputs import Embeddings


class TwoViews(BatchNetwork):
    """Unit embeddings of two views of every sample in training, and of the sample itself in evaluation.

    The views are the columns ``x`` and ``x2`` of a batch, as from a data set with ``views: 2``; without ``x2`` both are
    ``x`` with different Gaussian noise.  In evaluation the output is one embedding, shape (B, d).

    Args:
        network: network from a view to vectors of shape (B, d); lazy layers get their input width from the data.
        std: standard deviation of the noise that is added to every view in training, in the unit of x, >= 0.
    """

    inputs: ClassVar[tuple[str, ...]] = ("x", "x2")

    def __init__(self, network: nn.Module, std: float = 0.0) -> None:
        super().__init__()
        self.network, self.std = network, non_negative("std", std)

    def forward(self, batch: Any) -> Any:
        """Return the embeddings of both views by part; in evaluation one embedding."""
        return {name: self._both_views(columns) for name, columns in batch.items()}

    def _both_views(self, columns: Columns) -> Any:
        if not self.training:
            return self._embedded(columns["x"])
        second = columns.get("x2")
        if second is None and self.std == 0:
            raise DataError(
                "TwoViews needs two different views of each sample: a batch with the columns x and x2 "
                "(transform.views: 2), or std > 0 for added noise."
            )
        views = torch.cat([columns["x"], columns["x"] if second is None else second])
        noisy = views + self.std * torch.randn_like(views) if self.std else views
        return Embeddings(*self._embedded(noisy).chunk(2))

    def _embedded(self, x: Tensor) -> Tensor:
        vectors = self.network(x)
        return normalize(vectors.flatten(1), dim=1)

    def head(self) -> nn.Module:
        """The head of the network."""
        return head_of(self.network)

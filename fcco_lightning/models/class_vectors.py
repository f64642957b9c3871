"""A classifier over many classes, which uses only the vectors of sampled classes in training."""

from typing import Any

import torch
from torch import Tensor, nn

from fcco_lightning.checks import at_least
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.base import BatchNetwork
from fcco_lightning.models.batch import Columns
from fcco_lightning.models.outputs import ClassVectors


class ClassVectorNetwork(BatchNetwork):
    r"""A network with logits ``<h(x), v_k> + c_k`` of C classes; training computes those of sampled classes only.

    For a batch with the parts "target" and "classes" the outputs are :class:`~fcco_lightning.models.ClassVectors`: for
    samples their features h(x) and the vector of their own class, for classes their vector as both.  For a batch of
    samples alone, as in evaluation, they are all logits, shape (B, C).  The bias c_k is the last coordinate of v_k.

    Args:
        features: the network h from ``x`` to features, shape (B, d); lazy layers get their input width from the data.
        num_classes: C, >= 2.
        dim: d, >= 1.
    """

    def __init__(self, features: nn.Module, num_classes: int, dim: int) -> None:
        super().__init__()
        self.features = features
        self.vectors = nn.Embedding(at_least("num_classes", num_classes, 2), at_least("dim", dim, 1) + 1)
        nn.init.normal_(self.vectors.weight, std=dim**-0.5)

    def adapt(self, datamodule: Any) -> None:
        """Check that the data has C classes."""
        count = getattr(datamodule, "num_classes", None)
        if count and count != self.vectors.num_embeddings:
            raise ConfigError(
                f"num_classes={self.vectors.num_embeddings} of the network, but the data has {count} classes."
            )

    def forward(self, batch: Any) -> Any:
        """Return ClassVectors by part, or all logits for a batch of samples alone."""
        (target, columns), *others = batch.items()
        hidden = self.features(columns["x"])
        if hidden.dim() != 2 or hidden.shape[1] != self.vectors.embedding_dim - 1:
            raise ConfigError(
                f"features must have shape (B, {self.vectors.embedding_dim - 1}), got {tuple(hidden.shape)}. Set dim "
                "to the number of features."
            )
        features = with_one(hidden)
        if not others:
            return {target: features @ self.vectors.weight.T}
        classes = {name: self.vectors(_numbers(part, self.vectors.num_embeddings)) for name, part in others}
        target_vectors = ClassVectors(features, self.vectors(_numbers(columns, self.vectors.num_embeddings, "y")))
        return {target: target_vectors} | {name: ClassVectors(vector, vector) for name, vector in classes.items()}


def with_one(features: Tensor) -> Tensor:
    """Features (B, d) with a last coordinate 1, shape (B, d + 1)."""
    return torch.cat([features, torch.ones_like(features[:, :1])], 1)


def _numbers(columns: Columns, count: int, name: str = "index") -> Tensor:
    if name not in columns:
        raise DataError(f"ClassVectorNetwork needs the column `{name}`, the batch has {sorted(columns)}.")
    numbers = columns[name]
    if numbers.numel() and (int(numbers.min()) < 0 or int(numbers.max()) >= count):
        raise DataError(f"`{name}` must lie in 0..{count - 1}, got {int(numbers.min())}..{int(numbers.max())}.")
    return numbers

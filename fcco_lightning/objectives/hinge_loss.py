"""The hinge loss of single samples."""

from dataclasses import dataclass

from torch import Tensor

from fcco_lightning.checks import positive
from fcco_lightning.estimators import Range
from fcco_lightning.objectives.base import binary_scores, require_binary_labels, required_column
from fcco_lightning.objectives.quantities import Quantity
from fcco_lightning.records import Columns


@dataclass(frozen=True)
class HingeLoss(Quantity):
    """``max(margin - b s, 0)`` with s the score and b = 1 or -1 for the labels 1 and 0 (PG-SMD paper, eq. (16)).

    Args:
        margin: > 0.
    """

    margin: float = 1.0
    range = Range(least=0.0)

    def __post_init__(self) -> None:
        positive("margin", self.margin)

    def check(self, outputs: Tensor, batch: Columns) -> None:  # noqa: ARG002
        require_binary_labels(batch, self)

    def __call__(self, outputs: Tensor, batch: Columns) -> Tensor:
        scores = binary_scores(outputs)
        signs = 2 * required_column(batch, "y", self).to(scores.dtype) - 1
        return (self.margin - signs * scores).clamp(min=0)

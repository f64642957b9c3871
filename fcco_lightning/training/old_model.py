"""What is remembered of the model from which training started."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from fcco_lightning.errors import CheckpointError


def in_order(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Values (b,) of the samples ``index`` as a column (size,); samples without one (skipped images) get NaN or 0."""
    column = values.new_full((size,), float("nan")) if values.is_floating_point() else values.new_zeros(size)
    column[index] = values
    return column


class References(NamedTuple):
    """Columns measured with the old model, and the data that they belong to.

    Attributes:
        of: split -> what identifies its samples and tasks, as the datamodule's ``references()`` says.
        columns: split -> name -> tensor (n,) in the order of the split.
    """

    of: Mapping[str, str]
    columns: Mapping[str, Mapping[str, Tensor]]

    def check(self, data: Mapping[str, str]) -> None:
        """Raise unless the columns are of these data.

        Raises:
            CheckpointError: naming the split and both identities.
        """
        for split, own in self.of.items():
            if data.get(split) != own:
                raise CheckpointError(
                    f"the checkpoint remembers the old model's losses on other tasks or data: its {split} split is "
                    f"{own}, this run's {data.get(split, 'absent')}. Use the same data, classes and protected tasks, "
                    "or start afresh from the checkpoint's weights (CLIPModel's `pretrained`)."
                )

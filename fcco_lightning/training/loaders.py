"""The training loader of a fit before it has begun."""

from typing import Any

from lightning.pytorch import Trainer
from torch.utils.data import DataLoader


def training_loader(trainer: Trainer) -> DataLoader[Any] | None:
    """The loader that a fit is going to draw from, where it is a single one; None otherwise.

    Args:
        trainer: that is setting up a fit.
    """
    source = trainer.fit_loop._data_source
    loader = source.dataloader() if source.is_defined() else None
    return loader if isinstance(loader, DataLoader) else None

"""Lightning datamodules: the only part of the data floor that knows Lightning."""

from fcco_lightning.data.datamodules.synthetic import SyntheticDataModule
from fcco_lightning.data.datamodules.tabular import TabularDataModule

__all__ = ["SyntheticDataModule", "TabularDataModule"]

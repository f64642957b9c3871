"""Lightning datamodules: the only part of the data floor that knows Lightning."""

from fcco_lightning.data.datamodules.continual_clip import ContinualCLIPDataModule, DigitsCLIPDataModule
from fcco_lightning.data.datamodules.grouped import GroupedTabularDataModule
from fcco_lightning.data.datamodules.images import GroupedImageDataModule
from fcco_lightning.data.datamodules.synthetic import SyntheticDataModule
from fcco_lightning.data.datamodules.tabular import TabularDataModule

__all__ = [
    "ContinualCLIPDataModule",
    "DigitsCLIPDataModule",
    "GroupedImageDataModule",
    "GroupedTabularDataModule",
    "SyntheticDataModule",
    "TabularDataModule",
]

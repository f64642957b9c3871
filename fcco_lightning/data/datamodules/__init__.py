"""Lightning datamodules: the only modules of ``data`` that depend on Lightning."""

from fcco_lightning.data.datamodules.clip_parts import Architecture, Classes, Pairs
from fcco_lightning.data.datamodules.continual_clip import ContinualCLIPDataModule
from fcco_lightning.data.datamodules.digits_clip import DigitImages, DigitsCLIPDataModule
from fcco_lightning.data.datamodules.image_text import PairDataModule
from fcco_lightning.data.datamodules.images import GroupedImageDataModule
from fcco_lightning.data.datamodules.labelled import LabelledImages, LabelledTexts
from fcco_lightning.data.datamodules.synthetic import (
    SyntheticDataModule,
    SyntheticTensorDataModule,
)
from fcco_lightning.data.datamodules.tabular import TabularDataModule
from fcco_lightning.data.datamodules.tensors import TensorDataModule
from fcco_lightning.data.datamodules.texts import GroupedTextDataModule
from fcco_lightning.data.splits import ImageSplits

__all__ = [
    "Architecture",
    "Classes",
    "ContinualCLIPDataModule",
    "DigitImages",
    "DigitsCLIPDataModule",
    "GroupedImageDataModule",
    "GroupedTextDataModule",
    "ImageSplits",
    "LabelledImages",
    "LabelledTexts",
    "PairDataModule",
    "Pairs",
    "SyntheticDataModule",
    "SyntheticTensorDataModule",
    "TabularDataModule",
    "TensorDataModule",
]

"""How training batches are drawn: the ``batches`` of a datamodule."""

from fcco_lightning.data.sampling.base import Sampling
from fcco_lightning.data.sampling.derived import RepeatedSampling, TwoDraws, with_num_batches
from fcco_lightning.data.sampling.groups import BagSampling, GroupSampling, LabelSampling, QuerySampling
from fcco_lightning.data.sampling.rows import BalancedSampling, CellSampling, EventSampling, UniformSampling

__all__ = [
    "BagSampling",
    "BalancedSampling",
    "CellSampling",
    "EventSampling",
    "GroupSampling",
    "LabelSampling",
    "QuerySampling",
    "RepeatedSampling",
    "Sampling",
    "TwoDraws",
    "UniformSampling",
    "with_num_batches",
]

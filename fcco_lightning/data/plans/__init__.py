"""Batch plans: which rows are in which batch of an epoch, with what probability, and with what weight."""

from fcco_lightning.data.plans.base import BatchPlan, Drawn
from fcco_lightning.data.plans.derived import RepeatedBatches, RowsOf, WeightedSamples
from fcco_lightning.data.plans.stratified import StratifiedBatches
from fcco_lightning.data.plans.uniform import ShuffledBatches, UniformBatches

__all__ = [
    "BatchPlan",
    "Drawn",
    "RepeatedBatches",
    "RowsOf",
    "ShuffledBatches",
    "StratifiedBatches",
    "UniformBatches",
    "WeightedSamples",
]

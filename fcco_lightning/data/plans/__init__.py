"""Batch plans: which rows are in which batch of an epoch, with what probability, and with what weight."""

from fcco_lightning.data.plans.bags import BagBatches
from fcco_lightning.data.plans.balanced import BalancedBatches
from fcco_lightning.data.plans.base import BatchPlan, Drawn
from fcco_lightning.data.plans.events import EventBatches
from fcco_lightning.data.plans.groups import GroupBatches
from fcco_lightning.data.plans.labels import LabelBatches
from fcco_lightning.data.plans.queries import QueryBatches
from fcco_lightning.data.plans.repeated import RepeatedBatches
from fcco_lightning.data.plans.rows_of import RowsOf
from fcco_lightning.data.plans.uniform import ShuffledBatches, UniformBatches

__all__ = [
    "BagBatches",
    "BalancedBatches",
    "BatchPlan",
    "Drawn",
    "EventBatches",
    "GroupBatches",
    "LabelBatches",
    "QueryBatches",
    "RepeatedBatches",
    "RowsOf",
    "ShuffledBatches",
    "UniformBatches",
]

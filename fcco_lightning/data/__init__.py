"""Data floor: tables of tensors, batch plans, resumable loaders, encoders and readers.  No Lightning here."""

from fcco_lightning.data.grouping import GroupBy
from fcco_lightning.data.loader import ResumableLoader
from fcco_lightning.data.pairs import PairTable, read_pairs
from fcco_lightning.data.plans import (
    BalancedBatches,
    BatchPlan,
    Drawn,
    GroupBatches,
    OwnerBatches,
    RowsOf,
    UniformBatches,
)
from fcco_lightning.data.synthetic import GaussianGroups
from fcco_lightning.data.table import TensorTable

__all__ = [
    "BalancedBatches",
    "BatchPlan",
    "GaussianGroups",
    "GroupBatches",
    "GroupBy",
    "PairTable",
    "ResumableLoader",
    "RowsOf",
    "TensorTable",
    "UniformBatches",
    "read_pairs",
]

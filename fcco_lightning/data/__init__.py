"""Data floor: tables of tensors, batch plans, resumable loaders, encoders and readers.  No Lightning here."""

from fcco_lightning.data.encoding import Encoding
from fcco_lightning.data.grouping import GroupBy, Groups
from fcco_lightning.data.images import ImageNoise, ImageTransform
from fcco_lightning.data.indexed import IndexedDataset
from fcco_lightning.data.loader import ResumableLoader
from fcco_lightning.data.pairs import PairTable, read_pairs
from fcco_lightning.data.plans import (
    BatchPlan,
    Drawn,
    RepeatedBatches,
    RowsOf,
    UniformBatches,
)
from fcco_lightning.data.roles import Columns
from fcco_lightning.data.sampling import (
    BagSampling,
    BalancedSampling,
    CellSampling,
    EventSampling,
    GroupSampling,
    LabelSampling,
    QuerySampling,
    RepeatedSampling,
    Sampling,
    TwoDraws,
    UniformSampling,
)
from fcco_lightning.data.splits import Splits
from fcco_lightning.data.synthetic import (
    BlockDistributions,
    DigitBags,
    Garnet,
    GaussianGroups,
    GradedLists,
    LatentChoice,
    ManyClasses,
    ProportionalHazards,
)
from fcco_lightning.data.table import LabelTable, TensorTable
from fcco_lightning.data.texts import TextTokens

__all__ = [
    "BagSampling",
    "BalancedSampling",
    "BatchPlan",
    "BlockDistributions",
    "CellSampling",
    "Columns",
    "DigitBags",
    "Drawn",
    "Encoding",
    "EventSampling",
    "Garnet",
    "GaussianGroups",
    "GradedLists",
    "GroupBy",
    "GroupSampling",
    "Groups",
    "ImageNoise",
    "ImageTransform",
    "IndexedDataset",
    "LabelSampling",
    "LabelTable",
    "LatentChoice",
    "ManyClasses",
    "PairTable",
    "ProportionalHazards",
    "QuerySampling",
    "RepeatedBatches",
    "RepeatedSampling",
    "ResumableLoader",
    "RowsOf",
    "Sampling",
    "Splits",
    "TensorTable",
    "TextTokens",
    "TwoDraws",
    "UniformBatches",
    "UniformSampling",
    "read_pairs",
]

"""Tables of tensors, batch plans, resumable loaders, encoders and readers, without Lightning.

The names are imported on first use, so that a table can be read and checked before torch is loaded.
"""

import importlib
from typing import Any

_HOMES = {
    "batches": "BagSampling BalancedSampling BatchDraws BatchPlan CellSampling Drawn EventSampling GroupSampling "
    "LabelSampling QuerySampling Sampling UniformBatches UniformSampling",
    "encoding": "Encoding",
    "grouping": "GroupBy Groups",
    "images": "ImageNoise ImageTransform",
    "indexed": "IndexedDataset",
    "loader": "ResumableLoader",
    "pairs": "PairTable read_pairs",
    "roles": "Columns",
    "splits": "Splits",
    "synthetic": "BlockDistributions DigitBags Garnet GaussianGroups GradedLists LatentChoice ManyClasses "
    "ProportionalHazards",
    "table": "LabelTable TensorTable",
    "texts": "TextTokens",
}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(" ".join(_HOMES.values()).split())
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

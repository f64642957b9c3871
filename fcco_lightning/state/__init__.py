"""The dual state and what keeps it right."""

from fcco_lightning.state.duplicates import Repeats, merge_duplicates, repeats, replaced
from fcco_lightning.state.row_map import RowMap
from fcco_lightning.state.rows import SHARDED_FROM, DualState, Layout, Place, Rows, shard_of

__all__ = [
    "SHARDED_FROM",
    "DualState",
    "Layout",
    "Place",
    "Repeats",
    "RowMap",
    "Rows",
    "merge_duplicates",
    "repeats",
    "replaced",
    "shard_of",
]

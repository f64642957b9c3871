"""The dual state and what keeps it right."""

from fcco_lightning.state.duplicates import merge_duplicates
from fcco_lightning.state.rows import SHARDED_FROM, DualState, Layout, Rows, shard_of

__all__ = ["SHARDED_FROM", "DualState", "Layout", "Rows", "merge_duplicates", "shard_of"]

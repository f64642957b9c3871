"""The dual state: rows, their exchange between processes, and their files."""

from fcco_lightning.state.duplicates import Copies, copies, replaced
from fcco_lightning.state.rows import SHARDED_FROM, DualState, Layout, checked_index
from fcco_lightning.state.sharded import shard_of

__all__ = ["SHARDED_FROM", "Copies", "DualState", "Layout", "checked_index", "copies", "replaced", "shard_of"]

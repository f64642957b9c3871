"""The dual state and what keeps it right."""

from fcco_lightning.state.duplicates import merge_duplicates
from fcco_lightning.state.rows import DualState, Rows

__all__ = ["DualState", "Rows", "merge_duplicates"]

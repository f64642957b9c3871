"""Image-text pairs: where they come from, and the table that hands them out."""

from fcco_lightning.data.pairs.reading import read_pairs
from fcco_lightning.data.pairs.table import FilesIn, PairTable

__all__ = ["FilesIn", "PairTable", "read_pairs"]

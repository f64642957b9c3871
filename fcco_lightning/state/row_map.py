"""Which samples own a row of a dual state, and which row: one bit a sample."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcco_lightning.errors import DataError, StateIndexError

_BLOCK = 64  # samples whose owners are counted together


class RowMap:
    """Numbers the samples that own a row 0, 1, ... in their order, for terms that are sums over some samples only.

    It takes one bit a sample and one whole number for every 64 samples, so that every process can hold it all.

    Args:
        owners: whether a sample owns a row, shape (n,), bool.

    Raises:
        DataError: if no sample owns a row.

    Example:
        >>> RowMap(torch.tensor([False, True, True])).rows(torch.tensor([2, 1]))
        tensor([1, 0])
    """

    def __init__(self, owners: Tensor) -> None:
        self.num_samples = len(owners)
        marks = owners.cpu().numpy().astype(bool)
        padded = np.zeros(-(-len(marks) // _BLOCK) * _BLOCK, bool)
        padded[: len(marks)] = marks
        blocks = padded.reshape(-1, _BLOCK)
        counts = blocks.sum(1)
        self.num_rows = int(counts.sum())
        if self.num_rows == 0:
            raise DataError(
                f"none of the {len(marks)} training samples owns a row of the term: for an average over the positives, "
                "for instance, the training split must hold a positive. Check the labels."
            )
        self._before = np.cumsum(counts) - counts  # owners in front of a block
        self._words = np.packbits(blocks, axis=1, bitorder="little").view(np.uint64).reshape(-1)

    def rows(self, index: Tensor) -> Tensor:
        """Rows of the samples ``index`` (b,), shape (b,), int64, on the device of ``index``.

        Raises:
            StateIndexError: if a sample is not in 0..n-1, or owns no row.
        """
        wanted = index.cpu().numpy().astype(np.int64)
        outside = (wanted < 0) | (wanted >= self.num_samples)
        block, bit = np.divmod(np.where(outside, 0, wanted), _BLOCK)
        word, one = self._words[block], np.uint64(1)
        owned = (word >> bit.astype(np.uint64)) & one
        wrong = outside | (owned == 0)
        if wrong.any():
            where = int(wrong.argmax())
            raise StateIndexError(
                f"sample {int(wanted[where])} (batch position {where}) owns no row: {self.num_rows} of the "
                f"{self.num_samples} training samples do. Let inner() return the rows of those samples only that "
                "row_domain() names."
            )
        below = word & ((one << bit.astype(np.uint64)) - one)
        rows = self._before[block] + _count_bits(below)
        return torch.from_numpy(rows.astype(np.int64)).to(index.device)


def _count_bits(words: NDArray[np.uint64]) -> NDArray[np.int64]:
    # numpy has bitwise_count from 2.0 on
    bits: NDArray[np.int64] = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).sum(1, dtype=np.int64)
    return bits

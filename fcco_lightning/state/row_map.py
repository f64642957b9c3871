"""Which samples own a row of a dual state, and which row: one byte a sample."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcco_lightning.errors import DataError, StateIndexError

_BLOCK = 128  # samples whose owners are counted together; numbers within a block fit into a signed byte


class RowMap:
    """Numbers the samples that own a row 0, 1, ... in their order, for terms that are sums over some samples only.

    It takes one byte a sample and one whole number for every 128 samples, so that every process can hold it all, on the
    host: the row of a sample is the number of owners in front of its block, plus the number of owners in front of it
    within the block.

    Args:
        owners: whether a sample owns a row, shape (n,), bool.

    Raises:
        DataError: if no sample owns a row.

    Example:
        >>> RowMap(torch.tensor([False, True, True])).rows(torch.tensor([2, 1]))
        tensor([1, 0])
    """

    def __init__(self, owners: Tensor) -> None:
        owners = owners.cpu()
        self.num_samples, self.num_rows = len(owners), int(owners.sum())
        if self.num_rows == 0:
            raise DataError(
                f"none of the {len(owners)} training samples owns a row of the term: for an average over the "
                "positives, for instance, the training split must hold a positive. Check the labels."
            )
        rows = owners.cumsum(0) - owners.long()  # owners in front of each sample
        before = rows[::_BLOCK].clone()
        within = rows - before.repeat_interleave(_BLOCK)[: len(rows)]
        # arrays: on the few rows of a batch NumPy takes a third of torch's time
        self.before: NDArray[np.int64] = before.numpy()
        self.within: NDArray[np.int8] = torch.where(owners, within, -1).to(torch.int8).numpy()

    def rows(self, index: Tensor) -> Tensor:
        """Rows of the samples ``index`` (b,), shape (b,), int64; both on the host.

        Raises:
            StateIndexError: if a sample is not in 0..n-1, or owns no row.
        """
        samples = index.numpy()
        if not samples.size:
            return index.long()
        if samples.min() < 0 or samples.max() >= self.num_samples:
            self._refuse(samples)
        within = self.within.take(samples)
        if within.min() < 0:
            self._refuse(samples)
        return torch.from_numpy(self.before.take(samples // _BLOCK) + within)

    def _refuse(self, index: NDArray[np.integer[Any]]) -> None:
        outside = (index < 0) | (index >= self.num_samples)
        wrong = outside | (self.within[np.where(outside, 0, index)] < 0)
        where = int(np.flatnonzero(wrong)[0])
        raise StateIndexError(
            f"sample {int(index[where])} (batch position {where}) owns no row: {self.num_rows} of the "
            f"{self.num_samples} training samples do. Let inner() return the rows of those samples only that "
            "row_domain() names."
        )

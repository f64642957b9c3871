"""Which samples own a row of a dual state, and which row: one byte a sample."""

import torch
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
        self.before, self.within = before, torch.where(owners, within, -1).to(torch.int8)

    def rows(self, index: Tensor) -> Tensor:
        """Rows of the samples ``index`` (b,), shape (b,), int64; both on the host.

        Raises:
            StateIndexError: if a sample is not in 0..n-1, or owns no row.
        """
        if not index.numel():
            return index.long()
        low, high = (int(end) for end in index.aminmax())
        if low < 0 or high >= self.num_samples:
            self._refuse(index)
        within = self.within.index_select(0, index)
        if int(within.amin()) < 0:
            self._refuse(index)
        return self.before.index_select(0, index // _BLOCK) + within

    def _refuse(self, index: Tensor) -> None:
        outside = (index < 0) | (index >= self.num_samples)
        wrong = outside | (self.within[index.masked_fill(outside, 0)] < 0)
        where = int(wrong.nonzero()[0])
        raise StateIndexError(
            f"sample {int(index[where])} (batch position {where}) owns no row: {self.num_rows} of the "
            f"{self.num_samples} training samples do. Let inner() return the rows of those samples only that "
            "row_domain() names."
        )

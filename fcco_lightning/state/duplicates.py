"""Repeated indices within a batch are copies of one row."""

from typing import NamedTuple

import torch
from torch import Tensor

from fcco_lightning.numerics import first_of_equals


class Copies(NamedTuple):
    """How the entries of a batch repeat.

    Attributes:
        first: position of the first entry with the same index, for every entry, shape (b,), int64.
        count: how many there are, shape (b,), int64.
    """

    first: Tensor
    count: Tensor  # type: ignore[assignment]  # the field hides tuple.count

    def total(self, values: Tensor) -> Tensor:
        """The sum of the values (b, ...) of equal indices, for every entry; equal entries have equal bits."""
        return torch.zeros_like(values).index_add(0, self.first, values).index_select(0, self.first)


def copies(index: Tensor) -> Copies:
    """How the indices (b,) of a batch repeat."""
    first = first_of_equals(index)
    return Copies(first, torch.zeros_like(first).index_add(0, first, torch.ones_like(first)).index_select(0, first))


def replaced(rows: Tensor, index: Tensor | None, targets: Tensor | None, new_rows: Tensor) -> Tensor:
    """Rows with those of some indices replaced.

    Args:
        rows: of the indices ``index``, shape (b, k).
        index: shape (b,), int64; None for all rows, in their order.
        targets: indices of the rows to replace, shape (c,), c >= 1, int64, or None for all; equal ones have equal rows.
        new_rows: of the indices ``targets``, shape (c, k).

    Returns: the rows, shape (b, k).
    """
    new_rows = new_rows.to(rows.dtype)
    if targets is None:
        return new_rows if index is None else new_rows.index_select(0, index)
    if index is None:
        return rows.index_copy(0, targets, new_rows)
    ordered, order = targets.sort()
    place = torch.searchsorted(ordered, index).clamp(max=len(ordered) - 1)
    matches, source = ordered[place] == index, order[place]
    return torch.where(matches.unsqueeze(1), new_rows.index_select(0, source), rows)

"""Repeated indices within a batch, which are copies of the same row."""

from typing import NamedTuple

import torch
from torch import Tensor

from fcco_lightning.numerics import first_of_equals


class Copies(NamedTuple):
    """How the entries of a batch repeat.

    Attributes:
        first: position of the first entry with the same index, for every entry, shape (b,), int64.
        count: number of entries with the same index, for every entry, shape (b,), int64.
    """

    first: Tensor
    count: Tensor  # type: ignore[assignment]  # the field hides tuple.count

    def total(self, values: Tensor) -> Tensor:
        """The sum of the values (b, ...) of equal indices, for every entry; bitwise equal for equal indices."""
        return torch.zeros_like(values).index_add(0, self.first, values).index_select(0, self.first)


def copies(index: Tensor) -> Copies:
    """How the indices (b,) of a batch repeat."""
    first = first_of_equals(index)
    return Copies(first, torch.zeros_like(first).index_add(0, first, torch.ones_like(first)).index_select(0, first))


def replaced(rows: Tensor, index: Tensor | None, targets: Tensor | None, new_rows: Tensor) -> Tensor:
    """Replace the rows of some indices.

    Args:
        rows: the rows of ``index``, shape (b, k).
        index: row numbers, shape (b,), int64; None for all rows in order.
        targets: numbers of the rows to replace, shape (c,), c >= 1, int64, or None for all; equal numbers must have
            equal rows.
        new_rows: the rows of ``targets``, shape (c, k).

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

"""Repeated indices within a batch count once, with the mean of their inner values."""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcco_lightning.numerics import send

_FEW = 1024


class Repeats(NamedTuple):
    """How a batch's indices repeat.

    Attributes:
        index: the c distinct indices in increasing order, shape (c,).
        position: which of them each entry of the batch is, shape (b,).
        count: how often each occurs, shape (c,).
    """

    index: Tensor  # type: ignore[assignment]  # the field hides tuple.index
    position: Tensor
    count: Tensor  # type: ignore[assignment]

    def mean(self, values: Tensor) -> Tensor:
        """Mean of the values (b, k) of equal indices, shape (c, k); the gradient flows to every occurrence."""
        zeros = values.new_zeros(len(self.index), *values.shape[1:])
        count = send(self.count, values).to(values.dtype)
        return zeros.index_add(0, send(self.position, values), values) / count.view(-1, *[1] * (values.dim() - 1))

    @property
    def first(self) -> Tensor:
        """A position of the batch for every distinct index, shape (c,): the first one."""
        order = self.position.argsort(stable=True)
        return order[self.count.cumsum(0) - self.count]


def repeats(index: Tensor) -> Repeats | None:
    """How the indices (b,) of a batch repeat; None if they are all different."""
    if _all_different(index):
        return None
    return Repeats(*torch.unique(index, return_inverse=True, return_counts=True))


def merge_duplicates(index: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Average the values of equal indices.

    The result does not depend on the order of the batch beyond floating-point rounding, and the gradient flows to every
    occurrence.

    Args:
        index: shape (b,), int64.
        values: shape (b, k), with or without graph.

    Returns: the distinct indices, shape (c,), and the means, shape (c, k); in increasing order, or as given if none
    repeats.
    """
    repeated = repeats(index)
    return (index, values) if repeated is None else (repeated.index, repeated.mean(values))


def replaced(rows: Tensor, index: Tensor, at: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with those of some indices replaced.

    Args:
        rows: of the indices ``index``, shape (b, k).
        index: shape (b,), int64, on the host.
        at: indices, all different, whose rows are other ones, shape (c,), c >= 1, int64, on the host.
        by: these rows, shape (c, k).

    Returns: the rows (b, k), and which of them are replaced, shape (b,), bool, on their device.
    """
    order = at.argsort()
    known = at[order]
    place = torch.searchsorted(known, index).clamp(max=len(known) - 1)
    found, chosen = send(known[place] == index, rows), send(order[place], rows)
    return torch.where(found.unsqueeze(1), by.index_select(0, chosen).to(rows.dtype), rows), found


def _all_different(index: Tensor) -> bool:
    if index.device.type != "cpu":
        index = index.sort().values
        return not bool((index[1:] == index[:-1]).any())
    if len(index) <= _FEW:  # little code: between two passes of a network nothing of it is in the caches
        listed = index.tolist()
        return len(set(listed)) == len(listed)
    numbers: NDArray[np.integer[Any]] = index.numpy()
    if numbers.size and numbers.min() >= 0 and numbers.max() < 2**31:
        numbers = numbers.astype(np.int32)  # numpy sorts them several times faster
    numbers = np.sort(numbers)
    return not bool(np.any(numbers[1:] == numbers[:-1]))

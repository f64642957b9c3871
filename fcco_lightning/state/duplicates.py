"""Repeated indices within a batch count once, with the mean of their inner values."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_FEW = 1024


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
    if _all_different(index):
        return index, values
    distinct, position, count = torch.unique(index, return_inverse=True, return_counts=True)
    total = values.new_zeros(distinct.numel(), values.shape[1]).index_add(0, position, values)
    return distinct, total / count.unsqueeze(1).to(values.dtype)


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

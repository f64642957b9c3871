"""Repeated indices within a batch count once, with the mean of their inner values."""

import torch
from torch import Tensor


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
    distinct, position, count = torch.unique(index, return_inverse=True, return_counts=True)
    if distinct.numel() == index.numel():
        return index, values
    total = values.new_zeros(distinct.numel(), values.shape[1]).index_add(0, position, values)
    return distinct, total / count.unsqueeze(1).to(values.dtype)

"""The Gram matrix of the gradients of all inner functions, and its extreme eigenvalues."""

from typing import NamedTuple

import torch
from torch import Tensor

from fcco_lightning.analysis.inner_jacobian import column_blocks


class Spectrum(NamedTuple):
    """The extreme eigenvalues of a Gram matrix.

    Attributes:
        lambda_min: The smallest eigenvalue, >= 0; one below ``n k 2e-16 lambda_max`` is rounding.
        lambda_max: The largest eigenvalue.
        condition: Their ratio; inf where the smallest one is rounding.
    """

    lambda_min: float
    lambda_max: float
    condition: float


def gram(rows: Tensor) -> Tensor:
    """Compute ``J J^T`` of gradients J.

    Args:
        rows: The gradients, shape (m, d).

    Returns:
        The Gram matrix, shape (m, m), float64.
    """
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for _, block in column_blocks(rows):
        total += block @ block.T
    return total


def spectrum(matrix: Tensor) -> Spectrum:
    r"""Compute the extreme eigenvalues of a Gram matrix.

    The smallest one is the delta of Assumption 4.3 of the SONEX paper, ``lambda_min(J J^T) >= delta > 0``; see also
    Table 6 there.

    Args:
        matrix: The Gram matrix, shape (m, m), float64.
    """
    eigenvalues = torch.linalg.eigvalsh(matrix).clamp(min=0)
    low, high = float(eigenvalues[0]), float(eigenvalues[-1])
    rounding = len(matrix) * torch.finfo(torch.float64).eps * high
    return Spectrum(low, high, high / low if low > rounding else float("inf"))

"""Rows drawn in turn, and the chances of such draws."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor


def cycle(rows: Tensor, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield ``size`` of ``rows`` at a time for ever, one shuffled pass after another."""
    left = rows[:0]
    while True:
        take, left = left[:size], left[size:]
        while len(take) < size:
            fresh = rows[torch.randperm(len(rows), generator=generator)]
            # Rows this batch already holds go to the end of the new pass: no repeats, and no row loses its turn.
            seen = torch.isin(fresh, take)
            fresh = torch.cat([fresh[~seen], fresh[seen]])
            missing = size - len(take)
            take, left = torch.cat([take, fresh[:missing]]), fresh[missing:]
        yield take


def none_drawn(sizes: NDArray[Any], marked: NDArray[Any], drawn: NDArray[Any]) -> NDArray[np.float64]:
    r"""Return the probability that none of ``marked`` rows is among ``drawn`` of ``sizes`` rows, without replacement.

    .. math:: \binom{N - k}{m} \Big/ \binom{N}{m}

    Each argument has a number for every stratum, shape (S,), or one for all.  More draws than rows (m > N) mean that
    every row is drawn.
    """
    left = sizes - marked
    possible = drawn <= left
    drawn = np.where(possible, drawn, 0)
    log = gammaln(left + 1) - gammaln(left - drawn + 1) - gammaln(sizes + 1) + gammaln(sizes - drawn + 1)
    return np.where(marked == 0, 1.0, possible * np.exp(np.minimum(log, 0.0)))


def mean_product(factors: NDArray[np.float64], count: int) -> float:
    r"""Return the mean over all choices of ``count`` of m numbers a_1..a_m in [0, 1] of the product of those chosen.

    That is the elementary symmetric polynomial e_count(a_1..a_m) divided by its number of terms.  Divided so at every
    step, the recurrence over the numbers is a convex combination, which neither overflows nor cancels:

    .. math:: E_j^{(m)} = \frac{m - j}{m} E_j^{(m-1)} + \frac{j}{m}\, a_m E_{j-1}^{(m-1)}

    Numbers that are 0 leave the mean over the choices among the others, times the chance of such a choice.
    """
    every, factors = len(factors), factors[factors > 0.0]
    if len(factors) < count:
        return 0.0
    j = np.arange(count)
    without_zeros = float(np.prod((len(factors) - j) / (every - j)))
    j = np.arange(count + 1)
    ones = int(np.count_nonzero(factors == 1.0))
    means = (j <= ones).astype(np.float64)  # products of ones
    for m, a in enumerate(factors[factors != 1.0].tolist(), start=ones + 1):
        before = np.concatenate([[0.0], means[:-1]])
        means = np.where(j <= m, (m - j) / m * means + j / m * a * before, 0.0)
    return without_zeros * float(means[-1])

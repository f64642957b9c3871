"""Spectral risk measures, in which the weight of a loss depends on its rank."""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fcco_lightning.ambiguity.base import AmbiguitySet, on_host
from fcco_lightning.ambiguity.simplex import CappedSimplex
from fcco_lightning.checks import fraction, greater, one_of, positive
from fcco_lightning.numerics import mean_of_equals

Spectrum = Literal["extremile", "esrm", "cvar"]
Array = NDArray[np.float64]
_RANGE = 600.0  # largest difference of log-weights that are exponentiated together


@dataclass(frozen=True)
class SpectralRisk(AmbiguitySet):
    r"""``max <q, R> = sum_k sigma_k R_(k)`` over the sorted risks ``R_(1) <= ... <= R_(n)``.

    Q is the convex hull of the permutations of sigma, ``sigma_k = S(k/n) - S((k-1)/n)``, with S of

    - ``extremile``: ``u^r``, the expected maximum of r draws for integer r; r >= 1, and 1 is the mean;
    - ``esrm``: ``(e^{r u} - 1)/(e^r - 1)``, the exponential spectral risk measure; r > 0;
    - ``cvar``: ``max(0, 1 - (1-u)/r)``, the mean of the worst fraction r; r in (0, 1]. :class:`CappedSimplex` is the
      same set, and faster.

    Projections are isotonic regressions of the sorted values, O(n log n) on the CPU.

    Args:
        spectrum: name of S.
        r: parameter of S.

    Raises:
        ConfigError: if the spectrum is unknown, or r outside its interval.
    Source: DRAGO paper, B.2 and D.2.1; isotonic regression in the KL geometry is one of weighted means of sigma/p.
    """

    spectrum: Spectrum
    r: float

    def __post_init__(self) -> None:
        one_of("spectrum", self.spectrum, get_args(Spectrum))
        if self.spectrum == "extremile":
            greater("r", self.r, 1, equal=True)
        elif self.spectrum == "esrm":
            positive("r", self.r)
        else:
            fraction("r", self.r)

    def sigma(self, n: int) -> Array:
        """Weights of the losses from the smallest to the largest, (n,), non-decreasing, of sum 1."""
        u = np.arange(n + 1) / n
        if self.spectrum == "extremile":
            cumulative = u**self.r
        elif self.spectrum == "esrm":
            cumulative = np.exp(self.r * (u - 1)) * np.expm1(-self.r * u) / math.expm1(-self.r)
        else:
            cumulative = np.maximum(0.0, 1 - (1 - u) / self.r)
        return np.maximum.accumulate(np.diff(cumulative))

    @on_host
    def worst_case(self, risks: Tensor) -> Tensor:
        sigma = torch.from_numpy(self.sigma(len(risks))).to(risks)
        return mean_of_equals(torch.empty_like(risks).scatter_(0, risks.argsort(), sigma), risks)

    @on_host
    def project(self, v: Tensor) -> Tensor:
        order = v.argsort()
        ascending = (v - v.mean())[order].double().cpu().numpy()
        sigma = self.sigma(len(v))
        fitted = _isotonic(ascending - sigma)
        starts = fitted.blocks[:-1]
        q = ascending - fitted.x
        # restore the sum of sigma on each block, which loses digits for a large v
        excess = np.add.reduceat(q - sigma, starts) / np.diff(fitted.blocks)
        q = np.maximum(q - np.repeat(excess, np.diff(fitted.blocks)), 0.0)
        return torch.empty_like(v).scatter_(0, order, torch.from_numpy(q).to(v))

    @on_host
    def project_kl(self, log_p: Tensor) -> Tensor:
        # on each block of the sorted p the weights are p times (sum of sigma / sum of p), and these ratios decrease
        order = log_p.argsort()
        ascending = (log_p - log_p.max())[order].double().cpu().numpy()
        sigma = self.sigma(len(log_p))
        if -ascending[0] <= _RANGE:
            p = np.exp(ascending)
            q = p * _isotonic(sigma / p, p, increasing=False).x
        else:
            q = _pooled(ascending, sigma)
        return torch.empty_like(log_p).scatter_(0, order, torch.from_numpy(q).to(log_p))

    def check(self, num_groups: int) -> None:
        if self.spectrum == "cvar":
            CappedSimplex(self.r).check(num_groups)


def _isotonic(y: Array, weights: Array | None = None, increasing: bool = True) -> Any:
    from scipy.optimize import isotonic_regression  # noqa: PLC0415 (slow to import)

    return isotonic_regression(y, weights=weights, increasing=increasing)


def _pooled(log_p: Array, sigma: Array) -> Array:
    """Pool adjacent violators with logarithms: ``p sum(sigma)/sum(p)`` on blocks with decreasing ratios."""
    blocks: list[tuple[float, float, int]] = []  # log sum p, sum sigma, size
    for single in zip(log_p.tolist(), sigma.tolist(), strict=True):
        block = (*single, 1)
        while blocks and _ratio(blocks[-1]) <= _ratio(block):
            log_p_before, sigma_before, size = blocks.pop()
            block = (float(np.logaddexp(log_p_before, block[0])), sigma_before + block[1], size + block[2])
        blocks.append(block)
    logs, weights, sizes = (np.array(column) for column in zip(*blocks, strict=True))
    return np.asarray(np.repeat(weights, sizes) * np.exp(log_p - np.repeat(logs, sizes)))


def _ratio(block: tuple[float, float, int]) -> float:
    """``log(sum sigma / sum p)``."""
    return math.log(block[1]) - block[0] if block[1] > 0 else -math.inf

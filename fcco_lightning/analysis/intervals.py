"""How far the constraints' values on a split can be from those on all data that the split is a sample of."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from scipy.special import betaincinv, ndtri
from torch import Tensor

from fcco_lightning.checks import fraction
from fcco_lightning.constraints import Constraint, unique_names
from fcco_lightning.errors import ConfigError
from fcco_lightning.records import Columns


class Interval(NamedTuple):
    """A confidence interval of h_i for weights that do not depend on the split.

    On the training split, to which the weights were fitted, it leaves out what fitting did.

    Attributes:
        h: the value on the split.
        low: lower end.
        high: upper end.
        noise: of ``h = |s| - kappa``, how large ``|s|`` is at most in 95 of 100 splits of this size where nothing
            differs (s = 0 on all data, and a rate varies within every subset as within all of them together); NaN for
            constraints that compare nothing.
        method: "binomial" or "normal", see :func:`intervals`.
    """

    h: float
    low: float
    high: float
    noise: float
    method: Literal["binomial", "normal"]


class _Means(NamedTuple):
    """The inner values of a row, and how they vary from split to split.

    Attributes:
        values: shape (k,).
        slopes: of the number s that they make up, shape (k,).
        variances: shape (k,).
        sizes: of the subset that each is a mean over, shape (k,); empty if they are no means of values in [0, 1].
        error: standard error of s.
        error_of_equals: the same where nothing differs between the subsets.
    """

    values: Tensor
    slopes: Tensor
    variances: Tensor
    sizes: Sequence[int]
    error: float
    error_of_equals: float


def intervals(
    constraints: Sequence[Constraint], outputs: Tensor, columns: Columns, level: float = 0.95
) -> dict[str, Interval]:
    r"""Compute a confidence interval of every constraint that the split has samples of.

    - "binomial", where the inner values are means of quantities in [0, 1] (rates): each has the exact interval of
      Clopper and Pearson (1934) with the effective number of samples ``p (1 - p) / Var p`` (Korn and Graubard, 1998).
      That is the number of samples for hard rates and larger for smoothed ones, whose variance is taken with one more
      sample at 0 and one at 1: a few low values do not say that there are no high ones.  Intervals of several rates
      combine to that of ``s = sum_j c_j u_j``: its ends are ``sqrt(sum_j (c_j u_j - l_j)^2)`` below s and likewise
      above, with l_j the end of the interval of ``c_j u_j`` (Zou and Donner, 2008; of two rates Newcombe, 1998).
    - "normal", for all others (losses, AUCs, ratios): ``s -+ z SE`` with the standard error of the infinitesimal
      jackknife (Efron, 1981), ``SE^2 = sum over samples j of (ds / d weight_j)^2`` at weights 1.

    The interval of ``h = |s| - kappa`` is that of all ``|s| - kappa`` for s in its own.  Quantiles of the pooled scores
    (``QuantileScores``, ``TopShare``) and ranks (``Exposure``) count as known.

    Args:
        constraints: any number.
        outputs: the network's outputs on the whole split, shape (n, ...).
        columns: the columns of the split.
        level: the confidence of a single interval, in (0, 1); to have all m hold together with confidence ``1 - a``
            take ``1 - a / m`` (Bonferroni).

    Returns:
        The intervals by name; where two constraints have one name, the later one gets an apostrophe.

    Raises:
        ConfigError: if ``level`` is not in (0, 1).
    """
    if fraction("level", level) == 1:
        raise ConfigError("level must lie in (0, 1), got 1: no interval but the whole line is certain.")
    found: dict[str, Interval] = {}
    names = unique_names([name for c in constraints for name in c.names])
    with torch.inference_mode(False), torch.enable_grad():
        for c in constraints:
            own, names = names[: c.num_rows], names[c.num_rows :]
            found |= {own[i]: _interval(c, means, level) for i, means in _rows(c, outputs, columns).items()}
    return found


def _rows(constraint: Constraint, outputs: Tensor, columns: Columns) -> dict[int, _Means]:
    """The rows of which the split has samples."""
    wide = outputs.detach().clone().double()
    known = {name: column.clone() for name, column in columns.items()}
    weight = torch.ones(len(wide), dtype=torch.float64, device=wide.device, requires_grad=True)
    inner = constraint.inner(wide, {**known, "weight": weight})
    if not inner.index.numel():
        return {}
    slopes = constraint.number(inner.values).subgradient(inner.values.detach())
    subsets = constraint.subsets(known)
    found = {}
    for i, values, slope in zip(inner.index.tolist(), inner.values, slopes, strict=True):
        influence = torch.stack([_influence(value, weight) for value in values])
        masks = [] if subsets is None or constraint.range != (0.0, 1.0) else list(subsets[i])
        error = float((slope @ influence).norm())
        means = _Means(values.detach(), slope, influence.square().sum(1), [], error, error)
        found[i] = _with_sizes(means, torch.stack(masks).double()) if len(masks) == len(values) else means
    return found


def _with_sizes(means: _Means, members: Tensor) -> _Means:
    """The means of values in [0, 1] over subsets, given as 0 and 1, shape (k, n)."""
    sizes = members.sum(1)
    share = sizes / sizes.sum()
    spread = share @ (sizes * means.variances + means.values.square()) - (share @ means.values).square()
    error = (spread.clamp(min=0) * (means.slopes / sizes @ members).square().sum()).sqrt()
    return means._replace(sizes=sizes.long().tolist(), error_of_equals=float(error))


def _influence(value: Tensor, weight: Tensor) -> Tensor:
    """How a value changes with the weight of each sample, shape (n,)."""
    if not value.requires_grad:
        return torch.zeros_like(weight)
    (influence,) = torch.autograd.grad(value, weight, retain_graph=True, allow_unused=True, materialize_grads=True)
    return influence


def _interval(constraint: Constraint, means: _Means, level: float) -> Interval:
    tail = (1 - level) / 2
    s = float(constraint.number(means.values).value(means.values.unsqueeze(0)))
    below, above = (_of_rates if means.sizes else _normal)(means, tail)
    low, high = s - below, s + above
    noise = math.nan
    if constraint.sides == 2:
        noise = -float(ndtri(0.025)) * means.error_of_equals
        s, low, high = abs(s), max(low, -high, 0.0), max(-low, high)
    kappa = s - float(constraint.violation(means.values.unsqueeze(0)))
    return Interval(s - kappa, low - kappa, high - kappa, noise, "binomial" if means.sizes else "normal")


def _normal(means: _Means, tail: float) -> tuple[float, float]:
    width = -float(ndtri(tail)) * means.error
    return width, width


def _of_rates(means: _Means, tail: float) -> tuple[float, float]:
    """How far below and above s the ends of its interval are."""
    below = above = 0.0
    for p, slope, variance, size in zip(*(part.tolist() for part in means[:3]), means.sizes, strict=True):
        low, high = exact_binomial(p, _effective_size(p, variance, size), tail)
        down, up = (p - low, high - p) if slope >= 0 else (high - p, p - low)
        below, above = below + (slope * down) ** 2, above + (slope * up) ** 2
    return math.sqrt(below), math.sqrt(above)


def _effective_size(rate: float, variance: float, size: int) -> float:
    """Of how many zeros and ones a mean of values in [0, 1] would vary as much; at least ``size``."""
    centre, square = (size * rate + 1) / (size + 2), (size * (size * variance + rate**2) + 1) / (size + 2)
    return max(size, rate * (1 - rate) * size / (square - centre**2))


def exact_binomial(rate: float, size: float, tail: float) -> tuple[float, float]:
    """The interval of Clopper and Pearson (1934) for a rate.

    Args:
        rate: observed, in [0, 1].
        size: number of samples, > 0; effective numbers need not be whole.
        tail: probability outside on each side.
    """
    hits = min(max(rate, 0.0), 1.0) * size
    low = 0.0 if hits <= 0 else float(betaincinv(hits, size - hits + 1, tail))
    high = 1.0 if hits >= size else float(betaincinv(hits + 1, size - hits, 1 - tail))
    return low, high

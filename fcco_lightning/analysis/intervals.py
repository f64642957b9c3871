"""Confidence intervals of constraints: their values on the population from which a split is a sample."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from scipy.special import betaincinv, ndtri, stdtrit
from torch import Tensor

from fcco_lightning.checks import inside
from fcco_lightning.constraints import Constraint, unique_names
from fcco_lightning.errors import DataError
from fcco_lightning.evaluation.split import inner_values
from fcco_lightning.models.batch import Columns
from fcco_lightning.outer import slopes

_ROUNDING = 1e-12  # variances of numbers in [0, 1] below it count as 0


class Interval(NamedTuple):
    """A confidence interval of h_i for weights that do not depend on the split.

    On the training split, to which the weights were fitted, it does not account for overfitting.

    Attributes:
        h: the value on the split.
        low: lower end.
        high: upper end.
        noise: for ``h = |s| - kappa`` the 95% quantile of ``|s|`` over splits of this size if there is no difference (s
            = 0 on the population, and rates vary within every subset as within all subsets together; if no samples
            differ, as with one more sample at 0 and one at 1); NaN for constraints without a comparison.
        method: "binomial" or "normal", see :func:`intervals`.
    """

    h: float
    low: float
    high: float
    noise: float
    method: Literal["binomial", "normal"]


class _Means(NamedTuple):
    """The inner values of a row, and their variation between splits.

    Attributes:
        values: the inner values, shape (k,).
        slopes: derivatives of the number s with respect to the values, shape (k,).
        variances: variances of the values, shape (k,).
        sizes: number of samples in the subset of each mean (Kish's effective number, if samples have weights), shape
            (k,); empty if the values are no means of numbers in [0, 1].
        error: standard error of s.
        error_of_equals: standard error of s if the subsets do not differ.
        clusters: number of clusters in the subset with the fewest; None if all samples are independent.
        designs: design effect: variance of each mean over that of independent samples, shape (k,).
    """

    values: Tensor
    slopes: Tensor
    variances: Tensor
    sizes: Tensor
    error: float
    error_of_equals: float
    clusters: int | None
    designs: Tensor

    def quantile(self, tail: float) -> float:
        """The number of standard errors that is exceeded with the probability ``tail``."""
        return -float(ndtri(tail) if self.clusters is None else stdtrit(self.clusters - 1, tail))


def intervals(
    constraints: Sequence[Constraint],
    outputs: Tensor,
    columns: Columns,
    level: float = 0.95,
    clusters: Tensor | None = None,
    *,
    decisions: bool = False,
) -> dict[str, Interval]:
    r"""Compute a confidence interval of every constraint for which the split has samples.

    A constraint requires ``h = s - kappa <= 0``, or with two sides ``h = |s| - kappa <= 0``, for a number s that
    depends on one or several inner values, such as a rate, or the difference of two rates.  The interval of h is that
    of s, shifted by kappa; with two sides it contains all ``|s| - kappa`` for s in its interval.  There are two
    methods:

    - "binomial", where the inner values are means of quantities in [0, 1] (rates): each rate has its exact interval
      (:func:`exact_binomial`), and several combine to that of s (:func:`_margins`).  Smoothed rates, which vary less
      than zeros and ones, count as rates of more samples (:func:`_effective_size`).  Rates of samples with weights
      count as rates of ``(sum w)^2 / sum w^2`` samples (Kish, 1965), or of fewer if they vary more.
    - "normal", for other values (losses, AUCs, ratios): ``s -+ z SE``, with the standard error of :func:`_influence`.

    Samples of the same patient, camera or handwriting are correlated, and contain less information than as many
    independent samples.  With ``clusters`` only clusters are assumed to be independent: standard errors are those of
    :func:`_with_clusters`, quantiles those of Student's t with c - 1 degrees of freedom, where c is the number of
    clusters in the subset with the fewest (MacKinnon, Nielsen and Webb, 2023), and rates count as rates of fewer
    samples.  The noise increases by the same ratio of standard errors.  If positives are rare and occur in whole
    clusters, the intervals are too short: for a rate of 3% with a correlation of .6 within 40 clusters of 8 samples,
    95% intervals contain it in 91% of splits (in 62% without ``clusters``).

    Quantiles of the pooled scores (``QuantileScores``, ``TopShare``) and ranks (``Exposure``) are treated as known.

    An example: 12 of 100 samples have a positive decision, and a rate of at most kappa = .1 is allowed.  The rate of
    .12 has the interval [.064, .200], so h = .02 has [-.036, .100]: the split does not show whether the cap is met.  In
    one group 30% of 50 samples have a positive decision, in the other 10% of 100, with the intervals [.179, .446] and
    [.049, .176].  Their difference s = .2 has ``[.2 - sqrt(.121^2 + .076^2), .2 + sqrt(.146^2 + .051^2)]``, that is
    [.057, .355]: the rates of the groups differ.

    Args:
        constraints: the constraints.
        outputs: the network's outputs on the whole split, shape (n, ...).
        columns: the columns of the split.
        level: confidence level of a single interval, in (0, 1); for a joint level ``1 - a`` of m intervals use ``1 - a
            / m`` (Bonferroni).
        clusters: number of every sample's cluster, shape (n,); None if all samples are independent.
        decisions: whether to compute intervals of the decisions themselves for constraints that smooth decisions.

    Returns:
        The intervals by name; if two constraints have the same name, the later one gets an apostrophe.  Rows with
        samples of a single cluster are left out, and for normal intervals also rows with a single sample.

    Raises:
        ConfigError: if ``level`` is not in (0, 1).
        DataError: if ``clusters`` is not one number for every sample.
    """
    inside("level", level)
    if clusters is not None and clusters.shape != (len(outputs),):
        raise DataError(
            f"clusters must contain one number for each sample, shape ({len(outputs)},), got "
            f"{tuple(clusters.shape)}. Give the column of the split that says which samples belong together."
        )
    by_name: dict[str, Interval] = {}
    codes = None if clusters is None else torch.unique(clusters, return_inverse=True)[1]
    names = unique_names(constraints)
    with torch.inference_mode(False), torch.enable_grad():
        for c in constraints:
            row_names, names = names[: c.num_rows], names[c.num_rows :]
            rows = _rows(c, outputs, columns, codes, decisions=decisions and c.smooths)
            by_name |= {row_names[i]: _interval(c, means, level) for i, means in rows.items()}
    return by_name


def _rows(
    constraint: Constraint, outputs: Tensor, columns: Columns, codes: Tensor | None, *, decisions: bool
) -> dict[int, _Means]:
    """The rows for which the split has samples, and from more than one cluster if there are clusters."""
    wide = outputs.detach().clone().double()
    counted = {name: column.clone() for name, column in columns.items()}
    weight = torch.ones(len(wide), dtype=torch.float64, device=wide.device, requires_grad=True)
    sample_weight = counted.get("weight", torch.ones_like(weight)).double()
    counted["weight"] = weight * sample_weight
    index, inner = inner_values(constraint, wide, counted)
    if not len(index):
        return {}
    if decisions:
        inner = constraint.decided(wide, counted).index_select(0, index)
    number_slopes = slopes(constraint.number, inner)
    subsets = constraint.subsets(counted)
    rows: dict[int, _Means] = {}
    for i, values, slope in zip(index.tolist(), inner, number_slopes, strict=True):
        influence = torch.stack([_influence(value, weight) for value in values])
        members = influence != 0 if subsets is None else torch.stack(list(subsets[i]))
        members = members * sample_weight
        rates = subsets is not None and constraint.range == (0.0, 1.0) and len(members) == len(values)
        if subsets is not None and not rates and int((members > 0).sum(1).min()) < 2:
            continue  # no variance estimate from a single sample
        means = _means(values.detach(), slope, influence, members if rates else None)
        clustered = means if codes is None else _with_clusters(means, influence, members, codes.to(influence.device))
        rows |= {} if clustered is None else {i: clustered}
    return rows


def _means(values: Tensor, slopes: Tensor, influence: Tensor, members: Tensor | None) -> _Means:
    """Statistics for independent samples, from the influence of every sample on each of the k values, shape (k, n).

    For means of numbers in [0, 1] ``members`` are the samples' weights in the k subsets (0 outside), shape (k, n).
    Weights that are correlated with the values can make a mean vary more than that of as many equally weighted samples.
    """
    variances, error = influence.square().sum(1), float((slopes @ influence).norm())
    means = _Means(values, slopes, variances, values.new_zeros(0), error, error, None, torch.ones_like(values))
    if members is None:
        return means
    totals = members.sum(1)
    sizes, share = totals.square() / members.square().sum(1), totals / totals.sum()
    spread = share @ (sizes * variances + values.square()) - (share @ values).square()
    number = sizes.sum()  # if no samples differ, the spread with one more sample at 0 and one at 1
    spread = torch.where(spread > _ROUNDING, spread, (number + 1) / (number + 2).square())
    equals = (spread * (slopes / totals @ members).square().sum()).sqrt()
    binomial = values * (1 - values) / sizes
    designs = torch.where(binomial > 0, variances / binomial, 1.0).clamp(min=1)
    return means._replace(sizes=sizes, error_of_equals=float(equals), designs=designs)


def _with_clusters(means: _Means, influence: Tensor, members: Tensor, codes: Tensor) -> _Means | None:
    """The statistics for samples in clusters ``codes`` (n,), 0..C-1; None if a subset has a single cluster.

    The influence of a cluster is the sum of the influences of its samples (Liang and Zeger, 1986): ``SE^2 = c / (c - 1)
    sum over clusters of (sum over its samples j of ds / d weight_j)^2``, with c the number of clusters in the subset
    with the fewest.  The factor makes it unbiased for a mean over clusters of equal size (influences of a weighted mean
    sum to 0).

    The design effect of a mean is the ratio of this variance to that of independent samples, at least 1.  If no samples
    differ, it is that of clusters of identical samples.
    """
    shape = int(codes.max()) + 1
    sizes = influence.new_zeros(len(members), shape).index_add(1, codes, members)
    numbers = (sizes > 0).sum(1)
    c = int(numbers[numbers > 0].min()) if bool(numbers.any()) else 0
    if c < 2:
        return None
    totals = influence.new_zeros(len(influence), shape).index_add(1, codes, influence)
    error = math.sqrt(c / (c - 1)) * float((means.slopes @ totals).norm())
    if len(means.sizes):
        cluster_variances = totals.square().sum(1) * numbers / (numbers - 1)
        equal = sizes.square().sum(1) / members.square().sum(1)  # for clusters of identical samples
        larger = torch.where(means.variances > 0, cluster_variances / means.variances, equal).clamp(min=1)
        means = means._replace(designs=means.designs * larger)
    ratio = error / means.error if means.error > 0 else 1.0
    return means._replace(error=error, error_of_equals=ratio * means.error_of_equals, clusters=c)


def _influence(value: Tensor, weight: Tensor) -> Tensor:
    r"""The derivative of a value with respect to the weight of each sample, ``ds / d weight_j``, shape (n,).

    The infinitesimal jackknife (Efron, 1981) estimates the variance of s by ``SE^2 = sum_j (ds / d weight_j)^2`` at
    weights of 1, which multiply the column ``weight``.  For a mean of n values the derivative is ``(x_j - mean) / n``,
    so that ``SE^2`` is their variance over n.
    """
    if not value.requires_grad:
        return torch.zeros_like(weight)
    (influence,) = torch.autograd.grad(value, weight, retain_graph=True, allow_unused=True, materialize_grads=True)
    return influence


def _interval(constraint: Constraint, means: _Means, level: float) -> Interval:
    tail, rates = (1 - level) / 2, len(means.sizes) > 0
    s = float(constraint.number(means.values.unsqueeze(0)))
    margin_below, margin_above = _margins(means, tail) if rates else (means.quantile(tail) * means.error,) * 2
    low, high = s - margin_below, s + margin_above
    noise = math.nan
    if constraint.sides == 2:
        noise = means.quantile(0.025) * means.error_of_equals
        s, low, high = abs(s), max(low, -high, 0.0), max(-low, high)
    kappa = s - float(constraint.violation(means.values.unsqueeze(0)))
    return Interval(s - kappa, low - kappa, high - kappa, noise, "binomial" if rates else "normal")


def _margins(means: _Means, tail: float) -> tuple[float, float]:
    """Distances from ``s = sum_j c_j u_j`` to the lower and the upper end of its interval, for independent rates u_j.

    With l_j the lower end of the interval of ``c_j u_j``, the lower distance is ``sqrt(sum_j (c_j u_j - l_j)^2)``, and
    similarly the upper one (Zou and Donner, 2008; Newcombe, 1998, for two rates).  A cluster in two subsets is treated
    as two clusters, which makes the interval of a difference wider.

    The coverage for a single rate is at least the nominal level.  For 95% intervals of a difference of two rates this
    is true on average over all pairs of rates, and for every pair with 50 and 100, or 200 and 200 samples; with at most
    ten samples each and rates at opposite ends the coverage is at least 92.5% (by enumeration of 37 by 37 pairs of
    rates).

    With clusters the number of samples of a rate is divided by the design effect, and multiplied by ``(t_(n-1) /
    t_(c-1))^2``, with quantiles of t (Korn and Graubard, 1998), if that is less than 1 (the effective number of samples
    with unequal weights may be smaller than the number of clusters).
    """
    squares_below = squares_above = 0.0
    statistics = (means.values, means.slopes, means.variances, means.sizes, means.designs)
    for p, slope, variance, size, design in zip(*(part.tolist() for part in statistics), strict=True):
        fewer = 1.0
        if means.clusters is not None and size > means.clusters:
            fewer = (float(stdtrit(size - 1, tail)) / means.quantile(tail)) ** 2
        low, high = exact_binomial(p, _effective_size(p, variance, size) / design * fewer, tail)
        down, up = (p - low, high - p) if slope >= 0 else (high - p, p - low)
        squares_below, squares_above = squares_below + (slope * down) ** 2, squares_above + (slope * up) ** 2
    return math.sqrt(squares_below), math.sqrt(squares_above)


def _effective_size(rate: float, variance: float, size: float) -> float:
    """The number of zeros and ones whose mean varies as much as a given mean of numbers in [0, 1]; at least ``size``.

    It is ``p (1 - p) / Var p`` (Korn and Graubard, 1998), the number of samples for hard rates and a larger number for
    smoothed rates.  Their variance is computed with one more sample at 0 and one at 1, as a few low values do not
    exclude high ones.
    """
    centre, square = (size * rate + 1) / (size + 2), (size * (size * variance + rate**2) + 1) / (size + 2)
    return max(size, rate * (1 - rate) * size / (square - centre**2))


def exact_binomial(rate: float, size: float, tail: float) -> tuple[float, float]:
    """The interval of Clopper and Pearson (1934) for a rate.

    Args:
        rate: observed rate, in [0, 1].
        size: number of samples, > 0, not necessarily an integer.
        tail: probability outside of the interval on each side.

    Example:
        >>> [round(end, 3) for end in exact_binomial(0.12, 100, tail=0.025)]
        [0.064, 0.2]
    """
    hits = min(max(rate, 0.0), 1.0) * size
    low = 0.0 if hits <= 0 else float(betaincinv(hits, size - hits + 1, tail))
    high = 1.0 if hits >= size else float(betaincinv(hits + 1, size - hits, 1 - tail))
    return low, high

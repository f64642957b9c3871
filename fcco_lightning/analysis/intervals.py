"""How far the constraints' values on a split can be from those on all data that the split is a sample of."""

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

_ROUNDING = 1e-12  # below it a variance of numbers in [0, 1] is 0


class Interval(NamedTuple):
    """A confidence interval of h_i for weights that do not depend on the split.

    On the training split, to which the weights were fitted, it leaves out what fitting did.

    Attributes:
        h: the value on the split.
        low: lower end.
        high: upper end.
        noise: of ``h = |s| - kappa``, how large ``|s|`` is at most in 95 of 100 splits of this size where nothing
            differs (s = 0 on all data, and a rate varies within every subset as within all of them together, or where
            none of their samples differ as with one more at 0 and one at 1); NaN for constraints that compare nothing.
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
        sizes: of the subset that each is a mean over, by Kish where samples have weights, shape (k,); empty if they
            are no means of values in [0, 1].
        error: standard error of s.
        error_of_equals: the same where nothing differs between the subsets.
        clusters: in the subset that has the fewest; None where all samples are independent.
        designs: how many times as large the variance of each mean is as that of independent samples, shape (k,).
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
        """How many standard errors are exceeded with the probability ``tail``."""
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
    r"""Compute a confidence interval of every constraint that the split has samples of.

    A constraint says of a number s that ``h = s - kappa <= 0``, or of two sides ``h = |s| - kappa <= 0``, and s is made
    of one or several inner values: of a rate, or of the difference of two.  The interval of h is that of s, moved by
    kappa; of two sides it is that of all ``|s| - kappa`` for s in its own.  There are two methods:

    - "binomial", where the inner values are means of quantities in [0, 1] (rates): each rate has its exact interval
      (:func:`exact_binomial`), and several combine to that of s (:func:`_margins`).  Smoothed rates, which vary less
      than 0 and 1 do, count as rates of more samples (:func:`_effective_size`).  Rates of samples with weights count
      as those of ``(sum w)^2 / sum w^2`` samples (Kish, 1965), or of fewer if they vary more than so many do.
    - "normal", for all others (losses, AUCs, ratios): ``s -+ z SE``, with the standard error of :func:`_influence`.

    Samples of one patient, camera or handwriting are alike, so that they say less than as many independent ones.  With
    ``clusters`` only the clusters are independent: standard errors are those of :func:`_with_clusters`, quantiles those
    of Student's t with c - 1 degrees of freedom, where c is the number of clusters in the subset that has the fewest
    (MacKinnon, Nielsen and Webb, 2023), and rates count as those of fewer samples.  The noise is larger by the same
    ratio of standard errors.  Where hits are rare and come in whole clusters, their number is known least where it
    happens to be small: of a rate of 3% with a correlation of .6 within 40 clusters of 8 samples, 95% intervals hold it
    in 91% of splits (and in 62% without clusters).

    Quantiles of the pooled scores (``QuantileScores``, ``TopShare``) and ranks (``Exposure``) count as known.

    An example: of 100 samples 12 are decided positive, and at most a share of kappa = .1 is allowed.  The rate of .12
    has the interval [.064, .200], so h = .02 has [-.036, .100]: the split leaves open whether the cap is kept.  In one
    group 30% of 50 samples are decided positive, in the other 10% of 100, with the intervals [.179, .446] and
    [.049, .176].  Their difference s = .2 has ``[.2 - sqrt(.121^2 + .076^2), .2 + sqrt(.146^2 + .051^2)]``, that is
    [.057, .355]: the rates of the groups differ.

    Args:
        constraints: any number.
        outputs: the network's outputs on the whole split, shape (n, ...).
        columns: the columns of the split.
        level: the confidence of a single interval, in (0, 1), as no interval but the whole line is certain; to have all
            m hold together with confidence ``1 - a`` take ``1 - a / m`` (Bonferroni).
        clusters: the number of the cluster of every sample, shape (n,); None if all samples are independent.
        decisions: whether constraints that smooth decisions are enforced on the decisions themselves, whose intervals
            are wanted then.

    Returns:
        The intervals by name; where two constraints have one name, the later one gets an apostrophe.  Rows of which the
        split has samples of a single cluster have none, and where the interval is a normal one, of a single sample.

    Raises:
        ConfigError: if ``level`` is not in (0, 1).
        DataError: if ``clusters`` is not one number for every sample.
    """
    inside("level", level)
    if clusters is not None and clusters.shape != (len(outputs),):
        raise DataError(
            f"clusters must be one number for every sample, shape ({len(outputs)},), got {tuple(clusters.shape)}. Give "
            "the column of the split that says which samples belong together."
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
    """The rows of which the split has samples, of more than one cluster."""
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
            continue  # a single sample has no estimate of variance
        means = _means(values.detach(), slope, influence, members if rates else None)
        clustered = means if codes is None else _with_clusters(means, influence, members, codes.to(influence.device))
        rows |= {} if clustered is None else {i: clustered}
    return rows


def _means(values: Tensor, slopes: Tensor, influence: Tensor, members: Tensor | None) -> _Means:
    """Those of independent samples, from the influence of every sample on each of the k values, shape (k, n).

    Means of values in [0, 1] are over subsets, given by what every sample counts in them (0 if it is no member),
    shape (k, n).  Weights that go with the values make a mean vary more than one of as many equal samples can.
    """
    variances, error = influence.square().sum(1), float((slopes @ influence).norm())
    means = _Means(values, slopes, variances, values.new_zeros(0), error, error, None, torch.ones_like(values))
    if members is None:
        return means
    totals = members.sum(1)
    sizes, share = totals.square() / members.square().sum(1), totals / totals.sum()
    spread = share @ (sizes * variances + values.square()) - (share @ values).square()
    number = sizes.sum()  # where no sample differs from another, the spread with one more at 0 and one at 1
    spread = torch.where(spread > _ROUNDING, spread, (number + 1) / (number + 2).square())
    equals = (spread * (slopes / totals @ members).square().sum()).sqrt()
    binomial = values * (1 - values) / sizes
    designs = torch.where(binomial > 0, variances / binomial, 1.0).clamp(min=1)
    return means._replace(sizes=sizes, error_of_equals=float(equals), designs=designs)


def _with_clusters(means: _Means, influence: Tensor, members: Tensor, codes: Tensor) -> _Means | None:
    """The same for samples in the clusters ``codes`` (n,), 0..C-1; None if a subset of ``members`` has a single one.

    The influences of the samples of a cluster add up to that of the cluster (Liang and Zeger, 1986):
    ``SE^2 = c / (c - 1) sum over clusters of (sum over its samples j of ds / d weight_j)^2``, with c the number of
    clusters in the subset that has the fewest.  The factor makes it unbiased for a mean over clusters of one size,
    whose influences, as those of all weighted means, add up to 0.

    The design effect of a mean is the ratio of this variance to that of independent samples, not below 1.  Where no
    sample differs from another it is that of clusters whose samples are all equal.
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
        equal = sizes.square().sum(1) / members.square().sum(1)  # of clusters whose samples are all equal
        larger = torch.where(means.variances > 0, cluster_variances / means.variances, equal).clamp(min=1)
        means = means._replace(designs=means.designs * larger)
    ratio = error / means.error if means.error > 0 else 1.0
    return means._replace(error=error, error_of_equals=ratio * means.error_of_equals, clusters=c)


def _influence(value: Tensor, weight: Tensor) -> Tensor:
    r"""How a value changes with the weight of each sample, ``ds / d weight_j``, shape (n,).

    The infinitesimal jackknife (Efron, 1981) has the variance of s from it, ``SE^2 = sum_j (ds / d weight_j)^2`` at
    weights 1, by which those of the column are multiplied.  Of a mean of n values it is ``(x_j - mean) / n``, so that
    ``SE^2`` is their variance over n.
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
    """How far below and above ``s = sum_j c_j u_j`` the ends of its interval are, for independent rates u_j.

    With l_j the lower end of the interval of ``c_j u_j``, that of s is ``sqrt(sum_j (c_j u_j - l_j)^2)`` below it, and
    likewise above (Zou and Donner, 2008; of two rates Newcombe, 1998).  A cluster that is in two subsets is taken for
    two, which of a difference gives a wider interval.

    A single rate is in its interval at least as often as asked for.  Of 95% intervals of a difference of two rates that
    holds on average over all pairs of rates, and of every pair with 50 and 100 or 200 and 200 samples; with at most ten
    of each and rates at opposite ends it is 92.5% at least (by enumeration of 37 by 37 pairs of rates).

    Of clusters the number of samples of a rate is divided by the design effect, and multiplied by
    ``(t_(n-1) / t_(c-1))^2``, the quantiles of t (Korn and Graubard, 1998), if that is less than 1: samples of unequal
    weight may count as fewer than there are clusters.
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
    """Of how many zeros and ones a mean of values in [0, 1] would vary as much; at least ``size``.

    That is ``p (1 - p) / Var p`` (Korn and Graubard, 1998), the number of samples for hard rates and a larger one for
    smoothed ones.  Their variance is taken with one more sample at 0 and one at 1: a few low values do not say that
    there are no high ones.
    """
    centre, square = (size * rate + 1) / (size + 2), (size * (size * variance + rate**2) + 1) / (size + 2)
    return max(size, rate * (1 - rate) * size / (square - centre**2))


def exact_binomial(rate: float, size: float, tail: float) -> tuple[float, float]:
    """The interval of Clopper and Pearson (1934) for a rate.

    Args:
        rate: observed, in [0, 1].
        size: number of samples, > 0; effective numbers need not be whole.
        tail: probability outside on each side.

    Example:
        >>> [round(end, 3) for end in exact_binomial(0.12, 100, tail=0.025)]
        [0.064, 0.2]
    """
    hits = min(max(rate, 0.0), 1.0) * size
    low = 0.0 if hits <= 0 else float(betaincinv(hits, size - hits + 1, tail))
    high = 1.0 if hits >= size else float(betaincinv(hits + 1, size - hits, 1 - tail))
    return low, high

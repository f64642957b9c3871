"""Metrics of censored survival times: baseline hazards, concordance, and the Brier score.

``time`` (n,) is the time of a sample's event or of its censoring, ``event`` (n,) bool tells which, and ``risk`` (n,) is
the log risk h of a proportional hazards model.  All computations are in float64.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

_CHUNK = 512  # number of events that are compared with all samples at once


class StepFunction(NamedTuple):
    """A right-continuous step function of time.

    Attributes:
        times: the times of the jumps, ascending, shape (m,).
        values: the values from each jump on, shape (m,).
        start: the value before the first jump.
    """

    times: Tensor
    values: Tensor
    start: float

    def __call__(self, t: Tensor, *, before: bool = False) -> Tensor:
        """Return the values at t, or with ``before`` just before t, in the shape of t."""
        place = torch.searchsorted(self.times, t.contiguous(), right=not before)
        padded = torch.cat([self.values.new_tensor([self.start]), self.values])
        return padded[place]


def kaplan_meier(time: Tensor, event: Tensor) -> StepFunction:
    """Kaplan-Meier estimate of the probability that a sample has had no event by t.

    Example:
        >>> kaplan_meier(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True])).values.tolist()
        [0.6666666666666667, 0.0]
    """
    times, count = torch.unique(time[event], return_counts=True)
    return StepFunction(times, (1 - count.double() / _at_risk(time, times)).cumprod(0), 1.0)


def uncensored_probability(time: Tensor, event: Tensor) -> StepFunction:
    """Kaplan-Meier estimate G of the probability that a sample has not been censored by t.

    At equal times events come first: a sample with its event at t is not at risk of censoring at t.

    Example:
        >>> time, event = torch.tensor([1.0, 1.0, 2.0]), torch.tensor([True, False, True])
        >>> uncensored_probability(time, event).values.tolist()
        [0.5]
    """
    times, count = torch.unique(time[~event], return_counts=True)
    events = time[event].sort().values
    just_before = torch.searchsorted(events, times, right=True) - torch.searchsorted(events, times)
    return StepFunction(times, (1 - count.double() / (_at_risk(time, times) - just_before)).cumprod(0), 1.0)


def _at_risk(time: Tensor, times: Tensor) -> Tensor:
    """Number of samples with neither event nor censoring before each of ``times``."""
    return len(time) - torch.searchsorted(time.sort().values, times)


def breslow_log_hazard(time: Tensor, event: Tensor, risk: Tensor) -> StepFunction:
    """Logarithm of Breslow's estimate of the cumulative baseline hazard H.

    H jumps at every event time by the number of events divided by the sum of exp(h) over the samples at risk.  The
    survival probability of a sample with log risk h is ``exp(-H(t) exp(h))``.  Source: Breslow (1972).
    """
    times, count = torch.unique(time[event], return_counts=True)
    order = time.argsort()
    log_risk_sums = risk.double()[order].flip(0).logcumsumexp(0).flip(0)  # in logarithms, since exp(h) may overflow
    steps = count.double().log() - log_risk_sums[torch.searchsorted(time[order], times)]
    return StepFunction(times, steps.logcumsumexp(0), -math.inf)


def survival_probability(log_hazard: StepFunction, risk: Tensor, t: Tensor) -> Tensor:
    """Probability of no event by t, shape (n, m), for log risks (n,) and times t (m,)."""
    return torch.exp(-torch.exp(risk.double().unsqueeze(1) + log_hazard(t)))


def concordance(time: Tensor, event: Tensor, risk: Tensor, weight: Tensor | None = None) -> float:
    """Harrell's C: the share of concordant pairs among pairs in which one sample certainly had its event first.

    A pair (i, j) counts if i had its event before j was last seen, or when j was censored; it is concordant if i has
    the larger risk, and equal risks count half.  With weights of the events i it is the concordance of Uno et al.

    Args:
        time: shape (n,).
        event: shape (n,), bool.
        risk: shape (n,).
        weight: weights of pairs by their first sample, shape (n,); None for 1.

    Returns: in [0, 1]; NaN if no pair counts.
    Source: Harrell et al. (1982); Uno et al. (2011).
    """
    concordant = total = torch.zeros((), dtype=torch.float64, device=time.device)
    for rows in event.nonzero().squeeze(1).split(_CHUNK):  # type: ignore[no-untyped-call]
        time_of_event = time[rows].unsqueeze(1)
        counts = (time_of_event < time) | ((time_of_event == time) & ~event)
        ahead = risk[rows].unsqueeze(1) - risk
        share = counts * ((ahead > 0) + 0.5 * (ahead == 0)).double()
        pair_weight = torch.ones_like(rows, dtype=torch.float64) if weight is None else weight[rows].double()
        concordant, total = concordant + pair_weight @ share.sum(1), total + pair_weight @ counts.double().sum(1)
    return float(concordant / total)


def uno_concordance(time: Tensor, event: Tensor, risk: Tensor, horizon: float) -> float:
    """Concordance of events before the horizon, whose limit does not depend on censoring (Uno et al., 2011).

    A pair whose first event is at t has the weight ``1 / G(t-)^2``, with G from :func:`uncensored_probability`.
    """
    uncensored = uncensored_probability(time, event)(time, before=True)
    return concordance(time, event & (time < horizon), risk, 1 / uncensored.clamp(min=1e-12).square())


def brier_score(time: Tensor, event: Tensor, survival: Tensor, t: Tensor) -> Tensor:
    """Mean squared error of predicted survival probabilities, with inverse probability of censoring weights 1/G.

    Args:
        time: shape (n,).
        event: shape (n,), bool.
        survival: predicted probability of no event by each of m times, shape (n, m).
        t: these times, shape (m,).

    Returns: shape (m,).
    Source: Graf et al. (1999).
    """
    uncensored = uncensored_probability(time, event)
    had_event = (time.unsqueeze(1) <= t) & event.unsqueeze(1)
    at_risk = time.unsqueeze(1) > t
    error_of_events = survival.square() / uncensored(time, before=True).clamp(min=1e-12).unsqueeze(1)
    error_at_risk = (1 - survival).square() / uncensored(t).clamp(min=1e-12)
    return (had_event * error_of_events + at_risk * error_at_risk).mean(0)


def partial_likelihood(time: Tensor, event: Tensor, risk: Tensor) -> float:
    """Mean negative log partial likelihood of the events, ties by Breslow's method; NaN without an event."""
    order = time.argsort(descending=True)
    sums = torch.logcumsumexp(risk.double()[order], 0)
    last = torch.searchsorted(-time[order], -time, right=True) - 1  # the last sample at risk in this order
    return float((sums[last] - risk.double())[event].mean())

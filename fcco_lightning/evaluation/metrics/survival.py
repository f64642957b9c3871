"""Metrics of censored survival times: baseline hazards, concordance, and the Brier score.

``time`` (n,) is the time of a sample's event or of its censoring, ``event`` (n,) bool tells which, and ``risk`` (n,) is
the log risk h of a proportional hazards model.  Arguments are arrays or tensors; all computations are in float64 on the
CPU.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

Array = npt.NDArray[np.float64]
ArrayLike: TypeAlias = npt.ArrayLike | Tensor
StepFunction = Callable[[ArrayLike], Array]
"""A right-continuous step function of times, which returns its values in their shape."""

_CHUNK = 512  # number of events that are compared with all samples at once


def kaplan_meier(time: ArrayLike, event: ArrayLike) -> StepFunction:
    """Kaplan-Meier estimate of the probability that a sample has had no event by t.

    Example:
        >>> kaplan_meier([1.0, 2.0, 3.0], [True, False, True])([1.0, 3.0]).round(3).tolist()
        [0.667, 0.0]
    """
    from scipy.stats import CensoredData, ecdf  # noqa: PLC0415 - slow to import

    times, is_event = _arrays(time, event)
    survival = ecdf(CensoredData(times[is_event], right=times[~is_event])).sf
    return lambda t: survival.evaluate(_array(t))


def uncensored_probability(time: ArrayLike, event: ArrayLike) -> StepFunction:
    """Kaplan-Meier estimate G of the probability that a sample has not been censored by t.

    At equal times events come first: a sample with its event at t is not at risk of censoring at t.

    Example:
        >>> uncensored_probability([1.0, 1.0, 2.0], [True, False, True])([1.0]).tolist()
        [0.5]
    """
    times, is_event = _arrays(time, event)
    return kaplan_meier(np.where(is_event, just_before(times), times), ~is_event)


def just_before(time: ArrayLike) -> Array:
    """The largest numbers below the times, for the left limits of step functions."""
    return np.nextafter(_array(time), -np.inf)


def breslow_log_hazard(time: ArrayLike, event: ArrayLike, risk: ArrayLike) -> StepFunction:
    """Logarithm of Breslow's estimate of the cumulative baseline hazard H.

    H jumps at every event time by the number of events divided by the sum of exp(h) over the samples at risk.  The
    survival probability of a sample with log risk h is ``exp(-H(t) exp(h))``.  Source: Breslow (1972).
    """
    times, is_event = _arrays(time, event)
    jumps, count = np.unique(times[is_event], return_counts=True)
    steps = np.log(count) - _log_risk_sums(times, risk, jumps)  # in logarithms, since exp(h) may overflow
    values = np.append(-np.inf, np.logaddexp.accumulate(steps))
    return lambda t: values[np.searchsorted(jumps, _array(t), "right")]


def survival_probability(log_hazard: StepFunction, risk: ArrayLike, t: ArrayLike) -> Array:
    """Probability of no event by t, shape (n, m), for log risks (n,) and times t (m,)."""
    with np.errstate(over="ignore"):  # of an infinite hazard the probability is 0
        probability: Array = np.exp(-np.exp(_array(risk)[:, None] + log_hazard(t)))
    return probability


def concordance(time: ArrayLike, event: ArrayLike, risk: ArrayLike, weight: ArrayLike = 1.0) -> float:
    """Harrell's C: the share of concordant pairs among pairs in which one sample certainly had its event first.

    A pair (i, j) counts if i had its event before j was last seen, or when j was censored; it is concordant if i has
    the larger risk, and equal risks count half.  With weights of the events i it is the concordance of Uno et al.

    Args:
        time: shape (n,).
        event: shape (n,), bool.
        risk: shape (n,).
        weight: weights of pairs by their first sample, shape (n,) or ().

    Returns: in [0, 1]; NaN if no pair counts.
    Source: Harrell et al. (1982); Uno et al. (2011).
    """
    times, is_event = _arrays(time, event)
    h, weights = _array(risk), np.broadcast_to(_array(weight), times.shape)
    concordant = total = 0.0
    events = is_event.nonzero()[0]
    for first in range(0, len(events), _CHUNK):
        rows = events[first : first + _CHUNK]
        own = times[rows, None]
        counts = (own < times) | ((own == times) & ~is_event)
        higher, equal = (counts & (h[rows, None] > h)).sum(1), (counts & (h[rows, None] == h)).sum(1)
        concordant, total = concordant + weights[rows] @ (higher + 0.5 * equal), total + weights[rows] @ counts.sum(1)
    return float(concordant / total) if total > 0 else np.nan


def uno_concordance(time: ArrayLike, event: ArrayLike, risk: ArrayLike, horizon: float) -> float:
    """Concordance of events until the horizon, whose limit does not depend on censoring (Uno et al., 2011).

    A pair whose first event is at t has the weight ``1 / G(t-)^2``, with G from :func:`uncensored_probability`.
    """
    times, is_event = _arrays(time, event)
    uncensored = uncensored_probability(times, is_event)(just_before(times))
    return concordance(times, is_event & (times <= horizon), risk, 1 / uncensored.clip(min=1e-12) ** 2)


def brier_score(time: ArrayLike, event: ArrayLike, survival: ArrayLike, t: ArrayLike) -> Array:
    """Mean squared error of predicted survival probabilities, with inverse probability of censoring weights 1/G.

    Args:
        time: shape (n,).
        event: shape (n,), bool.
        survival: predicted probability of no event by each of m times, shape (n, m).
        t: these times, shape (m,).

    Returns: shape (m,).
    Source: Graf et al. (1999).
    """
    times, is_event = _arrays(time, event)
    predicted, by, uncensored = _array(survival), _array(t), uncensored_probability(times, is_event)
    had_event = (times[:, None] <= by) & is_event[:, None]
    error_of_events = predicted**2 / uncensored(just_before(times)).clip(min=1e-12)[:, None]
    error_at_risk = (1 - predicted) ** 2 / uncensored(by).clip(min=1e-12)
    score: Array = (had_event * error_of_events + (times[:, None] > by) * error_at_risk).mean(0)
    return score


def partial_likelihood(time: ArrayLike, event: ArrayLike, risk: ArrayLike) -> float:
    """Mean negative log partial likelihood of the events, at least one, with ties by Breslow's method."""
    times, is_event = _arrays(time, event)
    return float((_log_risk_sums(times, risk, times) - _array(risk))[is_event].mean())


def _log_risk_sums(times: Array, risk: ArrayLike, t: Array) -> Array:
    """Logarithm of the sum of exp(h) over the samples at risk at t, shape (m,)."""
    order = np.argsort(times)
    sums = np.logaddexp.accumulate(_array(risk)[order][::-1])[::-1]
    at_risk: Array = sums[np.searchsorted(times[order], t)]
    return at_risk


def _array(values: ArrayLike) -> Array:
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)


def _arrays(time: ArrayLike, event: ArrayLike) -> tuple[Array, npt.NDArray[np.bool_]]:
    return _array(time), _array(event) > 0

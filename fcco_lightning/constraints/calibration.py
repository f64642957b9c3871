"""Calibration: increasing maps from scores to probabilities, fitted on held-out samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fcco_lightning.checks import non_negative
from fcco_lightning.errors import ConfigError

_ENOUGH = 100  # samples of the rarer class from which isotonic regression is better than Platt scaling


@dataclass(frozen=True)
class PlattScaling:
    """``sigmoid(slope s + intercept)``, with a slope >= 0."""

    slope: float
    intercept: float

    def __post_init__(self) -> None:
        non_negative("slope", self.slope)

    def __call__(self, scores: Tensor) -> Tensor:
        """The probability of a positive for every score, of the same shape."""
        return torch.sigmoid(self.slope * scores + self.intercept)


@dataclass(frozen=True)
class IsotonicMap:
    """A map that is linear between knots, and constant beyond them.

    Args:
        scores: scores of the knots, increasing.
        probabilities: probabilities of a positive at the knots, in (0, 1), non-decreasing.
    """

    scores: list[float]
    probabilities: list[float]

    def __post_init__(self) -> None:
        steps = np.diff(self.scores), np.diff(self.probabilities)
        if not len(self.scores) == len(self.probabilities) > 0 or (steps[0] <= 0).any() or (steps[1] < 0).any():
            raise ConfigError(
                "an isotonic map needs as many probabilities as scores, both increasing, got "
                f"{len(self.scores)} scores and {len(self.probabilities)} probabilities. Fit the calibration again."
            )

    def __call__(self, scores: Tensor) -> Tensor:
        """The probability of a positive for every score, of the same shape."""
        probabilities = np.interp(scores.detach().cpu().double().numpy(), self.scores, self.probabilities)
        return torch.from_numpy(np.asarray(probabilities)).to(scores)


Calibration: TypeAlias = PlattScaling | IsotonicMap


def calibrated(scores: Tensor, y: Tensor, weight: Tensor | None = None) -> Calibration:
    r"""Fit a map from scores to probabilities to held-out samples.

    With at least 100 samples of the rarer class it is the isotonic regression, with probabilities clipped to ``[1/(n +
    2), 1 - 1/(n + 2)]``, as no finite sample excludes a class.  With fewer samples its steps are noise, and Platt
    scaling is used: the logistic regression on the score with the targets ``(n_1 + 1)/(n_1 + 2)`` for the n_1 positives
    and ``1/(n_0 + 2)`` for the n_0 negatives (Platt, Probabilistic outputs for support vector machines, 1999); for
    scores that rank worse than chance every probability is the fraction of positives.

    Args:
        scores: finite scores, shape (n,).
        y: classes 0 and 1, both of which occur, shape (n,).
        weight: weights of the samples, shape (n,); None for equal weights.  Samples of weight 0 are ignored.
    """
    kept = slice(None) if weight is None else weight > 0
    s, positive = scores[kept].detach().cpu().double().numpy(), y[kept].cpu().numpy() == 1
    w = np.ones_like(s) if weight is None else weight[kept].cpu().double().numpy()
    if min(positive.sum(), (~positive).sum()) < _ENOUGH:
        return _platt(s, positive, w)
    from sklearn.isotonic import IsotonicRegression  # noqa: PLC0415 - slow to import

    least = 1 / (len(s) + 2)
    fitted = IsotonicRegression(y_min=least, y_max=1 - least).fit(s, positive, w)
    return IsotonicMap(fitted.X_thresholds_.tolist(), fitted.y_thresholds_.tolist())


def _platt(s: np.ndarray, positive: np.ndarray, w: np.ndarray) -> PlattScaling:
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - slow to import

    n_1, n_0 = w[positive].sum() * len(w) / w.sum(), w[~positive].sum() * len(w) / w.sum()
    target = np.where(positive, (n_1 + 1) / (n_1 + 2), 1 / (n_0 + 2))
    centre, unit = s.mean(), s.std() or 1.0
    x = ((s - centre) / unit)[:, None]
    # a sample with target t counts as t positives and 1 - t negatives
    both, classes = np.concatenate([x, x]), np.repeat([1, 0], len(s))
    fitted = LogisticRegression(C=np.inf, tol=1e-8).fit(both, classes, np.concatenate([w * target, w * (1 - target)]))
    slope, intercept = float(fitted.coef_[0, 0]) / unit, float(fitted.intercept_[0])
    if slope <= 0:
        share = np.average(target, weights=w)
        return PlattScaling(0.0, float(np.log(share / (1 - share))))
    return PlattScaling(float(slope), float(intercept - slope * centre))


def calibration_of(state: Mapping[str, Any]) -> Calibration:
    """Restore a calibration from its fields."""
    return PlattScaling(**state) if "slope" in state else IsotonicMap(**state)

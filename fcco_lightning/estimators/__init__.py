"""Estimators: what is remembered of the inner values, and the outer gradients that follow."""

from fcco_lightning.estimators.base import Estimator, Range, Sampling, fill
from fcco_lightning.estimators.dual import DualMirror, DualProx, EntropicMirror
from fcco_lightning.estimators.primal import EMA, CorrectedEMA, Minibatch, ScaledEMA

__all__ = [
    "EMA",
    "CorrectedEMA",
    "DualMirror",
    "DualProx",
    "EntropicMirror",
    "Estimator",
    "Minibatch",
    "Range",
    "Sampling",
    "ScaledEMA",
    "fill",
]

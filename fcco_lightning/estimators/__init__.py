"""Estimators: what is remembered of the inner values, and the outer gradients that follow."""

from fcco_lightning.estimators.ascent import DualAscent
from fcco_lightning.estimators.base import Estimator, Sampling
from fcco_lightning.estimators.dual import DualMirror, DualProx
from fcco_lightning.estimators.primal import EMA, CorrectedEMA, Minibatch, ScaledEMA

__all__ = [
    "EMA",
    "CorrectedEMA",
    "DualAscent",
    "DualMirror",
    "DualProx",
    "Estimator",
    "Minibatch",
    "Sampling",
    "ScaledEMA",
]

"""What is remembered of inner values, the outer gradients that follow, and how weights move along a gradient."""

from fcco_lightning.estimators.base import (
    EMA,
    CorrectedEMA,
    Estimator,
    Minibatch,
    ScaledEMA,
    moved,
    trusted,
)
from fcco_lightning.estimators.dual import DualMirror, DualProx, EntropicMirror
from fcco_lightning.estimators.optimizers import AdamType, HeavyBall, ProximalDescent, ProximalSGD, Storm
from fcco_lightning.estimators.weights import InnerPoint, copied, like_parameters

__all__ = [
    "EMA",
    "AdamType",
    "CorrectedEMA",
    "DualMirror",
    "DualProx",
    "EntropicMirror",
    "Estimator",
    "HeavyBall",
    "InnerPoint",
    "Minibatch",
    "ProximalDescent",
    "ProximalSGD",
    "ScaledEMA",
    "Storm",
    "copied",
    "like_parameters",
    "moved",
    "trusted",
]

"""What is remembered of inner values, the outer gradients that follow, and how weights move along a gradient."""

from fcco_lightning.estimators.base import Estimator, Sampling, Tracked, fill
from fcco_lightning.estimators.dual import DualMirror, DualProx, EntropicMirror
from fcco_lightning.estimators.inner_point import InnerPoint
from fcco_lightning.estimators.optimizers import AdamType, HeavyBall, ProximalSGD
from fcco_lightning.estimators.previous import PreviousWeights, like_parameters
from fcco_lightning.estimators.primal import EMA, CorrectedEMA, Minibatch, ScaledEMA
from fcco_lightning.estimators.proximal_descent import ProximalDescent
from fcco_lightning.estimators.storm import Storm

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
    "PreviousWeights",
    "ProximalDescent",
    "ProximalSGD",
    "Sampling",
    "ScaledEMA",
    "Storm",
    "Tracked",
    "fill",
    "like_parameters",
]

"""Estimators of inner functions and their outer gradients, and optimizers of the weights."""

from fcco_lightning.estimators.base import (
    Average,
    Estimator,
    Minibatch,
    ScaledAverage,
    moved,
    trusted,
)
from fcco_lightning.estimators.dual import DualProx, EntropicMirror
from fcco_lightning.estimators.optimizers import AdamType, HeavyBall, ProximalDescent, ProximalSGD, Storm
from fcco_lightning.estimators.weights import InnerPoint, copied, like_parameters

__all__ = [
    "AdamType",
    "Average",
    "DualProx",
    "EntropicMirror",
    "Estimator",
    "HeavyBall",
    "InnerPoint",
    "Minibatch",
    "ProximalDescent",
    "ProximalSGD",
    "ScaledAverage",
    "Storm",
    "copied",
    "like_parameters",
    "moved",
    "trusted",
]

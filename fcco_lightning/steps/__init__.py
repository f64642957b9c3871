"""Steps: how weights move, once there is a gradient."""

from fcco_lightning.steps.inner_point import InnerPoint
from fcco_lightning.steps.optimizers import AdamType, HeavyBall, ProximalSGD
from fcco_lightning.steps.previous import PreviousWeights, like_parameters
from fcco_lightning.steps.proximal_descent import ProximalDescent
from fcco_lightning.steps.storm import Storm

__all__ = [
    "AdamType",
    "HeavyBall",
    "InnerPoint",
    "PreviousWeights",
    "ProximalDescent",
    "ProximalSGD",
    "Storm",
    "like_parameters",
]

"""Steps: where gradients are taken and how they move the weights."""

from fcco_lightning.steps.base import PreviousWeights, Step
from fcco_lightning.steps.optimizers import AdamType, HeavyBall, ProximalSGD
from fcco_lightning.steps.proximal_point import ProximalDescent, ProximalPoint
from fcco_lightning.steps.storm import Storm

__all__ = [
    "AdamType",
    "HeavyBall",
    "PreviousWeights",
    "ProximalDescent",
    "ProximalPoint",
    "ProximalSGD",
    "Step",
    "Storm",
]

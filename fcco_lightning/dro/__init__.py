"""Distributionally robust linear models, solved up to a certified duality gap."""

from fcco_lightning.dro.drago import DRAGO
from fcco_lightning.dro.estimators import DROClassifier, DRORegressor
from fcco_lightning.dro.sgd import LSVRG, MinibatchSGD, MultilevelSGD
from fcco_lightning.dro.wasserstein import WassersteinBall
from fcco_lightning.dro.whole_passes import LBFGS, ProximalGradient, Subgradient

__all__ = [
    "DRAGO",
    "LBFGS",
    "LSVRG",
    "DROClassifier",
    "DRORegressor",
    "MinibatchSGD",
    "MultilevelSGD",
    "ProximalGradient",
    "Subgradient",
    "WassersteinBall",
]

"""Distributionally robust linear models, solved to a certified gap."""

from fcco_lightning.dro.drago import DRAGO
from fcco_lightning.dro.estimators import DROClassifier, DRORegressor
from fcco_lightning.dro.lbfgs import LBFGS
from fcco_lightning.dro.lsvrg import LSVRG
from fcco_lightning.dro.sgd import MinibatchSGD, MultilevelSGD
from fcco_lightning.dro.subgradient import Subgradient
from fcco_lightning.dro.wasserstein import ProximalGradient, WassersteinBall

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

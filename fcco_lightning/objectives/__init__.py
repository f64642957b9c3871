"""Objectives: what is measured of the network's outputs."""

from fcco_lightning.objectives.auc import AUC
from fcco_lightning.objectives.base import Objective, binary_scores
from fcco_lightning.objectives.cross_entropy import CrossEntropy
from fcco_lightning.objectives.pairwise import LogisticPair, PairLoss, SigmoidPair, SquaredHingePair, SquaredPair

__all__ = [
    "AUC",
    "CrossEntropy",
    "LogisticPair",
    "Objective",
    "PairLoss",
    "SigmoidPair",
    "SquaredHingePair",
    "SquaredPair",
    "binary_scores",
]

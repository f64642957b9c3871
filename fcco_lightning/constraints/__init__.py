"""Constraints h(w) <= 0 and the penalties that carry them into the objective."""

from fcco_lightning.constraints.base import Constraint
from fcco_lightning.constraints.means import LogisticLoss, MeanAtMost, MeanDifferenceAtMost, Quantity, SoftRate
from fcco_lightning.constraints.penalty import (
    GeometricRho,
    HingePenalty,
    Penalty,
    RhoSchedule,
    SmoothedHingePenalty,
    SquaredHingePenalty,
)
from fcco_lightning.constraints.roc_fairness import (
    QuantileScores,
    RawScores,
    ROCFairness,
    ScoreScale,
    StandardScores,
)

__all__ = [
    "Constraint",
    "GeometricRho",
    "HingePenalty",
    "LogisticLoss",
    "MeanAtMost",
    "MeanDifferenceAtMost",
    "Penalty",
    "QuantileScores",
    "Quantity",
    "ROCFairness",
    "RawScores",
    "RhoSchedule",
    "ScoreScale",
    "SmoothedHingePenalty",
    "SoftRate",
    "SquaredHingePenalty",
    "StandardScores",
]

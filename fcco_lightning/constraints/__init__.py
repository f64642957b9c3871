"""Constraints h(w) <= 0 and the penalties that carry them into the objective."""

from fcco_lightning.constraints.base import Constraint
from fcco_lightning.constraints.forgetting import NonForgetting
from fcco_lightning.constraints.means import MeanAtMost, MeanDifferenceAtMost
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
    "MeanAtMost",
    "MeanDifferenceAtMost",
    "NonForgetting",
    "Penalty",
    "QuantileScores",
    "ROCFairness",
    "RawScores",
    "RhoSchedule",
    "ScoreScale",
    "SmoothedHingePenalty",
    "SquaredHingePenalty",
    "StandardScores",
]

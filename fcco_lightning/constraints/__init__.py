"""Constraints h(w) <= 0, and the penalties and multipliers that enforce them."""

from fcco_lightning.constraints.base import Comparison, Constraint, require_columns, unique_names
from fcco_lightning.constraints.decisions import DecisionRule, Decisions, TopShare, as_decisions
from fcco_lightning.constraints.forgetting import Distillation, NonForgetting, ProtectedTasks
from fcco_lightning.constraints.means import (
    MeanAtMost,
    MeanDifferenceAtMost,
    MeanNear,
    kept_together,
    require_compatible,
)
from fcco_lightning.constraints.measured import LossOfPairs, PrecisionOf, RatesAbove
from fcco_lightning.constraints.multipliers import (
    AdaptivePenalty,
    AugmentedLagrangian,
    Lagrangian,
    Multipliers,
    NuPI,
)
from fcco_lightning.constraints.over_sides import OverSides
from fcco_lightning.constraints.parity import (
    AUCParity,
    DemographicParity,
    EqualizedOdds,
    EqualOpportunity,
    FourFifthsRule,
    GroupAUCAtLeast,
    PredictiveParity,
    ROCFairness,
)
from fcco_lightning.constraints.penalty import (
    HingePenalty,
    Penalty,
    SmoothedHingePenalty,
    SquaredHingePenalty,
)
from fcco_lightning.constraints.score_scales import QuantileScores, RawScores, ScoreScale, StandardScores
from fcco_lightning.constraints.sides import Sides, SidesOfGroups
from fcco_lightning.constraints.subsets import SidesOfSubsets, Subset

__all__ = [
    "AUCParity",
    "AdaptivePenalty",
    "AugmentedLagrangian",
    "Comparison",
    "Constraint",
    "DecisionRule",
    "Decisions",
    "DemographicParity",
    "Distillation",
    "EqualOpportunity",
    "EqualizedOdds",
    "FourFifthsRule",
    "GroupAUCAtLeast",
    "HingePenalty",
    "Lagrangian",
    "LossOfPairs",
    "MeanAtMost",
    "MeanDifferenceAtMost",
    "MeanNear",
    "Multipliers",
    "NonForgetting",
    "NuPI",
    "OverSides",
    "Penalty",
    "PrecisionOf",
    "PredictiveParity",
    "ProtectedTasks",
    "QuantileScores",
    "ROCFairness",
    "RatesAbove",
    "RawScores",
    "ScoreScale",
    "Sides",
    "SidesOfGroups",
    "SidesOfSubsets",
    "SmoothedHingePenalty",
    "SquaredHingePenalty",
    "StandardScores",
    "Subset",
    "TopShare",
    "as_decisions",
    "kept_together",
    "require_columns",
    "require_compatible",
    "unique_names",
]

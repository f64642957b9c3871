"""Constraints h(w) <= 0, and the penalties and multipliers that enforce them."""

from fcco_lightning.constraints.base import Constraint, kept_together, unique_names
from fcco_lightning.constraints.compared import AtLeastTimes, AtMost, Comparison, Difference, DifferenceOfRatios, Near
from fcco_lightning.constraints.decisions import DecisionRule, Decisions, TopShare, as_decisions
from fcco_lightning.constraints.forgetting import Distillation, NonForgetting, ProtectedTasks
from fcco_lightning.constraints.means import MeanAtMost, MeanDifferenceAtMost, MeanNear
from fcco_lightning.constraints.measured import LossOfPairs, MeanOf, PrecisionOf, RatesAbove, Statistic
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
    GeometricRho,
    HingePenalty,
    Penalty,
    RhoSchedule,
    SmoothedHingePenalty,
    SquaredHingePenalty,
)
from fcco_lightning.constraints.sanity import require_columns, require_compatible
from fcco_lightning.constraints.score_scales import QuantileScores, RawScores, ScoreScale, StandardScores
from fcco_lightning.constraints.sides import Sides, SidesOfGroups, SidesOfSubsets
from fcco_lightning.constraints.subsets import Subset

__all__ = [
    "AUCParity",
    "AdaptivePenalty",
    "AtLeastTimes",
    "AtMost",
    "AugmentedLagrangian",
    "Comparison",
    "Constraint",
    "DecisionRule",
    "Decisions",
    "DemographicParity",
    "Difference",
    "DifferenceOfRatios",
    "Distillation",
    "EqualOpportunity",
    "EqualizedOdds",
    "FourFifthsRule",
    "GeometricRho",
    "GroupAUCAtLeast",
    "HingePenalty",
    "Lagrangian",
    "LossOfPairs",
    "MeanAtMost",
    "MeanDifferenceAtMost",
    "MeanNear",
    "MeanOf",
    "Multipliers",
    "Near",
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
    "RhoSchedule",
    "ScoreScale",
    "Sides",
    "SidesOfGroups",
    "SidesOfSubsets",
    "SmoothedHingePenalty",
    "SquaredHingePenalty",
    "StandardScores",
    "Statistic",
    "Subset",
    "TopShare",
    "as_decisions",
    "kept_together",
    "require_columns",
    "require_compatible",
    "unique_names",
]

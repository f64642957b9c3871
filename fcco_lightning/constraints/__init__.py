"""Constraints h(w) <= 0, and the penalties and multipliers that carry them into the objective."""

from fcco_lightning.constraints.base import Constraint, DifferenceAtMost, kept_together, unique_names
from fcco_lightning.constraints.comparisons import GroupComparisons
from fcco_lightning.constraints.decisions import DecisionRule, Decisions, TopShare, as_decisions
from fcco_lightning.constraints.forgetting import Distillation, NonForgetting, ProtectedTasks
from fcco_lightning.constraints.means import MeanAtMost, MeanDifferenceAtMost, MeanNear
from fcco_lightning.constraints.multipliers import (
    AdaptivePenalty,
    AugmentedLagrangian,
    Lagrangian,
    Multipliers,
    NuPI,
)
from fcco_lightning.constraints.parity import (
    AUCParity,
    DemographicParity,
    EqualizedOdds,
    EqualOpportunity,
    FourFifthsRule,
    GroupAUCAtLeast,
    PredictiveParity,
)
from fcco_lightning.constraints.penalty import (
    GeometricRho,
    HingePenalty,
    Penalty,
    RhoSchedule,
    SmoothedHingePenalty,
    SquaredHingePenalty,
)
from fcco_lightning.constraints.roc_fairness import ROCFairness
from fcco_lightning.constraints.sanity import require_columns, require_compatible
from fcco_lightning.constraints.score_scales import QuantileScores, RawScores, ScoreScale, StandardScores
from fcco_lightning.constraints.subsets import Subset

__all__ = [
    "AUCParity",
    "AdaptivePenalty",
    "AugmentedLagrangian",
    "Constraint",
    "DecisionRule",
    "Decisions",
    "DemographicParity",
    "DifferenceAtMost",
    "Distillation",
    "EqualOpportunity",
    "EqualizedOdds",
    "FourFifthsRule",
    "GeometricRho",
    "GroupAUCAtLeast",
    "GroupComparisons",
    "HingePenalty",
    "Lagrangian",
    "MeanAtMost",
    "MeanDifferenceAtMost",
    "MeanNear",
    "Multipliers",
    "NonForgetting",
    "NuPI",
    "Penalty",
    "PredictiveParity",
    "ProtectedTasks",
    "QuantileScores",
    "ROCFairness",
    "RawScores",
    "RhoSchedule",
    "ScoreScale",
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

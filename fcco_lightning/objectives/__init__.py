"""Objectives: what is measured of the network's outputs."""

from fcco_lightning.objectives.auc import AUC
from fcco_lightning.objectives.base import (
    Objective,
    RowDomain,
    SampleParameters,
    binary_scores,
    mean_over_data,
    required_column,
)
from fcco_lightning.objectives.bellman import BellmanResidual, TemporalDifference
from fcco_lightning.objectives.contrastive import GlobalContrastive, InfoNCE
from fcco_lightning.objectives.cross_entropy import CrossEntropy
from fcco_lightning.objectives.group_dro import (
    ChiSquareGroupDRO,
    CVaRGroupDRO,
    GroupMaxForm,
    GroupObjective,
    KLGroupDRO,
    MultiTaskGroupDRO,
    WorstGroupDRO,
)
from fcco_lightning.objectives.latent_variable import LatentVariable
from fcco_lightning.objectives.pairwise import LogisticPair, PairLoss, SigmoidPair, SquaredHingePair, SquaredPair
from fcco_lightning.objectives.quantities import (
    CrossEntropyLoss,
    LogisticLoss,
    MultiLabelLoss,
    Quantity,
    SoftRate,
    SquaredLoss,
)
from fcco_lightning.objectives.robust_logistic import RobustLogistic
from fcco_lightning.objectives.sampled_softmax import SampledSoftmax
from fcco_lightning.objectives.view_contrastive import ViewContrastive

__all__ = [
    "AUC",
    "BellmanResidual",
    "CVaRGroupDRO",
    "ChiSquareGroupDRO",
    "CrossEntropy",
    "CrossEntropyLoss",
    "GlobalContrastive",
    "GroupMaxForm",
    "GroupObjective",
    "InfoNCE",
    "KLGroupDRO",
    "LatentVariable",
    "LogisticLoss",
    "LogisticPair",
    "MultiLabelLoss",
    "MultiTaskGroupDRO",
    "Objective",
    "PairLoss",
    "Quantity",
    "RobustLogistic",
    "RowDomain",
    "SampleParameters",
    "SampledSoftmax",
    "SigmoidPair",
    "SoftRate",
    "SquaredHingePair",
    "SquaredLoss",
    "SquaredPair",
    "TemporalDifference",
    "ViewContrastive",
    "WorstGroupDRO",
    "binary_scores",
    "mean_over_data",
    "required_column",
]

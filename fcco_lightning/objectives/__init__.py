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
from fcco_lightning.objectives.contrastive import GlobalContrastive, InfoNCE
from fcco_lightning.objectives.cox import CoxPartialLikelihood
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
from fcco_lightning.objectives.list_mle import ListMLE
from fcco_lightning.objectives.list_net import ListNet
from fcco_lightning.objectives.lists import ListObjective
from fcco_lightning.objectives.ndcg import NDCG
from fcco_lightning.objectives.neighbourhood_components import NeighbourhoodComponents
from fcco_lightning.objectives.pairwise import LogisticPair, PairLoss, SigmoidPair, SquaredHingePair, SquaredPair
from fcco_lightning.objectives.quantities import (
    CrossEntropyLoss,
    LogisticLoss,
    MultiLabelLoss,
    Quantity,
    SoftRate,
    SquaredLoss,
)

__all__ = [
    "AUC",
    "NDCG",
    "CVaRGroupDRO",
    "ChiSquareGroupDRO",
    "CoxPartialLikelihood",
    "CrossEntropy",
    "CrossEntropyLoss",
    "GlobalContrastive",
    "GroupMaxForm",
    "GroupObjective",
    "InfoNCE",
    "KLGroupDRO",
    "ListMLE",
    "ListNet",
    "ListObjective",
    "LogisticLoss",
    "LogisticPair",
    "MultiLabelLoss",
    "MultiTaskGroupDRO",
    "NeighbourhoodComponents",
    "Objective",
    "PairLoss",
    "Quantity",
    "RowDomain",
    "SampleParameters",
    "SigmoidPair",
    "SoftRate",
    "SquaredHingePair",
    "SquaredLoss",
    "SquaredPair",
    "WorstGroupDRO",
    "binary_scores",
    "mean_over_data",
    "required_column",
]

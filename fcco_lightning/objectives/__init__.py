"""Objectives: functions of the network's outputs that are minimised."""

from fcco_lightning.objectives.auc.auc import AUC, AUCMargin
from fcco_lightning.objectives.auc.multi_instance import MultiInstanceAUC
from fcco_lightning.objectives.auc.p_norm_push import PNormPush
from fcco_lightning.objectives.auc.pairwise import (
    ExponentialPair,
    LogisticPair,
    PairLoss,
    SigmoidPair,
    SquaredHingePair,
    SquaredPair,
)
from fcco_lightning.objectives.auc.partial_auc import CVaRPartialAUC, KLPartialAUC
from fcco_lightning.objectives.auc.pooled_pairs import PooledPairs
from fcco_lightning.objectives.auc.pooling import AttentionPooling, MeanPooling, Pooling, SmoothMaxPooling
from fcco_lightning.objectives.base import (
    Objective,
    Partition,
    RowDomain,
    SampleParameters,
    binary_scores,
    mean_over_data,
    require_binary_labels,
    required_column,
)
from fcco_lightning.objectives.binary import BinaryObjective
from fcco_lightning.objectives.contrastive.contrastive import GlobalContrastive, InfoNCE
from fcco_lightning.objectives.contrastive.neighbourhood_components import NeighbourhoodComponents
from fcco_lightning.objectives.contrastive.sampled_softmax import SampledSoftmax
from fcco_lightning.objectives.contrastive.view_contrastive import ViewContrastive
from fcco_lightning.objectives.groups.group_dro import (
    ChiSquareGroupDRO,
    CVaRGroupDRO,
    GroupMaxForm,
    GroupObjective,
    KLGroupDRO,
    MultiTaskGroupDRO,
    WorstGroupDRO,
)
from fcco_lightning.objectives.groups.sample_dro import SampleDRO
from fcco_lightning.objectives.mean_losses import CrossEntropy, SquaredError
from fcco_lightning.objectives.measurable import Measurable, Rows, nan_where
from fcco_lightning.objectives.others.bellman import BellmanResidual, TemporalDifference
from fcco_lightning.objectives.others.cox import CoxPartialLikelihood
from fcco_lightning.objectives.others.latent_variable import LatentVariable
from fcco_lightning.objectives.others.robust_logistic import RobustLogistic
from fcco_lightning.objectives.quantities import (
    CostedLoss,
    CrossEntropyLoss,
    ErrorProbability,
    HingeLoss,
    LogisticLoss,
    MultiLabelLoss,
    Quantity,
    SoftRate,
    SquaredLoss,
)
from fcco_lightning.objectives.ranking.average_precision import AveragePrecision, MeanAveragePrecision
from fcco_lightning.objectives.ranking.exposure import Exposure
from fcco_lightning.objectives.ranking.lists import ListObjective
from fcco_lightning.objectives.ranking.listwise import ListMLE, ListNet
from fcco_lightning.objectives.ranking.ndcg import NDCG
from fcco_lightning.objectives.ranking.ranking import RankingObjective
from fcco_lightning.objectives.ranking.recall_at_k import RecallAtK

__all__ = [
    "AUC",
    "NDCG",
    "AUCMargin",
    "AttentionPooling",
    "AveragePrecision",
    "BellmanResidual",
    "BinaryObjective",
    "CVaRGroupDRO",
    "CVaRPartialAUC",
    "ChiSquareGroupDRO",
    "CostedLoss",
    "CoxPartialLikelihood",
    "CrossEntropy",
    "CrossEntropyLoss",
    "ErrorProbability",
    "ExponentialPair",
    "Exposure",
    "GlobalContrastive",
    "GroupMaxForm",
    "GroupObjective",
    "HingeLoss",
    "InfoNCE",
    "KLGroupDRO",
    "KLPartialAUC",
    "LatentVariable",
    "ListMLE",
    "ListNet",
    "ListObjective",
    "LogisticLoss",
    "LogisticPair",
    "MeanAveragePrecision",
    "MeanPooling",
    "Measurable",
    "MultiInstanceAUC",
    "MultiLabelLoss",
    "MultiTaskGroupDRO",
    "NeighbourhoodComponents",
    "Objective",
    "PNormPush",
    "PairLoss",
    "Partition",
    "PooledPairs",
    "Pooling",
    "Quantity",
    "RankingObjective",
    "RecallAtK",
    "RobustLogistic",
    "RowDomain",
    "Rows",
    "SampleDRO",
    "SampleParameters",
    "SampledSoftmax",
    "SigmoidPair",
    "SmoothMaxPooling",
    "SoftRate",
    "SquaredError",
    "SquaredHingePair",
    "SquaredLoss",
    "SquaredPair",
    "TemporalDifference",
    "ViewContrastive",
    "WorstGroupDRO",
    "binary_scores",
    "mean_over_data",
    "nan_where",
    "require_binary_labels",
    "required_column",
]

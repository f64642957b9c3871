"""Objectives: what is measured of the network's outputs."""

from fcco_lightning.objectives.auc import AUC, AUCMargin
from fcco_lightning.objectives.average_precision import AveragePrecision, MeanAveragePrecision
from fcco_lightning.objectives.base import (
    BinaryObjective,
    Objective,
    Partition,
    RowDomain,
    SampleParameters,
    binary_scores,
    mean_over_data,
    require_binary_labels,
    required_column,
)
from fcco_lightning.objectives.bellman import BellmanResidual, TemporalDifference
from fcco_lightning.objectives.contrastive import GlobalContrastive, InfoNCE
from fcco_lightning.objectives.cox import CoxPartialLikelihood
from fcco_lightning.objectives.exposure import Exposure
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
from fcco_lightning.objectives.lists import ListObjective
from fcco_lightning.objectives.listwise import ListMLE, ListNet
from fcco_lightning.objectives.mean_losses import CrossEntropy, SquaredError
from fcco_lightning.objectives.measurable import Measurable, Rows, nan_where
from fcco_lightning.objectives.multi_instance import MultiInstanceAUC
from fcco_lightning.objectives.ndcg import NDCG
from fcco_lightning.objectives.neighbourhood_components import NeighbourhoodComponents
from fcco_lightning.objectives.p_norm_push import PNormPush
from fcco_lightning.objectives.pairwise import (
    ExponentialPair,
    LogisticPair,
    PairLoss,
    SigmoidPair,
    SquaredHingePair,
    SquaredPair,
)
from fcco_lightning.objectives.partial_auc import CVaRPartialAUC, KLPartialAUC
from fcco_lightning.objectives.pooling import AttentionPooling, MeanPooling, Pooling, SmoothMaxPooling
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
from fcco_lightning.objectives.ranking import RankingObjective
from fcco_lightning.objectives.recall_at_k import RecallAtK
from fcco_lightning.objectives.robust_logistic import RobustLogistic
from fcco_lightning.objectives.sample_dro import SampleDRO
from fcco_lightning.objectives.sampled_softmax import SampledSoftmax
from fcco_lightning.objectives.view_contrastive import ViewContrastive

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

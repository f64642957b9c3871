"""Evaluations: figures, tables and pictures of the network's outputs on a whole split."""

from fcco_lightning.evaluation.base import Evaluation, direction, shown_split
from fcco_lightning.evaluation.classes import ClassEvaluation, NeighbourEvaluation
from fcco_lightning.evaluation.continual import ContinualEvaluation
from fcco_lightning.evaluation.decided import decision_details
from fcco_lightning.evaluation.default import default_evaluation
from fcco_lightning.evaluation.groups import GroupEvaluation, TaskEvaluation
from fcco_lightning.evaluation.numbers import NumberEvaluation, ValueEvaluation
from fcco_lightning.evaluation.pairs import PairEvaluation
from fcco_lightning.evaluation.ranking import BagEvaluation, BinaryEvaluation, RankingEvaluation
from fcco_lightning.evaluation.retrieval import RetrievalEvaluation
from fcco_lightning.evaluation.split import Split, concatenate, constraint_values, summarise
from fcco_lightning.evaluation.standing import Standing, is_feasible, standing
from fcco_lightning.evaluation.survival import SurvivalEvaluation

__all__ = [
    "BagEvaluation",
    "BinaryEvaluation",
    "ClassEvaluation",
    "ContinualEvaluation",
    "Evaluation",
    "GroupEvaluation",
    "NeighbourEvaluation",
    "NumberEvaluation",
    "PairEvaluation",
    "RankingEvaluation",
    "RetrievalEvaluation",
    "Split",
    "Standing",
    "SurvivalEvaluation",
    "TaskEvaluation",
    "ValueEvaluation",
    "concatenate",
    "constraint_values",
    "decision_details",
    "default_evaluation",
    "direction",
    "is_feasible",
    "shown_split",
    "standing",
    "summarise",
]

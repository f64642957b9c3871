"""The LightningModule and what it needs of Lightning."""

from fcco_lightning.training.backend import LightningBackend
from fcco_lightning.training.evaluation import (
    BinaryEvaluation,
    ContinualEvaluation,
    Evaluation,
    GroupEvaluation,
    TaskEvaluation,
    summarise,
)
from fcco_lightning.training.module import FCCOModule
from fcco_lightning.training.schedules import StepAtFractions

__all__ = [
    "BinaryEvaluation",
    "ContinualEvaluation",
    "Evaluation",
    "FCCOModule",
    "GroupEvaluation",
    "LightningBackend",
    "StepAtFractions",
    "TaskEvaluation",
    "summarise",
]

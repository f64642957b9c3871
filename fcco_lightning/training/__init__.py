"""The LightningModule and what it needs of Lightning."""

from fcco_lightning.training.backend import LightningBackend
from fcco_lightning.training.evaluation import BinaryEvaluation, Evaluation, summarise
from fcco_lightning.training.module import FCCOModule
from fcco_lightning.training.schedules import StepAtFractions

__all__ = ["BinaryEvaluation", "Evaluation", "FCCOModule", "LightningBackend", "StepAtFractions", "summarise"]

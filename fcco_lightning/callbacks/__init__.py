"""What happens around training: reports, pictures, predictions, preemption."""

from fcco_lightning.callbacks.checkpoints import Checkpoints
from fcco_lightning.callbacks.predictions import PredictionWriter
from fcco_lightning.callbacks.preemption import Preemption
from fcco_lightning.callbacks.report import Report

__all__ = ["Checkpoints", "PredictionWriter", "Preemption", "Report"]

"""What happens around training: reports, pictures and predictions."""

from fcco_lightning.callbacks.predictions import PredictionWriter
from fcco_lightning.callbacks.report import Report

__all__ = ["PredictionWriter", "Report"]

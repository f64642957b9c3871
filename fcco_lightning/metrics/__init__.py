"""Metrics of raw scores that no strictly increasing map of the scores changes."""

from fcco_lightning.metrics.group import ROCGap
from fcco_lightning.metrics.ranking import AUC, AveragePrecision, PartialAUC

__all__ = ["AUC", "AveragePrecision", "PartialAUC", "ROCGap"]

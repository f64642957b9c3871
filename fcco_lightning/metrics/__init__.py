"""Metrics of raw scores that no strictly increasing map of the scores changes, and figures of the worst groups."""

from fcco_lightning.metrics.group import ROCGap
from fcco_lightning.metrics.group_accuracy import (
    cvar,
    cvar_weights,
    group_means,
    num_worst,
    worst_fraction,
    worst_group,
)
from fcco_lightning.metrics.ranking import AUC, AveragePrecision, PartialAUC

__all__ = [
    "AUC",
    "AveragePrecision",
    "PartialAUC",
    "ROCGap",
    "cvar",
    "cvar_weights",
    "group_means",
    "num_worst",
    "worst_fraction",
    "worst_group",
]

"""Metrics of rankings, which are invariant under strictly increasing maps of the scores, and of the worst groups."""

from fcco_lightning.evaluation.metrics.group_accuracy import (
    cvar,
    cvar_weights,
    group_means,
    num_worst,
    worst_fraction,
    worst_group,
)
from fcco_lightning.evaluation.metrics.ranking import (
    auc,
    average_precision,
    group_rates,
    partial_auc,
    precision_recall_at,
    precision_recall_curve,
    roc_curve,
    roc_gap,
)

__all__ = [
    "auc",
    "average_precision",
    "cvar",
    "cvar_weights",
    "group_means",
    "group_rates",
    "num_worst",
    "partial_auc",
    "precision_recall_at",
    "precision_recall_curve",
    "roc_curve",
    "roc_gap",
    "worst_fraction",
    "worst_group",
]

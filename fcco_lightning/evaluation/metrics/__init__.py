"""Metrics of rankings, which are invariant under strictly increasing maps of the scores, and of survival times."""

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
    "group_rates",
    "partial_auc",
    "precision_recall_at",
    "precision_recall_curve",
    "roc_curve",
    "roc_gap",
]

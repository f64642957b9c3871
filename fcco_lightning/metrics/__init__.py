"""Metrics of raw scores that no strictly increasing map of the scores changes, and figures of the worst groups."""

from fcco_lightning.metrics.functional import auc, group_rates, roc_curve, roc_gap
from fcco_lightning.metrics.group import split_roc
from fcco_lightning.metrics.group_accuracy import (
    cvar,
    cvar_weights,
    group_means,
    num_worst,
    worst_fraction,
    worst_group,
)

__all__ = [
    "auc",
    "cvar",
    "cvar_weights",
    "group_means",
    "group_rates",
    "num_worst",
    "roc_curve",
    "roc_gap",
    "split_roc",
    "worst_fraction",
    "worst_group",
]

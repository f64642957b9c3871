"""Pictures of a run: pure functions from plain numbers to PNG files."""

from fcco_lightning.evaluation.pictures.constraints import (
    plot_constraints,
    plot_multipliers,
    plot_objective_and_violation,
)
from fcco_lightning.evaluation.pictures.continual import plot_continual
from fcco_lightning.evaluation.pictures.curves import plot_calibration, plot_ranking, plot_roc_by_group
from fcco_lightning.evaluation.pictures.groups import plot_group_curves, plot_groups
from fcco_lightning.evaluation.pictures.importances import plot_importances
from fcco_lightning.evaluation.pictures.runs import plot_comparison, plot_front

__all__ = [
    "plot_calibration",
    "plot_comparison",
    "plot_constraints",
    "plot_continual",
    "plot_front",
    "plot_group_curves",
    "plot_groups",
    "plot_importances",
    "plot_multipliers",
    "plot_objective_and_violation",
    "plot_ranking",
    "plot_roc_by_group",
]

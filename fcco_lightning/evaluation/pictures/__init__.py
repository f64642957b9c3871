"""Pictures of a run: pure functions from plain numbers to PNG files."""

from fcco_lightning.evaluation.pictures.calibration import plot_calibration
from fcco_lightning.evaluation.pictures.comparison import plot_comparison
from fcco_lightning.evaluation.pictures.constraints import (
    plot_constraints,
    plot_multipliers,
    plot_objective_and_violation,
)
from fcco_lightning.evaluation.pictures.continual import plot_continual
from fcco_lightning.evaluation.pictures.front import plot_front
from fcco_lightning.evaluation.pictures.groups import plot_group_curves, plot_groups
from fcco_lightning.evaluation.pictures.ranking import plot_ranking
from fcco_lightning.evaluation.pictures.roc import plot_roc_by_group

__all__ = [
    "plot_calibration",
    "plot_comparison",
    "plot_constraints",
    "plot_continual",
    "plot_front",
    "plot_group_curves",
    "plot_groups",
    "plot_multipliers",
    "plot_objective_and_violation",
    "plot_ranking",
    "plot_roc_by_group",
]

"""What happens around training: reports, pictures, predictions, preemption, a watch on the dual states, checks."""

from fcco_lightning.callbacks.baseline import Baseline
from fcco_lightning.callbacks.checkpoints import Checkpoints
from fcco_lightning.callbacks.diagnostics import Diagnostics
from fcco_lightning.callbacks.feasible import BestFeasible
from fcco_lightning.callbacks.predictions import PredictionWriter
from fcco_lightning.callbacks.preemption import Preemption
from fcco_lightning.callbacks.report import Report
from fcco_lightning.callbacks.run import Run, load_run
from fcco_lightning.callbacks.state_monitor import StateMonitor
from fcco_lightning.callbacks.warm_start import WarmStart

__all__ = [
    "Baseline",
    "BestFeasible",
    "Checkpoints",
    "Diagnostics",
    "PredictionWriter",
    "Preemption",
    "Report",
    "Run",
    "StateMonitor",
    "WarmStart",
    "load_run",
]

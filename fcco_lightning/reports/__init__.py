"""Results of a run: report, page, tables, pictures and predictions, and the callbacks that write them."""

from fcco_lightning.reports.baseline import Baseline
from fcco_lightning.reports.diagnostics import Diagnostics
from fcco_lightning.reports.feasible import BestFeasible
from fcco_lightning.reports.later import report_on
from fcco_lightning.reports.predictions import PredictionWriter
from fcco_lightning.reports.report import Report
from fcco_lightning.reports.run import Run, load_run

__all__ = [
    "Baseline",
    "BestFeasible",
    "Diagnostics",
    "PredictionWriter",
    "Report",
    "Run",
    "load_run",
    "report_on",
]

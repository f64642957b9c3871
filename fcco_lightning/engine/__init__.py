"""Parts assembled into one problem, and the verbs with which any loop trains on it."""

from fcco_lightning.engine.backend import Backend
from fcco_lightning.engine.batches import (
    as_batch,
    columns_of,
    other_columns,
    part_name,
    usable,
)
from fcco_lightning.engine.diagnosis import named_samples, narrow_weights
from fcco_lightning.engine.engine import Algorithm, Engine
from fcco_lightning.engine.estimates import Estimate, Estimates, NewRows, Outputs
from fcco_lightning.engine.functions import InnerFunctions, outputs_of, outputs_of_columns, read, wide
from fcco_lightning.engine.problem import Problem
from fcco_lightning.engine.single_sample import require_single
from fcco_lightning.engine.terms import Seen, Term

__all__ = [
    "Algorithm",
    "Backend",
    "Engine",
    "Estimate",
    "Estimates",
    "InnerFunctions",
    "NewRows",
    "Outputs",
    "Problem",
    "Seen",
    "Term",
    "as_batch",
    "columns_of",
    "named_samples",
    "narrow_weights",
    "other_columns",
    "outputs_of",
    "outputs_of_columns",
    "part_name",
    "read",
    "require_single",
    "usable",
    "wide",
]

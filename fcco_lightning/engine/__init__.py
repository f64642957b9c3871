"""Parts assembled into one problem, and the verbs with which any loop trains on it."""

from fcco_lightning.engine.backend import Backend
from fcco_lightning.engine.batches import (
    as_batch,
    columns_of,
    other_columns,
    part_name,
    usable,
)
from fcco_lightning.engine.diagnosis import name_index, named_samples, narrow_weights, require_single
from fcco_lightning.engine.engine import Engine
from fcco_lightning.engine.estimates import Estimate, Estimates, Evaluated, Measured, Proposal
from fcco_lightning.engine.functions import InnerFunctions, outputs_of, outputs_of_columns, read, wide
from fcco_lightning.engine.problem import Problem
from fcco_lightning.engine.row_weights import BatchDraws, Drawn
from fcco_lightning.engine.terms import Reading, Term

__all__ = [
    "Backend",
    "BatchDraws",
    "Drawn",
    "Engine",
    "Estimate",
    "Estimates",
    "Evaluated",
    "InnerFunctions",
    "Measured",
    "Problem",
    "Proposal",
    "Reading",
    "Term",
    "as_batch",
    "columns_of",
    "name_index",
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

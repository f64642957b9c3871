"""Parts assembled into one problem, and the verbs with which any loop trains on it."""

from fcco_lightning.engine.backend import Backend, PlainBackend
from fcco_lightning.engine.causes import named_samples, narrow_weights
from fcco_lightning.engine.engine import Engine, Evaluated, Measured
from fcco_lightning.engine.estimates import Estimates, Surrogate
from fcco_lightning.engine.forward import Estimated, InnerFunctions, Samples
from fcco_lightning.engine.parts import (
    as_batch,
    columns_of,
    other_columns,
    outputs_of,
    outputs_of_columns,
    part_name,
    usable,
)
from fcco_lightning.engine.problem import Problem
from fcco_lightning.engine.row_weights import BatchDraws, Drawn
from fcco_lightning.engine.terms import Reading, Term

__all__ = [
    "Backend",
    "BatchDraws",
    "Drawn",
    "Engine",
    "Estimated",
    "Estimates",
    "Evaluated",
    "InnerFunctions",
    "Measured",
    "PlainBackend",
    "Problem",
    "Reading",
    "Samples",
    "Surrogate",
    "Term",
    "as_batch",
    "columns_of",
    "named_samples",
    "narrow_weights",
    "other_columns",
    "outputs_of",
    "outputs_of_columns",
    "part_name",
    "usable",
]

"""Parts assembled into one problem, and the training step that any loop can call."""

from fcco_lightning.problem.engine import Backend, Engine, PlainBackend
from fcco_lightning.problem.forward import Elsewhere, InnerFunctions, Measured, RandomState
from fcco_lightning.problem.parts import other_columns, outputs_of
from fcco_lightning.problem.problem import Problem, Surrogate
from fcco_lightning.problem.terms import Term
from fcco_lightning.problem.union import Union, unite

__all__ = [
    "Backend",
    "Elsewhere",
    "Engine",
    "InnerFunctions",
    "Measured",
    "PlainBackend",
    "Problem",
    "RandomState",
    "Surrogate",
    "Term",
    "Union",
    "other_columns",
    "outputs_of",
    "unite",
]

"""Parts assembled into one problem, and the training step that any loop can call."""

from fcco_lightning.problem.engine import Backend, Engine, PlainBackend
from fcco_lightning.problem.forward import InnerFunctions, Measured, RandomState, evaluate_at
from fcco_lightning.problem.problem import Problem, Surrogate
from fcco_lightning.problem.terms import Term

__all__ = [
    "Backend",
    "Engine",
    "InnerFunctions",
    "Measured",
    "PlainBackend",
    "Problem",
    "RandomState",
    "Surrogate",
    "Term",
    "evaluate_at",
]

"""Finite-sum coupled compositional optimization and constrained training on PyTorch Lightning.

The public names are those of the folders below.  They are imported on first use, so that ``import fcco_lightning``
costs nothing.
"""

import ast
import functools
import importlib
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_WHOLE = [  # every class that these folders export is public; of two with one name the later
    *("ambiguity", "estimators", "steps", "outer", "models", "objectives", "constraints", "algorithms", "evaluation"),
    *("data", "data.datamodules", "dro"),
]
_SELECTED = {
    "engine": "Engine InnerFunctions Problem Surrogate",
    "errors": "CheckpointError ConfigError DataError FCCOError NonFiniteError StateIndexError",
    "evaluation": "default_evaluation",
    "state": "DualState",
    "training": "FCCOModule Pretraining StepAtFractions",
}


@functools.cache
def _modules() -> dict[str, str]:
    """Public name -> module that exports it, read from the sources without importing them."""
    homes = {name: module for module in _WHOLE for name in _exported(module) if name[0].isupper()}
    homes |= {name: module for module, names in _SELECTED.items() for name in names.split()}
    return {name: f"{__name__}.{module}" for name, module in homes.items()}


def _exported(module: str) -> list[str]:
    source = Path(__file__).parent.joinpath(*module.split("."), "__init__.py").read_text(encoding="utf-8")
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", None) == "__all__":
            return list(ast.literal_eval(statement.value))
    return []


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return ["__version__", *sorted(_modules())]
    if not name.startswith("_") and name in _modules():
        return getattr(importlib.import_module(_modules()[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*_modules()]

"""Finite-sum coupled compositional optimization and constrained training on PyTorch Lightning.

The public names are those of the folders below.  They are read from the sources, and imported on first use, so that
``import fcco_lightning`` costs nothing.
"""

import ast
import functools
import importlib
import re
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

ROOT = Path(__file__).parent

# Folders whose every class is public, from the moment that its file is there.
FAMILIES = (
    *("ambiguity", "outer", "estimators", "models"),
    *("objectives", "constraints", "algorithms", "evaluation"),
)
_WHOLE = ("data", "data.datamodules", "dro")  # every class that these folders export is public
_SELECTED = {
    "reports.classifier": "ConstrainedClassifier",
    "reports": "Baseline BestFeasible Diagnostics PredictionWriter Report Run load_run report_on",
    "engine": "Algorithm Engine Estimate InnerFunctions Problem",
    "errors": "CheckpointError ConfigError DataError FCCOError NonFiniteError StateIndexError",
    "evaluation": "default_evaluation",
    "inference": "Predictor export load",
    "state": "DualState",
    "training.criterion": "Criterion",
    "training": "Checkpoints Clipping Execution FCCOModule FabricBackend LinearWarmUp Preemption Pretraining Schedule "
    "StepAtFractions WarmStart WeightAverage",
}


@functools.cache
def public_names() -> dict[str, str]:
    """Every public name of the package with the module that holds it; of two with one name the later."""
    folders = [*FAMILIES, "objectives/*"]  # whose files stand in folders by what they are for
    files = [path for folder in folders for path in sorted(ROOT.glob(f"{folder}/[a-z]*.py"))]
    homes = {name: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files for name in _classes(path)}
    homes |= {name: module for module in _WHOLE for name in _exported(module) if name[0].isupper()}
    homes |= {name: module for module, names in _SELECTED.items() for name in names.split()}
    return {name: f"{ROOT.name}.{module}" for name, module in homes.items()}


def _classes(path: Path) -> list[str]:
    return re.findall(r"^class ([A-Z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE)


def _exported(module: str) -> list[str]:
    source = ROOT.joinpath(*module.split("."), "__init__.py").read_text(encoding="utf-8")
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", None) in ("__all__", "_HOMES"):
            names = ast.literal_eval(statement.value)  # those of _HOMES by their modules
            return " ".join(names.values() if isinstance(names, dict) else names).split()
    return []


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return ["__version__", *sorted(public_names())]
    if not name.startswith("_") and name in public_names():
        return getattr(importlib.import_module(public_names()[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*public_names()]

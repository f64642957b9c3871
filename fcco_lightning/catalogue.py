"""Which names are public, and where they are: read from the sources, without importing them."""

import ast
import functools
import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parent

# Folders whose every class is public, from the moment that its file is there.
FAMILIES = ("ambiguity", "estimators", "steps", "outer", "models", "objectives", "constraints", "algorithms")
_WHOLE = ("data", "data.datamodules", "dro", "evaluation")  # every class that these folders export is public
_SELECTED = {
    "engine": "Engine InnerFunctions Problem Surrogate",
    "errors": "CheckpointError ConfigError DataError FCCOError NonFiniteError StateIndexError",
    "evaluation": "default_evaluation",
    "state": "DualState",
    "training": "FCCOModule Pretraining StepAtFractions",
}


@functools.cache
def public_names() -> dict[str, str]:
    """Every public name of the package with the module that holds it; of two with one name the later."""
    homes = {name: f"{family}.{path.stem}" for family in FAMILIES for path in _files(family) for name in _classes(path)}
    homes |= {name: module for module in _WHOLE for name in _exported(module) if name[0].isupper()}
    homes |= {name: module for module, names in _SELECTED.items() for name in names.split()}
    return {name: f"{ROOT.name}.{module}" for name, module in homes.items()}


def import_families() -> None:
    """Import every file of :data:`FAMILIES`, so that a command line finds their classes by their short names."""
    for family in FAMILIES:
        for path in _files(family):
            importlib.import_module(f"{ROOT.name}.{family}.{path.stem}")


def _files(family: str) -> list[Path]:
    return sorted((ROOT / family).glob("[a-z]*.py"))


def _classes(path: Path) -> list[str]:
    return re.findall(r"^class ([A-Z]\w*)", path.read_text(encoding="utf-8"), re.MULTILINE)


def _exported(module: str) -> list[str]:
    source = ROOT.joinpath(*module.split("."), "__init__.py").read_text(encoding="utf-8")
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", None) == "__all__":
            return list(ast.literal_eval(statement.value))
    return []

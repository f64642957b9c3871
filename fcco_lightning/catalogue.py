"""Which names are public, and where they are: read from the sources, without importing them."""

import ast
import difflib
import functools
import importlib
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent

# Folders whose every class is public, from the moment that its file is there.
FAMILIES = (
    *("ambiguity", "outer", "estimators", "steps", "models"),
    *("objectives", "constraints", "algorithms", "evaluation"),
)
_WHOLE = ("data", "data.datamodules", "dro")  # every class that these folders export is public
_SELECTED = {
    "callbacks": "Run load_run",
    "criterion": "Criterion",
    "engine": "Engine InnerFunctions Problem Surrogate",
    "errors": "CheckpointError ConfigError DataError FCCOError NonFiniteError StateIndexError",
    "evaluation": "default_evaluation",
    "inference": "Predictor export load",
    "state": "DualState",
    "training": "FCCOModule FabricBackend Pretraining StepAtFractions WeightAverage",
}


class Kind(NamedTuple):
    """What a configuration chooses from.

    Attributes:
        place: where in a configuration it goes.
        folders: where its classes are.
        roots: names of the bases from which they derive.
    """

    place: str
    folders: tuple[str, ...]
    roots: tuple[str, ...]


KINDS = {
    "algorithms": Kind("model.algorithm", ("algorithms",), ("Algorithm",)),
    "objectives": Kind("model.objective", ("objectives",), ("Objective",)),
    "constraints": Kind("model.constraints", ("constraints",), ("Constraint",)),
    "penalties": Kind("model.penalty", ("constraints",), ("Multipliers", "Penalty")),
    "quantities": Kind("quantity of a constraint, loss of group DRO", ("objectives", "constraints"), ("Quantity",)),
    "losses": Kind("loss of objectives over pairs", ("objectives",), ("PairLoss",)),
    "ambiguity": Kind("ambiguity of group DRO and of robust linear models", ("ambiguity",), ("AmbiguitySet",)),
    "optimizers": Kind("model.optimizer, beside those of torch", ("steps",), ("Optimizer", "SGD", "Adam")),
    "networks": Kind("model.network", ("models",), ("Module",)),
    "data": Kind("data", ("data/datamodules",), ("LightningDataModule",)),
    "batches": Kind("data.batches", ("data/sampling",), ("Sampling",)),
    "evaluations": Kind("model.evaluation; the objective chooses one by default", ("evaluation",), ("Evaluation",)),
}
SECTIONS = {
    "baseline": "Baseline",  # before what saves checkpoints, which hold its state
    "feasible": "BestFeasible",  # before what reports of the weights that it chooses
    "report": "Report",
    "checkpoint": "Checkpoints",
    "predictions": "PredictionWriter",
    "preemption": "Preemption",
    "monitor": "StateMonitor",
    "diagnostics": "Diagnostics",
    "warm_start": "WarmStart",
}
"""The callbacks of the command line in their order, by the section of a configuration that has their arguments."""

_INTERNAL = {"ProximalDescent"}  # made by algorithms, not by a configuration
_CLASS = re.compile(r'^class (_?[A-Z]\w*)\(([^)]*)\):\n    r?"""(.+?)(?:"""|\n)', re.MULTILINE)


class Entry(NamedTuple):
    """A class that can be named in a configuration.

    Attributes:
        name: of the class.
        summary: first line of its documentation.
    """

    name: str
    summary: str


def members(kind: str) -> list[Entry]:
    """All classes of one of the :data:`KINDS` by name, without bases that are of no use alone."""
    _, folders, roots = KINDS[kind]
    headers = [header for folder in folders for header in _headers(folder)]
    bases = {header.name: header.bases for header in headers}

    def derived(name: str) -> bool:
        return any(base in roots or derived(base) for base in bases.get(name, ()) if base != name)

    chosen = [h for h in headers if h.name in public_names() and "ABC" not in h.bases and derived(h.name)]
    entries = [Entry(h.name, _plain(h.summary)) for h in chosen if h.name not in _INTERNAL]
    return sorted(entries, key=lambda entry: entry.name.lower())


def close_to(word: str) -> list[str]:
    """Public names that a misspelt word may have meant, the closest first; at most three."""
    names = {name.lower(): name for name in public_names() if name[0].isupper()}
    return [names[match] for match in difflib.get_close_matches(word.lower(), names, n=3, cutoff=0.6)]


def use_of(name: str) -> str:
    """Where a public class goes, as the end of a sentence; nothing if no configuration or estimator takes it.

    Example:
        >>> use_of("HingePenalty")
        '; it goes to model.penalty'
    """
    places = [found.place for kind, found in KINDS.items() if name in {entry.name for entry in members(kind)}]
    if places:
        return f"; it goes to {' or '.join(places)}"
    if public_names().get(name) == f"{ROOT.name}.dro":
        return "; it belongs to the linear models DROClassifier and DRORegressor, which are used from Python"
    return ""


class _Header(NamedTuple):
    name: str
    bases: tuple[str, ...]
    summary: str


@functools.cache
def _headers(folder: str) -> list[_Header]:
    """The headers of all classes with bases in the files of a folder."""
    found = []
    for path in sorted((ROOT / folder).glob("*.py")):
        for name, bases, summary in _CLASS.findall(path.read_text(encoding="utf-8")):
            listed = tuple(re.sub(r"\[.*", "", base).strip().rpartition(".")[2] for base in bases.split(","))
            found.append(_Header(name, listed, summary))
    return found


def _plain(summary: str) -> str:
    """Documentation as one reads it in a terminal."""
    return re.sub(r":\w+:", "", summary).replace("``", "").replace("`", "")


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

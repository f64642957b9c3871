"""The classes that a configuration can name, found in the source files without importing them."""

import difflib
import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

from fcco_lightning import ROOT, public_names


class Kind(NamedTuple):
    """A kind of classes from which a configuration chooses.

    Attributes:
        place: key of a configuration for such a class.
        folders: folders of the classes.
        roots: names of the base classes from which they derive.
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
    "optimizers": Kind("model.optimizer, beside those of torch", ("estimators",), ("Optimizer", "SGD", "Adam")),
    "networks": Kind("model.network", ("models",), ("Module",)),
    "data": Kind("data", ("data/datamodules",), ("LightningDataModule",)),
    "batches": Kind("data.batches", ("data",), ("Sampling",)),
    "evaluations": Kind("model.evaluation; the objective chooses one by default", ("evaluation",), ("Evaluation",)),
}
SECTIONS = {
    "baseline": "Baseline",  # before callbacks that save its state in checkpoints
    "feasible": "BestFeasible",  # before callbacks that report on the chosen weights
    "report": "Report",
    "checkpoint": "Checkpoints",
    "predictions": "PredictionWriter",
    "preemption": "Preemption",
    "diagnostics": "Diagnostics",
    "warm_start": "WarmStart",
}
"""The callbacks of the command line in their order, by the section of a configuration that has their arguments."""

_INTERNAL = {"ProximalDescent"}  # made by algorithms, not named in a configuration
_CLASS = re.compile(r'^class (_?[A-Z]\w*)\(([^)]*)\):\n    r?"""(.+?)(?:"""|\n)', re.MULTILINE)


def members(kind: str) -> dict[str, str]:
    """Name -> first line of the docstring for all classes of one of the :data:`KINDS`, sorted, without base classes."""
    _, folders, roots = KINDS[kind]
    headers = [header for folder in folders for header in _headers(folder)]
    bases = {header.name: header.bases for header in headers}

    def derived(name: str) -> bool:
        return any(base in roots or derived(base) for base in bases.get(name, ()) if base != name)

    listed = [h for h in headers if h.name in public_names() and "ABC" not in h.bases and derived(h.name)]
    entries = {h.name: _terminal_text(h.summary) for h in listed if h.name not in _INTERNAL}
    return dict(sorted(entries.items(), key=lambda entry: entry[0].lower()))


def close_to(word: str, others: Sequence[str] = ()) -> list[str]:
    """At most three public names, or ``others``, that are similar to a misspelt word, the most similar first."""
    names = {name.lower(): name for name in [*others, *public_names()] if name[0].isupper()}
    return [names[match] for match in difflib.get_close_matches(word.lower(), names, n=3, cutoff=0.6)]


def use_of(name: str) -> str:
    """The key for a public class, as the end of a sentence; empty if no configuration or estimator uses the class.

    Example:
        >>> use_of("HingePenalty")
        '; it goes to model.penalty'
    """
    places = [kind_of_part.place for kind, kind_of_part in KINDS.items() if name in members(kind)]
    if places:
        return f"; it goes to {' or '.join(places)}"
    if public_names().get(name) == f"{ROOT.name}.dro":
        return "; it belongs to the linear models DROClassifier and DRORegressor, which are used from Python"
    return ""


class _ConfigHeader(NamedTuple):
    name: str
    bases: tuple[str, ...]
    summary: str


@functools.cache
def _headers(folder: str) -> list[_ConfigHeader]:
    """The headers of all classes with bases in the files of a folder."""
    headers = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for name, bases, summary in _CLASS.findall(path.read_text(encoding="utf-8")):
            listed = tuple(re.sub(r"\[.*", "", base).strip().rpartition(".")[2] for base in bases.split(","))
            headers.append(_ConfigHeader(name, listed, summary))
    return headers


def _terminal_text(summary: str) -> str:
    """A docstring's line without markup, for a terminal."""
    return re.sub(r":\w+:", "", summary).replace("``", "").replace("`", "")

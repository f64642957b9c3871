"""What can be said on the command line: the arguments of classes, read from the sources without importing them."""

import ast
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fcco_lightning import ROOT
from fcco_lightning.cli.catalogue import KINDS, SECTIONS, members

OF_FIT = ("ckpt_path", "config", "help", "logger", "name", "print_config", "seed_everything")
_FOLDERS = ("callbacks", "data", "state", "steps", "training", *(f for kind in KINDS.values() for f in kind.folders))
_LIGHTNING = ("trainer/trainer.py", "callbacks/model_checkpoint.py")
_KIND_OF = {root: kind for kind, found in KINDS.items() for root in found.roots}
_KIND_OF |= {"Enforcement": "penalties", "OptimizerCallable": "optimizers"}
_SEVERAL = {"Sequence", "list", "tuple", "dict", "Mapping", "Iterable", "Union[Iterable"}
_DEEPEST = 3  # dots of an option


class Argument(NamedTuple):
    """An argument of a class.

    Attributes:
        name: of the argument.
        classes: the classes that it may be; none where it is no class.
        values: other values that it may have, where they are few.
        single: whether it is one of them, so that their arguments are options, too.
    """

    name: str
    classes: list[str]
    values: list[str]
    single: bool = True


def options() -> dict[str, list[str]]:
    """Every option of ``fcco fit`` by its path, and the values that it may have, where they are few.

    An option of a class is there whatever class a configuration chooses.

    Example:
        >>> found = options()
        >>> "SONEX" in found["model.algorithm"], found["trainer.barebones"], "data.splits.val_fraction" in found
        (True, ['true', 'false'], True)
    """
    found: dict[str, list[str]] = {name: [] for name in OF_FIT}
    found["logger"] = ["tensorboard", "wandb"]
    found["data"] = [entry.name for entry in members("data")]
    for section, name in {"model": "FCCOModule", "trainer": "Trainer", **SECTIONS}.items():
        _add(found, section, name)
    for name in found["data"]:
        _add(found, "data", name)
    return found


def _add(found: dict[str, list[str]], path: str, name: str) -> None:
    """Add the arguments of a class, and of the classes that these may be."""
    for argument in arguments(name):
        option = f"{path}.{argument.name}"
        values = [*found.get(option, []), *argument.classes, *argument.values]
        found[option] = list(dict.fromkeys(values))
        if argument.single and option.count(".") < _DEEPEST:
            for inner in argument.classes:
                _add(found, option, inner)


@functools.cache
def arguments(name: str, near: Path | None = None) -> list[Argument]:
    """The arguments of a class of this package or of the Trainer, those of its bases included where it passes them on.

    Args:
        name: of the class; of one that is not known, there are none.
        near: the file where it is named, in which it is looked for first.
    """
    definition, path = _classes().get((name, near)) or _classes().get((name, None)) or (None, None)
    if definition is None:
        return []
    bases = [base for parent in definition.bases for base in arguments(_last_name(parent), path)]
    if any(_last_name(mark) == "dataclass" for mark in definition.decorator_list):
        fields = [f for f in definition.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)]
        own = [_argument(f.target.id, f.annotation) for f in fields if isinstance(f.target, ast.Name)]
        return [*bases, *own]
    for part in definition.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            given = [*part.args.args[1:], *part.args.kwonlyargs]
            return [*(_argument(g.arg, g.annotation) for g in given), *(bases if part.args.kwarg else [])]
    return bases


def _argument(name: str, annotation: ast.expr | None) -> Argument:
    names = [] if annotation is None else list(_names(annotation))
    kinds = dict.fromkeys(_KIND_OF[word] for word in names if word in _KIND_OF)
    classes = [entry.name for kind in kinds for entry in members(kind)]
    classes += [word for word in names if (word, None) in _classes() and word not in _KIND_OF and word not in classes]
    values = ["true", "false"] if "bool" in names else _literals(annotation)
    return Argument(name, classes, values, not _SEVERAL & set(names))


def _names(annotation: ast.expr) -> Iterator[str]:
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name | ast.Attribute):
            yield _last_name(node)


def _literals(annotation: ast.expr | None) -> list[str]:
    inside = [] if annotation is None else ast.walk(annotation)
    literals = [node for node in inside if isinstance(node, ast.Subscript) and _last_name(node.value) == "Literal"]
    constants = [c for node in literals for c in ast.walk(node.slice) if isinstance(c, ast.Constant)]
    return [c.value for c in constants if isinstance(c.value, str)]


def _last_name(node: ast.AST) -> str:
    """``Sampling`` of ``Sampling``, ``sampling.Sampling``, ``Sampling[int]`` and ``Sampling(...)``."""
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


@functools.cache
def _classes() -> dict[tuple[str, Path | None], tuple[ast.ClassDef, Path]]:
    """All classes whose arguments can be options, each with its file, by name and file, and by name alone."""
    paths = [path for folder in dict.fromkeys(_FOLDERS) for path in sorted((ROOT / folder).glob("*.py"))]
    lightning = importlib.util.find_spec("lightning")
    for folder in (lightning.submodule_search_locations or []) if lightning else []:
        paths += [Path(folder, "pytorch", file) for file in _LIGHTNING]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")).body for path in paths if path.is_file()}
    found = [(part, path) for path, body in trees.items() for part in body if isinstance(part, ast.ClassDef)]
    return {(part.name, key): (part, path) for part, path in found for key in (path, None)}

"""The options of the command line, including those of classes, as the parser defines them."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin

import jsonargparse
from lightning.pytorch import Trainer

import fcco_lightning
from fcco_lightning import FCCOModule, public_names
from fcco_lightning.cli.catalogue import KINDS, SECTIONS, members

OF_FIT = ("ckpt_path", "config", "help", "logger", "name", "print_config", "seed_everything")
_DEEPEST = 3  # largest number of dots in an option
_SEVERAL = {Sequence, Mapping, Iterable, list, tuple, dict}


class Option(NamedTuple):
    """An option of a class.

    Attributes:
        name: name of the option.
        classes: the classes that its value may have; empty if it is no class.
        values: its other possible values, if they are few.
        single: whether it has one value, not a list, so that arguments of its class are options, too.
    """

    name: str
    classes: list[type]
    values: list[str]
    single: bool


@functools.cache
def options() -> dict[str, list[str]]:
    """Every option of ``fcco fit`` by its path, with its possible values if they are few.

    Options of all classes are included, whatever class a configuration chooses.

    Example:
        >>> found = options()
        >>> "SONEX" in found["model.algorithm"], found["trainer.barebones"], "data.splits.val_fraction" in found
        (True, ['true', 'false'], True)
    """
    values_of: dict[str, list[str]] = {name: [] for name in OF_FIT}
    values_of["logger"] = ["tensorboard", "wandb"]
    values_of["data"] = [*members("data")]
    sections = {section: getattr(fcco_lightning, name) for section, name in SECTIONS.items()}
    for section, cls in {"model": FCCOModule, "trainer": Trainer, **sections}.items():
        _add(values_of, section, cls)
    for name in values_of["data"]:
        _add(values_of, "data", getattr(fcco_lightning, name))
    return values_of


def _add(values_of: dict[str, list[str]], path: str, cls: type) -> None:
    """Add the options of a class, and of the classes of their values."""
    for option in options_of(cls):
        place = f"{path}.{option.name}"
        values = [*values_of.get(place, []), *(choice.__name__ for choice in option.classes), *option.values]
        values_of[place] = list(dict.fromkeys(values))
        if option.single and place.count(".") < _DEEPEST:
            for choice in option.classes:
                _add(values_of, place, choice)


@functools.cache
def options_of(cls: type) -> list[Option]:
    """The options of a class, including those of its bases if it passes ``**kwargs`` on."""
    parser = jsonargparse.ArgumentParser(add_help=False)
    parser.add_class_arguments(cls, fail_untyped=False)
    typed = [action for action in parser._actions if not action.dest.endswith("help")]
    return [_option(action.dest, getattr(action, "_typehint", action.type)) for action in typed]


def _option(name: str, hint: Any) -> Option:
    parts = list(_parts(hint))
    classes = dict.fromkeys(choice for part in parts if isinstance(part, type) for choice in _choices(part))
    values = ["true", "false"] if bool in parts else [part for part in parts if isinstance(part, str)]
    return Option(name, list(classes), values, single=_SEVERAL.isdisjoint(parts))


def _parts(hint: Any) -> Iterator[Any]:
    """The types in a type hint, the values of a literal, and for a function its return type."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        yield from inside
    elif origin is Callable:
        yield from _parts(inside[-1])
    else:
        yield origin or hint
        for part in inside:
            yield from _parts(part)


def _choices(base: type) -> list[type]:
    """The classes of this package that are values of an option."""
    kinds = [kind for kind, entry in KINDS.items() if base.__name__ in entry.roots]
    if kinds:
        return [getattr(fcco_lightning, name) for kind in kinds for name in members(kind)]
    public = public_names()
    return [cls for cls in _derived(base) if cls.__name__ in public and not inspect.isabstract(cls)]


def _derived(base: type[Any]) -> Iterator[type[Any]]:
    if base.__module__.startswith(f"{fcco_lightning.__name__}."):
        yield base
        for cls in base.__subclasses__():
            yield from _derived(cls)

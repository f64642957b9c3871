"""The reader of all YAML, which refuses huge or deeply nested files, expanding aliases and duplicate keys."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from fcco_lightning.data.text_files import read_text
from fcco_lightning.errors import ConfigError

MOST_NODES, MOST_LEVELS, MOST_CHARACTERS = 20_000, 100, 1_000_000
"""How large a configuration may be, its aliases written out, and how deep; the whole one of a run has 500 and 10."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(path: Path, where: str) -> Any:
    """Return the value in a YAML file, which is called ``where`` in messages.

    Raises:
        ConfigError: if it is no YAML, or :func:`require_harmless` refuses it.
        DataError: if it is no text in UTF-8.
    """
    return load_yaml(read_text(path, where), where)


def load_yaml(text: str, where: str) -> Any:
    """Return the value of a YAML text; errors are those of :func:`read_yaml`."""
    require_harmless(text, where)
    with _naming_place(text, where):
        return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe one


def require_harmless(text: str, where: str) -> None:
    """Raise :class:`ConfigError` unless a text is YAML of limited size and depth without duplicate keys.

    Aliases count with the size of their values, though they are not expanded.
    """
    if len(text) > MOST_CHARACTERS:  # checked first, since nodes are made before they are counted
        raise ConfigError(
            f"{where}: it holds {len(text):,} characters, and a configuration at most {MOST_CHARACTERS:,}: is this the "
            "right file?"
        )
    with _naming_place(text, where):
        root = yaml.compose(text, Loader=_LOADER)
        if root is not None:
            _size(root, where, {})


def _size(node: Any, where: str, sizes: dict[int, int], level: int = 1) -> int:
    """The number of values in a node with aliases expanded; ``sizes`` caches those of nodes, 0 while being counted."""
    line = node.start_mark.line + 1
    if level > MOST_LEVELS:
        raise ConfigError(f"{where}, line {line}: it is nested more than {MOST_LEVELS} levels deep.")
    if id(node) not in sizes:
        sizes[id(node)], size = 0, 1
        is_mapping = isinstance(node, yaml.MappingNode)
        if is_mapping:
            _require_each_key_once(node, where)
        inside = itertools.chain(*node.value) if is_mapping else node.value
        for part in inside if isinstance(node, yaml.CollectionNode) else ():
            size += _size(part, where, sizes, level + 1)
            if size > MOST_NODES:
                raise ConfigError(
                    f"{where}, line {line}: it holds more than {MOST_NODES:,} values, its aliases written out. A "
                    "configuration is far smaller: is this the right file?"
                )
        sizes[id(node)] = size
    if not sizes[id(node)]:
        raise ConfigError(f"{where}, line {line}: an alias refers to a value that contains it.")
    return sizes[id(node)]


def _require_each_key_once(mapping: Any, where: str) -> None:
    """Refuse duplicate keys, the last of which would silently win."""
    lines: dict[str, int] = {}
    for key, _ in mapping.value:
        line = key.start_mark.line + 1
        if isinstance(key, yaml.ScalarNode) and key.value != "<<":
            if key.value in lines:
                raise ConfigError(
                    f"{where}, line {line}: the key {key.value!r} occurs in line {lines[key.value]} already. Remove "
                    "one of them."
                )
            lines[key.value] = line


def by_key(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by dotted key, a class by its name: ``model.algorithm`` SONEX, ``model.algorithm.lam`` 0.01.

    In a list of several classes the keys of arguments contain the position: ``model.constraints.1.kappa``.
    """
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "class_path" in item for item in value):
        yield key, ", ".join(str(item["class_path"]).rpartition(".")[2] for item in value)
        for place, item in enumerate(value):
            yield from by_key(item.get("init_args") or {}, key if len(value) == 1 else f"{key}.{place}")
    elif isinstance(value, Mapping) and "class_path" in value:
        yield key, str(value["class_path"]).rpartition(".")[2]
        yield from by_key(value.get("init_args") or {}, key)
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from by_key(inner, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


@contextmanager
def _naming_place(text: str, where: str) -> Iterator[None]:
    """Within this context, errors of invalid YAML become a :class:`ConfigError` that names the place."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # invalid values, such as the date 2026-02-30, raise errors of many classes
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1},"
        tab = " Indent with spaces instead of tabs." if "\t" in text else ""
        cut = " A list or mapping with spaces needs quotes: '[1, 10]'." if _is_cut(text) else ""
        reasons = (getattr(error, name, None) for name in ("context", "problem", "reason"))
        reason = " ".join(filter(None, reasons)) or str(error)
        raise ConfigError(f"{where}{line} cannot be read as YAML: {reason}.{tab}{cut}") from error


def _is_cut(text: str) -> bool:
    """Whether a text begins a list or mapping that does not end, as if a shell has split ``[1, 10]`` in two words."""
    return "\n" not in text and text[:1] in ("[", "{") and text[-1:] not in ("]", "}")

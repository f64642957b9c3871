"""The one reader of YAML: what multiplies, nests without end or says a thing twice is refused before it is read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fcco_lightning.data.text_files import read_text
from fcco_lightning.errors import ConfigError

MOST_NODES, MOST_LEVELS = 20_000, 100
"""How large a configuration may be, its aliases written out, and how deep; the whole one of a run has 500 and 10."""
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class _OpenNode:
    """A mapping or list that is being read."""

    anchor: str | None
    keys: dict[str, int] | None = None  # of a mapping -> their lines
    size: int = 1
    key_next: bool = True


def read_yaml(path: Path, where: str) -> Any:
    """Return what a file holds, which is called ``where`` in messages.

    Raises:
        ConfigError: if it is no YAML, or none that :func:`require_harmless` allows.
        DataError: if it is no text in UTF-8.
    """
    return load_yaml(read_text(path, where), where)


def load_yaml(text: str, where: str) -> Any:
    """Return what a text means, with the errors of :func:`read_yaml`."""
    require_harmless(text, where)
    with _naming_place(text, where):
        return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe one


def require_harmless(text: str, where: str) -> None:
    """Raise :class:`ConfigError` unless a text is YAML without a key twice in a mapping, of limited size and depth.

    Aliases count with the size of what they stand for.  The parser's events are read one by one, so that nothing is
    built, and nothing is written out, before it is known to be small.
    """
    with _naming_place(text, where):
        content = _NodeCounter(where)
        for event in yaml.parse(text, Loader=_LOADER):
            content.take(event)


@contextmanager
def _naming_place(text: str, where: str) -> Iterator[None]:
    """Say of a text that is no YAML, or of which no values can be made, where it is wrong."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # a value that is none of its type, such as the date 2026-02-30, raises almost any kind
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1},"
        tab = " Indent with blanks instead of tabs." if "\t" in text else ""
        cut = " A list or mapping with blanks needs quotes: '[1, 10]'." if _is_cut(text) else ""
        reasons = (getattr(error, name, None) for name in ("context", "problem", "reason"))
        reason = " ".join(filter(None, reasons)) or str(error)
        raise ConfigError(f"{where}{line} cannot be read as YAML: {reason}.{tab}{cut}") from error


def _is_cut(text: str) -> bool:
    """Whether a text begins a list or mapping that does not end, as where a shell divides ``[1, 10]`` in two words."""
    return "\n" not in text and text[:1] in ("[", "{") and text[-1:] not in ("]", "}")


class _NodeCounter:
    """Counts the nodes of a text, aliases expanded, and refuses too many."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._sizes: dict[str, int] = {}  # by anchor, of what is complete
        self._open_nodes = [_OpenNode(None)]

    def take(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.NodeEvent):
            self._pass_key(event, line)
        if isinstance(event, yaml.CollectionStartEvent):
            self._open_nodes.append(_OpenNode(event.anchor, {} if isinstance(event, yaml.MappingStartEvent) else None))
            if len(self._open_nodes) > MOST_LEVELS:
                raise ConfigError(f"{self.where}, line {line}: it is nested more than {MOST_LEVELS} levels deep.")
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = self._open_nodes.pop()
            self._add(closed.size, closed.anchor, line)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._sizes:
                raise ConfigError(
                    f"{self.where}, line {line}: *{event.anchor} is within what it stands for, or unknown."
                )
            self._add(self._sizes[event.anchor], None, line)
        elif isinstance(event, yaml.ScalarEvent):
            self._add(1, event.anchor, line)

    def _pass_key(self, event: Any, line: int) -> None:
        """Refuse a key that a mapping has already, of which the last would silently win."""
        top = self._open_nodes[-1]
        if top.keys is None:
            return
        if top.key_next and isinstance(event, yaml.ScalarEvent) and event.value != "<<":
            if event.value in top.keys:
                raise ConfigError(
                    f"{self.where}, line {line}: the key {event.value!r} stands in line {top.keys[event.value]} "
                    "already. Remove one of them."
                )
            top.keys[event.value] = line
        top.key_next = not top.key_next

    def _add(self, size: int, anchor: str | None, line: int) -> None:
        """Add the size of a complete node to its parent."""
        top = self._open_nodes[-1]
        top.size += size
        if anchor is not None:
            self._sizes[anchor] = size
        if top.size > MOST_NODES:
            raise ConfigError(
                f"{self.where}, line {line}: it holds more than {MOST_NODES:,} values, its aliases written out. A "
                "configuration is far smaller: is this the right file?"
            )

"""What a checkpoint is made of: what is missing when it is read, or of another type, is named."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

STRUCTURE = "structure"
"""Key of a checkpoint's header under which it says what it is made of."""
_MOST_MEMBERS = 1000  # of a part that is described member by member
_PLAIN = (int, float, bool, str)


def structure_of(content: Mapping[str, Any]) -> dict[str, str]:
    """Return path -> kind of everything in ``content``: a type, the shape of a tensor, the length of a list of numbers.

    Args:
        content: nested mappings, lists and tuples of plain values and tensors.

    Example:
        >>> structure_of({"a": [1, 2], "b": {"c": None}})
        {'a': 'list of 2 int', 'b': 'mapping', 'b.c': 'NoneType'}
    """
    return {path: kind for name, value in content.items() for path, kind in _described(str(name), value)}


def difference(content: Mapping[str, Any]) -> str | None:
    """Return how a checkpoint differs from what it says it is made of, or None if it does not, or does not say.

    Whole entries may have been left out, and others added: what is needed is asked for where it is.

    Args:
        content: of the checkpoint.
    """
    header = content.get("fcco")
    stored = header.get(STRUCTURE, {}) if isinstance(header, Mapping) else {}
    if not isinstance(stored, Mapping):
        return f"its entry `fcco.{STRUCTURE}` is {type(stored).__name__}"
    found = structure_of({name: value for name, value in content.items() if name in stored})
    for path, kind in stored.items():
        here = found.get(path, "missing")
        if here != kind and str(path).partition(".")[0] in found:
            return f"its entry `{path}` is {here}, and was {kind} when it was saved"
    return None


def _described(path: str, value: Any) -> Iterable[tuple[str, str]]:
    """The kind of a value, then those of its members."""
    kind, members = _kind(value)
    inside = [found for key, member in members for found in _described(f"{path}.{key}", member)]
    if len(members) > _MOST_MEMBERS:
        digest = hashlib.sha256(str(inside).encode()).hexdigest()[:16]
        return [(path, f"{kind} of {len(members)} members ({digest})")]
    return [(path, kind), *inside]


def _kind(value: Any) -> tuple[str, list[tuple[Any, Any]]]:
    """What a value is, and its members by their keys; numbers and words in a row are described together."""
    if isinstance(value, Tensor):
        return f"tensor {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}", []
    if isinstance(value, Mapping):
        return "mapping", list(value.items())
    if not isinstance(value, list | tuple):
        return type(value).__name__, []
    kind, types = "list" if isinstance(value, list) else "tuple", {type(member) for member in value}
    if len(types) == 1 and types <= set(_PLAIN):
        return f"{kind} of {len(value)} {types.pop().__name__}", []
    return kind, list(enumerate(value))

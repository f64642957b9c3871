"""Files of ``torch.save`` from any source: complete, no larger than they say, and without running code in them."""

import pickletools
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from fcco_lightning.checks import check_file
from fcco_lightning.errors import CheckpointError

_ENCODE, _BYTEARRAY = "_codecs encode", "bytearray"
_TEXTS = ("BINUNICODE", "SHORT_BINSTRING", "BINSTRING")
_IN_PLACE = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD")
_SPARE = 1_000_000  # values that a file may refer to again, besides one per byte
_OF_A_VALUE = 100  # characters of a text that count as one value
_LONGEST, _MOST_LONG = 1 << 64, 1000  # numbers of more than 64 bits can be chosen to collide as keys
_PLAIN = (int, float, bool, str)
_HYPER_PARAMETERS = ("hyper_parameters", "datamodule_hyper_parameters", "hparams", "module_arguments")  # of Lightning
_DEEPEST, _MOST_VALUES = 100, 1_000_000  # levels of nesting, and values outside of lists of plain values


def opened(path: Path) -> dict[str, Any]:
    """The content of a file from any source; its tensors are memory-mapped.

    Raises:
        CheckpointError: if it is missing or damaged, would run code, or is not a checkpoint.
    """
    check_file(path)
    if (reason := excess(path)) is not None:
        raise invalid_checkpoint(path, reason)
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # any error is possible
        match = re.search(r"GLOBAL ([\w.]+)", str(error))
        no_data = (
            f"it contains {match and match[1]}, which is not data (if you trust it: torch.serialization.safe_globals)"
        )
        raise invalid_checkpoint(path, no_data if match else type(error).__name__) from error
    if not isinstance(content, dict):
        raise invalid_checkpoint(path, f"it contains a {type(content).__name__} instead of a mapping")
    _require_tree(path, content)
    _require_plain_arguments(path, content)
    return content


def _require_plain_arguments(path: Path, content: Mapping[Any, Any]) -> None:
    """Refuse hyperparameters from which Lightning would create a module with code that the file names."""
    for name in _HYPER_PARAMETERS:
        arguments = content.get(name, {})
        if not isinstance(arguments, Mapping) or not all(isinstance(key, str) for key in arguments):
            raise invalid_checkpoint(path, f"its entry `{name}` is not a mapping with texts as keys")
        if "_instantiator" in arguments:
            raise CheckpointError(
                f"checkpoint {path}: its entry `{name}` contains code that would create the module. Remove this "
                "entry, and pass the parts of the module as arguments."
            )


def _require_tree(path: Path, content: Mapping[Any, Any]) -> None:
    """Refuse content that is not a tree of limited size (such as a list that contains itself), or exceeds its file."""
    size, count = path.stat().st_size, 0
    todo: list[tuple[Any, int]] = [(content, 0)]
    while todo:
        value, depth = todo.pop()
        count += 1
        if depth > _DEEPEST or count > _MOST_VALUES:
            raise invalid_checkpoint(path, f"it has more than {_DEEPEST} levels of nesting or {_MOST_VALUES} values")
        if isinstance(value, Tensor) and not is_lazy(value):
            if value.layout != torch.strided or (value.dim() == 0 if value.is_meta else value.nbytes > size):
                raise invalid_checkpoint(path, f"it declares a tensor of shape {tuple(value.shape)} without its values")
        elif isinstance(value, Mapping):
            if not getattr(value, "__dict__", {}).keys() <= {"_metadata"}:  # `values` would hide members
                raise invalid_checkpoint(path, f"it contains a mapping with attributes ({', '.join(vars(value))})")
            todo += [(member, depth + 1) for member in value.values()]
        elif isinstance(value, list | tuple) and not set(map(type, value)) <= set(_PLAIN):
            todo += [(member, depth + 1) for member in value]


def invalid_checkpoint(path: str | Path, reason: str) -> CheckpointError:
    """The error for a file that is no checkpoint."""
    return CheckpointError(
        f"checkpoint {path}: not written by `fcco fit` (FCCOModule under a Trainer), or incomplete: {reason}. Use a "
        "complete checkpoint of `fcco fit`."
    )


def excess(path: Path) -> str | None:
    """A phrase on how a checkpoint asks for more memory or time than its size justifies; None if it does not.

    ``torch.load`` with ``weights_only`` runs no code of a file, but creates all values that the file describes, and a
    few bytes can describe a lot: ``bytearray(n)`` takes any amount of memory, 40 nested calls of the codec "hex" take 1
    TB, and 40 nested pairs, each containing the previous one twice, take 2^40 steps as soon as one is used as a key.

    Args:
        path: path of a complete archive, see :func:`~fcco_lightning.checks.check_file`.
    """
    with zipfile.ZipFile(path) as archive:  # torch ignores the case of the name
        pickles = [archive.read(entry) for entry in archive.infolist() if entry.filename.lower().endswith("data.pkl")]
    return next((reason for entry in pickles if (reason := _excess(entry)) is not None), None)


def _excess(pickled: bytes) -> str | None:
    try:
        shared, long, makes_bytes = 0, 0, b"bytearray" in pickled or b"_codecs" in pickled
        for count, is_long in _values_again(pickled):
            shared, long = shared + count, long + is_long
            if shared > _SPARE + len(pickled) or long > _MOST_LONG:
                return "it refers to the same values too often, or has too many numbers of more than 64 bits"
    except (ValueError, LookupError) as error:  # what torch would create before the error is not known either
        return f"it is not a valid pickle ({error})"
    if makes_bytes and not _is_standard_pickle([*_pushed_names(pickled)]):
        return "it allocates memory without content (bytearray, _codecs.encode)"
    return None


def _is_standard_pickle(names: list[str]) -> bool:
    """Whether bytes are created only as Python pickles them: from Latin-1 text, from such bytes, or empty."""
    for i, name in enumerate(names):
        encodes_text = names[i + 1 : i + 5] == ["text", "latin1", "TUPLE2", "REDUCE"]
        copies_bytes = names[i + 1] in (_ENCODE, "REDUCE", "EMPTY_TUPLE") if name == _BYTEARRAY else False
        if name in (_ENCODE, _BYTEARRAY) and not (encodes_text or copies_bytes):
            return False
    return True


def _pushed_names(pickled: bytes) -> Iterator[str]:
    """What each operation of a pickle pushes: a function's name, "text", "latin1", or the operation's name."""
    memo: dict[Any, str] = {}
    last = ""
    for operation, argument, _ in pickletools.genops(pickled):
        if "PUT" in operation.name:
            memo[argument] = last
            continue
        if "GET" in operation.name:
            last = memo.get(argument, "")
        elif operation.name == "GLOBAL":
            last = _BYTEARRAY if str(argument).endswith(" bytearray") else str(argument)
        elif operation.name in _TEXTS:
            last = "latin1" if argument in ("latin1", "latin-1") else "text"
        else:
            last = operation.name
        yield last


class _Value:
    """A pushed object: the number of values in it, including nested ones, and whether it is referred to again."""

    def __init__(self) -> None:
        self.count, self.again = 0, False


def _values_again(pickled: bytes) -> Iterator[tuple[int, bool]]:
    """For each operation of a pickle the number of values referred to again, and whether it pushes a long number.

    Raises:
        ValueError: if the pickle is damaged, or changes an object after referring to it again.
    """
    memo: dict[Any, _Value] = {}
    stack: list[_Value | None] = []  # None is a mark
    for operation, argument, _ in pickletools.genops(pickled):
        name, before = operation.name, operation.stack_before
        if "PUT" in name:
            memo[argument] = stack[-1] or _Value()
            continue
        if "GET" in name:
            value = memo[argument]
            value.again = True
            stack.append(value)
            yield value.count, False
            continue
        taken = []
        if pickletools.markobject in before:
            while (member := stack.pop()) is not None:
                taken.append(member)
        else:
            taken = [member for member in (stack.pop() for _ in before) if member is not None]
        value = _Value()
        if name in _IN_PLACE:
            value = (stack.pop() if pickletools.markobject in before else taken.pop()) or value
            if value.again:
                raise ValueError("it changes an object after referring to it again")
        value.count += 1 + sum(member.count for member in taken)
        if isinstance(argument, str):
            value.count += len(argument) // _OF_A_VALUE
        stack += [None if kind is pickletools.markobject else value for kind in operation.stack_after]
        yield 0, isinstance(argument, int) and abs(argument) >= _LONGEST

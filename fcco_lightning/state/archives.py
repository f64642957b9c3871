"""What the pickle of a checkpoint may ask for, found out before anything of it is made."""

import pickletools
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ENCODE, _BYTEARRAY = "_codecs encode", "bytearray"
_TEXTS = ("BINUNICODE", "SHORT_BINSTRING", "BINSTRING")


def asks_for_memory(path: Path) -> bool:
    """Whether a checkpoint asks for memory that it does not fill.

    ``torch.load`` with ``weights_only`` runs no code of a file, but calls ``bytearray(n)`` and ``_codecs.encode(value,
    codec)`` with whatever the file gives them: 20 bytes ask for 10 GB, and 40 calls of the codec "hex" in a row for
    1 TB.  Python writes bytes down in one way only, and any other is refused.

    Args:
        path: of a whole archive, see :func:`~fcco_lightning.checks.check_file`.
    """
    with zipfile.ZipFile(path) as archive:
        pickles = [archive.read(entry) for entry in archive.infolist() if entry.filename.endswith("data.pkl")]
    return any((b"bytearray" in entry or b"_codecs" in entry) and not _is_standard_pickle(entry) for entry in pickles)


def _is_standard_pickle(pickled: bytes) -> bool:
    """Whether bytes are made as Python writes them down: of a text in Latin 1, of such bytes, or of nothing."""
    try:
        names = [*_pushed_names(pickled)]
    except ValueError:  # no pickle at all: torch raises its own error for that
        return True
    for i, name in enumerate(names):
        encodes_text = names[i + 1 : i + 5] == ["text", "latin1", "TUPLE2", "REDUCE"]
        copies_bytes = names[i + 1] in (_ENCODE, "REDUCE", "EMPTY_TUPLE") if name == _BYTEARRAY else False
        if name in (_ENCODE, _BYTEARRAY) and not (encodes_text or copies_bytes):
            return False
    return True


def _pushed_names(pickled: bytes) -> Iterator[str]:
    """What every operation of a pickle pushes: a function, a text, the codec Latin 1, or the operation's own name."""
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

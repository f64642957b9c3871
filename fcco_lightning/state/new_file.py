"""Files that are written completely or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from fcco_lightning.errors import CheckpointError


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A context that writes a file atomically: it gets its name when it is completely on disk, or never.

    Links are followed; pipes and other special files are written directly.

    Raises:
        CheckpointError: if it cannot be written.
    """
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        with path.open("wb") as pipe:
            yield pipe
        return
    # in the same folder, as renaming between file systems is not atomic
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # another job may write the same name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(
            f"cannot write `{path}`: {reason}. An earlier file of this name is unchanged. Free disk space, or choose "
            "another folder."
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    with suppress(OSError):  # not supported by every file system; a lost name looks like an interrupted save
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

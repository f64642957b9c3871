"""Checks of scalar arguments and of files."""

import importlib
import math
import struct
import textwrap
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

from fcco_lightning.errors import CheckpointError, ConfigError

T = TypeVar("T")
_END, _END_64 = 22, 76  # sizes of the records at the end of an archive that locate its directory


def _is_finite(value: object) -> bool:
    """Whether it is a finite number; True and False, which Python counts as 1 and 0, are none."""
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an int that is too large for float
        return False


def positive(name: str, value: float) -> float:
    """Return ``value`` if it is finite and > 0, else raise :class:`ConfigError` naming the argument."""
    return greater(name, value, 0)


def non_negative(name: str, value: float) -> float:
    """Return ``value`` if it is finite and >= 0, else raise :class:`ConfigError` naming the argument."""
    return greater(name, value, 0, equal=True)


def greater(name: str, value: float, bound: float, *, equal: bool = False) -> float:
    """Return ``value`` if it is finite and > ``bound`` (or >= it), else raise :class:`ConfigError` naming it."""
    if not (_is_finite(value) and (value > bound or (equal and value == bound))):
        raise ConfigError(f"{name} must be a finite number {'>=' if equal else '>'} {bound:g}, got {value!r}.")
    return value


def finite(name: str, value: float) -> float:
    """Return ``value`` if it is a finite number, else raise :class:`ConfigError` naming the argument."""
    if not _is_finite(value):
        raise ConfigError(f"{name} must be a finite number, got {value!r}.")
    return value


def fraction(name: str, value: float) -> float:
    """Return ``value`` if it lies in (0, 1], else raise :class:`ConfigError` naming the argument."""
    if not (_is_finite(value) and 0 < value <= 1):
        raise ConfigError(f"{name} must lie in (0, 1], got {value!r}.")
    return value


def below_one(name: str, value: float) -> float:
    """Return ``value`` if it lies in [0, 1), else raise :class:`ConfigError` naming the argument."""
    if not (_is_finite(value) and 0 <= value < 1):
        raise ConfigError(f"{name} must lie in [0, 1), got {value!r}.")
    return value


def unit(name: str, value: float) -> float:
    """Return ``value`` if it lies in [0, 1], else raise :class:`ConfigError` naming the argument."""
    if not (_is_finite(value) and 0 <= value <= 1):
        raise ConfigError(f"{name} must lie in [0, 1], got {value!r}.")
    return value


def inside(name: str, value: float) -> float:
    """Return ``value`` if it lies in (0, 1), else raise :class:`ConfigError` naming the argument."""
    if not (_is_finite(value) and 0 < value < 1):
        raise ConfigError(f"{name} must lie in (0, 1), got {value!r}.")
    return value


def at_least(name: str, value: int, lowest: int) -> int:
    """Return ``value`` if it is a whole number >= ``lowest``, else raise :class:`ConfigError` naming the argument."""
    if not _is_finite(value) or value != int(value) or value < lowest:
        raise ConfigError(f"{name} must be a whole number >= {lowest}, got {value!r}.")
    return int(value)


def no_label(name: str, value: float | None) -> float | None:
    """Return ``value``, which stands for a label that is not known, if it is None or a finite number but 0 and 1.

    NaN equals nothing, and 0 and 1 are labels: any of them would mark other labels than are meant, or none.

    Raises:
        ConfigError: naming the argument.
    """
    if value is not None and (not _is_finite(value) or value in (0, 1)):
        raise ConfigError(
            f"{name} must be None or a finite number other than the labels 0 and 1, got {value!r}. Write another "
            f"number, such as -1, in the place of labels that are not known, and pass {name}=-1."
        )
    return value


def one_of(name: str, value: T, options: Sequence[T]) -> T:
    """Return ``value`` if it is one of ``options``, else raise :class:`ConfigError` naming the argument and them."""
    if value not in options:
        listing = ", ".join(repr(option) for option in options)
        raise ConfigError(f"{name} must be one of {listing}, got {value!r}.")
    return value


def made_of(name: str, value: T, *kinds: type) -> T:
    """Return ``value`` if it is an instance of a class, else raise :class:`ConfigError` naming argument and classes.

    In a configuration file a mapping of arguments is enough; in Python an instance is needed, and the message shows it.
    """
    if not isinstance(value, kinds):
        arguments = ", ".join(f"{k}={v!r}" for k, v in value.items()) if isinstance(value, Mapping) else "..."
        classes = " or ".join(kind.__name__ for kind in kinds)
        shown = textwrap.shorten(repr(value), 100, placeholder=" ...")
        raise ConfigError(f"{name} must be a {classes}, got {shown}. Pass {name}={kinds[0].__name__}({arguments}).")
    return value


def list_of(name: str, values: Iterable[T]) -> list[T]:
    """Return ``values`` as a list, else raise :class:`ConfigError` naming the argument.

    A string is refused, as its letters would be taken for the values.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(f"{name} must be a list, got {values!r}. Put it in brackets: [{values!r}].")
    return list(values)


def package(name: str, extra: str, asked_by: str) -> Any:
    """Return a package of an optional extra, else raise :class:`ConfigError` naming what needs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{asked_by} needs the package {name}, which is not installed. Install it (pip install "
            f"'fcco-lightning[{extra}]')."
        ) from error


def checkpoint_file(path: str | Path) -> Path:
    """Return the path of a checkpoint, or raise :class:`CheckpointError` if no regular file is there."""
    path = Path(path)
    try:
        exists, regular = path.exists(), path.is_file()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"checkpoint {str(path)[:200]!r}: no name of a file ({type(error).__name__}).") from error
    if not exists:
        raise CheckpointError(f"checkpoint {path}: there is no such file (looked in {Path.cwd()}).")
    if not regular:
        below = [path / folder / "last.ckpt" for folder in ("checkpoints", ".")]
        way_out = next((f"Name {file}." for file in below if file.is_file()), "Give one that `fcco fit` wrote.")
        raise CheckpointError(f"checkpoint {path}: this is not a regular file. {way_out}")
    return path


def check_file(path: str | Path) -> None:
    """Refuse a missing or damaged checkpoint file.

    Raises:
        CheckpointError: naming the file and what is wrong.
    """
    path = checkpoint_file(path)
    try:
        damaged = _damage(path)
    except OSError as error:
        raise CheckpointError(f"checkpoint {path}: cannot be read: {error.strerror or error}.") from error
    if damaged is not None:
        raise CheckpointError(f"checkpoint {path}: the file is {damaged}. Use an earlier one.")


def _damage(path: Path) -> str | None:
    """A phrase on the damage of an archive; None if all checksums match."""
    try:
        if not zipfile.is_zipfile(path):
            return "truncated or no checkpoint"
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in members):  # torch maps stored bytes
                return "compressed, as torch.save writes none"
            if sum(entry.file_size for entry in members) > path.stat().st_size:
                return "smaller than what it describes"
            if _has_two_directories(path):
                return "no archive alone, as torch.save writes it: readers would find different ones in it"
            member = archive.testzip()
    except OSError:
        raise
    except Exception as error:  # the type depends on the damaged byte
        return f"damaged ({error or type(error).__name__})"
    return None if member is None else f"damaged at {member}"


def _has_two_directories(path: Path) -> bool:
    """Whether an archive's directory is not at its end, where some readers would not find it."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _END_64 - _END, 0))
        end = file.tell() + _END_64
        tail = file.read().rjust(_END_64 + _END, b"\0")
    signature, size, offset, comment = struct.unpack("<4s8x2LH", tail[-_END:])
    if tail[_END_64 - 20 : _END_64 - 16] == b"PK\6\7":  # zip64: the 64-bit locator and record
        end -= _END_64
        size, offset = struct.unpack("<2Q", tail[40:56])
        if (tail[:4], struct.unpack("<Q", tail[64:72])[0]) != (b"PK\6\6", end):
            return True
    return bool(signature != b"PK\5\6" or comment or offset + size != end)

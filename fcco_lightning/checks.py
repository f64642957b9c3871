"""Checks of scalar arguments, made once where an argument enters."""

import importlib
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, TypeVar

from fcco_lightning.errors import ConfigError

T = TypeVar("T")


def _is_finite(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


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


def at_least(name: str, value: int, lowest: int) -> int:
    """Return ``value`` if it is a whole number >= ``lowest``, else raise :class:`ConfigError` naming the argument."""
    if isinstance(value, bool) or not _is_finite(value) or value != int(value) or value < lowest:
        raise ConfigError(f"{name} must be a whole number >= {lowest}, got {value!r}.")
    return int(value)


def one_of(name: str, value: T, options: Sequence[T]) -> T:
    """Return ``value`` if it is one of ``options``, else raise :class:`ConfigError` naming the argument and them."""
    if value not in options:
        known = ", ".join(repr(option) for option in options)
        raise ConfigError(f"{name} must be one of {known}, got {value!r}.")
    return value


def package(name: str, extra: str, asked_by: str) -> Any:
    """Return a package that an extra brings along, else raise :class:`ConfigError` naming what asked for it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{asked_by} needs the package {name}, which is not installed. Install it (pip install "
            f"'fcco-lightning[{extra}]')."
        ) from error

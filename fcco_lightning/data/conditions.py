"""Conditions on the values of a column in a configuration: a value, a list of values, or a comparison."""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from fcco_lightning.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor

Value = str | bool | int | float  # str first: else a configuration would convert "no" and "007"
"""A value of a column, or a text of comparisons such as "<25" or ">=18 and <65"."""

Condition = Value | list[Value]
"""What a column must be: one value, or one of several."""

Where = dict[str, Condition]
"""A subset of the samples: column -> condition; all of them must hold."""

_OPERATORS: dict[str, Callable[[Any, float], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_COMPARISON = re.compile(r"\s*(<=|>=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")


def comparisons(value: object) -> list[tuple[Callable[[Any, float], Any], float]]:
    """Return the comparisons in a text such as ">=18 and <65"; empty for any other value.

    Example:
        >>> [(operate.__name__, bound) for operate, bound in comparisons(">=18 and <65")]
        [('ge', 18.0), ('lt', 65.0)]
        >>> comparisons(">50K")
        []
    """
    if not isinstance(value, str):
        return []
    matches = [_COMPARISON.fullmatch(part) for part in value.split(" and ")]
    return [(_OPERATORS[m[1]], float(m[2])) for m in matches if m] if all(matches) else []


def values_of(condition: object, column: str) -> list[Value]:
    """Return the values of a condition, one of which a cell must have.

    Raises:
        ConfigError: if there are none, or one is neither a number nor a text.
    """
    several = isinstance(condition, Sequence) and not isinstance(condition, str)
    values: list[Any] = list(condition) if several else [condition]  # type: ignore[call-overload]
    if not values or not all(isinstance(value, bool | int | float | str) for value in values):
        raise ConfigError(
            f"where names the column {column!r} with {condition!r}: give a value, a list of values, or a text with a "
            'comparison such as "<25" or ">=18 and <65".'
        )
    return values


def described(where: Mapping[str, Condition]) -> str:
    """Return the description of a subset, given its conditions by column, for names and messages.

    Example:
        >>> described({"race": "Black", "age": ">=18 and <65", "job": ["cook", "smith"]})
        'race=Black, age>=18 and <65, job=cook or smith'
    """
    return ", ".join(f"{column}{_described(condition, column)}" for column, condition in where.items()) or "everyone"


def _described(condition: Condition, column: str) -> str:
    text = " or ".join(str(value) for value in values_of(condition, column))
    return text if comparisons(condition) else f"={text}"


def holds(column: "Tensor", condition: Condition, name: str) -> "Tensor":
    """Return the mask (B,) of the entries of a numeric column, called ``name`` in messages, that meet a condition.

    Raises:
        DataError: if the condition names a text, which a column of numbers cannot contain.
    """
    return reduce(operator.or_, [_meets(column, value, name) for value in values_of(condition, name)])


def _meets(column: "Tensor", value: Value, name: str) -> "Tensor":
    masks: list[Tensor] = [operate(column, bound) for operate, bound in comparisons(value)]
    return reduce(operator.and_, masks) if masks else column == _number(value, name)


def _number(value: Value, name: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise DataError(
            f"where={{{name}: {value!r}}}: the column {name!r} of the batch has numbers, and {value!r} is none. Use a "
            "datamodule of tables, which knows the names of values, or give the number that stands for it."
        ) from None

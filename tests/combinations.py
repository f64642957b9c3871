"""Parametrises tests with combinations of several axes; the quick suite runs half of them, the slow one the rest."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import pytest


def every_pair(names: str, *axes: Mapping[str, Any]) -> pytest.MarkDecorator:
    """All combinations of the values of several axes; every second one is slow.

    The others, in which the places of the values sum to an even number, hold every value, and of three or more axes
    every pair of values of two of them.

    Args:
        names: of the arguments, separated by commas.
        *axes: the values of each argument by name.
    """
    cases = []
    for combination in product(*(enumerate(axis.items()) for axis in axes)):
        places, items = zip(*combination, strict=True)
        marks = [pytest.mark.slow] if sum(places) % 2 else []
        ids, values = zip(*items, strict=True)
        cases.append(pytest.param(*values, id="-".join(ids), marks=marks))
    return pytest.mark.parametrize(names, cases)


def every_nth(n: int, cases: Iterable[Any], *others: Any) -> list[Any]:
    """Every n-th case, and the rest as slow ones.

    Args:
        n: how many cases have one quick one.
        cases: values of one argument, or tuples of several.
        others: cases that are quick, too.
    """
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.slow] if slow else [])
        for case, slow in ((case, place % n and case not in others) for place, case in enumerate(cases))
    ]

"""Copies of nested values in which one entry is replaced, as in a damaged or hostile file."""

import math

import torch

DELETED = object()
VALUES = {
    "deleted": DELETED, "None": None, "int": 7, "below 0": -3, "huge": 10**15, "NaN": math.nan, "text": "x", "list": [],
    "list of None": [None], "mapping": {}, "keys that are no texts": {5: 1, None: 2}, "tensor": torch.zeros(3, 2, 1),
}  # fmt: skip


def paths(value, at=()):
    """Where all entries of a nested structure are."""
    if at:
        yield at
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, member in members:
        yield from paths(member, (*at, key))


def forged(value, at, other):
    """A copy with another value at one place."""
    key, *further = at
    made = dict(value) if isinstance(value, dict) else list(value)
    if further:
        made[key] = forged(value[key], further, other)
    elif other is DELETED:
        del made[key]
    else:
        made[key] = other
    return tuple(made) if isinstance(value, tuple) else made

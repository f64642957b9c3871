"""Copies of nested values in which one entry is replaced, as in a damaged or hostile file."""

import math

import torch

DELETED = object()
VALUES = {
    "deleted": DELETED, "None": None, "int": 7, "below 0": -3, "huge": 10**15, "NaN": math.nan, "text": "x", "list": [],
    "list of None": [None], "mapping": {}, "keys that are no texts": {5: 1, None: 2}, "tensor": torch.zeros(3, 2, 1),
}  # fmt: skip


def paths(value, at=()):
    """The paths of all entries of a nested structure."""
    if at:
        yield at
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, member in members:
        yield from paths(member, (*at, key))


def forged(value, at, other):
    """A copy in which the entry at one path is replaced by another value."""
    key, *further = at
    made = dict(value) if isinstance(value, dict) else list(value)
    if further:
        made[key] = forged(value[key], further, other)
    elif other is DELETED:
        del made[key]
    else:
        made[key] = other
    return tuple(made) if isinstance(value, tuple) else made

"""The numbers of repetitions of random trials; FCCO_FULL_COUNTS=1 in the environment sets those of the guide."""

import os

FULL = bool(os.environ.get("FCCO_FULL_COUNTS"))


def count(usual: int, full: int) -> int:
    """The number of trials of a slow test."""
    return full if FULL else usual

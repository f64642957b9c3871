"""What a solver of a robust linear model is."""

from itertools import pairwise
from typing import ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fcco_lightning.dro.problem import LinearProblem, Progress

Need = Literal["a smooth loss", "mu > 0", "nu > 0"]


class Solver(Protocol):
    """Moves weights from zero until :class:`Progress` says that it is done.

    Attributes:
        needs: what a problem must have; a loss is smooth that has no kinks.
    """

    needs: ClassVar[frozenset[Need]]

    def solve(self, problem: LinearProblem, progress: Progress, random: np.random.Generator) -> None:
        """Iterate; ends by :class:`Done` from ``progress``, or by returning where no further step is possible."""


def blocks_of(n: int, size: int) -> list[slice]:
    """Consecutive blocks of about ``size`` of n samples; their sizes differ by at most one."""
    return [slice(a, b) for a, b in pairwise(edges_of(n, size).tolist())]


def edges_of(n: int, size: int) -> NDArray[np.int64]:
    """Where the blocks of :func:`blocks_of` begin and end, (M + 1,)."""
    blocks = -(-n // size)
    return (np.arange(blocks + 1) * (n / blocks)).round().astype(np.int64)

"""SGD on the worst case within a mini-batch."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fcco_lightning.checks import at_least, positive
from fcco_lightning.dro.lsvrg import largest_row
from fcco_lightning.dro.multilevel import worst
from fcco_lightning.dro.problem import LinearProblem, Progress, weigh
from fcco_lightning.dro.solvers import Need, blocks_of


@dataclass(frozen=True)
class MinibatchSGD:
    r"""Steps along the gradient of the worst case of b samples alone, drawn without replacement.

    **It is biased**: the mean over batches of ``max_q`` within a batch is not the ``max_q`` over all samples, so F
    stays above its minimum by an amount that falls with b and not with the number of steps.  The tests measure it.  Use
    another solver unless n is too large for a vector q.

    Args:
        block_size: b, >= 1.
        learning_rate: eta of the first step, then ``eta / (1 + eta mu t)``; None for the inverse of the smoothness of a
            sample's loss.
    Source: a baseline of the DRAGO paper.
    """

    block_size: int = 64
    learning_rate: float | None = None
    needs: ClassVar[frozenset[Need]] = frozenset()

    def __post_init__(self) -> None:
        at_least("block_size", self.block_size, 1)
        if self.learning_rate is not None:
            positive("learning_rate", self.learning_rate)

    def solve(self, problem: LinearProblem, progress: Progress, random: np.random.Generator) -> None:
        """Iterate from w = 0."""
        x, y, loss, n = problem.x, problem.y, problem.loss, problem.n
        b = min(self.block_size, n)
        problem.ambiguity.check(b)
        curvature = loss.curvature if np.isfinite(loss.curvature) else 1.0
        eta = self.learning_rate or 1 / (curvature * largest_row(x) + problem.mu)
        w, t = problem.zeros(), 0
        while True:
            progress.look(w)
            order = random.permutation(n)
            for block in blocks_of(n, b):
                drawn = order[block]
                rows = x[drawn]
                losses, slopes = loss(rows @ w, y[drawn])
                q = worst(problem, losses)
                step = eta / (1 + eta * problem.mu * t)
                w = w - step * (rows.T @ weigh(q, slopes) + problem.mu * w)
                t += 1
            progress.calls += n

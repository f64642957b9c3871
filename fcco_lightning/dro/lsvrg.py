"""LSVRG: variance-reduced steps in w, with weights q that change once per epoch."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fcco_lightning.dro.problem import Array, LinearProblem, Progress, weigh
from fcco_lightning.dro.solvers import Drawing, Need, largest_row


@dataclass(frozen=True)
class LSVRG(Drawing):
    r"""Epochs of n/b steps ``w <- w - eta ((n/b) sum_{i in B} q_i (grad l_i(w) - grad l_i(wbar)) + G + mu w)``.

    At the start of an epoch wbar = w, q is the best response to l(wbar), and G the full gradient there.  The weights do
    not follow w within an epoch, so eta must be small enough; by itself it starts at the inverse of the smoothness of
    a step, and where F rose over an epoch, the epoch is taken back and eta halved.

    Args:
        block_size: b samples drawn uniformly per step, >= 1.
        learning_rate: eta to start from, > 0; None as said.
    Source: a baseline of the DRAGO paper, whose text gives the epoch length only.
    """

    block_size: int = 1
    needs: ClassVar[frozenset[Need]] = frozenset({"a smooth loss", "nu > 0"})

    def solve(self, problem: LinearProblem, progress: Progress, random: np.random.Generator) -> None:
        """Iterate from w = 0."""
        w, n = problem.zeros(), problem.n
        b = min(self.block_size, n)
        eta = self.learning_rate or 1 / (3 * (problem.loss.curvature * largest_row(problem.x) + problem.mu))
        point = progress.look(w)
        while True:
            progress.calls += n
            new = self._epoch(problem, w, point.q, point.gradient, eta, random.integers(n, size=(-(-n // b), b)))
            progress.calls += 2 * b * -(-n // b)
            ahead = problem.point(new)
            if ahead.value <= point.value:
                w, point = new, ahead
                progress.record(w, point)
            else:
                eta /= 2
                progress.record(w, point)

    def _epoch(self, problem: LinearProblem, w: Array, q: Array, full: Array, eta: float, draws: np.ndarray) -> Array:
        x, y, loss, n = problem.x, problem.y, problem.loss, problem.n
        with np.errstate(over="ignore", invalid="ignore"):
            kept = weigh(q, loss(x @ w, y)[1])  # q_i phi'_i at the snapshot
            for drawn in draws:
                rows = x[drawn]
                now = weigh(q[drawn], loss(rows @ w, y[drawn])[1])
                step = rows.T @ (now - kept[drawn])
                w = w - eta * ((n / len(drawn)) * step + full + problem.mu * w)
        return w

"""Subgradient descent with a proof, for losses with kinks and sets without a penalty."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fcco_lightning.dro.problem import LinearProblem, Progress, inner
from fcco_lightning.dro.solvers import Need


@dataclass(frozen=True)
class Subgradient:
    r"""``w <- w - gamma (g/mu + w)`` with ``gamma = 2/(t+2)`` and g a subgradient of the worst loss; a pass per step.

    The weights are -1/mu times an average of subgradients, and the same average of the tangents is a lower bound of
    F, so the gap is known and falls like ``G^2/(mu t)``.  Nothing is tuned, and neither the loss nor the worst case
    needs to be smooth.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"mu > 0"})

    def solve(self, problem: LinearProblem, progress: Progress, random: np.random.Generator) -> None:  # noqa: ARG002
        """Iterate from w = 0."""
        w = problem.zeros()
        slope, level, t = np.zeros_like(w), 0.0, 0
        while True:
            point = problem.point(w)
            progress.calls += problem.n
            gamma = 2 / (t + 2)
            tangent = point.lower + inner(point.gradient, point.gradient) / (2 * problem.mu)
            slope = (1 - gamma) * slope + gamma * point.gradient
            level = (1 - gamma) * level + gamma * tangent
            progress.record(w, point, problem.bound(level, slope))
            w, t = -slope / problem.mu, t + 1

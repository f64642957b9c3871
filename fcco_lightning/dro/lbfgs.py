"""L-BFGS on the exact objective."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fcco_lightning.checks import at_least
from fcco_lightning.dro.problem import Array, LinearProblem, Progress
from fcco_lightning.dro.solvers import Need


@dataclass(frozen=True)
class LBFGS:
    """L-BFGS on ``F(w) = max_q ...``, whose gradient is that at the worst weights; a pass over the data per evaluation.

    F is differentiable where nu > 0 and the loss is smooth.  The fastest of the solvers while a pass is cheap.

    Args:
        memory: pairs of vectors that the curvature is estimated from, >= 1.
    """

    memory: int = 10
    needs: ClassVar[frozenset[Need]] = frozenset({"a smooth loss", "nu > 0"})

    def __post_init__(self) -> None:
        at_least("memory", self.memory, 1)

    def solve(self, problem: LinearProblem, progress: Progress, random: np.random.Generator) -> None:  # noqa: ARG002
        """Iterate from w = 0; returns where a line search finds no lower value."""
        from scipy.optimize import minimize  # noqa: PLC0415 (slow to import)

        shape = problem.zeros().shape

        def evaluate(flat: Array) -> tuple[float, Array]:
            w = flat.reshape(shape)
            point = problem.point(w)
            progress.calls += problem.n
            progress.record(w, point)
            return point.value, (point.gradient + problem.mu * w).ravel()

        options = {"maxcor": self.memory, "ftol": 0.0, "gtol": 0.0, "maxiter": 10**9, "maxfun": 10**9}
        minimize(evaluate, np.zeros(shape).ravel(), jac=True, method="L-BFGS-B", options=options)

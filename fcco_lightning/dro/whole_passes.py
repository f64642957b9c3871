"""Full-batch solvers: L-BFGS, subgradients, and proximal gradients for a norm."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fcco_lightning.checks import at_least
from fcco_lightning.dro.losses import Array
from fcco_lightning.dro.problem import LinearProblem, Need, Progress, inner, square


@dataclass(frozen=True)
class LBFGS:
    """L-BFGS on ``F(w) = max_q ...``, whose gradient is the one at the worst q; an evaluation is a pass over the data.

    F is differentiable if nu > 0 and the loss is smooth.  It is the fastest solver if a pass is cheap.

    Args:
        memory: number of pairs of vectors from which the curvature is estimated, >= 1.
    """

    memory: int = 10
    needs: ClassVar[frozenset[Need]] = frozenset({"a smooth loss", "nu > 0"})

    def __post_init__(self) -> None:
        at_least("memory", self.memory, 1)

    def solve(self, problem: LinearProblem, progress: Progress, random: np.random.Generator) -> None:  # noqa: ARG002
        """Iterate from w = 0; return if a line search finds no lower value."""
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


@dataclass(frozen=True)
class Subgradient:
    r"""``w <- w - gamma (g/mu + w)`` with ``gamma = 2/(t+2)`` and g a subgradient of the worst loss; a pass per step.

    The weights are -1/mu times an average of subgradients, and the same average of the tangents is a lower bound of
    F, so that the gap is known; it decreases like ``G^2/(mu t)`` if subgradients are bounded by G.  There is nothing to
    tune, and neither the loss nor the worst case needs to be smooth.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"mu > 0"})

    def solve(self, problem: LinearProblem, progress: Progress, random: np.random.Generator) -> None:  # noqa: ARG002
        """Iterate from w = 0."""
        w = problem.zeros()
        slope = np.zeros_like(w)
        level = 0.0
        t = 0
        while True:
            point = problem.point(w)
            progress.calls += problem.n
            gamma = 2 / (t + 2)
            tangent = point.lower + square(point.gradient) / (2 * problem.mu)
            slope = (1 - gamma) * slope + gamma * point.gradient
            level = (1 - gamma) * level + gamma * tangent
            progress.record(w, point, problem.minimum_of_line(level, slope))
            w, t = -slope / problem.mu, t + 1


@dataclass(frozen=True)
class ProximalGradient:
    r"""Accelerated proximal gradient steps on the worst weighting plus the norm of a Wasserstein ball.

    ``w' = argmin_w <grad, w> + (L/2) |w - z|^2 + norm(w) + (mu/2) |w|^2``, where L is doubled until the quadratic model
    is an upper bound, and the momentum is reset if it points uphill.  A step is two passes over the data.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"a smooth loss", "mu > 0", "nu > 0"})

    def solve(self, problem: LinearProblem, progress: Progress, random: np.random.Generator) -> None:  # noqa: ARG002
        """Iterate from w = 0."""
        w = z = problem.zeros()
        curvature, t = max(problem.loss.curvature * problem.largest_eigenvalue(), 1e-12), 1.0
        while True:
            progress.calls += 2 * problem.n
            current = progress.evaluate(z)
            smooth = current.value - problem.ridge(z)
            new = problem.minimizer(curvature * z - current.gradient, curvature)
            candidate = progress.evaluate(new)
            move = new - z
            model = smooth + inner(current.gradient, move) + curvature / 2 * square(move)
            if candidate.value - problem.ridge(new) > model + 1e-12 * abs(model):
                curvature *= 2
                continue
            uphill = inner(z - new, new - w) > 0
            t, before = (1.0, 1.0) if uphill else ((1 + (1 + 4 * t * t) ** 0.5) / 2, t)
            w, z = new, new + (before - 1) / t * (new - w)

"""Samples that may move: the Wasserstein ball of a linear model, and the solver for the norm that it comes to."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
import torch

from fcco_lightning.checks import non_negative, one_of
from fcco_lightning.dro.problem import Array, LinearProblem, Progress, inner, square
from fcco_lightning.dro.solvers import Need
from fcco_lightning.numerics import project_to_simplex

Norm = Literal["l2", "l1", "linf"]


@dataclass(frozen=True)
class WassersteinBall:
    r"""All distributions that the samples make when their features move by rho on average.

    That is ``sum_i q_i |x_i' - x_i| <= rho``, where a sample may also be divided; labels stay.  For a loss
    ``phi(y x w)`` with Lipschitz constant 1, such as the logistic one, the largest expected loss over the ball around
    the weighted samples is ``sum_i q_i phi(y_i x_i w) + rho |w|_*``, with the dual of the norm in which features move:
    the ball is no set of weights q but a penalty on w, whatever q is.  The constant does not move, and is not in the
    norm.

    Args:
        rho: radius, >= 0, in the unit of the features.
        norm: in which a move is measured: "l2", whose dual is itself; "linf", by which every feature may move that far
            at once, with dual ``sum_j |w_j|``; "l1", with dual ``max_j |w_j|``.

    Raises:
        ConfigError: if rho is negative or not finite, or the norm none of these.
    Source: Shafieezadeh-Abadeh, Kuhn and Mohajerin Esfahani, Regularization via mass transportation (2019), section 3.
    """

    rho: float
    norm: Norm = "l2"

    def __post_init__(self) -> None:
        non_negative("rho", self.rho)
        one_of("norm", self.norm, get_args(Norm))

    def value(self, w: Array) -> float:
        """``rho |w|_*`` of the weights of the features, (d,)."""
        order = {"l2": 2, "linf": 1, "l1": np.inf}[self.norm]
        return self.rho * float(np.linalg.norm(w, order))

    def prox(self, v: Array, step: float) -> Array:
        """``argmin_w step rho |w|_* + |w - v|^2 / 2``: (d,) -> (d,)."""
        bound, size = step * self.rho, np.abs(v)
        if self.norm == "linf":
            return np.asarray(np.sign(v) * np.maximum(size - bound, 0))
        whole = float(np.linalg.norm(v)) if self.norm == "l2" else float(size.sum())
        if whole <= bound:
            return np.zeros_like(v)
        if self.norm == "l2":
            return v * (1 - bound / whole)
        over = project_to_simplex(torch.from_numpy(size), bound).numpy() if bound > 0 else 0.0
        return np.asarray(np.sign(v) * (size - over))


@dataclass(frozen=True)
class ProximalGradient:
    r"""Accelerated proximal gradient steps on the worst weighting plus the norm of a Wasserstein ball.

    ``w' = argmin_w <grad, w> + (L/2) |w - z|^2 + norm(w) + (mu/2) |w|^2``, with L doubled until the step is bounded by
    its quadratic model, and momentum that starts anew where it points uphill.  Two passes over the data a step.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"a smooth loss", "mu > 0", "nu > 0"})

    def solve(self, problem: LinearProblem, progress: Progress, random: np.random.Generator) -> None:  # noqa: ARG002
        """Iterate from w = 0."""
        w = z = problem.zeros()
        curvature, t = max(problem.loss.curvature * problem.spread(), 1e-12), 1.0
        while True:
            progress.calls += 2 * problem.n
            at = progress.look(z)
            smooth = at.value - problem.ridge(z)
            new = problem.least(curvature * z - at.gradient, curvature)
            there = progress.look(new)
            move = new - z
            model = smooth + inner(at.gradient, move) + curvature / 2 * square(move)
            if there.value - problem.ridge(new) > model + 1e-12 * abs(model):
                curvature *= 2
                continue
            uphill = inner(z - new, new - w) > 0
            t, before = (1.0, 1.0) if uphill else ((1 + (1 + 4 * t * t) ** 0.5) / 2, t)
            w, z = new, new + (before - 1) / t * (new - w)

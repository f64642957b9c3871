"""Fast computation of the worst weights q of the samples, and of proximal steps of q, with NumPy."""

from dataclasses import replace

import numpy as np
import torch

from fcco_lightning.ambiguity import (
    AmbiguitySet,
    CappedSimplex,
    ChiSquarePenalty,
    DivergencePenalty,
    EuclideanPenalty,
    Simplex,
)
from fcco_lightning.dro.losses import Array

_STEPS = 30
_ROUNDING = 1e-13  # tolerance of the sum of q


class DualSteps:
    """Best responses and proximal steps of q for one problem, in a sequence.

    For quadratic penalties on a capped simplex they are ``clip(v - t, 0, cap)``.  Newton's method for t starts at the
    previous t and needs two or three passes over v.  In other cases, or if it does not converge in a few steps, the
    method of the ambiguity set is used.

    Args:
        ambiguity: Q.
        penalty: nu D.
        n: number of samples.
    """

    def __init__(self, ambiguity: AmbiguitySet, penalty: DivergencePenalty, n: int) -> None:
        self.ambiguity, self.penalty, self.n = ambiguity, penalty, n
        capped = isinstance(ambiguity, Simplex | CappedSimplex)
        self.clipped = capped and isinstance(penalty, ChiSquarePenalty | EuclideanPenalty)
        self.cap = ambiguity.cap(n) if isinstance(ambiguity, CappedSimplex) else 1.0
        self.unit = replace(penalty, nu=1.0).curvature(n)
        self.curvature = penalty.nu * self.unit
        self.at_response: float | None = None  # t of the last best response
        self.at_step: float | None = None

    def respond(self, losses: Array) -> tuple[float, Array]:
        """``max_q <q, losses> - nu D(q, 1/n)`` and q."""
        if self.clipped and self.curvature > 0:
            v = losses - losses.max()
            v /= self.curvature
            q, self.at_response = self._clip(v, self.at_response)
            if q is not None:
                deviation = q - 1 / self.n  # |q|^2 - 1/n would lose all digits if nu is large
                return float(q @ losses) - self.curvature / 2 * float(deviation @ deviation), q
        response = self.ambiguity.best_response(torch.from_numpy(losses), self.penalty)
        return float(response.value), response.q.numpy()

    def prox(self, v: Array, q: Array, pull: float) -> Array:
        """``argmax_p <p, v> - nu D(p, 1/n) - pull Delta(p, q)``."""
        if self.clipped:
            total = self.penalty.nu + pull
            mixed = v - v.max()
            mixed /= self.unit * total
            mixed += (pull / total) * q
            p, self.at_step = self._clip(mixed, self.at_step)
            if p is not None:
                return p
        return self.ambiguity.prox(torch.from_numpy(v), torch.from_numpy(q), self.penalty, pull).numpy()

    def _clip(self, v: Array, start: float | None) -> tuple[Array | None, float | None]:
        """``clip(v - t, 0, cap)`` with sum 1, and t; None if Newton's method does not converge."""
        t = float(v.mean()) - 1 / self.n if start is None else start
        low, high = -np.inf, np.inf
        for _ in range(_STEPS):
            q = v - t
            q.clip(0.0, self.cap, out=q)
            excess = float(q.sum()) - 1
            if abs(excess) <= _ROUNDING:
                return q, t
            low, high = (t, high) if excess > 0 else (low, t)
            num_inside = np.count_nonzero(q > 0) - np.count_nonzero(q == self.cap)
            t = t + excess / num_inside if num_inside else np.nan
            if not low < t < high:  # bisect: outside of (low, high) all weights are at one bound
                t = (max(low, float(v.min()) - self.cap) + min(high, float(v.max()))) / 2
        return None, None

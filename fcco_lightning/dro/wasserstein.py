"""The Wasserstein ball around the samples, which for linear models is equivalent to a norm of the weights."""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch

from fcco_lightning.checks import non_negative, one_of
from fcco_lightning.dro.losses import Array
from fcco_lightning.numerics import project_to_simplex

Norm = Literal["l2", "l1", "linf"]


@dataclass(frozen=True)
class WassersteinBall:
    r"""All distributions in which the features of the weighted samples are shifted by at most rho on average.

    That is ``sum_i q_i |x_i' - x_i| <= rho``, where a sample may also be split; labels do not change.  For a loss
    ``phi(y x w)`` with Lipschitz constant 1, such as the logistic loss, the largest expected loss over this Wasserstein
    ball is ``sum_i q_i phi(y_i x_i w) + rho |w|_*``, where ``|.|_*`` is the dual of the norm of shifts: the ball is
    equivalent to a penalty on w that does not depend on q.  The constant feature is not shifted and not in the norm.

    Args:
        rho: radius, >= 0, in the unit of the features.
        norm: norm of a shift: "l2", which is its own dual; "linf", which lets every feature shift by that much, with
            dual ``sum_j |w_j|``; "l1", with dual ``max_j |w_j|``.

    Raises:
        ConfigError: if rho is negative or not finite, or the norm is another word.
    Source: Shafieezadeh-Abadeh, Kuhn and Mohajerin Esfahani, Regularization via mass transportation (2019), section 3.
    """

    rho: float
    norm: Norm = "l2"

    def __post_init__(self) -> None:
        non_negative("rho", self.rho)
        one_of("norm", self.norm, get_args(Norm))

    def value(self, w: Array) -> float:
        """``rho |w|_*`` for the weights w of the features, (d,)."""
        order = {"l2": 2, "linf": 1, "l1": np.inf}[self.norm]
        return self.rho * float(np.linalg.norm(w, order))

    def prox(self, v: Array, step: float) -> Array:
        """``argmin_w step rho |w|_* + |w - v|^2 / 2``: (d,) -> (d,)."""
        bound, size = step * self.rho, np.abs(v)
        if self.norm == "linf":
            return np.asarray(np.sign(v) * np.maximum(size - bound, 0))
        norm = float(np.linalg.norm(v)) if self.norm == "l2" else float(size.sum())
        if norm <= bound:
            return np.zeros_like(v)
        if self.norm == "l2":
            return v * (1 - bound / norm)
        excess = project_to_simplex(torch.from_numpy(size), bound).numpy() if bound > 0 else 0.0
        return np.asarray(np.sign(v) * (size - excess))

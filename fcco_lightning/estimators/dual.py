"""Estimators with dual steps that are no plain averages: proximal steps in y_i, and entropic steps."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.checks import non_negative, positive
from fcco_lightning.estimators.base import Estimator
from fcco_lightning.numerics import widest
from fcco_lightning.outer import OuterFunction, slopes


@dataclass(frozen=True)
class DualProx(Estimator):
    r"""Extrapolated dual step in y-form, ``psi = |.|^2 / 2`` (ALEXR paper, Alg. 1).

    ``g~_i = g_i(w_t) + theta (g_i(w_t) - g_i(w_{t-1}))`` and
    ``y_i <- argmax_y <y, g~_i> - f*(y) - (tau/2) |y - y_i|^2 = prox_{f*/tau}(y_i + g~_i / tau)``.
    A row never visited counts as y_i = 0, as in the paper.

    Args:
        tau: inverse dual step size, > 0.
        theta: extrapolation, >= 0; 0 saves the second forward pass.
    """

    tau: float = 1.0
    theta: float = 0.0
    convex_only = True
    follows_values = False

    def __post_init__(self) -> None:
        positive("tau", self.tau)
        non_negative("theta", self.theta)

    @property
    def needs_previous(self) -> bool:
        return self.theta != 0

    def update(
        self, rows: Tensor, inner: Tensor, previous: Tensor | None, outer: OuterFunction, inverse: Tensor | float
    ) -> Tensor:
        ahead = inner if previous is None else inner.add(inner - previous, alpha=self.theta)
        return slopes(outer.smoothed(self.tau), ahead + self.tau * rows)

    def estimate(self, outer: OuterFunction, rows: Tensor, g: Tensor, inner: Tensor) -> Tensor:
        """``f(g_i)`` of the batch alone, with the gradient of the saddle function ``<y_i, g_i> - f*(y_i)``."""
        slope = outer.paired(rows.to(widest(rows)), g.to(widest(g)))
        with torch.no_grad():
            value = outer(inner.to(widest(inner)))
        return value + (slope - slope.detach())


@dataclass(frozen=True)
class EntropicMirror(Estimator):
    r"""``u_i <- u_i (1 + alpha g_i) / (1 + alpha u_i)``: a mirror step for the logarithm nu_i = log u_i of a row.

    For f = log the term can be written as a minimum, ``log g_i = min over nu of e^-nu g_i + nu - 1``, attained at nu =
    log g_i.  A proximal step on an estimate of g_i from a batch, with the Bregman divergence ``D(nu, nu') = e^-nu -
    e^-nu' + e^-nu' (nu - nu')`` of the same exponential,

    ``nu_i <- argmin over nu of e^-nu g_i + nu + D(nu, nu_i) / alpha``,

    has the condition ``-e^-nu g_i + 1 + (e^-nu_i - e^-nu) / alpha = 0``, hence the update above, in closed form.  It is
    an average ``(1 - gamma_i) u_i + gamma_i g_i`` whose weight ``gamma_i = alpha u_i / (1 + alpha u_i)`` is small where
    u_i is small, and close to 1 where it is large.  A step thus lowers nu_i by at most log(1 + alpha u_i), and one
    large value in a batch cannot spoil a small row.  The outer gradient is ``f'(u_i) = e^-nu_i``.

    Args:
        alpha: step size in nu, > 0, in units of 1/u.
        fresh: whether f is taken at the new u_i.  The factor ``g_i / u_i`` is then at most ``1 + 1 / (alpha u_i)`` with
            the old u_i, but u_i is correlated with the Jacobian.  With the u_i before the step the gradient estimate is
            unbiased given exact rows, and the factor is unbounded.  An objective's ``growth`` bounds both
            (:attr:`~fcco_lightning.Objective.growth`).
    """

    alpha: float = 1.0
    fresh: bool = True

    def __post_init__(self) -> None:
        positive("alpha", self.alpha)

    def update(
        self, rows: Tensor, inner: Tensor, previous: Tensor | None, outer: OuterFunction, inverse: Tensor | float
    ) -> Tensor:
        step = self.alpha * rows.clamp(min=0)
        return rows + step / (1 + step) * (inner - rows)

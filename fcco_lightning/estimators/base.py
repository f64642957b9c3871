"""Estimators: pure maps from remembered rows and fresh inner values to new rows.

Here are the interface and the estimators that keep u_i, a running estimate of g_i(w).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fcco_lightning.checks import fraction, non_negative
from fcco_lightning.errors import ConfigError
from fcco_lightning.numerics import widest
from fcco_lightning.outer import OuterFunction, Range

_ANY = Range()


class Estimator(ABC):
    r"""An update rule for the rows, given mini-batch estimates of the inner functions.

    Rows have shape (b, k), for b rows and k inner values per row, and carry no graph.

    Attributes:
        remembers: whether the estimator keeps rows; otherwise no state is allocated.
        convex_only: whether it takes dual steps, for which f must be convex.
        follows_values: whether a row is an inner value u_i, and not a dual variable.
        decay: factor on ALL rows before those of the batch are written; 1 for every estimator but MOAP's.
        by_inclusion: whether the update divides by the inclusion probabilities of the rows.
        gamma: weight of a new value in a running mean.
        fresh: whether f is taken at the new rows, or at the rows before the step, which do not depend on the batch.
    """

    remembers: ClassVar[bool] = True
    follows_values: ClassVar[bool] = True
    convex_only: bool = False
    decay: float = 1.0
    by_inclusion: bool = False
    gamma: float = 1.0
    fresh: bool = True

    @property
    def needs_previous(self) -> bool:
        """Whether g_i(w_{t-1}; batch) is needed, which costs a second forward pass at the previous weights."""
        return False

    @property
    def estimates_values(self) -> bool:
        """Whether every row is at all times an estimate of its inner value."""
        return self.remembers and self.follows_values and self.decay == 1

    @abstractmethod
    def update(
        self, rows: Tensor, inner: Tensor, previous: Tensor | None, outer: OuterFunction, inverse: Tensor | float
    ) -> Tensor:
        """The new rows; first visits and the projection to the range of g_i are left to :func:`moved`.

        Args:
            rows: remembered rows; for a row never visited its fresh value, or 0 for a dual variable.
            inner: g_i(w_t; batch).
            previous: g_i(w_{t-1}; batch) on the same samples, or None if there is no previous point (it then counts as
                equal to ``inner``); for inner values never written before it is ``inner``.
            outer: f, smoothed if the algorithm smooths.
            inverse: 1/p_i, the inverse inclusion probability of the rows: n/B1 where B1 of n rows are drawn alike;
                shape (b, 1), or one number for all.
        """

    def estimate(self, outer: OuterFunction, rows: Tensor, g: Tensor, inner: Tensor) -> Tensor:
        r"""``f(u_i)`` at remembered rows u_i, with the gradient of ``<grad f(u_i), g_i(w)>`` in the weights.

        It is ``f(stop_gradient(u_i) + g_i(w) - stop_gradient(g_i(w)))``, so that parameters of f get their gradient,
        too.

        Args:
            outer: f, smoothed if the algorithm smooths.
            rows: the u_i, shape (b, k).
            g: the inner values of a batch, shape (b, k), with graph; arbitrary finite numbers for rows that it lacks.
            inner: the same without graph; 1 for rows that the batch lacks.

        Returns: shape (b,), with graph.
        """
        return outer(rows.to(widest(rows)) + (g - g.detach()))


def moved(
    estimator: Estimator,
    rows: Tensor,
    inner: Tensor,
    previous: Tensor | None,
    outer: OuterFunction,
    inverse: Tensor | float = 1.0,
    unseen: Tensor | None = None,
    within: Range = _ANY,
) -> Tensor:
    """The new rows of an estimator, shape (b, k), including the rules common to all estimators.

    At its first visit a row of inner values becomes the fresh value; rows that are corrected with the values at the
    previous weights are projected to the interval in which the g_i lie.

    Args:
        estimator: the estimator.
        rows: see :meth:`Estimator.update`, also for the next four arguments.
        inner: g_i(w_t; batch).
        previous: g_i(w_{t-1}; batch), or None.
        outer: f.
        inverse: 1/p_i.
        unseen: which numbers were never written before, shape (b, k), bool; None if all were.
        within: the interval in which the g_i lie.
    """
    if not estimator.follows_values:
        return estimator.update(rows, inner, previous, outer, inverse)
    if previous is not None and unseen is not None:
        previous = torch.where(unseen, inner, previous)
    new = estimator.update(rows, inner, previous, outer, inverse)
    if previous is not None:  # ScaledAverage leaves the interval on purpose
        new = within.project(new)
    return torch.where(unseen, inner, new) if unseen is not None and estimator.by_inclusion else new


def trusted(rows: Tensor, inner: Tensor, growth: float | None) -> Tensor:
    """The rows at which outer gradients are taken: no less than ``inner / growth``.

    If ``grad f(u)`` is of the order of 1/u, as for a logarithm, the contribution ``<grad f(u), g>`` of a row to the
    gradient is then at most ``growth`` times that at ``u = g``.  Without this bound it can explode, where an inner
    value has grown by orders of magnitude since its row was updated.

    Args:
        rows: the remembered rows, shape (b, k).
        inner: g_i(w; batch), shape (b, k).
        growth: largest ratio of an inner value to its row, > 1; None for no bound.
    """
    return rows if growth is None else torch.maximum(rows, (inner / growth).to(rows.dtype))


@dataclass(frozen=True)
class Minibatch(Estimator):
    r"""``u_i = g_i(w; batch)`` without averaging, so that the gradient is biased (BSGD, SOX paper, section 2.1)."""

    remembers = False

    def update(
        self, rows: Tensor, inner: Tensor, previous: Tensor | None, outer: OuterFunction, inverse: Tensor | float
    ) -> Tensor:
        return inner


@dataclass(frozen=True)
class Average(Estimator):
    r"""``u_i <- (1 - gamma) u_i + gamma g_i(w_t) + gamma' (g_i(w_t) - g_i(w_{t-1}))`` on the same samples.

    Without a correction, ``gamma' = 0``, it is the exponential moving average of SOX and SOAP.  The correction is that
    of MSVR, SONX, SONEX (SONEX paper, Alg. 1 line 7) and, with ``gamma' = gamma theta``, of ALEXR2 (section 4.2).  It
    can carry a row out of the interval in which g_i lies (a mean of exponentials that includes the pair itself is never
    below 1/n); the row is then projected back.

    With ``fresh`` it is also an extrapolated dual step in u-form, with ``psi = f*`` (ALEXR paper, eq. (3)): ``u_i <-
    (tau u_i + g~_i) / (1 + tau)`` and ``y_i = grad f(u_i)``, with ``gamma = 1/(1 + tau)``.  For hinges it carries u_i
    outside [kappa, kappa + lam rho], which the y-form forgets (erratum SONEX-7).

    Args:
        gamma: weight of the new value, in (0, 1].
        gamma_prime: weight of the correction, >= 0, or ``"theory"``: ``1 - gamma + (n - B1) / (B1 (1 - gamma))`` of Thm
            4.7 of the SONEX paper, with 1/p_i in place of n/B1 where rows are not drawn alike. 0 saves the second
            forward pass.
        fresh: whether f is taken at the new u_i (SOAP) instead of the u_i before this step (SOX; SONEX paper, Alg. 1
            line 9).
        convex_only: whether it is used as a dual step, for which f must be convex.
    """

    gamma: float = 0.9
    gamma_prime: float | Literal["theory"] = 0.0
    fresh: bool = False
    convex_only: bool = False

    def __post_init__(self) -> None:
        fraction("gamma", self.gamma)
        if self.gamma_prime != "theory":
            non_negative("gamma_prime", self.gamma_prime)
        elif self.gamma == 1:
            raise ConfigError("gamma_prime='theory' divides by 1 - gamma: use gamma < 1, got gamma=1.")

    @property
    def needs_previous(self) -> bool:
        return self.gamma_prime != 0

    @property
    def by_inclusion(self) -> bool:  # type: ignore[override]
        return self.gamma_prime == "theory"

    def update(
        self, rows: Tensor, inner: Tensor, previous: Tensor | None, outer: OuterFunction, inverse: Tensor | float
    ) -> Tensor:
        new = torch.lerp(rows, inner, self.gamma)
        if previous is None or not self.gamma_prime:
            return new
        if not isinstance(self.gamma_prime, str):
            return new + self.gamma_prime * (inner - previous)
        rest = 1 - self.gamma
        return new + (rest + (inverse - 1) / rest) * (inner - previous)


@dataclass(frozen=True)
class ScaledAverage(Estimator):
    r"""``u_i <- (1 - gamma) u_i + gamma g_i / p_i`` for sampled i, ``u_i <- (1 - gamma) u_i`` for all others (MOAP).

    p_i is the probability that row i is in a batch, B1/n where rows are drawn alike.

    This is the only estimator that changes all n rows in every step.  A first visit sets u_i = g_i.  Rows estimate g_i
    only on average over the draws of batches, so they are not projected to the range of g_i.

    Args:
        gamma: weight of the new value, in (0, 1].
    Source: SOX paper, eq. (3).
    """

    gamma: float = 0.9
    by_inclusion = True

    def __post_init__(self) -> None:
        fraction("gamma", self.gamma)

    @property
    def decay(self) -> float:  # type: ignore[override]
        return 1 - self.gamma

    def update(
        self, rows: Tensor, inner: Tensor, previous: Tensor | None, outer: OuterFunction, inverse: Tensor | float
    ) -> Tensor:
        return torch.lerp(rows, (inner * inverse).to(rows.dtype), self.gamma)

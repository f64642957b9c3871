"""What an estimator is, a pure map from remembered rows and fresh inner values to new rows.

Behind it are the estimators that remember u_i, a running estimate of g_i(w).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fcco_lightning.checks import fraction, non_negative
from fcco_lightning.errors import ConfigError
from fcco_lightning.outer import OuterFunction, Range, widest

_ANY = Range()


class Estimator(ABC):
    r"""Follows inner values from mini-batches.

    Rows have shape (b, k) and carry no graph.

    Attributes:
        remembers: whether the estimator keeps rows; without, no state is allocated.
        convex_only: whether it takes dual steps, for which f must be convex.
        follows_values: whether a row stands for an inner value u_i, and not for a dual variable.
        decay: factor on ALL rows before those of the batch are written; 1 for every estimator but MOAP's.
        by_inclusion: whether the update divides by the inclusion probabilities of the rows.
        gamma: weight of a new value in a running mean.
        fresh: whether f is taken at the new rows, or at those from before the step, which do not depend on the batch.
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
        """Whether every row, of a batch or not, is an estimate of its inner value at all times."""
        return self.remembers and self.follows_values and self.decay == 1

    @abstractmethod
    def update(
        self, rows: Tensor, inner: Tensor, previous: Tensor | None, outer: OuterFunction, inverse: Tensor | float
    ) -> Tensor:
        """The new rows.

        What all have in common is in :func:`moved`: first visits, and the range in which rows stay.

        Args:
            rows: remembered rows; for an index never visited the fresh value, or 0 of dual ones.
            inner: g_i(w_t; batch).
            previous: g_i(w_{t-1}; batch) on the same samples, or None if there is no previous point (then it counts as
                equal to ``inner``); of rows of inner values that were never written, ``inner``.
            outer: f, smoothed if the algorithm smooths.
            inverse: 1/p_i, the inverse inclusion probability of the rows: n/B1 where B1 of n rows are drawn alike;
                shape (b, 1), or one number for all.
        """

    def estimate(self, outer: OuterFunction, rows: Tensor, g: Tensor, inner: Tensor) -> Tensor:
        r"""``f(u_i)`` at remembered rows u_i, whose slope in the weights is that of ``<grad f(u_i), g_i(w)>``.

        It is ``f(stop_gradient(u_i) + g_i(w) - stop_gradient(g_i(w)))``, with the slope in the parameters of f.

        Args:
            outer: f, smoothed if the algorithm smooths.
            rows: shape (b, k).
            g: the inner values of a batch, shape (b, k), with graph; of rows that it lacks any finite numbers.
            inner: the same without graph; 1 for rows that it lacks.

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
    """The new rows by an estimator, shape (b, k), with what is the same for all of them.

    Rows of inner values become the fresh value at their first visit, and where they are corrected by the previous
    weights they stay in the interval in which the g_i lie.

    Args:
        estimator: how rows follow inner values.
        rows: as of :meth:`Estimator.update`, and so are the next four.
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
    if previous is not None:  # others may leave the interval on purpose
        new = within.project(new)
    return torch.where(unseen, inner, new) if unseen is not None and estimator.by_inclusion else new


def trusted(rows: Tensor, inner: Tensor, growth: float | None) -> Tensor:
    """The rows at which outer gradients are taken: no less than ``inner / growth``.

    Where ``grad f(u)`` is of the order of 1/u, as of a logarithm, the share ``<grad f(u), g>`` of a row in the gradient
    is then no more than ``growth`` times that at ``u = g``.  A row from before a step may say that an inner value which
    spans 200 orders of magnitude is small when it has become large.

    Args:
        rows: shape (b, k).
        inner: g_i(w; batch), shape (b, k).
        growth: how many times the row an inner value may be, > 1; None for any.
    """
    return rows if growth is None else torch.maximum(rows, (inner / growth).to(rows.dtype))


@dataclass(frozen=True)
class Minibatch(Estimator):
    r"""``u_i = g_i(w; batch)``: nothing is remembered, so the gradient is biased (BSGD, SOX paper, section 2.1)."""

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

    At the new rows it is also a dual step, extrapolated and in u-form with ``psi = f*`` (ALEXR paper, eq. (3)):
    ``u_i <- (tau u_i + g~_i) / (1 + tau)`` and ``y_i = grad f(u_i)``, with ``gamma = 1/(1 + tau)``.  For hinges it
    carries u_i outside [kappa, kappa + lam rho], which the y-form forgets (erratum SONEX-7).

    Args:
        gamma: weight of the new value, in (0, 1].
        gamma_prime: weight of the correction, >= 0, or ``"theory"``: ``1 - gamma + (n - B1) / (B1 (1 - gamma))`` of
            Thm 4.7 of the SONEX paper, with 1/p_i for n/B1 where rows are not drawn alike.  At 0 the second forward
            pass is not made.
        fresh: whether f is taken at the new u_i (SOAP) instead of the u_i before this step (SOX; SONEX paper, Alg. 1
            line 9).
        convex_only: whether it is meant as a dual step, for which f must be convex.
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

    This is the only estimator that touches all n rows at every step.  A first visit sets u_i = g_i.  Rows are estimates
    of g_i only on average over the draws of the batch, so they are not projected to the range of g_i.

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

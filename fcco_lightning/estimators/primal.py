"""Estimators that remember u_i, a running estimate of g_i(w)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fcco_lightning.checks import fraction, non_negative
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators.base import Estimator, Sampling, Tracked
from fcco_lightning.outer import OuterFunction


@dataclass(frozen=True)
class Minibatch(Estimator):
    r"""``u_i = g_i(w; batch)``: nothing is remembered, so the gradient is biased (BSGD, SOX paper, section 2.1)."""

    remembers = False

    def update(
        self,
        rows: Tensor,  # noqa: ARG002
        inner: Tensor,
        previous: Tensor | None,  # noqa: ARG002
        outer: OuterFunction,
        sampling: Sampling,  # noqa: ARG002
    ) -> Tracked:
        return Tracked(inner, outer.subgradient(inner), inner)


@dataclass(frozen=True)
class EMA(Estimator):
    r"""Exponential moving average ``u_i <- (1 - gamma) u_i + gamma g_i(w_t; batch)``.

    Args:
        gamma: weight of the new value, in (0, 1].
        fresh: whether the outer gradient is taken at the new u_i (SOAP) instead of the u_i before this step (SOX).
    """

    gamma: float = 0.9
    fresh: bool = False

    def __post_init__(self) -> None:
        fraction("gamma", self.gamma)

    def update(
        self,
        rows: Tensor,
        inner: Tensor,
        previous: Tensor | None,  # noqa: ARG002
        outer: OuterFunction,
        sampling: Sampling,
    ) -> Tracked:
        new = torch.lerp(rows, inner, self.gamma)
        at = sampling.trusted(new if self.fresh else rows, inner)
        return Tracked(new, outer.subgradient(at), at)


@dataclass(frozen=True)
class ScaledEMA(Estimator):
    r"""``u_i <- (1 - gamma) u_i + gamma g_i / p_i`` for sampled i, ``u_i <- (1 - gamma) u_i`` for all others (MOAP).

    p_i is the probability that row i is in a batch, B1/n where rows are drawn alike.

    This is the only estimator that touches all n rows at every step.  A first visit sets u_i = g_i.  Rows are estimates
    of g_i only on average over the draws of the batch, so they are not projected to the range of g_i.

    Args:
        gamma: weight of the new value, in (0, 1].
    Source: SOX paper, eq. (3).
    """

    gamma: float = 0.9
    by_chance = True

    def __post_init__(self) -> None:
        fraction("gamma", self.gamma)

    def decay(self) -> float:
        return 1 - self.gamma

    def update(
        self,
        rows: Tensor,
        inner: Tensor,
        previous: Tensor | None,  # noqa: ARG002
        outer: OuterFunction,
        sampling: Sampling,
    ) -> Tracked:
        new = torch.lerp(rows, (inner * sampling.inverse).to(rows.dtype), self.gamma)
        new = new if sampling.unseen is None else torch.where(sampling.unseen, inner, new)
        return Tracked(new, outer.subgradient(new), new)


@dataclass(frozen=True)
class CorrectedEMA(Estimator):
    r"""``u_i <- (1 - gamma) u_i + gamma g_i(w_t) + gamma' (g_i(w_t) - g_i(w_{t-1}))`` on the same samples.

    The u-update of MSVR, SONX, SONEX (SONEX paper, Alg. 1 line 7) and, with ``fresh=True`` and ``gamma' = gamma
    theta``, of ALEXR2 (SONEX paper, section 4.2).  The correction can carry a row out of the interval in which g_i lies
    (a mean of exponentials that includes the pair itself is never below 1/n); it is then projected back.

    Args:
        gamma: weight of the new value, in (0, 1].
        gamma_prime: weight of the correction, >= 0, or ``"theory"``: ``1 - gamma + (n - B1) / (B1 (1 - gamma))`` of
            Thm 4.7 of the SONEX paper, with 1/p_i for n/B1 where rows are not drawn alike.  At 0 the second forward
            pass is not made.
        fresh: whether the outer gradient is taken at the new u_i instead of the u_i before this step (SONEX paper, Alg.
            1 line 9).
    """

    gamma: float = 0.8
    gamma_prime: float | Literal["theory"] = 0.1
    fresh: bool = False

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
    def by_chance(self) -> bool:  # type: ignore[override]
        return self.gamma_prime == "theory"

    def correction(self, sampling: Sampling) -> Tensor | float:
        """Gamma' as a number, or one for every row of the batch, shape (b, 1)."""
        if isinstance(self.gamma_prime, str):
            rest = 1 - self.gamma
            return rest + (sampling.inverse - 1) / rest
        return self.gamma_prime

    def update(
        self, rows: Tensor, inner: Tensor, previous: Tensor | None, outer: OuterFunction, sampling: Sampling
    ) -> Tracked:
        new = torch.lerp(rows, inner, self.gamma)
        if previous is not None:
            if sampling.unseen is not None:  # a first visit is exact
                previous = torch.where(sampling.unseen, inner, previous)
            new = sampling.range.project(new + self.correction(sampling) * (inner - previous))
        at = sampling.trusted(new if self.fresh else rows, inner)
        return Tracked(new, outer.subgradient(at), at)

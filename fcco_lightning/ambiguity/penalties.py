"""Penalties nu D(q, 1/n) on the divergence of weights from uniform weights."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from fcco_lightning.checks import non_negative

Projection: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class DivergencePenalty(ABC):
    """``nu D(q, 1/n)``; 0 at uniform weights.

    Args:
        nu: weight, >= 0; 0 for no penalty.

    Raises:
        ConfigError: if nu is negative or not finite.
    """

    nu: float = 1.0

    def __post_init__(self) -> None:
        non_negative("nu", self.nu)

    @abstractmethod
    def value(self, q: Tensor) -> Tensor:
        """``nu D(q, 1/n)``, a scalar, for weights (n,)."""

    @abstractmethod
    def curvature(self, n: int) -> float:
        """C > 0 such that the best response to losses l is a projection of ``l / C`` plus a constant."""

    @abstractmethod
    def projection(self, project: Projection, project_kl: Projection, losses: Tensor) -> Tensor:
        """The best response to losses, by one of the two projections of an ambiguity set; nu > 0."""

    @abstractmethod
    def absorb(self, v: Tensor, q: Tensor, pull: float) -> tuple[Tensor, "DivergencePenalty"]:
        """Losses and a penalty whose best response is that to v with the additional term ``-pull Delta(., q)``."""


class _Quadratic(DivergencePenalty):
    """``(C/2) |q - 1/n|^2``, with C from the subclass."""

    def value(self, q: Tensor) -> Tensor:
        return self.curvature(len(q)) / 2 * (q - 1 / len(q)).square().sum()

    def projection(self, project: Projection, project_kl: Projection, losses: Tensor) -> Tensor:  # noqa: ARG002
        n = len(losses)
        # a shift changes nothing, and avoids cancellation for large losses
        return project((losses - losses.max()) / self.curvature(n) + 1 / n)

    def absorb(self, v: Tensor, q: Tensor, pull: float) -> tuple[Tensor, DivergencePenalty]:
        curvature = replace(self, nu=pull).curvature(len(v))
        return v + curvature * (q - 1 / len(q)), replace(self, nu=self.nu + pull)


class ChiSquarePenalty(_Quadratic):
    r"""``nu chi^2(q, 1/n) = (nu/n) sum_i (n q_i - 1)^2 = nu n |q - 1/n|^2``: the f-divergence of ``f(x) = (x-1)^2``.

    Its scale does not depend on n.  It is :class:`EuclideanPenalty` with 2 n nu in place of nu (erratum DRAGO-17).

    Args:
        nu: weight, >= 0.
    """

    def curvature(self, n: int) -> float:
        return 2 * n * self.nu


class EuclideanPenalty(_Quadratic):
    r"""``(nu/2) |q - 1/n|^2``, the rescaled chi-square divergence (DRAGO paper, eq. (80)).

    Args:
        nu: weight, >= 0; the effect depends on n: for n samples ``nu = n/2`` is ``ChiSquarePenalty(1/4)``.
    """

    def curvature(self, n: int) -> float:  # noqa: ARG002
        return self.nu


class KLPenalty(DivergencePenalty):
    r"""``nu KL(q, 1/n) = nu sum_i q_i log(n q_i)``.

    Args:
        nu: weight, >= 0.
    """

    def value(self, q: Tensor) -> Tensor:
        excess = len(q) * q - 1  # with x = 1 + a, x log x - a is accurate near a = 0
        divergence: Tensor = (torch.special.xlog1py(1 + excess, excess) - excess).mean()
        return self.nu * divergence

    def curvature(self, n: int) -> float:  # noqa: ARG002
        return self.nu

    def projection(self, project: Projection, project_kl: Projection, losses: Tensor) -> Tensor:  # noqa: ARG002
        return project_kl((losses - losses.max()) / self.nu)

    def absorb(self, v: Tensor, q: Tensor, pull: float) -> tuple[Tensor, DivergencePenalty]:
        log = (len(q) * q).clamp(min=torch.finfo(q.dtype).tiny).log()  # finite for weights rounded to 0
        return v + pull * log, replace(self, nu=self.nu + pull)

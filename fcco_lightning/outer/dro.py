"""Outer functions of distributionally robust objectives: duals of divergences, and maxima."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fcco_lightning.ambiguity import AmbiguitySet
from fcco_lightning.numerics import increasing_root, project_to_simplex
from fcco_lightning.outer.base import OuterFunction, exp_minus_one


@dataclass(frozen=True)
class _Divergence(OuterFunction):
    """``lam0 phi*`` of a divergence phi."""

    lam0: float = 1.0
    convex = True
    smooth = True
    above_zero = ("lam0",)


@dataclass(frozen=True)
class ChiSquare(_Divergence):
    r"""``f(u) = lam0 phi*(u)`` of the chi-square divergence, u = (loss - c) / lam0 (ALEXR paper, section 5.1, F.2).

    ``half=True``: phi(t) = (t-1)^2/2, ``phi*(u) = [u+1]_+^2/2 - 1/2``; ``half=False``: phi(t) = (t-1)^2,
    ``phi*(u) = [u+2]_+^2/4 - 1``.  The paper prints phi of the first with phi* of the second (erratum ALEXR-3).

    Args:
        lam0: weight of the divergence, > 0.
        half: which of the two normalisations.
    """

    half: bool = True

    @property
    def _shift(self) -> float:
        return 1.0 if self.half else 2.0

    def __call__(self, u: Tensor) -> Tensor:
        s = self._shift
        return self.lam0 * ((u + s).relu().square() / (2 * s) - s / 2).sum(-1)

    def prox(self, u: Tensor, lam: float) -> tuple[Tensor, Tensor]:
        weight = self.lam0 / self._shift
        y = weight / (1 + lam * weight) * (u + self._shift).relu()
        return u - lam * y, y


class KullbackLeibler(_Divergence):
    r"""``f(u) = lam0 phi*(u)`` of the KL divergence, ``phi(t) = t log t - t + 1``: ``lam0 (exp(u) - 1)``.

    With u = (loss - c) / lam0 the minimum over c of ``c + mean f`` is ``lam0 log mean exp(loss / lam0)``, the value of
    ``max_q <q, loss> - lam0 KL(q, 1/n)``.  Smooth where the losses are bounded.

    Args:
        lam0: weight of the divergence, > 0.
    """

    def __call__(self, u: Tensor) -> Tensor:
        return self.lam0 * exp_minus_one(u).sum(-1)

    def prox(self, u: Tensor, lam: float) -> tuple[Tensor, Tensor]:
        """``u - W(lam lam0 exp(u))`` with Lambert's W, as the root of ``v + lam lam0 exp(v) = u``."""
        step = lam * self.lam0
        low = (u - 1).clamp(max=-math.log(step))  # there step exp(v) <= 1
        v = increasing_root(lambda v: v + step * torch.exp(v) - u, low, u)
        return v, self.lam0 * v.exp()


@dataclass(frozen=True)
class Maximum(OuterFunction):
    r"""``f(u) = max_j u_j`` over the k coordinates of a row: multi-task group DRO (ALEXR paper, App. B).

    At ties the subgradient is that of the first maximal coordinate.
    """

    convex = True
    lipschitz = 1.0

    def __call__(self, u: Tensor) -> Tensor:
        return u.max(dim=-1).values

    def prox(self, u: Tensor, lam: float) -> tuple[Tensor, Tensor]:
        # the projection does not change with a shift of the row, and u / lam alone would lose the differences
        y = project_to_simplex((u - u.amax(dim=-1, keepdim=True)) / lam)
        return u - lam * y, y


@dataclass(frozen=True)
class WorstCase(OuterFunction):
    r"""``max_{q in Q} sum_i q_i u_i`` over all n rows together, for primal-dual methods that keep q.

    A row u holds ``n q_i u_i``, so that the mean over rows is the value.

    Args:
        ambiguity: Q.
    """

    ambiguity: AmbiguitySet
    convex = True
    coupled = True
    smooth = True  # smoothing acts row by row, so it is left alone

    def __call__(self, u: Tensor) -> Tensor:
        return u.sum(-1)

"""What an ambiguity set offers: its worst case, its projections, and the best response to losses under a penalty."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fcco_lightning.ambiguity.penalties import DivergencePenalty

W = TypeVar("W")


class Weights(NamedTuple):
    r"""A projection onto Q with the multipliers that prove it.

    Attributes:
        q: the weights, (n,).
        threshold: multiplier of ``sum q = 1``; None where Q has none (spectral sets).
        multiplier: of the ball's constraint; 0 where it does not bind or Q has none.
    """

    q: Tensor
    threshold: Tensor | None
    multiplier: Tensor | float = 0.0


def wide(values: Tensor) -> Tensor:
    """In float64, or as it is on Apple's GPUs, which have none.

    In float32 a small distance from the uniform weights would be lost in the rounding of its terms.
    """
    return values if values.device.type == "mps" else values.double()


def type_of_weights(values: Tensor) -> torch.dtype:
    """The type of the weights that belong to losses: that of the losses, but at least float32."""
    return torch.promote_types(values.dtype, torch.float32)


def on_host(method: Callable[[Any, Tensor], W]) -> Callable[[Any, Tensor], W]:
    """A map of (n,) to weights that looks at numbers, computed on the CPU in float64: a device is waited for once.

    See :func:`wide` and :func:`type_of_weights`.
    """

    @wraps(method)
    def there(self: Any, values: Tensor) -> W:
        response, dtype = method(self, wide(values.cpu())), type_of_weights(values)
        back: W = pytree.tree_map_only(Tensor, lambda t: t.to(dtype).to(values.device, non_blocking=True), response)
        return back

    return there


class BestResponse(NamedTuple):
    r"""``max_{q in Q} <q, l> - nu D(q, 1/n)``.

    Attributes:
        value: the maximum, (), in the unit of the losses.
        q: where it is reached, (n,).
        threshold: T, the multiplier of ``sum q = 1``, in the unit of the losses.  None where Q has none (spectral
            sets), and without a penalty.
        multiplier: Lambda >= 0 of the ball's constraint, in the unit of the losses; 0 where it does not bind.
    """

    value: Tensor
    q: Tensor
    threshold: Tensor | None
    multiplier: Tensor | float


class AmbiguitySet(ABC):
    r"""A closed convex set Q of weights ``q >= 0, sum q = 1`` of n groups; the objective is ``max_{q in Q} <q, R>``.

    n is the length of what the methods are given, so one set serves all data and every part of it.  Q is symmetric and
    holds the uniform weights 1/n.
    """

    @abstractmethod
    def worst_case(self, risks: Tensor) -> Tensor:
        """A q in Q with the largest ``<q, risks>``: (n,) -> (n,)."""

    @abstractmethod
    def nearest(self, v: Tensor) -> Weights:
        """``argmin_{q in Q} |q - v|^2 / 2``: (n,) -> weights (n,), with multipliers t and lam.

        Where no other bound holds, ``v - 1/n - t = q - 1/n + lam grad h(q)`` with h <= 0 the ball's constraint
        (of :class:`ChiSquareBall` ``|q - 1/n|^2 / 2 - rho / (2n)``).
        """

    @abstractmethod
    def nearest_kl(self, log_p: Tensor) -> Weights:
        """``argmin_{q in Q} KL(q, p)`` for ``p = exp(log_p)``, of any sum: (n,) -> weights (n,), with multipliers.

        Where no other bound holds, ``log p - t = log(n q) + 1 + lam grad h(q)``.
        """

    def project(self, v: Tensor) -> Tensor:
        """``argmin_{q in Q} |q - v|^2``: (n,) -> (n,)."""
        return self.nearest(v).q

    def project_kl(self, log_p: Tensor) -> Tensor:
        """``argmin_{q in Q} KL(q, p)`` for ``p = exp(log_p)``, of any sum: (n,) -> (n,)."""
        return self.nearest_kl(log_p).q

    def best_response(self, losses: Tensor, penalty: DivergencePenalty) -> BestResponse:
        """``max_{q in Q} <q, losses> - nu D(q, 1/n)``, which is a projection: (n,) -> value, q and multipliers.

        With nu = 0 it is the worst case, of which only value and q are returned.

        Source: DRAGO paper, eq. (7) and D.2; errata DRAGO-14 to 17.
        """
        n = len(losses)
        if penalty.nu == 0:
            q = self.worst_case(losses)
            return BestResponse((q * losses).sum(), q, None, 0.0)
        q, threshold, multiplier = penalty.projection(self.nearest, self.nearest_kl, losses)
        scale = penalty.curvature(n)
        value = (q * losses).sum() - penalty.value(q)
        return BestResponse(
            value, q, None if threshold is None else losses.max() + scale * threshold, scale * multiplier
        )

    def prox(self, v: Tensor, q: Tensor, penalty: DivergencePenalty, pull: float) -> Tensor:
        """``argmax_{p in Q} <p, v> - nu D(p, 1/n) - pull Delta(p, q)``: (n,), (n,) -> (n,), for nu + pull > 0.

        Delta is the Bregman divergence of D: the ascent step of primal-dual methods from q along v.

        Source: DRAGO paper, eq. (7) and (63).
        """
        losses, stronger = penalty.absorb(v, q, pull)
        return stronger.projection(self.nearest, self.nearest_kl, losses).q

    def check(self, num_groups: int) -> None:  # noqa: B027 (most sets refuse nothing)
        """Raise :class:`ConfigError` if the set makes no sense for so many groups; of most sets any number will do."""

"""The interface of ambiguity sets: worst case, projections, and the best response to losses under a penalty."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.ambiguity.penalties import DivergencePenalty


def dtype_of_q(values: Tensor) -> torch.dtype:
    """The type of weights q for given losses: that of the losses, but at least float32."""
    return torch.promote_types(values.dtype, torch.float32)


def on_host(method: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """Decorate a map from (n,) to weights that reads values: it runs on the CPU in float64, with one synchronisation.

    In float32 a small distance from the uniform weights would be lost to rounding.
    """

    @wraps(method)
    def there(self: Any, values: Tensor) -> Tensor:
        weights = method(self, values.cpu().double()).to(dtype_of_q(values))
        return weights.to(values.device, non_blocking=True)

    return there


class BestResponse(NamedTuple):
    r"""``max_{q in Q} <q, l> - nu D(q, 1/n)``.

    Attributes:
        value: the maximum, a scalar in the unit of the losses.
        q: the maximiser, (n,).
    """

    value: Tensor
    q: Tensor


class AmbiguitySet(ABC):
    r"""A closed convex set Q of weights ``q >= 0, sum q = 1`` of n groups; the objective is ``max_{q in Q} <q, R>``.

    R are the risks of the groups. n is the length of the argument of a method, so one set can be used for any number of
    groups.  Q is symmetric and contains the uniform weights 1/n.
    """

    @abstractmethod
    def worst_case(self, risks: Tensor) -> Tensor:
        """A q in Q with the largest ``<q, risks>``: (n,) -> (n,)."""

    @abstractmethod
    def project(self, v: Tensor) -> Tensor:
        """``argmin_{q in Q} |q - v|^2``: (n,) -> (n,)."""

    @abstractmethod
    def project_kl(self, log_p: Tensor) -> Tensor:
        """``argmin_{q in Q} KL(q, p)`` for ``p = exp(log_p)``, which need not sum to 1: (n,) -> (n,)."""

    def best_response(self, losses: Tensor, penalty: DivergencePenalty) -> BestResponse:
        """``max_{q in Q} <q, losses> - nu D(q, 1/n)``, computed by a projection: (n,) -> value and q.

        With nu = 0 it is the worst case.

        Source: DRAGO paper, eq. (7) and D.2; errata DRAGO-14 to 17.
        """
        if penalty.nu == 0:
            q = self.worst_case(losses)
            return BestResponse((q * losses).sum(), q)
        q = penalty.projection(self.project, self.project_kl, losses)
        return BestResponse((q * losses).sum() - penalty.value(q), q)

    def prox(self, v: Tensor, q: Tensor, penalty: DivergencePenalty, pull: float) -> Tensor:
        """``argmax_{p in Q} <p, v> - nu D(p, 1/n) - pull Delta(p, q)``: (n,), (n,) -> (n,), for nu + pull > 0.

        Delta is the Bregman divergence of D.  This is the ascent step of primal-dual methods from q along v.

        Source: DRAGO paper, eq. (7) and (63).
        """
        losses, stronger = penalty.absorb(v, q, pull)
        return stronger.projection(self.project, self.project_kl, losses)

    def check(self, num_groups: int) -> None:  # noqa: B027 (most sets refuse nothing)
        """Raise :class:`ConfigError` if the set is empty for this number of groups; most sets allow any number."""

"""OOA and SMD: primal-dual methods for group DRO."""

from typing import Literal

from fcco_lightning.algorithms.base import Algorithm
from fcco_lightning.estimators import DualAscent


class OOA(Algorithm):
    r"""Online mirror ascent on the weights q of the groups, then a gradient step with them.

    For ``min_w max_{q in Q} sum_i q_i R_i(w)``: sampled groups give ``h_i = (n/B1) R_i(w; B_i)``, others 0;
    ``q <- P_Q(q exp(eta_dual h))`` and ``G = (n/B1) sum_{sampled} q_i grad R_i(w; B_i)``.  Q is the capped simplex of
    the objective: CVaR, or the worst group (Sagawa et al., whose eta is eta_dual n/B1).

    Constraints are measured at validation but not penalised.

    Args:
        eta_dual: dual step size, > 0.
        geometry: "kl", or "euclidean" for ``q <- P_Q(q + eta_dual h)``.
    Source: 000 section 5.1 and App. F.
    """

    uses_constraints = False
    max_form = True

    def __init__(self, eta_dual: float = 0.1, geometry: Literal["kl", "euclidean"] = "kl") -> None:
        super().__init__(DualAscent(eta_dual, geometry))


class SMD(Algorithm):
    r"""Stochastic mirror descent-ascent: as :class:`OOA` with all n groups in every batch.

    ``q <- argmax_{q in Q} <q, R(w; B)> - D(q, q_t) / eta_dual``, ``G = sum_i q_i grad R_i(w; B_i)``.

    Constraints are measured at validation but not penalised.

    Args:
        eta_dual: dual step size, > 0.
        geometry: D is "kl" or "euclidean".
    Source: 000 App. F.
    """

    uses_constraints = False
    max_form = True

    def __init__(self, eta_dual: float = 0.1, geometry: Literal["kl", "euclidean"] = "kl") -> None:
        super().__init__(DualAscent(eta_dual, geometry, whole=True))

"""Base class of primal-dual methods, which keep the weights q of a max form."""

from abc import ABC
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from fcco_lightning.ambiguity import AmbiguitySet, DivergencePenalty, EuclideanPenalty, KLPenalty
from fcco_lightning.checks import one_of
from fcco_lightning.constraints import Constraint
from fcco_lightning.engine import Algorithm, Estimate, NewRows, Problem, Seen, Term
from fcco_lightning.errors import ConfigError
from fcco_lightning.objectives import Objective
from fcco_lightning.outer import WorstCase

Geometry = Literal["kl", "euclidean"]
_TINY = torch.finfo(torch.float64).tiny


class MaxForm(Algorithm, ABC):
    r"""A method for ``min_w max_{q in Q} sum_i q_i R_i(w) - nu D(q, 1/n)`` that keeps q in memory.

    R_i is the risk of group i, Q an ambiguity set, D a divergence and nu >= 0 its weight.  The rows of the objective's
    term are the weights q_i.  Constraints are measured at validation but not penalised.

    Args:
        geometry: the Bregman divergence V of steps in q: "kl" for ``KL(p, q)``, "euclidean" for ``|p - q|^2 / 2``.
    """

    def __init__(self, geometry: Geometry = "kl") -> None:
        self.geometry: Geometry = one_of("geometry", geometry, get_args(Geometry))

    def posed(self, objective: Objective, constraints: Sequence[Constraint]) -> tuple[Objective, Sequence[Constraint]]:  # noqa: ARG002
        return objective.max_form(), ()

    def prepare(self, problem: Problem) -> None:
        for term in problem.all_terms:
            ambiguity_of(term)
            penalty = penalty_of(term)
            if penalty is not None and isinstance(penalty, KLPenalty) != (self.geometry == "kl"):
                raise ConfigError(
                    f"{self.name} with geometry={self.geometry!r} has no closed-form step for {penalty!r}. Use "
                    "geometry='kl' with a KLPenalty, and 'euclidean' with the other penalties."
                )
            term.remember()

    def weights(self, term: Term) -> Tensor:
        """q, uniform at first, (n,), in float64: the weights of many rows are small and add up to one."""
        assert term.state is not None  # noqa: S101 - `prepare` has seen to it
        q = term.state.gather(None).squeeze(1).nan_to_num(1 / term.num_rows)
        if self.geometry == "kl":
            q = q.clamp(min=torch.finfo(q.dtype).tiny)  # so that a weight rounded to 0 can grow again
        return q.double()

    def direction(self, risks: Seen, g: Tensor) -> Tensor:
        """``h_i = g_i / p_i`` for rows in the batch, 0 for others: unbiased for all n values; (r, 1) -> (n,)."""
        n = risks.term.num_rows
        h = n * risks.weight * g.detach().double().squeeze(1)  # weight = 1 / (n p_i), 0 for rows not in the batch
        return h if risks.rows is None else h.new_zeros(n).index_add(0, risks.rows, h)

    def ascend(
        self, q: Tensor, h: Tensor, ambiguity: AmbiguitySet, eta: float, penalty: DivergencePenalty | None
    ) -> Tensor:
        """``argmax_{p in Q} <p, h> - nu D(p, 1/n) - V(p, q) / eta``: (n,), (n,) -> (n,)."""
        if penalty is not None and penalty.nu > 0:
            return ambiguity.prox(h, q, penalty, penalty.nu / (eta * penalty.curvature(len(q))))
        if self.geometry == "kl":
            return ambiguity.project_kl(torch.add(q.clamp(min=_TINY).log(), h, alpha=eta))
        return ambiguity.project(q + eta * h)

    def add(self, estimate: Estimate, risks: Seen, q: Tensor, penalty: DivergencePenalty | None) -> None:
        """Add ``sum over the batch of q_i / p_i R_i`` to the estimate; the penalty is only logged."""
        term = risks.term
        y = term.num_rows * q.to(term.dtype).unsqueeze(1)
        y = y if risks.rows is None else y.index_select(0, risks.rows)
        estimate.add(risks, (y * risks.g.to(y.dtype)).sum(-1))
        if penalty is not None:
            estimate.note(term.name, -term.share * penalty.value(q))

    def remember(self, estimate: Estimate, term: Term, q: Tensor) -> None:
        """Collect q to be written."""
        assert term.state is not None  # noqa: S101 - `prepare` has seen to it
        estimate.new.append(NewRows(term.state, None, q.to(term.dtype).unsqueeze(1)))

    def duals(self, term: Term, rows: Tensor) -> Tensor:
        return term.num_rows * rows

    def proximity(self, nu: float) -> DivergencePenalty:
        """``nu V(q, 1/n)``."""
        return KLPenalty(nu) if self.geometry == "kl" else EuclideanPenalty(nu)


def ambiguity_of(term: Term) -> AmbiguitySet:
    """Q of a max form.

    Raises:
        ConfigError: if the term is not a max form.
    """
    if not isinstance(term.outer, WorstCase):
        raise ConfigError(
            "OOA, SMD, PG-SMD and PG-SVRG need an objective in its max form, a worst case over weights of groups "
            f"or samples, got {term.outer!r}. Use WorstGroupDRO, CVaRGroupDRO, KLGroupDRO or SampleDRO."
        )
    return term.outer.ambiguity


def penalty_of(term: Term) -> DivergencePenalty | None:
    """``nu D(q, 1/n)`` of a max form, or None."""
    penalty: DivergencePenalty | None = getattr(term.measurable, "penalty", None)
    return penalty

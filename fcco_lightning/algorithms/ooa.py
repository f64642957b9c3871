"""OOA and SMD: primal-dual methods for group DRO that remember the weights q of the groups."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from fcco_lightning.algorithms.base import Algorithm
from fcco_lightning.ambiguity import AmbiguitySet
from fcco_lightning.checks import one_of, positive
from fcco_lightning.constraints import Constraint
from fcco_lightning.engine import Engine, Problem, Surrogate, Term
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.estimators import fill
from fcco_lightning.objectives import Objective
from fcco_lightning.outer import WorstCase
from fcco_lightning.records import Batch

Geometry = Literal["kl", "euclidean"]
_TINY = 1e-30  # a weight that was rounded to zero can grow again


class OOA(Algorithm):
    r"""Online mirror ascent on the weights q of the groups, then a gradient step with them.

    For ``min_w max_{q in Q} sum_i q_i R_i(w)``: sampled groups give ``h_i = R_i(w; B_i) / p_i`` with p_i the
    probability that group i is in a batch (B1/n with group-wise batches), others 0; ``q <- P_Q(q exp(eta_dual h))`` and
    ``G = sum_{sampled} q_i / p_i grad R_i(w; B_i)``.  Both estimates are unbiased.  Q is the capped simplex of the
    objective: CVaR, or the worst group (Sagawa et al., whose eta is eta_dual n/B1).  q starts uniform, and each step
    costs O(n log n).

    Constraints are measured at validation but not penalised.

    Args:
        eta_dual: dual step size, > 0.
        geometry: "kl", or "euclidean" for ``q <- P_Q(q + eta_dual h)``.
    Source: ALEXR paper, section 5.1 and App. F; the scaling of the primal step is this project's.
    """

    def __init__(self, eta_dual: float = 0.1, geometry: Geometry = "kl") -> None:
        self.eta_dual = positive("eta_dual", eta_dual)
        self.geometry: Geometry = one_of("geometry", geometry, get_args(Geometry))

    def posed(self, objective: Objective, constraints: Sequence[Constraint]) -> tuple[Objective, Sequence[Constraint]]:  # noqa: ARG002
        return objective.max_form(), ()

    def prepare(self, problem: Problem) -> None:
        for term in problem.all_terms:
            _ambiguity(term)
            term.remember()

    def iteration(self, engine: Engine, batch: Batch) -> None:
        now = engine.measure(batch)
        surrogate = Surrogate(now.direct)
        for risks in now.readings:
            term, n = risks.term, risks.term.num_rows
            self.check(len(risks.index), n)
            rows, seen = engine.all_rows(term)
            rows = fill(rows, seen, torch.full_like(rows, 1 / n))
            # in float64: the weights of many groups are small, and add up to one
            values = risks.values.detach().double()[:, 0]
            h = values.new_zeros(n).index_copy_(0, risks.index, n * risks.weight * values)  # weight = 1 / (n p_i)
            q = self.ascend(rows[:, 0].double(), h, _ambiguity(term)).to(rows.dtype).unsqueeze(1)
            engine.propose_all(term, q)
            y = n * q.index_select(0, risks.index)
            surrogate.add(risks, y)
            surrogate.estimates.add(term.name, term.share, term.outer, y * risks.values.detach().to(y.dtype))
        engine.descend(surrogate)
        engine.commit()
        engine.update()

    def ascend(self, q: Tensor, h: Tensor, ambiguity: AmbiguitySet) -> Tensor:
        """``argmax_{p in Q} <p, h> - D(p, q) / eta_dual`` with D the KL divergence or half the squared distance."""
        if self.geometry == "kl":
            return ambiguity.project_kl(q.clamp(min=_TINY).log() + self.eta_dual * h)
        return ambiguity.project(q + self.eta_dual * h)

    def check(self, sampled: int, n: int) -> None:
        """Refuse a batch that the method is not made for."""

    def duals(self, term: Term, rows: Tensor) -> Tensor:
        return term.num_rows * rows


class SMD(OOA):
    r"""Stochastic mirror descent-ascent: as :class:`OOA` with all n groups in every batch.

    ``q <- argmax_{q in Q} <q, R(w; B)> - D(q, q_t) / eta_dual``, ``G = sum_i q_i grad R_i(w; B_i)``.

    Constraints are measured at validation but not penalised.

    Args:
        eta_dual: dual step size, > 0.
        geometry: D is "kl" or "euclidean".
    Source: ALEXR paper, App. F.
    """

    def check(self, sampled: int, n: int) -> None:
        if sampled < n:
            raise DataError(
                f"SMD needs all {n} groups in every batch, this one holds {sampled}. Set groups_per_batch={n}, or use "
                "OOA, which samples groups."
            )


def _ambiguity(term: Term) -> AmbiguitySet:
    if not isinstance(term.outer, WorstCase):
        raise ConfigError(
            f"OOA and SMD need the max form of an objective, a worst case over weights, got {term.outer!r}."
        )
    return term.outer.ambiguity

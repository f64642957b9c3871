"""PG-SMD: stochastic mirror descent-ascent around a centre."""

from typing import Any

import torch
from torch import Tensor

from fcco_lightning.algorithms.max_form import Geometry, ambiguity_of, penalty_of
from fcco_lightning.algorithms.proximally_guided import ProximallyGuided
from fcco_lightning.algorithms.stages import ConcaveStages, Stage, Stages
from fcco_lightning.engine import Engine, Estimate, Problem, Term
from fcco_lightning.errors import NonFiniteError
from fcco_lightning.estimators import like_parameters
from fcco_lightning.models.batch import Batch
from fcco_lightning.numerics import look


class PGSMD(ProximallyGuided):
    r"""Proximally guided stochastic mirror descent, for losses that are weakly convex and need not be smooth.

    For ``min_w max_{q in Q} sum_i q_i R_i(w) - nu D(q, 1/n)`` every stage makes J - 1 inner steps from z = w; both
    updates use the old (z, q):

    ``z <- argmin_v <v, g_z> + |v - z|^2 / (2 eta) + |v - w|^2 / (2 gamma)``,
    ``q <- argmax_{p in Q} <p, g_q> - V(p, q) / eta_dual - nu D(p, 1/n)``

    with the unbiased ``g_z = sum_{sampled} q_i / p_i grad R_i(z; B_i)`` and ``g_q`` with entries ``R_i(z; B_i) / p_i``,
    where p_i is the probability that a batch measures row i.  The mean of the J points z is the next w: the user's
    optimizer gets w minus that mean as the gradient, so ``torch.optim.SGD`` with ``lr=1`` is the paper's method.  Rows
    are groups or distributions (:class:`GroupMaxForm`, eq. (3) of the paper) or all samples (:class:`SampleDRO`, eq.
    (2)).

    In every stage q starts at uniform weights, or, in case D2, at the best response to the losses at w.  These losses
    are collected from batches without any update until every row has occurred.

    Constraints are measured at validation but not penalised.

    Args:
        gamma: proximal parameter, > 0; the paper takes at most 1/(2 rho) for rho-weakly convex losses.
        stages: lengths and step sizes: :class:`ConcaveStages` (case D1), :class:`StronglyConcaveStages` (case D2), or
            :class:`EqualStages`.
        geometry: V, "kl" or "euclidean", see :class:`MaxForm`.
        radius: radius of a ball around 0 in which every tensor of weights stays, > 0; initial weights outside are
            projected onto it, with a warning.  None for no ball.
        linearised: whether ``R_i(z)`` is replaced by ``R_i(w) + <grad R_i(w), z - w>``: the proximal linear method
            PL-SMD, for smooth losses, whose eta is gamma here (eq. (6) and (7)).  A step then needs second derivatives,
            which every operation of the network must support.

    Raises:
        ConfigError: if an argument is out of range, if the geometry is not that of the objective's penalty, or if case
            D2 has no penalty.
    Source: PG-SMD paper, Alg. 1 and 2, section 2; errata PG-1 and PG-9.  The paper returns the w of a random stage;
    here the last w is kept.
    """

    def __init__(
        self,
        gamma: float = 1.0,
        stages: Stages | None = None,
        geometry: Geometry = "kl",
        radius: float | None = None,
        linearised: bool = False,
    ) -> None:
        super().__init__(gamma, geometry, radius, linearised=linearised)
        self.stages = stages or ConcaveStages()

    def prepare(self, problem: Problem) -> None:
        super().prepare(problem)
        self._stage_of(problem, 0)  # raises if the stages do not fit

    def start(self, engine: Engine) -> None:
        super().start(engine)
        self._mean: list[Tensor] = []

    def iteration(self, engine: Engine, batch: Batch) -> None:
        stage = self._stage_of(engine.problem, self._stage)
        if self._count == 0:
            if self.stages.best_start and not self._pass.complete:
                self._pass_at_centre(engine, batch)
                return
            self._point.restart()
        self._inner_iteration(engine, batch, stage)
        if self._count == stage.length - 1:
            self.end_stage(engine, self._mean)

    def _stage_of(self, problem: Problem, t: int) -> Stage:
        term = problem.all_terms[0]
        penalty = penalty_of(term)
        mu = 0.0 if penalty is None else penalty.curvature(term.num_rows)
        return self.stages(t, self.gamma, mu)

    def _inner_iteration(self, engine: Engine, batch: Batch, stage: Stage) -> None:
        with self.looking():
            g0, terms = engine.measure(engine.evaluate(batch))
            estimate = Estimate(g0)
            for risks in terms:
                term, penalty = risks.term, penalty_of(risks.term)
                q, h = self._weights(term), self.direction(risks, self.values(engine, risks))
                self.add(estimate, risks, q, penalty)
                self.remember(estimate, term, self.ascend(q, h, ambiguity_of(term), stage.eta_dual, penalty))
            engine.descend(estimate)
            engine.commit(self._descent)
        if self._count == 0:
            self._mean = [p.detach().clone() for p in self._params]
        with self.inner_step(engine, stage.eta), torch.no_grad():
            torch._foreach_lerp_(self._mean, [p.data for p in self._params], 1 / (self._count + 2))

    def _weights(self, term: Term) -> Tensor:
        """The present q; at the start of a stage uniform, or the best response to the losses at the centre."""
        if self._count > 0:
            return self.weights(term)
        if not self.stages.best_start:
            return self.uniform()
        penalty = penalty_of(term) or self.proximity(0.0)
        return ambiguity_of(term).best_response(self._pass.values, penalty).q

    @torch.no_grad()
    def _pass_at_centre(self, engine: Engine, batch: Batch) -> None:
        """Collect the losses of a batch at w."""
        for risks in engine.measure(engine.evaluate(batch))[1]:
            values = self._pass.joined(risks, risks.g)
            losses = torch.where(risks.present.unsqueeze(1), risks.g, 0.0)
            finite, (complete,) = look([losses], [~values.isnan().any()])
            if not finite:
                raise NonFiniteError("a loss at the proximal centre is not finite; no row and no weight was changed.")
            self._pass.take(values, complete=complete)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "mean": list(self._mean) if self.begun else []}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._mean = like_parameters(state["mean"], self._params)

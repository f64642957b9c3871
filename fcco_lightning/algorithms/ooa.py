"""OOA and SMD: primal-dual methods for group DRO, which keep the weights q of the groups."""

from collections.abc import Sequence

from torch import Tensor

from fcco_lightning.algorithms.max_form import Geometry, MaxForm, ambiguity_of, penalty_of
from fcco_lightning.checks import positive
from fcco_lightning.engine import Engine, Estimate, Outputs, Seen, read
from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import Batch
from fcco_lightning.objectives.measurable import nan_where


class OOA(MaxForm):
    r"""Online mirror ascent on the weights q of the groups, then a gradient step on w with these weights.

    For ``min_w max_{q in Q} sum_i q_i R_i(w)``: sampled groups give ``h_i = R_i(w; B_i) / p_i`` with p_i the
    probability that group i is in a batch (B1/n with group-wise batches), others 0; ``q <- P_Q(q exp(eta_dual h))`` and
    ``G = sum_{sampled} q_i / p_i grad R_i(w; B_i)``.  Both estimates are unbiased.  Q is the capped simplex of the
    objective: CVaR, or the worst group (Sagawa et al., whose eta is eta_dual n/B1).  q starts uniform, and each step
    costs O(n log n).  A penalty of the objective, ``- nu D(q, 1/n)``, enters the step in q exactly, not linearised.

    Constraints are measured at validation but not penalised.

    Args:
        eta_dual: dual step size, > 0.
        geometry: "kl", or "euclidean" for ``q <- P_Q(q + eta_dual h)``.

    Raises:
        ConfigError: if an argument is out of range, or if the geometry is not that of the objective's penalty.
    Source: ALEXR paper, section 5.1 and App. F; the division by p_i in the primal step was added here.  The steps in q
    and w alternate as in Alter-SGD (PG-SMD paper, section 5.2; erratum PG-12), with the same batch for both.
    """

    def __init__(self, eta_dual: float = 0.1, geometry: Geometry = "kl") -> None:
        super().__init__(geometry)
        self.eta_dual = positive("eta_dual", eta_dual)

    def iteration(self, engine: Engine, batch: Batch) -> None:
        engine.descend(engine.run(self.step, batch))
        engine.commit()
        engine.update()

    def step(self, g0: Tensor | None, terms: Sequence[Seen]) -> Estimate:
        """The new q, and the estimate of F with it, from the contents of a batch."""
        estimate = Estimate(g0)
        for risks in terms:
            term, penalty = risks.term, penalty_of(risks.term)
            h = self.direction(risks, self.required(risks))
            q = self.ascend(self.weights(term), h, ambiguity_of(term), self.eta_dual, penalty)
            self.remember(estimate, term, q)
            self.add(estimate, risks, q, penalty)
        return estimate

    def required(self, risks: Seen) -> Tensor:
        """The risks (r, 1) of a batch, NaN if the method cannot use this batch."""
        return risks.g


class SMD(OOA):
    r"""Stochastic mirror descent-ascent: as :class:`OOA` with all n groups in every batch.

    ``q <- argmax_{q in Q} <q, R(w; B)> - D(q, q_t) / eta_dual``, ``G = sum_i q_i grad R_i(w; B_i)``.

    Constraints are measured at validation but not penalised.

    Args:
        eta_dual: dual step size, > 0.
        geometry: D, "kl" or "euclidean", see :class:`MaxForm`.
    Source: ALEXR paper, App. F.
    """

    def start(self, engine: Engine) -> None:
        super().start(engine)
        (term,) = engine.problem.all_terms
        self._objective, self._num_rows = term.measurable, term.num_rows

    def check(self, outputs: Outputs) -> None:
        _, rows = self._objective.measure(*read(outputs.now, outputs.columns, self._objective))
        sampled = len(rows.weight.nonzero()) if rows is not None else 0
        n = self._num_rows
        if sampled < n:
            raise DataError(
                f"SMD needs samples of all {n} groups in every batch, this batch contains {sampled} groups. Set "
                f"groups_per_batch={n}, or use OOA, which samples groups."
            )

    def required(self, risks: Seen) -> Tensor:
        return nan_where(~risks.present.all(), risks.g)

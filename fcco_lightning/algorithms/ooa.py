"""OOA and SMD: primal-dual methods for group DRO that remember the weights q of the groups."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fcco_lightning.algorithms.compiled import CompiledSurrogate
from fcco_lightning.algorithms.max_form import Geometry, MaxForm, ambiguity_of, penalty_of
from fcco_lightning.ambiguity import AmbiguitySet
from fcco_lightning.checks import positive
from fcco_lightning.engine import Engine, Reading, Surrogate, Term
from fcco_lightning.engine.engine import Evaluated
from fcco_lightning.errors import DataError
from fcco_lightning.estimators import Estimator, Sampling
from fcco_lightning.outer import NoSmoothing, OuterFunction, Smoothing
from fcco_lightning.records import Batch, Tracked


class _Ascent(Estimator):
    """The step in q of a batch with all groups, as an estimator takes it: its rows are q, and ``y_i = n q_i``.

    Args:
        algorithm: whose step it is.
        ambiguity: Q.
    """

    def __init__(self, algorithm: "OOA", ambiguity: AmbiguitySet) -> None:
        self._algorithm, self._ambiguity = algorithm, ambiguity

    def first(self, inner: Tensor) -> Tensor:
        return torch.full_like(inner, 1 / len(inner))

    def update(
        self,
        rows: Tensor,
        inner: Tensor,
        previous: Tensor | None,  # noqa: ARG002
        outer: OuterFunction,  # noqa: ARG002
        sampling: Sampling,
    ) -> Tracked:
        h = sampling.inverse * inner.double()
        q = self._algorithm.ascend(rows[:, 0].double(), h[:, 0], self._ambiguity, self._algorithm.eta_dual, None)
        q = q.to(rows.dtype).unsqueeze(1)
        y = len(rows) * q
        return Tracked(q, y, y * inner)


class OOA(MaxForm):
    r"""Online mirror ascent on the weights q of the groups, then a gradient step with them.

    For ``min_w max_{q in Q} sum_i q_i R_i(w)``: sampled groups give ``h_i = R_i(w; B_i) / p_i`` with p_i the
    probability that group i is in a batch (B1/n with group-wise batches), others 0; ``q <- P_Q(q exp(eta_dual h))`` and
    ``G = sum_{sampled} q_i / p_i grad R_i(w; B_i)``.  Both estimates are unbiased.  Q is the capped simplex of the
    objective: CVaR, or the worst group (Sagawa et al., whose eta is eta_dual n/B1).  q starts uniform, and each step
    costs O(n log n).  A penalty of the objective, ``- nu D(q, 1/n)``, enters the step in q as it is.

    Constraints are measured at validation but not penalised.

    Args:
        eta_dual: dual step size, > 0.
        geometry: "kl", or "euclidean" for ``q <- P_Q(q + eta_dual h)``.

    Raises:
        ConfigError: if an argument is out of range, or if the geometry is not that of the objective's penalty.
    Source: ALEXR paper, section 5.1 and App. F; the scaling of the primal step is this project's.  The steps in q and
    w alternate as those of the Alter-SGD of the PG-SMD paper, section 5.2 (erratum PG-12), with one batch for both.
    """

    smoothing: Smoothing = NoSmoothing()
    needs_all_rows = True

    def __init__(self, eta_dual: float = 0.1, geometry: Geometry = "kl") -> None:
        super().__init__(geometry)
        self.eta_dual = positive("eta_dual", eta_dual)

    def start(self, engine: Engine) -> None:
        (term,) = engine.problem.all_terms
        traced = self.geometry == "kl" and penalty_of(engine.problem) is None  # other steps look at numbers
        self._compiled = CompiledSurrogate(self, engine) if engine.compilable and traced else None
        self._ascent = _Ascent(self, ambiguity_of(term))

    def iteration(self, engine: Engine, batch: Batch) -> None:
        if self._compiled is not None:
            surrogate = self._compiled(batch, None)
        else:
            surrogate = self.uncompiled(engine, engine.evaluate(batch))
        engine.descend(surrogate)
        engine.commit()
        engine.update()

    def estimator_of(self, term: Term) -> Estimator:  # noqa: ARG002
        """The step in q."""
        return self._ascent

    def pairs_old(self, term: Term) -> bool:  # noqa: ARG002
        """No: the new q is paired."""
        return False

    def fade(self, engine: Engine, readings: Sequence[Reading]) -> None:
        """Nothing: a step in q concerns all groups."""

    def uncompiled(self, engine: Engine, seen: Evaluated) -> Surrogate:
        """The surrogate of the new q, which is proposed, from the network's outputs."""
        now, penalty = engine.inner(seen), penalty_of(engine.problem)
        surrogate = Surrogate(now.direct)
        for risks in now.readings:
            term = risks.term
            self.check(len(risks.index), term.num_rows)
            q, h = self.weights(engine, term), self.direction(risks, risks.values)
            q = self.ascend(q, h, ambiguity_of(term), self.eta_dual, penalty)
            engine.propose_all(term, q.to(term.dtype).unsqueeze(1))
            self.add(surrogate, risks, q, penalty)
        return surrogate

    def check(self, sampled: int, n: int) -> None:
        """Refuse a batch that the method is not made for."""


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

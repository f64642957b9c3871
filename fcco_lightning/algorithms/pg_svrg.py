"""PG-SVRG: variance-reduced descent-ascent around a centre."""

from math import ceil, log
from typing import Any, Self

import torch
from torch import Tensor

from fcco_lightning.algorithms.max_form import Geometry, ambiguity_of, penalty_of
from fcco_lightning.algorithms.proximally_guided import ProximallyGuided
from fcco_lightning.ambiguity import DivergencePenalty
from fcco_lightning.checks import at_least, non_negative, positive
from fcco_lightning.engine import Engine, Estimate, Term
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import copied, like_parameters
from fcco_lightning.models.batch import Batch


class PGSVRG(ProximallyGuided):
    r"""Proximally guided stochastic variance-reduced gradient, for smooth losses of a finite set of rows.

    For ``min_w max_{q in Q} sum_i q_i R_i(w) - nu D(q, 1/n)`` a stage has K - 1 snapshots (zs, qs), the first at (w,
    1/n), each followed by J - 1 inner steps.  At a snapshot one pass over the data, without any update, computes ``G_z
    = sum_i qs_i grad R_i(zs)`` and ``G_q = (R_1(zs), ..., R_n(zs))``; it ends when every row has occurred.  An inner
    step updates z and q as in :class:`PGSMD`, with the estimates

    ``g_z = G_z + sum_{sampled} (q_i grad R_i(z) - qs_i grad R_i(zs)) / p_i``,
    ``g_q = G_q`` with ``(R_i(z) - R_i(zs)) / p_i`` added to the sampled entries,

    which take two forward and two backward passes.  Without a penalty the step in q has the additional term ``- V(p,
    1/n) / (t + 2)`` in stage t.  The last z of a stage is the next w: the user's optimizer gets w minus that z as the
    gradient, so ``torch.optim.SGD`` with ``lr=1`` is the paper's method.

    G_z and G_q are exact if a batch holds all samples of a row, as in :class:`SampleDRO`; for the risk of a group they
    use the estimate of the first batch that contains the group.

    Constraints are measured at validation but not penalised.

    Args:
        gamma: proximal parameter, > 0; the paper takes at most 1/(2 rho) for rho-weakly convex losses.
        eta: step size in w, > 0.
        eta_dual: step size in q, > 0.
        J: points of an inner loop, which has J - 1 steps; >= 2.
        K: number of snapshots of a stage plus one, >= 2.
        geometry: V, "kl" or "euclidean", see :class:`MaxForm`.
        radius: radius of a ball around 0 in which every tensor of weights stays, > 0; initial weights outside are
            projected onto it, with a warning.  None for no ball.
        linearised: whether losses are linearised at w, see :class:`PGSMD`: the proximal linear method PL-SVRG.

    Raises:
        ConfigError: if an argument is out of range, if the geometry is not that of the objective's penalty, or, when
            training starts, if the network recomputes activations or gradients are scaled for half precision.
    Source: PG-SMD paper, Alg. 3 and 4, section 2; errata PG-2 to PG-4.  J, K and the step sizes are tuned, as in its
    experiments; :meth:`theory` gives those of its proof.
    """

    def __init__(
        self,
        gamma: float = 1.0,
        eta: float = 0.1,
        eta_dual: float = 0.1,
        J: int = 100,
        K: int = 2,
        geometry: Geometry = "kl",
        radius: float | None = None,
        linearised: bool = False,
    ) -> None:
        super().__init__(gamma, geometry, radius, linearised=linearised)
        self.eta, self.eta_dual = positive("eta", eta), positive("eta_dual", eta_dual)
        self.J, self.K = at_least("J", J, 2), at_least("K", K, 2)

    @classmethod
    def theory(
        cls,
        stages: int,
        gamma: float,
        smoothness: float,
        mu: float,
        diameter: float,
        dual_diameter: float,
        geometry: Geometry = "kl",
        radius: float | None = None,
    ) -> Self:
        r"""The constants under which the paper proves convergence, with and without a penalty on q.

        With ``mu_z = 1/(2 gamma)`` and ``Lambda = 52 L^2 / min(mu_z, mu)^2 + 3/2`` they are ``eta = 1/(mu_z Lambda)``,
        ``eta_dual = 1/(mu Lambda)``, ``J = ceil(1 + (3/2 + 3 Lambda) log 4)`` and
        ``K = ceil(1 + 4 log(9 T^2 (1/4 + Lambda/2) (mu_z D^2 + mu D_q^2)))``, which is the K of the last of T stages;
        earlier stages need fewer.  J is 226 if L equals the smaller of mu_z and mu, and grows with the square of their
        ratio: tuned values are far smaller.

        Without a penalty, stage t pulls q towards 1/n with the weight 1/(t + 2).  The paper's constants then differ
        between stages; here those of the last of T stages, with mu = 1/(T + 1), are used for all of them.  The proof
        covers this, as 1/(t + 2)-strong convexity implies 1/(T + 1)-strong convexity, but earlier stages are longer
        than necessary: J grows like T^2, and all stages together take about three times the steps.  The paper only
        gives the order of T, ``(1/(gamma epsilon^2)) log(1/(gamma epsilon^2))`` for a gradient of the objective of size
        epsilon.

        Args:
            stages: T, >= 1.
            gamma: proximal parameter, > 0; at most 1/(2 rho) for rho-weakly convex losses.
            smoothness: L, > 0: the Lipschitz constant of ``grad_w f_i`` and ``grad_q f_i``, the larger one, of
                ``f_i = n q_i R_i(w)``.
            mu: strong convexity of the penalty with respect to V, ``penalty.curvature(n)``, >= 0; 0 without a penalty.
            diameter: D, > 0, the largest distance of two weights: 2 ``radius`` for one tensor.
            dual_diameter: D_q, > 0, the diameter of Q: ``sqrt(2 log n)`` for all weights of n rows with the geometry
                "kl".
            geometry: V, as for the class.
            radius: radius of the ball of the weights, as for the class.

        Raises:
            ConfigError: if an argument is out of range.
        Source: PG-SMD paper, Alg. 3 line 2 and Alg. 4 lines 3 and 4; errata PG-3 and PG-4.
        """
        mu_z, stages = 1 / (2 * positive("gamma", gamma)), at_least("stages", stages, 1)
        mu = non_negative("mu", mu) or 1 / (stages + 1)
        scale = 52 * positive("smoothness", smoothness) ** 2 / min(mu_z, mu) ** 2 + 1.5  # Lambda
        distance = mu_z * positive("diameter", diameter) ** 2 + mu * positive("dual_diameter", dual_diameter) ** 2
        rounds = log(9 * stages**2 * (0.25 + scale / 2) * distance)
        return cls(
            gamma,
            eta=1 / (mu_z * scale),
            eta_dual=1 / (mu * scale),
            J=ceil(1 + (1.5 + 3 * scale) * log(4)),
            K=max(2, ceil(1 + 4 * rounds)),
            geometry=geometry,
            radius=radius,
        )

    def start(self, engine: Engine) -> None:
        super().start(engine)
        self.require_stored_activations(engine)
        if engine.backend.scaler is not None:
            raise ConfigError(
                "PGSVRG accumulates gradients over a pass, and a gradient that overflows in half precision cannot "
                "be removed from the sum. Use --trainer.precision bf16-mixed or 32."
            )
        self._snapshots = 0  # finished ones of this stage
        self._q = self.uniform()
        self._snapshot: list[Tensor] = []
        self._full: list[Tensor] = []

    @property
    def begun(self) -> bool:
        return self._count > 0 or self._snapshots > 0 or self._pass.begun

    def iteration(self, engine: Engine, batch: Batch) -> None:
        if not self.begun:
            self._point.restart()
        if self._pass.complete:
            self._inner_iteration(engine, batch)
        else:
            self._pass_at_snapshot(engine, batch)
        if self._count == self.J - 1:
            self._end_loop(engine)

    def _pass_at_snapshot(self, engine: Engine, batch: Batch) -> None:
        """Add a batch's contribution to G_z and G_q."""
        term, estimate = engine.problem.all_terms[0], Estimate(None)
        q = self.weights(term) if self._snapshots else self.uniform()
        with self.looking():
            (risks,) = engine.measure(engine.evaluate(batch))[1]
            joined = self._pass.joined(risks, self.values(engine, risks))
            y = (q if risks.rows is None else q.index_select(0, risks.rows)) * self._pass.fresh(risks)
            y = torch.where(risks.present, risks.share * y / risks.weight, 0.0)  # every row once, not divided by p_i
            estimate.add(risks, y * risks.g[:, 0].to(y.dtype))
            gradient = engine.gradients(estimate.value)
            engine.commit(question=~joined.isnan().any())
        if not self._pass.begun:
            self._full = [torch.zeros_like(p) for p in self._params]
            with self._point.held():
                self._snapshot = copied(self._params, self._snapshot)
        self._full = [a + g for a, g in zip(self._full, gradient, strict=True)]
        self._pass.take(joined, complete=engine.answer)
        self._q = q

    def _inner_iteration(self, engine: Engine, batch: Batch) -> None:
        (term,) = engine.problem.all_terms
        ambiguity, penalty = ambiguity_of(term), penalty_of(term)
        q = self.weights(term) if self._count else self._q
        with self.looking():
            old, change = self._at_snapshot(engine, batch)
            g0, (risks,) = engine.measure(engine.evaluate(batch))
            estimate = Estimate(g0)
            change = self.along(engine, risks, self._snapshot) if change is None else risks.g - change
            h = self._pass.values + self.direction(risks, change)
            self.add(estimate, risks, q, penalty)
            self.remember(estimate, term, self.ascend(q, h, ambiguity, self.eta_dual, self._pull(term)))
            engine.descend(estimate)
            engine.commit(self._descent)
            new = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._params]
            for p, g, o, f in zip(self._params, new, old, self._full, strict=True):
                p.grad = g - o + f
        with self.inner_step(engine, self.eta):
            pass

    def _at_snapshot(self, engine: Engine, batch: Batch) -> tuple[list[Tensor], Tensor | None]:
        """``sum qs_i grad R_i / p_i`` and the R_i of a batch at the snapshot, or at w if losses are linearised."""
        point = [p.data for p in self._params] if self.linearised else self._snapshot
        with engine.functions.elsewhere(point):
            (risks,) = engine.measure(engine.evaluate(batch), direct=False)[1]
            estimate = Estimate(None)
            self.add(estimate, risks, self._q, None)
            gradient = engine.gradients(estimate.value)
        return gradient, None if self.linearised else risks.g.detach()

    def _pull(self, term: Term) -> DivergencePenalty:
        """The strongly convex penalty on q of a step: the objective's, or one that decreases from stage to stage."""
        penalty = penalty_of(term)
        return self.proximity(1 / (self._stage + 2)) if penalty is None or penalty.nu == 0 else penalty

    def _end_loop(self, engine: Engine) -> None:
        """Go on to the next snapshot after an inner loop, or end the stage."""
        self._snapshots, self._count = self._snapshots + 1, 0
        self._pass.forget()
        if self._snapshots == self.K - 1:
            self._snapshots = 0
            self.end_stage(engine, self._point.tensors)

    def state_dict(self) -> dict[str, Any]:
        snapshot = {"copy": list(self._snapshot), "valid": bool(self._snapshot)}
        state = {"snapshots": self._snapshots, "snapshot": snapshot, "q": self._q, "full": self._full}
        return {**super().state_dict(), **state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._snapshots, self._full = int(state["snapshots"]), like_parameters(state["full"], self._params)
        self._snapshot = like_parameters(state["snapshot"]["copy"], self._params)
        self._q.copy_(state["q"])

"""ICPPAC: inexact constrained proximal points by constraint extrapolation."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.algorithms.along import along
from fcco_lightning.checks import at_least, non_negative, positive
from fcco_lightning.constraints import Constraint, HingePenalty
from fcco_lightning.constraints.multipliers import Enforcement
from fcco_lightning.engine import Algorithm, Engine, Estimate, Problem, Seen
from fcco_lightning.errors import ConfigError
from fcco_lightning.estimators import InnerPoint
from fcco_lightning.models.batch import Batch
from fcco_lightning.objectives import Objective
from fcco_lightning.outer import excess


class ICPPAC(Algorithm):
    r"""Inexact constrained proximal point method with constraint extrapolation (ConEx) inside; a double loop.

    Every stage approximately solves ``min_z f_0(z) + mu |z - w|^2  s.t.  h_i(z) + mu |z - w|^2 <= 0`` around the centre
    w by inner iterations, each with a batch's values ``F_i`` and gradients ``G_i`` of f_0 (i = 0) and h_i at z_t:

    ``l_i(z_t) = F_i(z_{t-1}) + <G_i(z_{t-1}), z_t - z_{t-1}>``, ``s_t = (1 + theta) l(z_t) - theta l(z_{t-1})``,
    ``y <- [y + (s_t + mu |z_t - w|^2) / tau]_+``,
    ``z_{t+1} = argmin_z <G_0(z_t) + sum_i y_i G_i(z_t), z> + (1 + sum_i y_i) mu |z - w|^2 + |z - z_t|^2 / (2 eta)``.

    The first batch of a stage only gives ``l(z_1) = F(w)``, so that y is always updated with another batch than the one
    that gives the Jacobian; K inner iterations follow, starting with y = 0.  Then the user's optimizer takes a step
    with the gradient ``w - z``: ``torch.optim.SGD`` with ``lr=1`` moves w to z, as in the source.  Outside an iteration
    the network's parameters are the centre w; stages continue across epochs.

    There are no running averages of inner values, so constraints that are not linear in them have the bias of a
    mini-batch.  ``|s_i| <= kappa`` counts as two constraints.  A row that a batch does not contain keeps its l, with
    which its y is still updated; y stays 0 until a batch of the stage contains the row.  A step needs second
    derivatives, which every operation of the network must support.  Gradient clipping acts on the outer step.

    Args:
        mu: proximal parameter, > 0; in theory larger than the weak convexity of the objective and the constraints
            (SONEX paper, F.2: .01, .001, .0001).
        eta: inner step size, > 0 (SONEX paper, F.2: .1, .01).
        tau: inverse dual step size, > 0 (SONEX paper, F.2: 1, 10, 100).
        theta: extrapolation, >= 0 (SONEX paper, F.2: .1).
        K: inner iterations of a stage, >= 1.

    Raises:
        ConfigError: if a number is out of range; from ``pose`` if there is a penalty, if there are no constraints, or
            if the objective has inner functions.
    Source: Boob, Deng and Lan, Stochastic first-order methods for convex and nonconvex functional constrained
        optimization (2023), Algorithms 1 and 4.
    """

    penalises = False

    def __init__(self, mu: float = 0.001, eta: float = 0.1, tau: float = 10.0, theta: float = 0.1, K: int = 50) -> None:
        self.mu = positive("mu", mu)
        self.eta = positive("eta", eta)
        self.tau = positive("tau", tau)
        self.theta, self.K = non_negative("theta", theta), at_least("K", K, 1)

    def pose(
        self,
        objective: Objective,
        constraints: Sequence[Constraint] = (),
        penalty: Enforcement | None = None,
        **kwargs: Any,
    ) -> Problem:
        if penalty is not None:
            raise ConfigError(
                f"ICPPAC takes no penalty, got {type(penalty).__name__}: it has multipliers of its own. Leave penalty "
                "out, or use SONEX."
            )
        if objective.outer is not None:
            raise ConfigError(
                f"ICPPAC stores no estimates of inner values, which {type(objective).__name__} needs. Use an "
                "objective without inner functions, such as AUC or CrossEntropy, or another algorithm, such as "
                "SONEX."
            )
        if not constraints:
            raise ConfigError("ICPPAC is for problems with constraints, and there are none. Add one, or use SGD.")
        return super().pose(objective, constraints, HingePenalty(1.0), **kwargs)  # so that [h]_+ is logged

    def start(self, engine: Engine) -> None:
        self.require_stored_activations(engine)
        if engine.backend.scaler is not None:
            raise ConfigError(
                "ICPPAC differentiates its constraints along a step, which cannot be undone if it overflows in "
                "half precision. Use --trainer.precision bf16-mixed or 32."
            )
        self._params = engine.params
        self._point, self._count = InnerPoint(engine.params), 0
        self._y: list[Tensor] = []  # of every constraint, shape (m, sides)
        self._ahead: list[Tensor] = []  # l at the present z; NaN for rows not yet in a batch of the stage
        self._before: list[Tensor] = []  # l at the previous z; at first a copy of `_ahead`

    def updates_in(self, batches: int) -> int:
        return batches // (self.K + 1)

    def iteration(self, engine: Engine, batch: Batch) -> None:
        if self._count == 0:
            self._point.restart()
        with self._point.held() as centre:
            if self._count == 0:
                self._begin(engine, batch)
            else:
                self._inner_iteration(engine, batch, centre)
        self._count += 1
        if self._count > self.K:
            self._count = 0
            gradient = [p.data - z for p, z in zip(self._params, self._point.tensors, strict=True)]
            engine.update(gradient)

    def _begin(self, engine: Engine, batch: Batch) -> None:
        """Begin a stage with the constraints' values at the centre."""
        with torch.no_grad():
            g0, terms = engine.measure(engine.evaluate(batch))
            sides = [_sides(seen, _signed(seen)) for seen in terms]
            estimate = Estimate(g0)
            for seen, side in zip(terms, sides, strict=True):
                estimate.value = estimate.value + _contained(seen, side, 0.0).sum()  # so that commit checks it
                estimate.count(seen)
        engine.descend(estimate)
        engine.commit()
        self._y = [torch.zeros_like(side) for side in sides]
        self._ahead = [_contained(*one, torch.nan) for one in zip(terms, sides, strict=True)]
        self._before = self._ahead

    def _inner_iteration(self, engine: Engine, batch: Batch, centre: Sequence[Tensor]) -> None:
        away = torch.stack([(p.data - c).square().sum() for p, c in zip(self._params, centre, strict=True)]).sum()
        g0, terms = engine.measure(engine.evaluate(batch))
        signed = [_signed(seen) for seen in terms]
        y = [self._risen(*one, away) for one in zip(self._y, self._ahead, self._before, strict=True)]
        estimate = Estimate(g0)
        for seen, s, multiplier in zip(terms, signed, y, strict=True):
            self._add(estimate, seen, s, multiplier)
        gradient = [g.clone() for g in engine.gradients(estimate.value, local=True, of_samples=True)]
        engine.processes.average_(gradient)
        pull = 2 * self.mu * (1 + torch.stack([one.sum() for one in y]).sum())
        step = [
            ((pull * (c - p.data) - g) / (1 / self.eta + pull)).to(p.dtype)
            for p, c, g in zip(self._params, centre, gradient, strict=True)
        ]
        held = self._ahead
        ahead = [self._linearised(engine, *one, step) for one in zip(terms, signed, held, strict=True)]
        estimate.gradients = gradient
        engine.descend(estimate)
        engine.commit()
        self._y, self._ahead = y, ahead
        self._before = [torch.where(old.isnan(), new, old) for old, new in zip(held, ahead, strict=True)]
        torch._foreach_add_([p.data for p in self._params], step)

    def _risen(self, y: Tensor, ahead: Tensor, before: Tensor, away: Tensor) -> Tensor:
        """The next y, (m, sides); unchanged for rows whose l is not known."""
        s = (1 + self.theta) * ahead - self.theta * before
        return torch.where(ahead.isnan(), y, (y + (s + self.mu * away) / self.tau).clamp(min=0))

    def _add(self, estimate: Estimate, seen: Seen, s: Tensor, y: Tensor) -> None:
        """Add ``sum_i y_i h_i / p_i`` over the rows that the batch contains, with their inclusion probabilities p_i."""
        pressure = y[:, 0] if y.shape[1] == 1 else y[:, 0] - y[:, 1]
        inverse = seen.weight * seen.term.num_rows / seen.term.share  # 1/p_i
        estimate.value = estimate.value + (inverse * pressure * s.squeeze(1)).sum()
        estimate.log(seen, seen.term.outer(seen.g.detach()))

    def _linearised(self, engine: Engine, seen: Seen, s: Tensor, held: Tensor, step: Sequence[Tensor]) -> Tensor:
        """The l at the next z, (m, sides); unchanged for rows that the batch does not contain."""
        return _contained(seen, _sides(seen, s.detach() + along(engine, s, step)), held)

    def state_dict(self) -> dict[str, Any]:
        begun = self._count > 0
        tables = {"y": self._y, "ahead": self._ahead, "before": self._before} if begun else {}
        iterate = list(self._point.tensors) if begun else []
        return {**super().state_dict(), "iterate": iterate, "inner_count": self._count, **tables}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._point.load(state["iterate"])
        self._count, device = int(state["inner_count"]), self._params[0].device
        names = ("y", "ahead", "before")
        self._y, self._ahead, self._before = ([t.to(device) for t in state.get(name, [])] for name in names)


def _signed(seen: Seen) -> Tensor:
    """``h + kappa`` of a one-sided constraint, or s of ``|s| <= kappa``, with graph, (m, 1)."""
    constraint = seen.term.measurable
    assert isinstance(constraint, Constraint)  # noqa: S101 - the objective has no rows
    return constraint.number(seen.g).unsqueeze(1)


def _contained(seen: Seen, values: Tensor, other: Tensor | float) -> Tensor:
    """The values (m, sides), replaced by ``other`` for rows that the batch does not contain."""
    return torch.where(seen.present.unsqueeze(1), values, other)


def _sides(seen: Seen, s: Tensor) -> Tensor:
    """The values h of every side, (m, sides)."""
    constraint = seen.term.measurable
    assert isinstance(constraint, Constraint)  # noqa: S101 - the objective has no rows
    return excess(s, constraint.limit, constraint.sides)

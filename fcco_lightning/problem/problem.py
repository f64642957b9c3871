"""The problem: all terms together, and the surrogate whose gradient estimates grad F."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fcco_lightning.algorithms import Algorithm
from fcco_lightning.constraints import Constraint, HingePenalty, Penalty
from fcco_lightning.distributed import Processes
from fcco_lightning.errors import ConfigError, NonFiniteError
from fcco_lightning.estimators import Estimator
from fcco_lightning.numerics import all_finite
from fcco_lightning.objectives import Objective
from fcco_lightning.outer import OuterFunction
from fcco_lightning.problem.forward import Measured
from fcco_lightning.problem.row_parameters import RowParameters, RowStep
from fcco_lightning.problem.terms import Term, TermStep
from fcco_lightning.records import Batch, Inner
from fcco_lightning.state import DualState, Layout


class Estimates(Mapping[str, Tensor]):
    """Running estimates of the parts of F by name, detached scalars; computed when asked for, so a step costs nothing.

    Args:
        direct: estimate of g_0, or None.
        parts: name, share, outer function and inner values of every term.
    """

    def __init__(self, direct: Tensor | None, parts: Sequence[tuple[str, float, OuterFunction, Tensor]]) -> None:
        self._direct = None if direct is None else direct.detach()
        self._parts = parts

    def __getitem__(self, name: str) -> Tensor:
        values = [share * outer.value(u).mean() for own, share, outer, u in self._parts if own == name]
        if name == "objective" and self._direct is not None:
            values.append(self._direct)
        if not values:
            raise KeyError(name)
        return torch.stack([v.to(values[0].dtype) for v in values]).sum()

    def __iter__(self) -> Iterator[str]:
        direct = [] if self._direct is None else ["objective"]
        return iter(dict.fromkeys([*direct, *(name for name, *_ in self._parts)]))

    def __len__(self) -> int:
        return len(list(iter(self)))


class Surrogate(NamedTuple):
    """The surrogate of one batch.

    Attributes:
        value: ``S(w) = g_0 + sum over terms of share * mean_i <y_i, g_i(w)>``; its gradient is the estimate G.
        previous: the same at the previous weights (for STORM), or None.
        estimates: running estimates of the parts of F by name, detached scalars: these are what is logged.
        steps: what every term that the batch speaks of will remember.
        rows: what the samples' own parameters become, or None.
    """

    value: Tensor
    previous: Tensor | None
    estimates: Estimates
    steps: list[tuple[Term, TermStep, Estimator]]
    rows: RowStep | None


class Problem(nn.Module):
    r"""``min_w g_0(w) + (1/n) sum_i f_i(g_i(w)) + (1/m) sum_j phi_rho(h_j(w))``.

    Holds the dual state of every term and nothing else: state_dict() is what must survive.

    Args:
        objective: the objective.
        constraints: constraints; their rows together are the m of the penalty.
        penalty: phi; None for a hinge with rho = 10.
        algorithm: estimators and smoothing.
        num_samples: size of the training split.
        dtype: of the rows.
        processes: of the job; this one alone by default.
        layout: of the rows of samples, see :class:`DualState`; constraints follow "auto".

    Raises:
        ConfigError: if the algorithm takes dual steps and an outer function is not convex.
    """

    def __init__(
        self,
        objective: Objective,
        constraints: Sequence[Constraint],
        penalty: Penalty | None,
        algorithm: Algorithm,
        num_samples: int,
        dtype: torch.dtype = torch.float32,
        processes: Processes | None = None,
        layout: Layout = "auto",
    ) -> None:
        super().__init__()
        self.processes = processes or Processes()
        self.algorithm, self.penalty = algorithm, penalty or HingePenalty()
        self._objective = (objective,)  # in a tuple: its parameters belong to whoever owns the network
        self.constraints = list(constraints) if algorithm.uses_constraints and self.penalty.rho > 0 else []
        m = sum(c.num_rows for c in self.constraints)
        make = partial(Term, processes=self.processes)
        terms = []
        if objective.outer is not None:
            n, remembers = objective.num_rows(num_samples), algorithm.objective_estimator.remembers
            per_sample = n == num_samples and not objective.distinct
            own_layout: Layout = layout if per_sample else "auto"
            own_dtype = torch.promote_types(dtype, objective.dtype)
            size = (n, objective.width, 1.0, objective.distinct, remembers)
            terms.append(make("objective", *size, dtype=own_dtype, layout=own_layout))
            terms[0].per_sample = per_sample
        remembers = algorithm.estimator.remembers
        terms += [
            make("penalty", c.num_rows, c.width, c.num_rows / m, distinct=True, remembers=remembers, dtype=dtype)
            for c in self.constraints
        ]
        self.terms = nn.ModuleList(terms)
        own = objective.sample_parameters
        self.row_parameters = None if own is None else RowParameters(own, num_samples, self.processes, layout, dtype)
        if algorithm.keeps_rows and any(s.sharded for s in self.states):
            raise ConfigError(
                f"{algorithm.name} keeps a second copy of all rows, which cannot be divided among processes. Use "
                "--model.state_layout replicated, or another algorithm."
            )
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Let rho follow its schedule."""
        smooth = self.algorithm.smoothing
        outers = [] if self.objective.outer is None else [smooth(self.objective.outer)]
        rho = self.penalty.weight(epoch)
        outers += [smooth(c.outer(self.penalty.outer(rho, c.kappa))) for c in self.constraints]
        for outer, estimator in zip(outers, self._estimators(), strict=True):
            if estimator.convex_only:
                outer.require_convex(self.algorithm.name)
            if outer.coupled != estimator.dense:
                use = "needs" if estimator.dense else "cannot use"
                way = "objective.max_form()" if estimator.dense else "the objective itself"
                raise ConfigError(
                    f"{self.algorithm.name} {use} the max form of an objective, the objective is "
                    f"{type(self.objective).__name__}. FCCOModule sees to it; elsewhere pass {way}."
                )
        self.outers: list[OuterFunction] = outers

    @property
    def objective(self) -> Objective:
        """The objective."""
        return self._objective[0]

    def lend(self, batch: Batch) -> Batch:
        """The batch with the parameters that the objective's samples have of their own."""
        return batch if self.row_parameters is None else self.row_parameters.lend(batch)

    @property
    def states(self) -> list[DualState]:
        """Dual states of all terms that keep one."""
        return [t.state for t in self._terms() if t.state is not None]

    @property
    def sample_states(self) -> list[DualState]:
        """Dual states with a row for every sample of the training split."""
        own = [] if self.row_parameters is None else [self.row_parameters.state]
        return own + [s for t, s in ((t, t.state) for t in self._terms()) if s is not None and t.per_sample]

    def surrogate(self, now: Measured, before: Measured | None) -> Surrogate:
        """Track all inner values and return the surrogate; :meth:`commit` writes the rows.

        Args:
            now: inner functions at the point where the gradient is taken, with graph.
            before: the same at the previous point, or None if there is none; with graph if the step needs its gradient.

        Raises:
            NonFiniteError: if a loss, score or inner value is NaN or infinite; no row has changed then.
        """
        with_previous = self.algorithm.step.needs_previous_gradient and before is not None
        previous_inner = [None] * len(now.inner) if before is None else before.inner
        steps: list[tuple[Term, TermStep, Estimator]] = []
        used: list[OuterFunction] = []
        for term, inner, old, outer, estimator in zip(
            self._terms(), now.inner, previous_inner, self.outers, self._estimators(), strict=True
        ):
            if inner is not None and inner.index.numel():
                step = term.step(inner, old, outer, estimator, with_previous=with_previous)
                steps.append((term, step, estimator))
                used.append(outer)
        value = self._total(now.direct, [(t, s.surrogate) for t, s, _ in steps])
        previous = None
        if with_previous and before is not None:
            pairs = [(t, s.previous_surrogate) for t, s, _ in steps if s.previous_surrogate is not None]
            previous = self._total(before.direct, pairs)
        rows = None if self.row_parameters is None else self.row_parameters.step(value)
        # all terms are checked before the first is written, so that a bad batch changes no row of any
        new = [value, *([] if previous is None else [previous]), *(s.tracked.rows for _, s, _ in steps)]
        new += [] if rows is None else [rows.values]
        if not all_finite(new):
            raise NonFiniteError(
                f"{self._blame(now)} is not finite; no row and no weight was changed. The scores or the features hold "
                "NaN or infinity, or the weights diverged: lower the learning rate or rho, clip with "
                "--model.gradient_clip_val, or set --model.skip_nonfinite true to drop such batches."
            )
        parts = [(t.name, t.share, outer, s.estimate) for (t, s, _), outer in zip(steps, used, strict=True)]
        return Surrogate(value, previous, Estimates(now.direct, parts), steps, rows)

    def commit(self, surrogate: Surrogate) -> None:
        """Write the rows that ``surrogate`` was made with: once its gradient is known to be usable."""
        for term, step, estimator in surrogate.steps:
            term.commit(step, estimator)
        if self.row_parameters is not None:
            self.row_parameters.commit(surrogate.rows)

    def _total(self, direct: Tensor | None, parts: Sequence[tuple[Term, Tensor]]) -> Tensor:
        total = direct
        for term, part in parts:
            weighted = part if term.share == 1 else term.share * part
            total = weighted if total is None else total + weighted
        return torch.zeros(()) if total is None else total

    def _blame(self, now: Measured) -> str:
        """Name the first part that is not finite."""
        if now.direct is not None and not bool(torch.isfinite(now.direct)):
            return f"the objective {type(self.objective).__name__} (value {now.direct.item()})"
        for term, inner in zip(self._terms(), now.inner, strict=True):
            if inner is not None and not bool(torch.isfinite(inner.values).all()):
                return f"the inner value of row {_first_bad(inner)} of the {term.name}"
        return "a sum of finite values, or an inner value at the previous weights,"

    def _terms(self) -> list[Term]:
        return list(self.terms)  # type: ignore[arg-type]

    def _estimators(self) -> list[Estimator]:
        own = [] if self.objective.outer is None else [self.algorithm.objective_estimator]
        return own + [self.algorithm.estimator] * len(self.constraints)


def _first_bad(inner: Inner) -> int:
    return int(inner.index[(~torch.isfinite(inner.values)).any(1)][0])

"""The problem: all terms together."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fcco_lightning.constraints import AdaptivePenalty, Constraint, Penalty, kept_together, unique_names
from fcco_lightning.constraints.multipliers import Enforcement
from fcco_lightning.distributed import Processes
from fcco_lightning.engine.multiplier_rows import MultiplierRows
from fcco_lightning.engine.row_parameters import RowParameters
from fcco_lightning.engine.row_weights import (
    Drawn,
    EstimatedWeights,
    RowWeights,
    SampleWeights,
    SubsetWeights,
    can_know,
    partner_presence,
    presence,
    require_company,
    warn_of_rare_rows,
)
from fcco_lightning.engine.terms import Term, kept
from fcco_lightning.objectives import Objective, RowDomain
from fcco_lightning.state import DualState, Layout, RowMap


class Problem(nn.Module):
    r"""``min_w g_0(w) + (1/n) sum_i f_i(g_i(w))``, and ``(1/m) sum_j phi_rho(h_j(w))`` or ``sum_j L_j(h_j(w))``.

    The last part is that of the constraints: of a fixed penalty the mean over them, of multipliers the sum.

    It holds what is remembered of every term and nothing else: its ``state_dict`` is what must survive.  An algorithm
    makes it (:meth:`~fcco_lightning.algorithms.Algorithm.pose`).

    Args:
        objective: the objective.
        constraints: the constraints that are enforced; their rows together are the m of a penalty.  Neighbours of one
            kind are kept together, as one term.
        penalty: how they are enforced; an :class:`~fcco_lightning.AdaptivePenalty` by default.
        num_samples: size of the training split.
        sampling: by part of a batch the columns of its training samples and how they are drawn, from which the weights
            of rows in a batch are computed.  None for loaders of which nothing is known: the weights of the rows of
            groups and constraints are then estimated from how often they come.
        objective_share: the part of a batch on which the objective's gradient is taken (1/2 with half-batches).
        constraint_share: the part on which the gradient of the constraints is taken.
        dtype: of the rows.
        processes: of the job; this one alone by default.
        layout: of the rows of samples, see :class:`DualState`; constraints follow "auto".

    Attributes:
        direct_weight: what a batch's estimate of g_0 is multiplied by: more than 1 where some batches have none.
        terms: the objective's, if it has inner functions, then one of each constraint.
    """

    def __init__(
        self,
        objective: Objective,
        constraints: Sequence[Constraint],
        penalty: Enforcement | None,
        num_samples: int,
        *,
        sampling: Mapping[str, Drawn] | None = None,
        objective_share: float = 1.0,
        constraint_share: float = 1.0,
        dtype: torch.dtype = torch.float32,
        processes: Processes | None = None,
        layout: Layout = "auto",
    ) -> None:
        super().__init__()
        self.processes, self.penalty = processes or Processes(), penalty or AdaptivePenalty()
        self._objective = (objective,)  # in a tuple: its parameters belong to whoever owns the network
        self.constraints = kept_together(constraints) if self.penalty.acts else []
        self._sampling, self._dtype = sampling, dtype
        objective.prepare(num_samples)
        objective.join(self.processes)
        terms: list[Term] = []
        if objective.outer is not None:
            terms.append(self._objective_term(num_samples, layout, objective_share))
        terms += [self._constraint_term(c, constraint_share) for c in self.constraints]
        self.all_terms, self.terms = terms, nn.ModuleList(terms)
        per_sample = objective.sample_parameters
        self.row_parameters = (
            None if per_sample is None else RowParameters(per_sample, num_samples, self.processes, layout, dtype)
        )
        self.direct_weight = self._direct_weight()
        self._sampling = None  # the columns of the data are not needed any more

    @property
    def objective(self) -> Objective:
        """The objective."""
        return self._objective[0]

    @property
    def states(self) -> list[DualState]:
        """The dual states of all terms that keep rows."""
        return kept(self.all_terms)

    @property
    def states_of_samples(self) -> list[DualState]:
        """Those in which row i belongs to sample i of the first part: their rows can come along with a batch."""
        states = kept([term for term in self.all_terms if term.per_sample and term.row_map is None])
        return states if self.row_parameters is None else [*states, self.row_parameters.state]

    def multipliers(self) -> dict[str, float]:
        """The multiplier of every row of the constraints by its name, see :meth:`Term.multiplier_values`.

        Empty where constraints are enforced otherwise.  Where two constraints have one name, the later one gets an
        apostrophe.  All processes call it.
        """
        values = torch.cat([term.multiplier_values() for term in self.all_terms]) if self.all_terms else torch.empty(0)
        names = unique_names([name for constraint in self.constraints for name in constraint.names])
        return dict(zip(names, values.tolist(), strict=True)) if len(values) else {}

    def begin_epoch(self, epoch: int) -> None:
        """Let rho follow its schedule."""
        if not isinstance(self.penalty, Penalty):
            return
        rho = self.penalty.weight(epoch)
        compositional = len(self.all_terms) - len(self.constraints)
        for constraint, term in zip(self.constraints, self.all_terms[compositional:], strict=True):
            term.outer = constraint.outer(self.penalty.outer(rho, constraint.kappa))

    def _objective_term(self, num_samples: int, layout: Layout, of_batch: float) -> Term:
        objective, drawn = self.objective, self._drawn(self.objective.part)
        domain = objective.row_domain(num_samples, None if drawn is None else drawn.columns)
        outer = objective.outer  # it may depend on what the objective now knows of the rows
        assert outer is not None  # noqa: S101 - the caller has seen to it
        row_map = None if domain.owners is None else RowMap(domain.owners.flatten())
        weights: RowWeights
        if domain.per_sample:
            weights = self._sample_weights(objective, domain, row_map, of_batch)
        else:
            weights = self._subset_weights(objective, domain, of_batch)
        return Term(
            "objective",
            outer,
            domain.num_rows if row_map is None else row_map.num_rows,
            objective.width,
            share=1.0,
            distinct=objective.distinct,
            dtype=torch.promote_types(self._dtype, objective.dtype),
            weights=weights,
            range=domain.range,
            row_map=row_map,
            per_sample=domain.per_sample,
            part=objective.part,
            processes=self.processes,
            layout=layout if domain.per_sample else "auto",
            growth=objective.growth,
        )

    def _sample_weights(
        self, objective: Objective, domain: RowDomain, row_map: RowMap | None, of_batch: float
    ) -> SampleWeights:
        owners, partners = domain.owners, domain.partners
        if owners is None or row_map is None:
            return SampleWeights()
        drawn = self._drawn(objective.part)
        together: torch.Tensor | float = 1.0
        if drawn is not None and partners is not None:
            together = partner_presence(owners, partners, drawn, type(objective).__name__, of_batch)
        return SampleWeights(len(owners) / row_map.num_rows, owners[0].numel(), together)

    def _constraint_term(self, constraint: Constraint, of_batch: float) -> Term:
        multipliers = None
        if isinstance(self.penalty, Penalty):
            outer = constraint.outer(self.penalty.outer(self.penalty.weight(0), constraint.kappa))
            share = constraint.num_rows / sum(c.num_rows for c in self.constraints)
        else:
            multipliers = MultiplierRows(self.penalty, constraint, self._dtype, self.processes)
            outer, share = multipliers.outer(), float(constraint.num_rows)
        return Term(
            "penalty",
            outer,
            constraint.num_rows,
            constraint.width,
            share=share,
            distinct=True,
            dtype=self._dtype,
            weights=self._subset_weights(constraint, RowDomain(constraint.num_rows), of_batch),
            range=constraint.range,
            part=constraint.part,
            processes=self.processes,
            multipliers=multipliers,
        )

    def _direct_weight(self) -> float:
        drawn = self._drawn(self.objective.part)
        subsets = None if drawn is None else self.objective.direct_subsets(drawn.columns)
        if drawn is None or subsets is None:
            return 1.0
        name = type(self.objective).__name__
        probability = presence([subsets], drawn, [name])
        require_company(float(probability[0]), name)
        warn_of_rare_rows(probability, [name])
        return 1 / float(probability[0])

    def _drawn(self, part: str | tuple[str, ...] | None) -> Drawn | None:
        if self._sampling is None or isinstance(part, tuple):
            return None
        return next(iter(self._sampling.values())) if part is None else self._sampling.get(part)

    def _subset_weights(self, part: Any, domain: RowDomain, of_batch: float) -> RowWeights:
        drawn = self._drawn(part.part)
        subsets = None if drawn is None else part.subsets(drawn.columns)
        if drawn is None or subsets is None or not can_know(subsets):
            return EstimatedWeights(domain.num_rows)
        names = getattr(part, "names", None) or [f"{type(part).__name__} {i}" for i in range(domain.num_rows)]
        probability = presence(subsets, drawn, names, of_batch)
        warn_of_rare_rows(probability, names)
        if isinstance(part, Objective):
            part.know_presence(probability)
        return SubsetWeights(probability)

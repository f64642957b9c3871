"""The problem: the objective and the constraints as a sum of terms, with their rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fcco_lightning.constraints import AdaptivePenalty, Constraint, Penalty, kept_together, unique_names
from fcco_lightning.constraints.multipliers import Enforcement
from fcco_lightning.data.batches import BatchDraws, Drawn
from fcco_lightning.data.fingerprint import contents_of, require_same_where_known
from fcco_lightning.engine.batches import as_read
from fcco_lightning.engine.multiplier_rows import MultiplierRows
from fcco_lightning.engine.probability import (
    Inclusion,
    can_know,
    most_in_a_batch,
    of_rows,
    owner_presence,
    partner_presence,
    presence,
    require_company,
    warn_of_rare_rows,
    within_strata,
)
from fcco_lightning.engine.row_parameters import RowParameters
from fcco_lightning.engine.terms import Term
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import KNOWN_STRATUM, POPULATION, SAMPLE_WEIGHT, Batch, Columns, dual_of
from fcco_lightning.numerics import Known
from fcco_lightning.objectives import Measurable, Objective, RowDomain
from fcco_lightning.state import DualState, Layout, checked_index
from fcco_lightning.state.processes import Processes

_OFTEN = 1 / 4  # fraction of the batches with samples of all sides that must also hold some of every stratum


class Problem(nn.Module):
    r"""``min_w g_0(w) + (1/n) sum_i f_i(g_i(w))``, and ``(1/m) sum_j phi_rho(h_j(w))`` or ``sum_j L_j(h_j(w))``.

    The last summand is that of the constraints: with a fixed penalty their mean, with multipliers their sum.

    It holds the remembered rows of every term and nothing else; its ``state_dict`` must be saved in checkpoints.  It is
    made by an algorithm (:meth:`~fcco_lightning.algorithms.Algorithm.pose`).

    Args:
        objective: the objective.
        constraints: the constraints to enforce, with m rows in all.  Neighbours of the same kind form one term.
        penalty: how they are enforced; an :class:`~fcco_lightning.AdaptivePenalty` by default.
        num_samples: size of the training split.
        sampling: for every part of a batch the columns of its training samples and how they are drawn, from which the
            inclusion probabilities of rows are computed.  None for unknown loaders: the probabilities of rows of groups
            and constraints are then estimated from how often the rows occur.
        objective_share: the fraction of a batch on which the objective's gradient is computed (1/2 with half-batches).
        constraint_share: the same for the constraints.
        dtype: type of the rows.
        processes: the processes of the job; this one alone by default.
        layout: where the rows of samples are stored, see :class:`DualState`; for constraints it is "auto".

    Raises:
        ConfigError: if ``sampling`` describes another number of samples, or samples with weights that the objective or
            a constraint does not support.

    Attributes:
        direct_weight: factor on a batch's estimate of g_0: more than 1 where some batches lack the samples for it.
        may_lack_direct: whether a batch may lack the samples for g_0, whose estimate is then 0, or only the part of g_0
            that every batch measures.
        num_samples: n, size of the training split.
        declared: ``sampling``, with which the first batches are compared.
        compositional: whether the objective has inner functions, which then form the first term.
        most: the largest numbers of samples in a batch of the plan, see :attr:`Objective.most`.
        terms: the objective's, if it has inner functions, then one for each constraint.
        multipliers_of_terms: the stored multipliers of every constraint; empty with a penalty.
        units_known: whether the multipliers are known to have their unit.
        settles: whether parameters of the objective's outer function are set to the best values for its rows.
        loaded: whether a state was loaded since the last trained batch.
    """

    objective: Objective
    settles: bool = False
    loaded: bool = False

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
        self.__dict__["objective"] = objective  # not a submodule: its parameters are not the problem's
        self.constraints = kept_together(constraints) if self.penalty.acts else []
        self.num_samples, self._dtype = num_samples, dtype
        self.declared = {name: _as_read(drawn) for name, drawn in (sampling or {}).items()}
        self._require_one_size(objective)
        for measurable in (objective, *self.constraints):
            self._require_weighing(measurable)
        self._strata: dict[str | None, Known] = {}  # by part, where constraints use the strata of samples
        self._sides: list[tuple[Constraint, Any]] = []  # constraints and the strata of their sides
        objective.num_samples = num_samples
        objective.join(self.processes)
        terms: list[Term] = []
        self.compositional = objective.outer is not None
        if self.compositional:
            terms.append(self._objective_term(num_samples, layout, objective_share))
        terms += [self._constraint_term(c, constraint_share) for c in self.constraints]
        self.all_terms, self.terms = terms, nn.ModuleList(terms)
        self.multipliers_of_terms = [term.multipliers for term in terms if term.multipliers is not None]
        self.units_known = not self.multipliers_of_terms
        per_sample = objective.sample_parameters
        self.row_parameters = (
            None
            if per_sample is None
            else RowParameters(
                per_sample,
                num_samples,
                self.processes,
                layout,
                dtype,
                repeats=self._repeats(objective.part),
                shares=self._shares_of_samples(num_samples),
            )
        )
        self.direct_weight, self.most = self._direct_weight(), self._most()
        objective.direct_weight = self.direct_weight
        unknown = self._drawn(objective.part) is None and type(objective).direct_subsets is not Objective.direct_subsets
        self.may_lack_direct = unknown or self.direct_weight != 1
        for number, term in enumerate(terms):
            term.number = number
        self._noted = {k: v for k, v in vars(objective).items() if k not in vars(nn.Module())}
        self._noted["_posed_by"] = object()  # a deep copy has another one
        self.own()

    def own(self) -> None:
        """Give the objective the values that this problem set, if another problem that shares it has set its own."""
        objective = vars(self.objective)  # torch looks through all of a module's members to set one
        if objective.get("_posed_by") is not self._noted["_posed_by"]:
            objective.update(self._noted)

    def numbered_states(self) -> list[DualState]:
        """All dual states, numbered, including those of multipliers and of samples' parameters."""
        states = [m for m in self.modules() if isinstance(m, DualState)]
        for number, state in enumerate(states):
            state.number = number
        return states

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Also move the objective, which is no submodule, and rebuild f with its moved parameters."""
        self.objective._apply(fn, recurse)  # type: ignore[no-untyped-call]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.own()
        if (outer := self.objective.outer) is not None:
            self.all_terms[0].take(outer)
        return self

    @property
    def states(self) -> list[DualState]:
        """The dual states of all terms that keep rows."""
        return [term.state for term in self.all_terms if term.state is not None]

    @property
    def needs_index(self) -> bool:
        """Whether rows are looked up by the samples' ``index``."""
        rows = self.row_parameters is not None or any(term.per_sample and term.state for term in self.all_terms)
        return rows or bool(self._strata)

    def attach(self, batch: Batch) -> Batch:
        """The batch with the columns of its samples' parameters, and of the strata that constraints use."""
        if self.objective.__dict__.get("_posed_by") is not self._noted["_posed_by"]:
            self.own()
        if self.row_parameters is not None:
            batch = self.row_parameters.attach(batch)
        for constraint in self.constraints:  # another problem may share it
            constraint.strata = None
        for constraint, sides in self._sides:
            constraint.strata = sides
        for name, strata in list(self._stratified(batch)) if self._strata else ():
            index, table = batch[name]["index"], strata.like(batch[name]["index"])
            if index.device.type != "cpu":  # a GPU cannot raise for an index; `check_index` does
                index = index.clamp(0, len(table) - 1)
            batch = {**batch, name: {**batch[name], KNOWN_STRATUM: table.index_select(0, index)}}
        return batch

    def check_index(self, batch: Batch) -> None:
        """Check the index of the samples to which :meth:`attach` adds columns.

        Raises:
            StateIndexError: naming an index that is not that of a training sample.
        """
        if self.row_parameters is not None:
            self.row_parameters.state.checked_index(next(iter(batch.values()))["index"])
        for name, strata in self._stratified(batch):
            checked_index(batch[name]["index"], len(strata.values))

    def _stratified(self, batch: Batch) -> Iterator[tuple[str, Known]]:
        """The parts, and their independent draws, in which constraints use strata; each with the strata."""
        first = next(iter(batch))
        for part, strata in self._strata.items():
            name = part or first
            yield from ((draw, strata) for draw in (name, dual_of(name, first)) if draw in batch)

    def follow(self, optimizer: Optimizer) -> None:
        """Scale the dual step sizes of multipliers with the learning rate; called before a batch is measured."""
        for multipliers in self.multipliers_of_terms:
            multipliers.follow(optimizer)

    def settle(self) -> None:
        """Set parameters of the objective's outer function to the best values for its rows."""
        term = self.all_terms[0]
        assert term.state is not None  # noqa: S101 - of estimators that remember, see `settles`
        self.objective.settle(term.state.gather(None), term.smoothed)

    def committed(self) -> None:
        """Record that the step is being taken; called when the new rows are written."""
        for multipliers in self.multipliers_of_terms:
            multipliers.note_rate()
        if self.row_parameters is not None:
            self.row_parameters.committed()

    def have_units(self) -> Tensor:
        """Whether all multipliers have their unit, as a bool tensor."""
        return torch.stack([~multipliers.unit.isnan() for multipliers in self.multipliers_of_terms]).all()

    def take_units(self, estimates: Mapping[str, Tensor], *, known: bool) -> None:
        """Set the unit of the multipliers from the first batch that measures the objective.

        Args:
            estimates: the summands of F as estimated on a batch.
            known: the value of :meth:`have_units` before that batch.
        """
        if known:
            self.units_known = True
        elif "objective" in estimates:
            # the value of g_0 in the batches that measure it, without the weight for the batches that do not; a
            # cross-entropy beside g_0 is measured by all batches
            weight = 1.0 if self.objective.always_measured else self.direct_weight
            for multipliers in self.multipliers_of_terms:
                multipliers.measure(estimates["objective"] / weight, zero_is_none=weight != 1)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.loaded = True
        self.units_known = not self.multipliers_of_terms  # the units are those of the checkpoint, if it knows them

    def multipliers(self) -> dict[str, float]:
        """The multiplier of every constraint row by name, see :meth:`Term.multiplier_values`.

        Empty without multipliers.  Where two constraints have the same name, the later one gets an apostrophe.  All
        processes must call it.
        """
        values = torch.cat([term.multiplier_values() for term in self.all_terms]) if self.all_terms else torch.empty(0)
        names = unique_names(self.constraints)
        return dict(zip(names, values.tolist(), strict=True)) if len(values) else {}

    def take_constraints(self, other: "Problem") -> None:
        """Take over the rows and multipliers of another problem with the same constraints."""
        terms, other_terms = (problem.all_terms[problem.compositional :] for problem in (self, other))
        for term, before in zip(terms, other_terms, strict=True):
            term.load_state_dict(before.state_dict())

    def begin_epoch(self) -> None:
        """Set the penalties to the present margins of the constraints."""
        if not isinstance(self.penalty, Penalty):
            return
        for constraint, term in zip(self.constraints, self.all_terms[self.compositional :], strict=True):
            term.take(constraint.outer(self.penalty.outer(constraint.kappa)))

    def _objective_term(self, num_samples: int, layout: Layout, batch_share: float) -> Term:
        objective, drawn = self.objective, self._drawn(self.objective.part)
        domain = objective.row_domain(num_samples, None if drawn is None else _of_population(drawn, batch_share))
        outer = objective.outer  # it may depend on what the objective now knows of the rows
        assert outer is not None  # noqa: S101 - the caller has seen to it
        return Term(
            "objective",
            objective,
            outer,
            domain,
            inclusion=self._inclusion_of_objective(domain, batch_share),
            dtype=torch.promote_types(self._dtype, objective.dtype),
            repeats=not domain.per_sample or self._repeats(objective.part),
            processes=self.processes,
            layout=layout,
            growth=objective.growth,
        )

    def _inclusion_of_objective(self, domain: RowDomain, batch_share: float) -> Inclusion:
        if not domain.per_sample:
            return self._inclusion_by_subsets(self.objective, domain.num_rows, batch_share)
        partners, drawn = domain.partners, self._drawn(self.objective.part)
        all_own, owners = domain.owners is None, domain.owners
        owners = torch.ones(domain.num_rows, dtype=torch.bool) if owners is None else owners
        num_rows = int(owners.sum())
        if num_rows == 0:
            raise DataError(
                f"none of the {owners.numel()} training samples has a row in this term: for an average over "
                "positives, for instance, the training split must contain a positive. Check the labels."
            )
        together: Tensor | float = 1.0
        if drawn is not None and partners is not None:
            if batch_share < 1 and not drawn.plan.halves_known:
                raise ConfigError(
                    f"{type(self.objective).__name__} needs the probability that half of a batch contains samples "
                    "of both kinds. It is unknown here, because batches may contain a sample twice, or an odd "
                    "number of samples of several groups, so that the two halves differ. Draw other numbers "
                    "(samples_per_group: even, allow_repeats: false), or set the algorithm's `jacobian` to "
                    '"part" with two_draws of `batches`.'
                )
            together = partner_presence(owners, partners, drawn, type(self.objective).__name__, batch_share)
        owning = self._drawn_first(self.objective.part)
        population = None if owning is None else owning.plan.population(batch_share)
        if owning is None or population is None:
            return Inclusion(together, len(owners) / num_rows, all_own)
        known = batch_share == 1 or owning.plan.halves_known
        probability = together * owner_presence(owners, owning, batch_share) if known else None
        return Inclusion(probability, population=of_rows(population, owners))

    def _repeats(self, part: str | tuple[str, ...] | None) -> bool:
        """Whether a batch may hold a sample twice."""
        drawn = self._drawn_first(part)
        return drawn is None or not drawn.plan.distinct

    def _constraint_term(self, constraint: Constraint, batch_share: float) -> Term:
        multipliers = None
        if isinstance(self.penalty, Penalty):
            outer = constraint.outer(self.penalty.outer(constraint.kappa))
            share = constraint.num_rows / sum(c.num_rows for c in self.constraints)
        else:
            multipliers = MultiplierRows(self.penalty, constraint, self._dtype, self.processes)
            outer, share = multipliers.outer(), float(constraint.num_rows)
        return Term(
            "penalty",
            constraint,
            outer,
            RowDomain(constraint.num_rows, range=constraint.range),
            inclusion=self._inclusion_by_subsets(constraint, constraint.num_rows, batch_share),
            share=share,
            dtype=self._dtype,
            repeats=False,
            processes=self.processes,
            multipliers=multipliers,
        )

    def _shares_of_samples(self, num_samples: int) -> Tensor | None:
        """Weight of every sample in a batch that holds it, (n,); None where batches stand for the data themselves."""
        drawn = self._drawn_first(self.objective.part)
        population = None if drawn is None else drawn.plan.population()
        if drawn is None or population is None:
            return None
        owners = torch.ones(num_samples, dtype=torch.bool)
        return population / (num_samples * owner_presence(owners, drawn).clamp(min=torch.finfo(torch.float32).tiny))

    def _direct_weight(self) -> float:
        drawn = self._drawn(self.objective.part)
        subsets = None if drawn is None else self.objective.direct_subsets(_of_population(drawn))
        if drawn is None or subsets is None:
            return 1.0
        name = type(self.objective).__name__
        probability = presence([subsets], drawn, [name])
        require_company(float(probability[0]), name)
        warn_of_rare_rows(probability, [name])
        return 1 / float(probability[0])

    def _most(self) -> tuple[int, ...]:
        drawn = self._drawn(self.objective.part)
        kinds = () if drawn is None else self.objective.kinds(drawn.columns)
        return most_in_a_batch(kinds, drawn) if kinds and drawn is not None else ()

    def _drawn(self, part: str | tuple[str, ...] | None) -> Drawn | None:
        if not self.declared or isinstance(part, tuple):
            return None
        return next(iter(self.declared.values())) if part is None else self.declared.get(part)

    @cached_property
    def data(self) -> dict[str, Any]:
        """A description that identifies the training split: its number of rows, and digests of its known columns."""
        several = len(self.declared) > 1
        contents: dict[str, str] = {}
        for part, drawn in self.declared.items():
            digests = contents_of({name: c for name, c in drawn.columns.items() if isinstance(c, Tensor)})
            contents |= {f"{part}.{name}" if several else name: digest for name, digest in digests.items()}
        return {"rows": self.num_samples, "contents": contents}

    def require_same_data(self, stored: Mapping[str, Any] | None, *, allow_changed: bool = False) -> None:
        """Refuse a state whose rows belong to another training split.

        Args:
            stored: :attr:`data` of the problem that wrote the state; None if it is not known.
            allow_changed: whether a difference only causes a warning.

        Raises:
            DataError: naming what differs.
        """
        if stored is not None:
            require_same_where_known(stored, self.data, allow_changed=allow_changed)

    def _require_one_size(self, objective: Objective) -> None:
        drawn = self._drawn(objective.part)
        size = None if drawn is None else next((len(column) for column in drawn.columns.values()), None)
        if size is not None and size != self.num_samples:
            raise ConfigError(
                f"num_samples={self.num_samples}, but `sampling` describes a training split of {size} samples. Both "
                "must be the size of the training split, whose samples the column `index` numbers from 0."
            )

    def _require_weighing(self, measurable: Measurable) -> None:
        drawn = None if measurable.weighs_samples else self._drawn_first(measurable.part)
        if drawn is not None and SAMPLE_WEIGHT in drawn.columns:
            raise ConfigError(
                f"{type(measurable).__name__} does not support sample weights, and the data has them "
                f"({SAMPLE_WEIGHT}; columns.weight of a table, sample_weight of a classifier). Leave the weights "
                "out."
            )

    def _drawn_first(self, part: str | tuple[str, ...] | None) -> Drawn | None:
        """The samples of the part that owns the rows: the first one, where a term has several."""
        return self._drawn(part[0] if isinstance(part, tuple) else part)

    def _inclusion_by_subsets(self, measurable: Measurable, num_rows: int, batch_share: float) -> Inclusion:
        drawn = self._drawn(measurable.part)
        subsets = None if drawn is None else measurable.subsets(drawn.columns)
        if (
            drawn is None
            or subsets is None
            or not can_know(subsets)
            or (batch_share < 1 and not drawn.plan.halves_known)
        ):
            return Inclusion()
        names = getattr(measurable, "names", None) or [f"{type(measurable).__name__} {i}" for i in range(num_rows)]
        probability = presence(subsets, drawn, names, batch_share)
        if isinstance(measurable, Constraint):
            probability = self._by_strata(measurable, subsets, drawn, batch_share, probability)
        if isinstance(measurable, Objective):
            measurable.know_presence(probability)
        warn_of_rare_rows(probability, names)
        return Inclusion(probability)

    def _by_strata(
        self,
        constraint: Constraint,
        subsets: Sequence[Sequence[Tensor]],
        drawn: Drawn,
        batch_share: float,
        probability: Tensor,
    ) -> Tensor:
        """Probabilities of a constraint's rows, measured by strata where batches often hold samples of all strata.

        For joined constraints this is decided for each of them (:attr:`Constraint.together`).

        Args:
            constraint: the constraint.
            subsets: see :meth:`Measurable.subsets`.
            drawn: the samples of its part.
            batch_share: fraction of a batch on which the gradient is computed.
            probability: inclusion probabilities of the rows without strata, shape (m,).
        """
        strata = drawn.plan.strata
        weight = drawn.plan.weights()
        weighted = SAMPLE_WEIGHT in drawn.columns
        if weight is None or (strata is None and not weighted):  # otherwise all samples weigh alike
            return probability
        strata = torch.zeros(len(weight), dtype=torch.int64) if strata is None else strata
        strata = torch.where(weight > 0, strata, -1)
        combined, by_strata = probability.clone(), torch.zeros(len(subsets), dtype=torch.bool)
        for first in range(0, len(subsets), constraint.together):
            rows = slice(first, first + constraint.together)
            cells = within_strata(subsets[rows], strata)
            if cells is None or not bool(probability[rows].all()):  # too many strata, or an empty row
                continue
            undivided = all(len(parts) == len(row) for parts, row in zip(cells, subsets[rows], strict=True))
            if undivided and not weighted:  # its samples weigh alike: the plain mean is unbiased
                continue
            within = presence(cells, drawn, constraint.names[rows], batch_share)
            if bool((within >= _OFTEN * probability[rows]).all()):
                combined[rows], by_strata[rows] = within, True
        sides = constraint.over_strata(_of_population(drawn), strata, by_strata) if bool(by_strata.any()) else None
        if sides is None:
            return probability
        self._sides.append((constraint, sides))
        self._strata[constraint.part if isinstance(constraint.part, str) else None] = Known(strata)
        return combined


def _of_population(drawn: Drawn, share: float = 1.0) -> Columns:
    """The columns of the training samples, with :data:`POPULATION` where batches stand for another population."""
    population = drawn.plan.population(share)
    return drawn.columns if population is None else {**drawn.columns, POPULATION: population}


def _as_read(drawn: Drawn) -> Drawn:
    if not isinstance(drawn, Drawn):
        raise ConfigError(
            "the values of `sampling` must be Drawn objects, one for each part of a batch, got a "
            f"{type(drawn).__name__}. Pass what IndexedDataset.drawn returns, "
            f"sampling=dataset.drawn(batch_size=32), or {{'target': Drawn(columns, plan)}}."
        )
    if not isinstance(drawn.plan, BatchDraws):
        raise ConfigError(
            "the plan of a Drawn object must be a subclass of BatchDraws, which describes how batches are drawn, "
            f"got a {type(drawn.plan).__name__}. Use the plan of a sampling, for example "
            "UniformSampling(32).plan(columns)."
        )
    return drawn._replace(columns=as_read(drawn.columns))

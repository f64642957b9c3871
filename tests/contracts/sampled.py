"""A small table sampled in three ways, the gradient estimate of a batch, and cases with their formulas.

The gradient is with respect to the table of all outputs of the network, from which the network reads them, so it
determines the gradient with respect to any weights.  Cases write F a second time, as loops over lists of scalars.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import combinations, product
from math import comb, prod
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fcco_lightning import OOA, SGD, SOX, Engine, Objective
from fcco_lightning.algorithms import Algorithm
from fcco_lightning.constraints import Constraint, HingePenalty
from fcco_lightning.data.batches import BatchDraws, Drawn
from fcco_lightning.engine import Estimate, Outputs, Seen
from fcco_lightning.engine.functions import unite
from fcco_lightning.errors import DataError
from fcco_lightning.models.batch import HERE, SAMPLE_WEIGHT
from fcco_lightning.state import DualState
from fcco_lightning.state.processes import Gathered
from tests.reference.probabilities import Balanced, Groups, Sampler, Uniform, none_of

N = 9
STRATUM = [1, 0, 1, 0, 0, 1, 0, 0, 0]
GROUP = [0, 0, 1, 0, 0, 0, 1, 1, 2]  # one group has a single sample


QUERY = [3, 8, 3, 8, 3, 8, 3, 8, 3]
GRADE = [2, 0, 1, 0, 1, 0, 0, 1, 0]
EVENT = [1, 1, 1, 1, 0, 1, 0, 1, 0]
CLASS = [0, 0, 1, 1, 2, 2, 0, 1, 2]
BAG = [4, 7, 4, 2, 7, 11, 9, 2, 7]  # one to three samples per bag, all of one stratum


class Way(NamedTuple):
    """A way of sampling: strata of the samples, and the column ``weight`` of batches, if they have one.

    With ``sized`` batches also have the columns ``stratum`` and ``stratum_size``, and with ``chosen`` also ``strata``.
    If ``replaced`` is not 0, they have this column, too: how often a batch contains each draw.
    """

    sampler: Sampler
    strata: Tensor | None
    weight: Tensor | None
    sized: bool = False
    chosen: bool = False
    replaced: int = 0
    sample_weight: Tensor | None = None

    def columns(self) -> dict[str, Tensor]:
        """The columns that a plan adds to batches, for all samples."""
        weight = {} if self.weight is None else {"weight": self.weight}
        weight |= {} if self.sample_weight is None else {SAMPLE_WEIGHT: self.sample_weight}
        if not self.sized or self.strata is None:
            return weight
        columns = weight | {"stratum": self.strata, "stratum_size": torch.bincount(self.strata)[self.strata]}
        if self.chosen:
            columns["strata"] = torch.full_like(self.strata, int(self.strata.max()) + 1)
        return columns | {"replaced": torch.full_like(self.strata, self.replaced)} if self.replaced else columns


class Nested(Sampler):
    """Draws some groups, and of each some samples of its strata without replacement; small strata are repeated.

    Args:
        groups: for every group its strata, each as (members, number of draws).
        chosen: number of groups in a batch.
    """

    def __init__(self, groups: list[list[tuple[list[int], int]]], chosen: int) -> None:
        self.groups, self.chosen = groups, chosen

    def absent(self, subset: Any) -> float:
        marked = set(map(int, subset))
        missed = [
            prod(none_of(len(m), min(d, len(m)), len(marked & set(m))) for m, d in strata) for strata in self.groups
        ]
        choices = list(combinations(missed, self.chosen))
        return sum(map(prod, choices)) / len(choices)

    def batches(self) -> Iterator[tuple[tuple[int, ...], float]]:
        for some in combinations(self.groups, self.chosen):
            strata = [stratum for group in some for stratum in group]
            draws = [[d // len(m) * tuple(m) + rest for rest in combinations(m, d % len(m))] for m, d in strata]
            chance = 1 / comb(len(self.groups), self.chosen) / prod(map(len, draws))
            for parts in product(*draws):
                yield sum(parts, ()), chance

    def way(self, n: int) -> Way:
        """The way of sampling in which a sample has the weight B / (n p), p being its expected number of draws."""
        strata, weight = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.float64)
        every = [stratum for group in self.groups for stratum in group]
        size = self.chosen * sum(drawn for _, drawn in self.groups[0])
        for number, (members, drawn) in enumerate(every):
            strata[members] = number
            weight[members] = size * len(self.groups) * len(members) / (n * self.chosen * drawn)
        single = all(len(group) == 1 for group in self.groups)
        return Way(self, strata, None if bool((weight == 1).all()) else weight, sized=True, chosen=single)


class Apart(Sampler):
    """Unions of a batch of every part, drawn independently."""

    def __init__(self, parts: list[Sampler]) -> None:
        self.parts = parts

    def absent(self, subset: Any) -> float:
        return prod(part.absent(subset) for part in self.parts)

    def batches(self) -> Iterator[tuple[tuple[int, ...], float]]:
        for chosen in product(*(part.batches() for part in self.parts)):
            yield sum((batch for batch, _ in chosen), ()), prod(chance for _, chance in chosen)


def queries_of(queries: list[int], grades: list[int], relevant: int, others: int, chosen: int) -> Way:
    """Draws relevant and irrelevant items of some queries."""

    def items(query: int, *, positive: bool) -> list[int]:
        return [i for i, q in enumerate(queries) if q == query and (grades[i] > 0) == positive]

    groups = [[(items(q, positive=True), relevant), (items(q, positive=False), others)] for q in sorted(set(queries))]
    return Nested(groups, chosen).way(len(queries))


def classes_of(classes: list[int], samples: int, chosen: int) -> Way:
    """Draws samples of some classes."""
    members = [[i for i, c in enumerate(classes) if c == k] for k in sorted(set(classes))]
    return Nested([[(m, samples)] for m in members], chosen).way(len(classes))


def bags_of(bags: list[int], labels: list[int], positive: int, negative: int, samples: int) -> Way:
    """Draws samples of some positive and some negative bags."""
    drawn = {1: positive, 0: negative}
    members = {label: [] for label in drawn}
    strata, weight = torch.zeros(len(bags), dtype=torch.int64), torch.zeros(len(bags), dtype=torch.float64)
    for number, bag in enumerate(sorted(set(bags))):
        inside = [i for i, b in enumerate(bags) if b == bag]
        members[labels[inside[0]]].append(inside)
        strata[inside] = number
    for label, several in members.items():
        for inside in several:
            chance = drawn[label] / len(several) * samples / len(inside)
            weight[inside] = (positive + negative) * samples / (len(bags) * chance)
    parts = [Nested([[(m, samples)] for m in members[label]], drawn[label]) for label in drawn]
    return Way(Apart(parts), strata, weight, sized=True)


def balanced(labels: list[int], positives: int, negatives: int) -> Way:
    strata = torch.tensor(labels)
    share = torch.tensor([negatives, positives], dtype=torch.float64) / (negatives + positives)
    return Way(
        Balanced(labels, positives, negatives),
        strata,
        (torch.bincount(strata).double() / len(labels) / share)[strata],
    )


def groupwise(groups: list[int], drawn: int, samples: int, *, replace: bool = True) -> Way:
    return Way(Groups(groups, drawn, samples, replace), torch.tensor(groups), None)


def redrawn(classes: list[int], samples: int, chosen: int) -> Way:
    """Draws samples of some classes with replacement; batches have weights."""
    way = groupwise(classes, chosen, samples)
    sizes = torch.bincount(torch.tensor(classes))
    weight = sizes.double() * len(sizes) / len(classes)
    return way._replace(weight=weight[way.strata], sized=True, chosen=True, replaced=1)


class Copied(Sampler):
    """The batches of another sampler, in which every sample occurs twice."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def absent(self, subset: Any) -> float:
        return self.sampler.absent(subset)

    def batches(self) -> Iterator[tuple[tuple[int, ...], float]]:
        for batch, chance in self.sampler.batches():
            yield 2 * tuple(batch), chance


def copied(way: Way) -> Way:
    """The same way of sampling with every sample of a batch twice."""
    strata = torch.zeros(N, dtype=torch.int64) if way.strata is None else way.strata
    return way._replace(sampler=Copied(way.sampler), strata=strata, sized=True, replaced=2 * way.replaced)


WAYS: dict[str, Callable[[], Way]] = {
    "uniform": lambda: Way(Uniform(N, 4), None, None),
    "balanced": lambda: balanced(STRATUM, 2, 2),
    "groups": lambda: groupwise(GROUP, 2, 2),
    "all groups": lambda: groupwise(GROUP, 3, 1),
    "queries": lambda: queries_of(QUERY, GRADE, 2, 2, 1),
    "events": lambda: balanced(EVENT, 2, 2)._replace(sized=True),
    "classes": lambda: classes_of(STRATUM, 2, 2),
    "some classes": lambda: classes_of(CLASS, 2, 2),
    "classes redrawn": lambda: redrawn(CLASS, 2, 2),
    "groups redrawn": lambda: redrawn(GROUP, 2, 2),
    "copies": lambda: copied(Way(Uniform(N, 3), None, None)),
    "copies of classes": lambda: copied(balanced(STRATUM, 2, 2)),
    "copies redrawn": lambda: copied(redrawn(STRATUM, 2, 2)),
    "bags": lambda: bags_of(BAG, STRATUM, 1, 2, 2),
    "some bags": lambda: classes_of(BAG, 2, 3),
}


def as_drawn(way: Way) -> Way:
    """The same batches without the columns of a plan, so that they represent their own population.

    This is ``prevalence: batch``.
    """
    return way._replace(weight=None, sized=False, chosen=False, replaced=0)


def counting(way: Way, times: list[int]) -> Way:
    """The same batches, of samples that count ``times`` each in the data, with the package's columns for weights."""
    own = torch.tensor(times, dtype=torch.float64)
    strata = torch.zeros(len(own), dtype=torch.int64) if way.strata is None else way.strata
    own /= own.mean()
    weight = own if way.weight is None else way.weight * own
    return way._replace(weight=weight, sized=True, strata=strata, sample_weight=own)


def few_of_a_class() -> Way:
    """Five draws of three positives, so that some occur twice, and two negatives."""
    classes = [[i for i, label in enumerate(STRATUM) if label == kind] for kind in (1, 0)]
    parts = [Nested([[(members, drawn)]], 1) for members, drawn in zip(classes, (5, 2), strict=True)]
    return Way(Apart(parts), torch.tensor(STRATUM), None)


class Plan(BatchDraws):
    """The package's interface to a way of sampling, with probabilities by the formulas of the reference."""

    def __init__(self, way: Way) -> None:
        self.sampler, self.way = way.sampler, way

    @property
    def strata(self) -> Tensor | None:
        return self.way.strata

    def population(self, share: float = 1.0) -> Tensor | None:
        """The mean weights of samples in weighted means over batches, by enumeration, in units of 1/n."""
        assert share == 1
        if self.strata is None and self.way.weight is None:
            return None
        counted = torch.zeros(len(self.strata), dtype=torch.float64)
        if isinstance(self.sampler, Balanced):  # may have too many batches to enumerate
            weight = 1.0 if self.way.weight is None else self.way.weight
            chance = [1 - self.sampler.absent([i]) for i in range(len(counted))]
            counted = len(counted) / sum(self.sampler.drawn) * torch.tensor(chance, dtype=torch.float64) * weight
            return None if bool((counted - 1).abs().max() < 1e-9) else counted
        for batch, chance in self.sampler.batches():
            index = torch.tensor(batch)
            weight = 1.0 if self.way.weight is None else self.way.weight[index]
            counted.index_add_(0, index, torch.ones(len(index), dtype=torch.float64) * weight / len(index) * chance)
        counted *= len(counted)
        return None if bool((counted - 1).abs().max() < 1e-9) else counted

    def weights(self) -> Tensor | None:
        """The weights, if samples have weights of their own; otherwise None, as for a plan without this information."""
        return None if self.way.sample_weight is None else self.way.columns()["weight"]

    def absence(self, counts: Tensor, share: float = 1.0) -> float:
        assert share == 1
        if self.strata is None:
            return self.sampler.absent(range(int(counts)))
        members = [(self.strata == s).nonzero().flatten().tolist()[: int(c)] for s, c in enumerate(counts)]
        return self.sampler.absent([i for some in members for i in some])


class Lookup(nn.Module):
    """A network whose outputs are its weights."""

    def __init__(self, table: Tensor, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.table, self.wrap = nn.Parameter(table.clone()), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.table[x])


class Nothing(Objective):
    """An empty objective, for cases of constraints."""

    def measure(self, outputs, batch):
        return None, None


@dataclass
class Case:
    """An objective or constraint in the registry.

    Attributes:
        make: makes the objective or constraint.
        outputs: outputs of the network for all samples, shape (n,) or (n, d), float64.
        columns: columns of all samples.
        brute: the formula of F (for a constraint: the list of all h_i), written with loops and differentiable; its
            arguments are outputs as nested lists of scalars, columns as lists, and parameters of ``make`` by name.
        wrap: map from the table to the network's outputs.
        unbiased: names of the ways of sampling in which the gradient estimate is unbiased.
        coupled: whether f is one function of all rows.
        missing: a column without which an error is raised, or None.
        bad_outputs: outputs of a shape that is refused, or None.
        others: further parts of a batch -> number of their rows, whose outputs follow those of the samples; a batch has
            two rows of each.
    """

    make: Callable[[], Any]
    outputs: Tensor
    columns: dict[str, Tensor]
    brute: Callable[..., Any]
    wrap: Callable[[Tensor], Any] = lambda table: table
    unbiased: tuple[str, ...] = ("uniform", "groups")
    coupled: bool = False
    missing: str | None = None
    bad_outputs: Any = None
    others: dict[str, int] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.outputs) - sum(self.others.values())


class Bench:
    """An engine for a case, with exact rows."""

    def __init__(self, case: Case, way: Way | None = None) -> None:
        self.case, self.way = case, way
        part = case.make()
        self.objective = (part if isinstance(part, Objective) else Nothing()).double()
        self.constraints = [part] if isinstance(part, Constraint) else []
        self.part = part
        self.columns = {**case.columns, "index": torch.arange(case.n), "x": torch.arange(case.n)}
        if way is not None and way.sample_weight is not None:
            self.columns[SAMPLE_WEIGHT] = way.sample_weight
        for one in (self.objective, *self.constraints):
            one.adapt(None)
        nothing_to_remember = self.objective.outer is None and not self.constraints
        self.algorithm = OOA() if case.coupled else SGD() if nothing_to_remember else SOX(gamma=0.5)
        name = getattr(part, "part", None) or "target"
        name = name if isinstance(name, str) else name[0]
        self.name = name
        self.network = Lookup(case.outputs, case.wrap)
        self.engine = self.started(self.algorithm, HingePenalty(RHO))
        self.keep_exact_rows()

    def keep_exact_rows(self) -> None:
        """Set the rows to their exact values, from a batch of all samples."""
        readings = self.measured(self.batch(range(self.case.n), weighted=False))[1]
        self.exact = {reading.term: by_row(reading, reading.g.detach().double()) for reading in readings}
        assert not any(exact.isnan().any() for exact in self.exact.values())

    def started(self, algorithm: Algorithm, penalty: Any) -> Engine:
        """A new engine with the given algorithm and penalty."""
        drawn = Drawn(self.columns, Plan(self.way or Way(Uniform(self.case.n, self.case.n), None, None)))
        problem = algorithm.pose(
            self.objective,
            self.constraints,
            penalty,
            num_samples=self.case.n,
            sampling={self.name: drawn},
            dtype=torch.float64,
        )
        return Engine(self.network, problem, algorithm)

    def batch(
        self, index: Any, others: tuple[tuple[int, ...], ...] | None = None, *, weighted: bool = True
    ) -> dict[str, dict[str, Tensor]]:
        """A batch of samples, with the given rows of the other parts, or all of them."""
        chosen, first = torch.as_tensor(index), self.case.n
        parts = {}
        for position, (name, size) in enumerate(self.case.others.items()):
            rows = torch.arange(size) if others is None else torch.tensor(others[position])
            parts[name] = {"index": rows, "x": first + rows}
            first += size
        columns = {name: column[chosen] for name, column in self.columns.items()}
        if weighted and self.way is not None:
            columns |= {name: column[chosen] for name, column in self.way.columns().items()}
        return {self.name: columns} | parts

    def weighted(self, index: list[int], times: list[int]) -> dict[str, dict[str, Tensor]]:
        """A batch in which samples have weights proportional to ``times``, with mean 1."""
        batch = self.batch(index)
        weight = torch.tensor(times, dtype=torch.float64)
        batch[self.name]["weight"] = weight / weight.mean()
        return batch

    def measured(self, batch: dict[str, dict[str, Tensor]]) -> tuple[Tensor | None, list[Seen]]:
        """The direct part g_0, and the inner values of all terms in a batch."""
        return self.engine.measure(self.engine.evaluate(batch))

    def estimate(self, batch: dict[str, dict[str, Tensor]], seen: Outputs | None = None) -> Estimate:
        """The estimate of F by a batch, at exact rows."""
        g0, readings = self.engine.measure(seen or self.engine.evaluate(batch))
        estimate = Estimate(g0)
        for reading in readings:
            exact = self.exact[reading.term]
            if self.case.coupled:
                q = self.objective.outer.ambiguity.worst_case(exact[:, 0]).unsqueeze(1)
                estimate.add(reading, (len(exact) * at_entries(reading, q) * reading.g).sum(-1))
            else:
                at = at_entries(reading, exact)
                estimate.add(reading, self.algorithm.estimator.estimate(reading.f, at, reading.g, at))
        return estimate

    def gradient(self, batch: dict[str, dict[str, Tensor]], seen: Outputs | None = None) -> Tensor:
        """The gradient estimate of a batch for the table and the objective's parameters, as one flat tensor."""
        return self.gradient_of(self.estimate(batch, seen).value)

    def gradient_of(self, value: Tensor) -> Tensor:
        """As :meth:`gradient`, given the value of an estimate or of a mean of estimates."""
        params = self.parameters()
        if not value.requires_grad:
            return torch.cat([torch.zeros_like(p).flatten() for p in params])
        found = torch.autograd.grad(value, params, allow_unused=True, materialize_grads=True)
        return torch.cat([g.flatten() for g in found])

    def parameters(self) -> list[Tensor]:
        return [self.network.table, *self.objective.parameters()]

    @property
    def states(self) -> list[DualState]:
        return self.engine.problem.states

    def brute(self) -> tuple[Tensor, Tensor]:
        """F and its gradient by the formula of the case."""
        value = self.formula()
        found = torch.autograd.grad(value, self.parameters(), allow_unused=True, materialize_grads=True)
        return value.detach(), torch.cat([g.flatten() for g in found])

    def formula(self) -> Tensor:
        given = as_lists(self.network.table), {k: c.tolist() for k, c in self.case.columns.items()}
        result = self.case.brute(*given, **dict(self.objective.named_parameters()))
        if isinstance(self.part, Constraint):
            return sum(RHO * torch.relu(h) for h in result) / len(result)
        return result

    def mean_gradient(self) -> Tensor:
        """The gradient of :meth:`mean`."""
        return self.gradient_of(self.mean())

    def mean(self) -> Tensor:
        """The mean of the estimates of F over all possible batches, with graph."""
        assert self.way is not None
        batches = self.way.sampler.batches()
        others = list(product(*(combinations(range(size), 2) for size in self.case.others.values())))
        return sum(
            chance / len(others) * self.estimate(self.batch(list(batch), drawn)).value
            for batch, chance in batches
            for drawn in others
        )

    def drawn_gradients(self, count: int, seed: int) -> Iterator[Tensor]:
        assert self.way is not None
        rng = np.random.default_rng(seed)
        for _ in range(count):
            yield self.gradient(self.batch(self.way.sampler.draw(rng)))


RHO = 2.0


def by_row(reading: Seen, values: Tensor) -> Tensor:
    """Move values (r, k) of a batch's entries to their rows (n, k); NaN for rows that are not in the batch."""
    found = values.new_full((reading.term.num_rows, values.shape[1]), torch.nan)
    index = torch.arange(len(found)) if reading.rows is None else reading.rows
    found[index[reading.present]] = values[reading.present]
    return found


def at_entries(reading: Seen, rows: Tensor) -> Tensor:
    """The rows (n, k) at a batch's entries (r, k), and the measured values at absent entries."""
    held = rows if reading.rows is None else torch.cat([rows, rows[:1]])[reading.rows]
    return torch.where(reading.present.unsqueeze(1), held, reading.g.detach().to(rows.dtype))


def assert_refused(bench: Bench, batch: dict[str, dict[str, Tensor]], text: str, *, first: bool) -> None:
    """Assert that a first or a later batch with misleading data is refused before anything has changed."""
    engine, before = bench.engine, [t.clone() for t in (*bench.parameters(), *(s.rows for s in bench.states))]
    engine.checked = not first
    with pytest.raises(DataError, match=text):
        engine.train_batch(batch, torch.optim.SGD(engine.params, lr=0.1))
    for a, b in zip(before, (*bench.parameters(), *(s.rows for s in bench.states)), strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num())


class TwoProcesses:
    """Simulates one of two processes, given the tensors of the other."""

    size, rank = 2, 0

    def __init__(self, first: list[list[Tensor]] | None = None, second: list[list[Tensor]] | None = None) -> None:
        self.first, self.second, self.seen = first, second, []  # one list of tensors for every part of a batch
        self.guard = nullcontext

    def gather(self, tensors: list[Tensor], mark: int = 0) -> Gathered:
        part = len(self.seen)
        self.seen.append(list(tensors))
        parts = [each[part] for each in (self.first, self.seen, self.second) if each]
        joined = [torch.cat(group) for group in zip(*parts, strict=True)]
        return Gathered(joined, [len(p[0]) for p in parts], [mark] * len(parts))


def united(bench: Bench, first: dict[str, Any], second: dict[str, Any]) -> Tensor:
    """The sum of the gradients of two processes, each by its own outputs, measured on the union batch."""

    def part(batch: dict[str, Any], processes: TwoProcesses) -> Outputs:
        outputs = bench.engine.functions.outputs(batch)
        (together,), batch, _ = unite([outputs], batch, bench.network, processes)
        # pairs are divided among real processes in tests/engine/test_contrastive_distributed.py
        columns = {name: {k: c for k, c in held.items() if k != HERE} for name, held in batch.items()}
        if bench.engine.problem.row_parameters is not None:
            columns = bench.engine.problem.row_parameters.attach(columns)
        return Outputs(together, columns, None, None, outputs)

    sent = []
    for batch in (first, second):
        alone = TwoProcesses()
        with torch.no_grad():
            part(batch, alone)
        sent.append(alone.seen)
    seen = part(first, TwoProcesses(second=sent[1])), part(second, TwoProcesses(first=sent[0]))
    size = bench.network.table.numel()
    both = [bench.gradient({}, one) for one in seen]
    return torch.cat([both[0][:size] + both[1][:size], both[0][size:]])  # each has the whole gradient of f's parameters


def as_lists(table: Tensor) -> Any:
    return [as_lists(row) for row in table] if table.dim() else table


def logistic(score: Tensor, label: float) -> Tensor:
    return torch.log1p(torch.exp(-score if label == 1 else score))


def sigmoid(score: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-score))


def mean(values: list[Tensor]) -> Tensor:
    return sum(values) / len(values)


def scores(n: int = N, width: int | None = None, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n if width is None else (n, width), generator=generator, dtype=torch.float64)


def table_columns(stratum: list[int] = STRATUM, group: list[int] = GROUP) -> dict[str, Tensor]:
    return {"y": torch.tensor(stratum), "group": torch.tensor(group)}

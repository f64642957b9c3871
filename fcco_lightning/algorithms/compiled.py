"""A step from the network's input, or its outputs, to the surrogate as one compiled function of tensors."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType, MethodType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fcco_lightning.constraints import Constraint
from fcco_lightning.engine import Engine, Reading, Surrogate, Term
from fcco_lightning.engine.engine import Evaluated
from fcco_lightning.engine.forward import Arrangements, Elsewhere, wide
from fcco_lightning.engine.parts import part_name
from fcco_lightning.engine.terms import paired, totalled
from fcco_lightning.estimators import Estimator, Sampling, fill
from fcco_lightning.objectives import Objective
from fcco_lightning.objectives.two_steps import first_tensor
from fcco_lightning.outer import OuterFunction, Smoothing
from fcco_lightning.records import Arrangement, Batch, Inner, Usual

_SOME, _FEW = 8, 10
"""Batches are not taken for usual ones any more where 8 of them were not, and one of ten."""
_NOTHING: AbstractContextManager[None] = nullcontext()
_OF_CODE = {"BUILTIN_MATCH", "CLASS_MATCH", "CLOSURE_MATCH", "DUPLICATE_INPUT", "ID_MATCH", "MODULE_MATCH"}
"""Kinds of assumptions that a name stands for the same function, class or module."""


class Estimating(Protocol):
    """What is asked of an algorithm, :class:`~fcco_lightning.algorithms.estimation.Estimation` or OOA.

    Attributes:
        smoothing: map on non-smooth outer functions.
        needs_all_rows: whether its estimators move all rows of a term at once, so that only usual batches are compiled.
    """

    smoothing: Smoothing
    needs_all_rows: bool

    def estimator_of(self, term: Term) -> Estimator: ...
    def pairs_old(self, term: Term) -> bool: ...
    def uncompiled(self, engine: Engine, seen: Evaluated) -> Surrogate: ...
    def fade(self, engine: Engine, readings: Sequence[Reading]) -> None: ...


class _Term(NamedTuple):
    """What the compiled function is given of a term: everything that follows from columns and from rows.

    Attributes:
        number: of the term.
        given: of its :class:`Arrangement`; None where the values have been measured.
        values: inner values with graph, where they are not measured in two steps.
        previous: those at the previous weights, or None.
        outer: f, or what takes its place where f has known parameters.
        rows: as they are remembered, or None where nothing is.
        seen: which were visited before.
        weight, inverse: as of a :class:`Reading`.
    """

    number: int
    given: Any
    values: Tensor | None
    previous: Tensor | None
    outer: OuterFunction
    rows: Tensor | None
    seen: Tensor | None
    weight: Tensor | float
    inverse: Tensor | float


class _Settled(NamedTuple):
    """What the compiled function is given of a batch.

    Attributes:
        direct: of g_0, in a tuple, what the columns say; or its measured value; or None where there is none.
        terms: of the terms that the batch speaks of.
        readings: of the same, with other values.
    """

    direct: tuple[Any] | Tensor | None
    terms: list[_Term]
    readings: list[Reading]


class _Outcome(NamedTuple):
    """What it returns of a term: inner values, and what the estimator made of them; all without graph."""

    values: Tensor
    rows: Tensor
    at: Tensor
    followed: Tensor


class _Found(NamedTuple):
    """What the compiled function returns with the network as part of it.

    Attributes:
        value, direct, outcomes: S, g_0, and the outcome of every term.
        gradients: of S with respect to what is wanted, and then nothing has a graph; None where torch cannot compile
            them, and S has one.
    """

    value: Tensor
    direct: Tensor | None
    outcomes: list[_Outcome]
    gradients: Sequence[Tensor | None] | None


class _Snapshot:
    """The buffers of a network and the random state of the CPU, to which a step can go back."""

    def __init__(self, network: nn.Module, buffers: bool) -> None:
        self._random = torch.get_rng_state()
        self._buffers = [(buffer, buffer.clone()) for buffer in network.buffers()] if buffers else []

    def restore(self) -> None:
        """Go back."""
        torch.set_rng_state(self._random)
        for buffer, value in self._buffers:
            buffer.copy_(value)

    @property
    def drawn(self) -> bool:
        """Whether random numbers have been drawn since."""
        return not torch.equal(self._random, torch.get_rng_state())


class CompiledSurrogate:
    """The surrogate of an algorithm, of which everything but the look at the columns is compiled by torch.compile.

    What a batch's columns say is found first, on the host (:class:`~fcco_lightning.objectives.two_steps.InTwoSteps`),
    and rows are read.  Then one function of tensors leads from there to the surrogate and the new rows: inner values,
    those at the previous weights, estimator, outer gradients.  The network at the present weights is part of it where
    one process evaluates it on a batch as a whole; else the function begins with the outputs.  A part of the problem
    that is not measured in two steps is measured beforehand.  The first batch, and batches in which rows repeat or of
    which no term speaks, are not compiled.

    On the CPU the look at the columns of usual batches (:meth:`InTwoSteps.arrange_usual`) is part of the function, too,
    and so are the network at the previous weights, where it draws no random numbers, and the gradient.  The function
    says whether the batch was usual; any other is carried out once more, uncompiled, as if nothing had happened.  Where
    many batches are unusual, the look is taken on the host again.

    Args:
        algorithm: whose surrogate it is.
        engine: that carries it out.
    """

    def __init__(self, algorithm: Estimating, engine: Engine) -> None:
        self._algorithm, self._engine, self._functions = algorithm, engine, engine.functions
        self._terms, self._parts = engine.problem.all_terms, engine.functions.measurable()
        self._like: dict[str, Tensor] = {}  # of the device and dtype of the outputs, by part
        self._apart = False  # whether a part of the problem is measured beforehand, hence the network, too
        self._run = _compiled(self._surrogate)
        self._run_network = _compiled(self._from_network)
        self._run_usual = _compiled(self._from_columns)
        self._usual: bool | None = None  # whether batches are taken for usual ones; None before the first
        self._has_direct = False  # whether there is a g_0, arranged for usual batches
        self._draws = False  # whether the network draws random numbers
        self._taken = self._unusual = 0  # batches
        config: Any = torch._dynamo.config  # a switch that younger versions of torch have
        traces = hasattr(config, "trace_autograd_ops")
        self._traced: AbstractContextManager[None] = config.patch(trace_autograd_ops=True) if traces else _NOTHING

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _nothing, ()  # of an algorithm that is copied; who starts the copy compiles anew

    def __call__(self, batch: Batch, before: Sequence[Tensor] | None) -> Surrogate:
        """The surrogate, with rows proposed.

        Args:
            batch: of this process.
            before: the previous weights, where the algorithm needs inner values there.
        """
        engine = self._engine
        if not self._like:
            return self._uncompiled(engine.evaluate(batch, before))
        if self._usual is None:
            self._usual = self._can_be_usual(batch)
        names = self._functions.names()
        if self._usual and (before is None or (names.network_alone and not self._draws)):
            return self._of_usual(batch, before)
        if self._algorithm.needs_all_rows:
            return self._uncompiled(engine.evaluate(batch, before))
        inside = engine.alone and not self._apart and (before is None or names.network_alone)
        seen = None if inside else engine.evaluate(batch, before)
        settled = self._settle(engine.attached(batch) if seen is None else seen.now.batch, seen)
        if settled is None and self._apart and seen is None:
            seen = engine.evaluate(batch, before)
            settled = self._settle(seen.now.batch, seen)
        if settled is None:
            return self._uncompiled(seen or engine.evaluate(batch, before))
        if seen is None:
            return self._of_network(batch, before, settled)
        value, direct, outcomes = self._run(seen.now.outputs, None, settled.direct, settled.terms)
        return self._proposed(settled, value, direct, outcomes)

    def _of_network(self, batch: Batch, before: Sequence[Tensor] | None, settled: _Settled) -> Surrogate:
        """The surrogate of a batch arranged on the host, with the network as part of the function."""
        engine, earlier = self._engine, None
        engine.stop_agreed = engine.stop_asked
        # parameters of samples have a graph outside of the function, which torch does not compile
        wanted = engine.params if self._near and engine.problem.row_parameters is None else None
        if before is not None and not (self._near and not self._draws):
            earlier, before = engine.earlier_outputs(batch, before), None
        start = None if before is None else self._snapshot()
        with self._traced:
            found: _Found = self._run_network(batch, earlier, before, settled.direct, settled.terms, wanted)
        if start is not None and start.drawn:  # the two passes had other masks
            self._draws = True
            start.restore()
            return self._of_network(batch, before, settled)
        surrogate = self._proposed(settled, found.value, found.direct, found.outcomes)
        surrogate.know(engine.params, found.gradients)
        return surrogate

    def _from_network(
        self,
        batch: Batch,
        earlier: Mapping[str, Any] | None,
        before: Sequence[Tensor] | None,
        direct: tuple[Any] | Tensor | None,
        terms: Sequence[_Term],
        wanted: Sequence[Tensor] | None,
    ) -> _Found:
        """A step from the network's input on.

        Args:
            batch: columns by part.
            earlier: see :meth:`_surrogate`.
            before: the previous weights, where the network is evaluated at these here; else None.
            direct: see :class:`_Settled`.
            terms: see :class:`_Settled`.
            wanted: of which tensors the gradient is part of the function; None for none.
        """
        outputs = self._functions.outputs(batch)
        earlier = earlier if before is None else self._earlier(batch, before)
        return self._differentiated(*self._surrogate(outputs, earlier, direct, terms), wanted)

    @torch.no_grad()
    def _earlier(self, batch: Batch, before: Sequence[Tensor]) -> dict[str, Any]:
        return Elsewhere(self._functions, before).outputs(batch)

    def _differentiated(
        self, value: Tensor, direct: Tensor | None, outcomes: list[_Outcome], wanted: Sequence[Tensor] | None
    ) -> _Found:
        """With the gradients, where torch can compile them."""
        if wanted is None or self._traced is _NOTHING or not value.requires_grad:
            return _Found(value, direct, outcomes, None)
        found = iter(torch.autograd.grad(value, [w for w in wanted if w.requires_grad], allow_unused=True))
        gradients = [next(found) if w.requires_grad else None for w in wanted]
        return _Found(value.detach(), None if direct is None else direct.detach(), outcomes, gradients)

    def _snapshot(self) -> "_Snapshot":
        return _Snapshot(self._functions.network, bool(self._functions.names().buffers))

    @property
    def _near(self) -> bool:
        """Whether the outputs are on the CPU."""
        return all(like.device.type == "cpu" for like in self._like.values())

    def _can_be_usual(self, batch: Batch) -> bool:
        """Whether all that is measured can be arranged as part of the compiled function, as this batch shows."""
        functions, objective, problem = self._functions, self._functions.objective, self._engine.problem
        if not (self._near and self._engine.alone and functions.direct_in_two_steps):
            return False
        if problem.row_parameters is not None or any(term.per_sample for term in self._terms):
            return False
        g0 = part_name(batch, self._first(objective))
        self._has_direct = functions.arranged_direct(batch[g0], self._like[g0]) is not None
        every: list[tuple[Objective | Constraint, str]] = [(part, "arrange") for part in self._parts]
        every += [(objective, "arrange_direct")] if self._has_direct else []
        with torch.no_grad():
            return all(
                functions.arranges_usual(part, name) and self._usually(part, name, batch, self._like) is not None
                for part, name in every
            )

    def _of_usual(self, batch: Batch, before: Sequence[Tensor] | None) -> Surrogate:
        """The surrogate of a batch that is taken for a usual one.

        Args:
            batch: see :meth:`__call__`.
            before: see :meth:`__call__`.
        """
        engine, terms, readings = self._engine, list[_Term](), list[Reading]()
        for number, term in enumerate(self._terms):
            like = self._like[part_name(batch, term.owners_part)]
            arrived = term.arrive_with_all(like)
            reading = arrived.reading(term, like, None, arrived.outer, None, None)
            readings.append(reading)
            weight, inverse = arrived.weight, arrived.inverse
            terms.append(
                _Term(number, None, None, None, arrived.outer, engine.every_row(reading), None, weight, inverse)
            )
        start = self._snapshot()
        with self._traced:
            found, holds = self._run_usual(batch, before, terms)
        self._draws = self._draws or (before is not None and start.drawn)
        if not holds or (before is not None and self._draws):  # the two passes had other masks
            self._unusual += not holds
            self._usual = self._unusual < _SOME or self._unusual < self._taken / _FEW
            start.restore()
            return self._uncompiled(engine.evaluate(batch, before))
        self._taken += 1
        engine.stop_agreed = engine.stop_asked
        surrogate = self._proposed(_Settled(None, terms, readings), found.value, found.direct, found.outcomes)
        surrogate.know(engine.params, found.gradients)
        return surrogate

    def _from_columns(
        self, batch: Batch, before: Sequence[Tensor] | None, terms: Sequence[_Term]
    ) -> tuple[_Found, Tensor]:
        """A step from the columns of a usual batch on: a function of tensors.

        Args:
            batch: columns by part.
            before: the previous weights, where inner values are needed there.
            terms: all of the problem, without what follows from the columns.

        Returns: what was found, and whether the batch is of the usual kind and S is finite; else it means nothing.
        """
        functions, objective = self._functions, self._functions.objective
        outputs = functions.outputs(batch)
        device = first_tensor(next(iter(outputs.values()))).device.type
        with torch.no_grad(), torch.autocast(device, enabled=False):
            like = {name: first_tensor(wide(of_part)) for name, of_part in outputs.items()}
            usual = [self._usually(part, "arrange", batch, like) for part in self._parts]
            given = self._usually(objective, "arrange_direct", batch, like) if self._has_direct else None
        arranged = [one for one in (*usual, given) if one is not None]
        if len(arranged) < len(terms) + self._has_direct:  # a larger batch than the first may need another arrangement
            return _Found(torch.zeros(()), None, [], None), torch.zeros((), dtype=torch.bool)
        known = [
            t._replace(given=one.given, seen=None if t.rows is None else ~t.rows[:, 0].isnan())
            for t, one in zip(terms, arranged, strict=False)
        ]
        g0 = None if given is None else (given.given,)
        earlier = None if before is None else self._earlier(batch, before)
        measured = self._surrogate(outputs, earlier, g0, known)
        found = self._differentiated(*measured, self._engine.params)
        return found, torch.stack([*(one.holds for one in arranged), torch.isfinite(found.value.detach())]).all()

    def _usually(
        self, part: Objective | Constraint, name: str, batch: Batch, like: Mapping[str, Tensor]
    ) -> Usual | None:
        """What :meth:`arrange_usual` of a part says, or ``arrange_direct_usual``."""
        where = part_name(batch, self._first(part))
        found: Usual | None = getattr(part, f"{name}_usual")(batch[where], like[where])
        return found

    def _uncompiled(self, seen: Evaluated) -> Surrogate:
        self._like = {name: first_tensor(wide(outputs)).detach()[:0] for name, outputs in seen.now.outputs.items()}
        return self._algorithm.uncompiled(self._engine, seen)

    def _settle(self, batch: Batch, seen: Evaluated | None) -> _Settled | None:
        """What the compiled function is given; None where it cannot be used for the batch.

        Args:
            batch: columns of all processes by part.
            seen: the network's outputs; None where they are part of the function.
        """
        functions, like = self._functions, self._like
        arranged = [self._arranged(part, batch) for part in self._parts]
        g0 = part_name(batch, self._first(functions.objective))
        given = functions.arranged_direct(batch[g0], like[g0])
        rest = [i for i, one in enumerate(arranged) if one is None]
        if seen is None and (rest or not functions.direct_in_two_steps):
            self._apart = True
            return None
        measured: list[Inner | None] = [None] * len(self._terms)
        direct: Tensor | None = None
        if seen is not None and (rest or given is None):
            found = functions(seen.now, rest, direct=given is None)
            direct = found.direct
            for i, inner in zip(rest, found.inner, strict=True):
                measured[i] = inner
        previous: list[Inner | None] = [None] * len(self._terms)
        if seen is not None and seen.elsewhere is not None and seen.before is not None:
            with torch.no_grad():
                previous = seen.elsewhere.measure(seen.before, None, Arrangements(arranged), direct=False).inner
        settled = _Settled((given,) if direct is None and given is not None else direct, [], [])
        for number, term in enumerate(self._terms):
            one = arranged[number] or _without_values(measured[number])
            if one is None or not one.index.numel():
                continue
            owners = part_name(batch, term.owners_part)
            inner, old = measured[number], previous[number]
            arrived = term.arrive(one, batch[owners], like[owners], None if inner is None else inner.outer)
            if arrived.again is not None:
                return None
            known = None if seen is None or term.state is None else seen.known.get(term.state)
            values = like[owners] if inner is None else inner.values
            reading = arrived.reading(term, values, None if old is None else old.values, arrived.outer, None, known)
            rows, visited = (None, None) if term.state is None else self._engine.rows(reading)
            if rows is not None and visited is None:
                visited = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
            settled.readings.append(reading)
            settled.terms.append(
                _Term(
                    number,
                    one.given,
                    None if inner is None else values,
                    reading.previous,
                    arrived.outer,
                    rows,
                    visited,
                    reading.weight,
                    reading.inverse,
                )
            )
        measured_before = direct is not None or given is None
        return settled if settled.terms or not (measured_before or functions.objective.outer) else None

    def _arranged(self, part: Objective | Constraint, batch: Batch) -> Arrangement | None:
        name = part_name(batch, self._first(part))
        return self._functions.arranged(part, batch[name], self._like[name])

    @staticmethod
    def _first(part: Objective | Constraint) -> str | None:
        return part.part[0] if isinstance(part.part, tuple) else part.part

    def _surrogate(
        self,
        outputs: Mapping[str, Any],
        earlier: Mapping[str, Any] | None,
        direct: tuple[Any] | Tensor | None,
        terms: Sequence[_Term],
    ) -> tuple[Tensor, Tensor | None, list[_Outcome]]:
        """S, g_0, and the outcome of every term: a function of tensors.

        Args:
            outputs: of the network, by part.
            earlier: those at the previous weights, where the inner values at these are computed here, too; else None.
            direct: see :class:`_Settled`.
            terms: see :class:`_Settled`.
        """
        algorithm, objective = self._algorithm, self._functions.objective
        name = next(iter(outputs))
        with torch.autocast(first_tensor(outputs[name]).device.type, enabled=False):
            if isinstance(direct, tuple):
                direct = objective.direct_value(wide(outputs[part_name(outputs, self._first(objective))]), direct[0])
            direct = self._engine.weighted(direct)
            parts = [] if direct is None else [direct]
            outcomes = []
            for t in terms:
                term, part, values, outer = self._terms[t.number], self._parts[t.number], t.values, t.outer
                if values is None:
                    values = part.values(wide(outputs[part_name(outputs, self._first(part))]), t.given)
                    outer = part.known_outer(t.given) or outer
                estimator, outer = algorithm.estimator_of(term), algorithm.smoothing(outer)
                inner = values.detach() if t.rows is None else values.detach().to(t.rows.dtype)
                previous = None if t.previous is None else t.previous.to(inner.dtype)
                if earlier is not None and t.values is None:
                    with torch.no_grad():
                        there = part.values(wide(earlier[part_name(earlier, self._first(part))]), t.given)
                    previous = there.to(inner.dtype)
                rows = estimator.first(inner) if t.rows is None else fill(t.rows, t.seen, estimator.first(inner))
                sampling = Sampling(t.inverse, t.seen, term.range, term.growth)
                tracked = estimator.update(rows, inner, previous, outer, sampling)
                moved, followed = tracked.rows, estimator.values(tracked.rows, inner)
                if algorithm.pairs_old(term):
                    tracked = estimator.recalled(rows, inner, outer)
                parts.append(paired(t.weight, tracked.weights, values))
                if any(parameter.requires_grad for parameter in outer.parameters()):
                    known = estimator.known_part(tracked, outer)
                    parts += [] if known is None else [totalled(t.weight, known)]
                outcomes.append(_Outcome(inner, moved, tracked.at, followed))
            return torch.stack(parts).sum(), direct, outcomes

    def _proposed(
        self, settled: _Settled, value: Tensor, direct: Tensor | None, outcomes: Sequence[_Outcome]
    ) -> Surrogate:
        engine, algorithm = self._engine, self._algorithm
        surrogate = Surrogate(direct).replaced(value)
        for shell, t, outcome in zip(settled.readings, settled.terms, outcomes, strict=True):
            reading, term = shell._replace(values=outcome.values), shell.term
            estimator = algorithm.estimator_of(term)
            if estimator.remembers:
                engine.propose(reading, outcome.rows, estimator.decay())
            engine.propose_multipliers(reading, outcome.followed)
            known = self._parts[t.number].known_outer(t.given) if t.values is None else None
            outer = algorithm.smoothing(known or t.outer)
            surrogate.readings.append(reading)
            surrogate.estimates.add(term.name, term.share, outer, outcome.at, reading.importance())
        algorithm.fade(engine, surrogate.readings)
        return surrogate


def _compiled(method: Any) -> Callable[..., Any]:
    # torch's own random numbers: dropout draws the same masks as without
    return torch.compile(
        _with_code_of_its_own(method), options={"fallback_random": True, "guard_filter_fn": _may_change}
    )


def _may_change(guards: Sequence[Any]) -> list[bool]:
    """Which of its assumptions torch.compile looks at before every step, where there would be hundreds.

    Numbers, tensors and objects may be others, of the network's modules too; the classes of these objects, and the
    functions and modules that code names, are taken to stay as they are while a program runs.
    """
    return [not ("type(" in g.name or (g.is_global and g.guard_type in _OF_CODE)) for g in guards]


def _with_code_of_its_own(method: Any) -> Any:
    """The same method, for which torch.compile counts recompilations anew.

    It keeps eight graphs of a piece of code, known by its name and place, and learns which numbers change.
    """
    f, name = method.__func__, f"{method.__name__}_{id(method.__self__)}"
    code = f.__code__.replace(co_name=name)
    return MethodType(FunctionType(code, f.__globals__, name, f.__defaults__, f.__closure__), method.__self__)


def _nothing() -> None:
    return None


def _without_values(inner: Inner | None) -> Arrangement | None:
    return None if inner is None else Arrangement(inner.index, None, inner.relevance, inner.owners)

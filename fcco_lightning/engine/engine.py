"""The verbs of which the iterations of algorithms are made, independent of who runs the loop."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fcco_lightning.engine.backend import Backend, PlainBackend
from fcco_lightning.engine.causes import causes
from fcco_lightning.engine.estimates import Estimates, Surrogate
from fcco_lightning.engine.forward import Elsewhere, Estimated, InnerFunctions, RandomState, Samples
from fcco_lightning.engine.parts import as_batch, part_name, received
from fcco_lightning.engine.problem import Problem
from fcco_lightning.engine.row_parameters import RowStep
from fcco_lightning.engine.terms import Reading, Term
from fcco_lightning.engine.union import KnownRows, unite
from fcco_lightning.errors import ConfigError, DataError, NonFiniteError
from fcco_lightning.numerics import all_finite
from fcco_lightning.objectives.base import nothing
from fcco_lightning.records import Batch
from fcco_lightning.state import DualState, Place, replaced

_FULL = (torch.float32, torch.float64)
_OVERFLOWS = 1e20  # a surrogate of this size has gradients that float32 does not hold


class Method(Protocol):
    """What the engine asks of an algorithm."""

    def start(self, engine: "Engine") -> None: ...
    def iteration(self, engine: "Engine", batch: Batch) -> None: ...
    def close(self, engine: "Engine") -> None: ...
    def finish(self, engine: "Engine", batches: Iterator[Batch]) -> bool: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Measured(NamedTuple):
    """What a batch says at the present weights, and perhaps at others.

    Attributes:
        direct: estimate of g_0 with graph, a scalar, or None.
        readings: of every term that the batch speaks of.
        previous_direct: estimate of g_0 at the other weights, where a graph was asked for there.
    """

    direct: Tensor | None
    readings: list[Reading]
    previous_direct: Tensor | None = None


class Evaluated(NamedTuple):
    """The network's outputs for the samples of a batch, of all processes together.

    Attributes:
        now: at the present weights, with graph.
        before: at the other weights; None where there are none.
        elsewhere: the inner functions at the other weights.
        known: rows that came along, by the state that they belong to.
        own: the network's outputs by part for the samples of this process alone, at the present weights, with graph.
        graph: whether what is measured at the other weights has a graph, too.
    """

    now: Samples
    before: Samples | None
    elsewhere: Elsewhere | None
    known: Mapping[DualState, KnownRows]
    own: Mapping[str, Any]
    graph: bool = False

    def halves(self) -> tuple["Evaluated", "Evaluated"]:
        """The first and the second half of the samples."""
        now = self.now.halves()
        before = (None, None) if self.before is None else self.before.halves()
        first, second = (self._replace(now=n, before=b) for n, b in zip(now, before, strict=True))
        return first, second

    def at_present(self) -> "Evaluated":
        """The same without the second evaluation."""
        return self._replace(before=None, elsewhere=None)

    def part(self, name: str) -> "Evaluated":
        """The samples of one part of the batch, for terms that name none."""
        before = None if self.before is None else self.before.part(name)
        return self._replace(now=self.now.part(name), before=before)

    def dual_part(self) -> "Evaluated":
        """The independent draw of samples that came as the part "dual"."""
        before = None if self.before is None else self.before.dual_part()
        return self._replace(now=self.now.dual_part(), before=before)


class Proposal(NamedTuple):
    """New values of the rows of a state, not yet written.

    Attributes:
        name: of what they belong to, for messages.
    """

    name: str
    state: DualState
    place: Place
    rows: Tensor
    decay: float


class Engine:
    """Carries out an algorithm on a stream of batches.

    With P processes each one is given its part of a batch, and the result is that of one process with the whole batch:
    every process measures the inner functions on the outputs of all (:func:`unite`), so rows and surrogate are the same
    everywhere, and the gradients add up.

    An iteration measures, reads rows, proposes new ones, descends (a backward pass), and commits: until then no row and
    no weight has changed, and :meth:`commit` looks at everything at once, so that a bad batch changes nothing.

    Args:
        network: called as ``network(batch["x"])``, or with the whole batch if it is a
            :class:`~fcco_lightning.models.BatchNetwork`.
        problem: the terms, as the algorithm posed them.
        algorithm: whose iterations these are.
        backend: how to differentiate and step; a bare loop by default.
        micro_batch: largest number of samples of a part that pass through the network at once, so that batches of any
            size fit into memory (see :func:`~fcco_lightning.engine.micro_batches.recomputed`); None for all.
        compiled: whether steps are compiled by torch.compile, by most algorithms, see :attr:`compilable`.

    Example:
        >>> import torch
        >>> from fcco_lightning import AUC, SGD, Engine
        >>> network, algorithm = torch.nn.Linear(3, 1), SGD()
        >>> engine = Engine(network, algorithm.pose(AUC(), num_samples=8), algorithm)
        >>> optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        >>> batch = {"x": torch.eye(3)[[0, 1, 2, 0]], "y": torch.tensor([1, 0, 0, 1]), "index": torch.arange(4)}
        >>> engine.train_batch(batch, optimizer)["objective"] > 0
        tensor(True)
    """

    optimizer: Optimizer
    """The user's, while a batch is trained on."""

    def __init__(
        self,
        network: nn.Module,
        problem: Problem,
        algorithm: Method,
        backend: Backend | None = None,
        micro_batch: int | None = None,
        *,
        compiled: bool = False,
    ) -> None:
        self.processes, self.problem, self.algorithm = problem.processes, problem, algorithm
        self.functions = InnerFunctions(network, problem.objective, problem.constraints, micro_batch)
        self.compiled = compiled
        self.backend = backend or PlainBackend(self.processes)
        self.params = list(self.functions.trainable().values())
        self.has_schedule = False  # of the learning rate
        self.last_batch = False  # of an epoch
        self._checked = False  # whether the parts have looked at a batch
        self._followers = problem.states_of_samples
        self.stop_asked = False  # of this process
        self.stop_agreed = False  # of any; all processes know it in the same step
        self._proposals: list[Proposal] = []
        self._surrogates: list[Tensor] = []
        self._gradients: list[Tensor] = []
        self._readings: list[Reading] = []
        self._stored: list[tuple[Place, Tensor, Tensor | None]] = []
        self._row_step: RowStep | None = None
        self._estimates: Estimates = Estimates(None)
        self._outputs: Mapping[str, Any] = {}  # of the last evaluation, with graph
        algorithm.start(self)

    # ------------------------------------------------------------------------------------------------- for the loop

    def train_batch(
        self, batch: Mapping[str, Any], optimizer: Optimizer, *, last_batch: bool = False
    ) -> Mapping[str, Tensor]:
        """One iteration of the algorithm.

        Args:
            batch: columns with the samples' ``index``; or parts of several loaders, the objective's first.
            optimizer: the user's, over the trainable parameters.
            last_batch: whether the epoch ends with this batch, so that a double loop closes.

        Returns: estimates of the parts of F by name, computed when looked at.

        Raises:
            NonFiniteError: before any row or weight has changed.
        """
        if not self.params:
            raise ConfigError("nothing is trained: all parameters are frozen. Unfreeze some layers of the network.")
        self.optimizer, self.last_batch = optimizer, last_batch
        self.clear_gradient()  # before the forwards: their activations then have that memory
        with self.processes.guard():
            columns = self.received(batch)
        try:
            self.algorithm.iteration(self, columns)
        except NonFiniteError as error:
            error.args = (f"{error}{causes(columns, self.functions.network)}",)
            raise
        finally:
            self._clear()
        return self._estimates

    def close_inner_loop(self, optimizer: Optimizer) -> None:
        """Update w from a double loop that has begun, where the epoch ends without a usable batch."""
        self.optimizer, self.last_batch = optimizer, True
        self.algorithm.close(self)

    def finish(self, batches: Iterator[Mapping[str, Any]], optimizer: Optimizer) -> bool:
        """What the algorithm does when training has ended; whether it has changed the weights.

        Args:
            batches: training batches without end.
            optimizer: the user's.
        """
        self.optimizer, self.last_batch = optimizer, False
        return self.algorithm.finish(self, (self.received(batch) for batch in batches))

    def received(self, batch: Mapping[str, Any]) -> Batch:
        """A batch as the loaders gave it, as parts by name, on the device of the weights.

        Raises:
            DataError: naming the column that is missing or cannot be read.
        """
        parts = received(as_batch(batch), self.functions.network, self.params[0].device)
        first = next(iter(parts.values()))
        if self._followers and "index" not in first:
            raise DataError(
                f"a batch has no column `index`, by which single samples find their rows; it has {sorted(first)}. Wrap "
                "the data set: DataLoader(IndexedDataset(dataset), ...)."
            )
        return parts

    def follow_parameters(self) -> bool:
        """Take up a change of what is trained (layers frozen or unfrozen): memories of the old set start afresh.

        Returns: whether a parameter is trained that was not before.
        """
        params = list(self.functions.trainable().values())
        if len(params) == len(self.params) and all(a is b for a, b in zip(params, self.params, strict=True)):
            return False
        known = {id(p) for p in self.params}
        self.params = params
        self.functions.forget_names()
        self.algorithm.start(self)
        return any(id(p) not in known for p in params)

    def state_dict(self) -> dict[str, Any]:
        """What the algorithm remembers of weights; tensors and primitives only.  Rows are in the problem's."""
        return {"algorithm": self.algorithm.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where :meth:`state_dict` was taken."""
        self.algorithm.load_state_dict(state["algorithm"])

    # ------------------------------------------------------------------------------------------------- for iterations

    @property
    def compilable(self) -> bool:
        """Whether what follows from the network's outputs may be compiled.

        Not with a weight of the penalty that follows a schedule, as it would be compiled anew for every value; and the
        default dtype must be that of the rows.
        """
        scheduled = getattr(self.problem.penalty, "schedule", None) is not None
        return self.compiled and torch.get_default_dtype() in _FULL and not scheduled

    @property
    def alone(self) -> bool:
        """Whether this process has all samples of a batch, and evaluates the network on all of them at once."""
        return self.processes.size == 1 and self.functions.micro_batch is None

    def measure(self, batch: Batch, before: Sequence[Tensor] | None = None) -> Measured:
        """Inner functions and g_0 on a batch: :meth:`evaluate`, then :meth:`inner` on all of its samples."""
        return self.inner(self.evaluate(batch, before))

    def evaluate(self, batch: Batch, before: Sequence[Tensor] | None = None, *, graph: bool = False) -> Evaluated:
        """The network's outputs at the present weights and, without moving any buffer, at the weights ``before``.

        Both passes draw the same dropout masks.

        Args:
            batch: of this process.
            before: in the order of ``params``; None for no second pass.
            graph: whether the second pass has a graph too, for gradients at those weights; g_0 is then measured there.

        Raises:
            NonFiniteError, DataError, PeerError: on all processes, where one of them fails.
        """
        network = self.functions.network
        with self.processes.guard():
            random = RandomState(self.params[0].device) if before is not None else None
            outputs = [self.functions.outputs(batch)]
            elsewhere = None
            if before is not None and random is not None:
                elsewhere = Elsewhere(self.functions, before, random)
                with torch.set_grad_enabled(graph):
                    outputs.append(elsewhere.outputs(batch))
        # behind it all processes compute the same, so they fail together
        union = unite(
            outputs, batch, network, self._followers, self.processes, stop=self.stop_asked, last=self.last_batch
        )
        self.stop_agreed = union.stop
        columns = self.attached(union.batch)
        earlier = None if elsewhere is None else Samples(union.outputs[1], columns)
        now = Samples(union.outputs[0], columns)
        self._outputs = now.outputs
        if not self._checked:
            self.functions.check(now)
            self._checked = True
        return Evaluated(now, earlier, elsewhere, union.known, outputs[0], graph)

    def earlier_outputs(self, batch: Batch, weights: Sequence[Tensor]) -> dict[str, Any]:
        """The network's outputs at other weights, without graph, ahead of those at the present ones.

        Both passes draw the same dropout masks.

        Args:
            batch: of this process.
            weights: in the order of ``params``.
        """
        with torch.no_grad():
            return Elsewhere(self.functions, weights, RandomState(self.params[0].device)).outputs(batch)

    def attached(self, batch: Batch) -> Batch:
        """The columns with the parameters of the samples, where these have some, as one more."""
        parameters = self.problem.row_parameters
        return batch if parameters is None else parameters.attach(batch)

    def evaluate_at(self, weights: Sequence[Tensor], seen: Evaluated, batch: Batch) -> Evaluated:
        """Add the outputs at other weights, which are known only after a first look at the present ones.

        As the second pass of :meth:`evaluate` with graph, but for the dropout masks, which are drawn anew.

        Args:
            weights: in the order of ``params``.
            seen: the first look.
            batch: of this process.

        Raises:
            NonFiniteError, DataError, PeerError: on all processes, where one of them fails.
        """
        with self.processes.guard():
            elsewhere = Elsewhere(self.functions, weights)
            outputs = [elsewhere.outputs(batch)]
        union = unite(outputs, batch, self.functions.network, [], self.processes)
        before = Samples(union.outputs[0], seen.now.batch)
        return seen._replace(before=before, elsewhere=elsewhere, graph=True)

    def inner(
        self,
        seen: Evaluated,
        *,
        direct: bool = True,
        terms: Sequence[Term] | None = None,
    ) -> Measured:
        """Inner functions and g_0 from the network's outputs.

        Args:
            seen: see :meth:`evaluate`; all of its samples are used.
            direct: whether g_0 is measured.
            terms: which terms are measured; None for all.
        """
        chosen, which = self.problem.all_terms, None
        if terms is not None:
            which = [i for i, term in enumerate(chosen) if term in terms]
            chosen = [chosen[i] for i in which]
        now: Estimated = self.functions(seen.now, which, direct=direct)
        before: Estimated | None = None
        if seen.elsewhere is not None and seen.before is not None:
            with torch.set_grad_enabled(seen.graph):
                known = now.arrangements  # the samples are the same
                before = seen.elsewhere.measure(seen.before, which, known, direct=direct and seen.graph)
        readings = []
        for i, term in enumerate(chosen):
            one = now.inner[i]
            if one is not None:
                columns = seen.now.batch[part_name(seen.now.batch, term.owners_part)]
                old = None if before is None else before.inner[i]
                along = None if term.state is None else seen.known.get(term.state)
                reading = term.reading(one, old, columns, along)
                readings += [] if reading is None else [reading]
        return Measured(self.weighted(now.direct), readings, None if before is None else self.weighted(before.direct))

    def weighted(self, direct: Tensor | None) -> Tensor | None:
        """An estimate of g_0 from a batch, times what makes up for batches that have none."""
        weight = self.problem.direct_weight
        return direct if direct is None or weight == 1 else weight * direct

    def rows(self, reading: Reading) -> tuple[Tensor, Tensor | None]:
        """Remembered rows (b, k) of a reading, with what has been proposed for them, and which were ever visited."""
        rows, seen = self._read_once(reading)
        for proposal in self._proposals:
            if proposal.state is reading.term.state and len(proposal.rows):
                rows, seen = _overlay(rows, seen, reading.index, proposal)
        return rows, seen

    def every_row(self, reading: Reading) -> Tensor | None:
        """The same of a reading of all rows of one process: as they are held, not copied, unless some are proposed.

        Rows that were never visited hold NaN.  None where the term keeps no rows.
        """
        state = reading.term.state
        if state is None or all(proposal.state is not state for proposal in self._proposals):
            return None if state is None else state.rows
        return self.rows(reading)[0]

    def _read_once(self, reading: Reading) -> tuple[Tensor, Tensor | None]:
        """Rows as they are stored; a second reading of the same ones in an iteration costs no second exchange."""
        if reading.place is None:
            return reading.term.read(reading)
        for place, rows, seen in self._stored:
            if place is reading.place:
                return rows, seen
        rows, seen = reading.term.read(reading)
        self._stored.append((reading.place, rows, seen))
        return rows, seen

    def propose(self, reading: Reading, rows: Tensor, decay: float = 1.0) -> None:
        """Remember new values (b, k) for the rows of a reading, to be written by :meth:`commit`.

        Args:
            reading: whose rows these are.
            rows: their new values.
            decay: factor on all other rows of the term.
        """
        if reading.place is not None:
            self._propose(reading.term, reading.place, rows, decay)

    def propose_multipliers(self, reading: Reading, values: Tensor) -> None:
        """Let the multipliers of a reading's rows, if it has any, follow their inner values when :meth:`commit` writes.

        Args:
            reading: whose rows these are.
            values: the new u_i, shape (b, k).
        """
        multipliers, group = reading.term.multipliers, self.optimizer.param_groups[0]
        if multipliers is not None:
            first = group.get("initial_lr", group["lr"])  # a schedule notes it
            moved = multipliers.moved(reading.index, values, float(group["lr"] / first) if first else 1.0)
            self._proposals.append(_proposal("multipliers", multipliers.state, *moved, 1.0))

    def shrink(self, term: Term, factor: float) -> None:
        """Multiply all rows of a term of which the batch does not speak, when :meth:`commit` writes."""
        rows = self.params[0].new_empty(0, term.width)
        place = _state(term).locate(torch.empty(0, dtype=torch.int64))
        self._propose(term, place, rows, factor)

    def all_rows(self, term: Term) -> tuple[Tensor, Tensor | None]:
        """All rows (n, k) of a term, and which were ever visited: O(n), for small tables."""
        return _state(term).read(torch.arange(term.num_rows))

    def propose_all(self, term: Term, rows: Tensor) -> None:
        """Remember new values (n, k) for all rows of a term, to be written by :meth:`commit`."""
        place = _state(term).locate(torch.arange(term.num_rows))
        self._propose(term, place, rows, 1.0)

    def descend(self, surrogate: Surrogate) -> None:
        """Leave the gradient of the surrogate in ``.grad`` of the parameters, averaged over the processes, unscaled."""
        gradients, self._estimates = surrogate.gradients, surrogate.estimates
        if gradients is not None and self.backend.put(surrogate.number, self.params, gradients):
            self._surrogates.append(surrogate.number)
            self._readings = surrogate.readings
            return
        value = surrogate.value
        if not surrogate.readings and self.problem.objective.outer is not None:
            # a batch that says nothing has gradient 0: not None, which momentum and DistributedDataParallel would see
            value = value + nothing(self._outputs)
        self._surrogates.append(value)
        self._readings = surrogate.readings
        leaf, by_rows = self._unmoved_rows, None
        if value.requires_grad:
            by_rows = self.backend.backward(value, leaf)
            self.backend.synchronise(self.params)
        if leaf is not None:
            self._move_rows(by_rows)

    def gradients(self, surrogate: Surrogate, weights: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of a surrogate with respect to other tensors, summed over the processes as ``.grad`` is."""
        leaf, value = self._unmoved_rows, surrogate.value
        if leaf is None:
            return self.averaged(self._own_gradients(value, weights))
        *gradients, by_rows = self._own_gradients(value, [*weights, leaf])
        self._move_rows(by_rows if value.requires_grad else None)
        return self.averaged(gradients)

    def own_gradients(self, value: Tensor, *, graph: bool) -> list[Tensor]:
        """This process's gradients of a scalar with respect to the parameters; its graph is kept for what follows.

        Args:
            value: measured on the outputs of this process alone (``own`` of :class:`Evaluated`).
            graph: whether the gradients have a graph of their own, so that they can be differentiated once more.
        """
        return self._own_gradients(value, self.params, keep=True, graph=graph)

    def directional(self, values: Tensor, steps: Sequence[Tensor]) -> Tensor:
        """Derivatives of inner values (b, k) along a step of the parameters, without graph; that of the values is kept.

        Args:
            values: with graph, as a :class:`Reading` has them.
            steps: in the order of ``params``.
        """
        y = torch.zeros_like(values, requires_grad=True)
        gradients = self._own_gradients((y * values).sum(), self.params, keep=True, graph=True)
        along = torch.stack([(g * d).sum() for g, d in zip(gradients, steps, strict=True)]).sum()
        if not along.requires_grad:  # the batch said nothing
            return torch.zeros_like(values)
        (own,) = torch.autograd.grad(along, y, retain_graph=True)
        return self.averaged([own])[0]

    def averaged(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Gradients averaged over the processes, without graph; :meth:`commit` sees whether they are finite."""
        averages = [g.detach().clone() for g in gradients]
        self.processes.average_(averages)
        self._gradients += averages
        return averages

    def commit(self, mover: Optimizer | None = None) -> bool:
        """Write what was proposed, if everything of this iteration is finite: values, rows and gradients.

        Args:
            mover: the optimizer that steps next, if it is not the user's.

        Returns: False if gradients overflowed in half precision and the step is going to be dropped for that.

        Raises:
            NonFiniteError: if something is NaN or infinite; nothing has changed then.
        """
        self.backend.prepare(mover or self.optimizer)
        gradients = [*(p.grad for p in self.params if p.grad is not None), *self._gradients]
        values = [*self._surrogates, *(p.rows for p in self._proposals)]
        values += [] if self._row_step is None else [self._row_step.values]
        usable = all_finite([*values, *gradients])
        if not usable and not all_finite(values):
            self._refuse()
        if not usable and not self.backend.drops_overflows:
            self._refuse_gradient()
        self._write()
        return usable

    def discard(self) -> None:
        """Forget what was proposed and is not going to be committed."""
        self._clear()

    def inner_step(self, optimizer: Optimizer, *, clip: bool = True) -> None:
        """Let another optimizer step on ``.grad``: an inner iteration, which is no update of w."""
        self.backend.inner_step(optimizer, clip=clip)

    def replace_gradient(self, gradient: Sequence[Tensor]) -> None:
        """Put a corrected gradient in the place of what :meth:`descend` left, in the order of ``params``."""
        for p, g in zip(self.params, gradient, strict=True):
            p.grad = g

    def clear_gradient(self) -> None:
        """Forget what the backward pass before left."""
        self.optimizer.zero_grad(set_to_none=True)

    def update(self, gradient: Sequence[Tensor] | None = None, *, clip: bool = True) -> None:
        """Let the user's optimizer step: an update of w.

        Args:
            gradient: in the order of ``params``, set by hand; None for what :meth:`descend` left.
            clip: whether gradients are clipped, if the user asked for that.
        """
        if gradient is not None:
            self.replace_gradient(gradient)
        self.backend.update(self.optimizer, from_backward=gradient is None, clip=clip)

    # ------------------------------------------------------------------------------------------------------- details

    def _own_gradients(self, value: Tensor, weights: Sequence[Tensor], **options: bool) -> list[Tensor]:
        self._surrogates.append(value)
        if not value.requires_grad:  # the batch said nothing
            return [torch.zeros_like(w) for w in weights]
        computed = self.backend.gradients(value, weights, **options)
        return [torch.zeros_like(w) if g is None else g for w, g in zip(weights, computed, strict=True)]

    def _propose(self, term: Term, place: Place, rows: Tensor, decay: float) -> None:
        self._proposals.append(_proposal(term.name, _state(term), place, rows, decay))

    @property
    def _unmoved_rows(self) -> Tensor | None:
        """The parameters of the batch's samples, until the first surrogate of an iteration has moved them."""
        parameters = self.problem.row_parameters
        return None if parameters is None or self._row_step is not None else parameters.leaf

    def _move_rows(self, gradient: Tensor | None) -> None:
        parameters = self.problem.row_parameters
        if parameters is not None:
            self._row_step = parameters.step(gradient)

    def _write(self) -> None:
        for _, state, place, rows, decay in self._proposals:
            if decay != 1:
                state.scale_(decay)
            state.write(place, rows, checked=True)
        for reading in self._readings:
            reading.term.count(reading.index)
        for term in self.problem.all_terms:
            if term.multipliers is not None:
                term.multipliers.measure(self._estimates)
        if self.problem.row_parameters is not None:
            self.problem.row_parameters.commit(self._row_step)
        self._clear()

    def _clear(self) -> None:
        self._proposals, self._surrogates, self._gradients, self._readings = [], [], [], []
        self._stored, self._row_step, self._outputs = [], None, {}

    def _refuse(self) -> None:
        """Name the first part that is not finite.

        Raises:
            NonFiniteError: always.
        """
        raise NonFiniteError(
            f"{self._blame()} is not finite; no row and no weight was changed. The scores or the features hold "
            "NaN or infinity, or the weights diverged: lower the learning rate or rho, clip with "
            "--model.gradient_clip_val, or set --model.skip_nonfinite true to drop such batches. "
            f"If values overflow: {self.problem.objective.against_overflow}"
        )

    def _refuse_gradient(self) -> None:
        """Say whether the gradient overflowed, or a derivative does not exist.

        Raises:
            NonFiniteError: always.
        """
        unchanged = "the gradient is not finite although the loss is; no row and no weight was changed."
        size = max((abs(float(s.detach())) for s in self._surrogates), default=0.0)
        if size < _OVERFLOWS:
            raise NonFiniteError(
                f"{unchanged} Look for a function without derivative at a value that occurs, such as sqrt or norm at 0."
            )
        largest = max((float(r.values.detach().abs().max()) for r in self._readings), default=size)
        raise NonFiniteError(
            f"{unchanged} It overflows: inner values reach {largest:.1e}, and times the slopes of the outer functions "
            f"{size:.1e}. {self.problem.objective.against_overflow} Or lower the learning rate."
        )

    def _blame(self) -> str:
        objective = self.problem.objective
        direct = self._estimates.direct
        if direct is not None and not bool(torch.isfinite(direct)):
            return f"the objective {type(objective).__name__} (value {direct.item()})"
        for reading in self._readings:
            bad = (~torch.isfinite(reading.values)).any(1)
            if bool(bad.any()):
                return f"the inner value of row {int(reading.index[bad][0])} of the {reading.term.name}"
        for proposal in self._proposals:  # on samples whose values are not in the surrogate
            bad = (~torch.isfinite(proposal.rows)).any(1)
            if bool(bad.any()):
                return f"the new value of row {int(proposal.place.index[bad][0])} of the {proposal.name}"
        return "a sum of finite values, or a value at the previous weights,"


def _proposal(name: str, state: DualState, place: Place, rows: Tensor, decay: float) -> Proposal:
    return Proposal(name, state, place, rows.to(state.rows.dtype), decay)  # a value may overflow the rows' dtype


def _state(term: Term) -> DualState:
    if term.state is None:
        raise ConfigError(f"the {term.name} keeps no rows: call term.remember() in the algorithm's prepare().")
    return term.state


def _overlay(rows: Tensor, seen: Tensor | None, index: Tensor, proposal: Proposal) -> tuple[Tensor, Tensor | None]:
    """``rows`` with those replaced for which there is a proposal."""
    rows, proposed = replaced(rows, index, proposal.place.index, proposal.rows)
    return rows, None if seen is None else seen | proposed

"""The verbs of which the iterations of algorithms are made, independent of who runs the loop."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fcco_lightning.engine.arrivals import Arrivals
from fcco_lightning.engine.backend import Backend
from fcco_lightning.engine.batches import is_ready, received
from fcco_lightning.engine.compiling import Compiled
from fcco_lightning.engine.diagnosis import check, name_index, refuse
from fcco_lightning.engine.estimates import Averages, Estimate, Estimates, Evaluated, Measured, Proposal
from fcco_lightning.engine.functions import InnerFunctions, in_full, read, unite
from fcco_lightning.engine.problem import Problem
from fcco_lightning.engine.row_weights import RowWeights
from fcco_lightning.engine.running import Method
from fcco_lightning.engine.terms import Reading, Term
from fcco_lightning.errors import CheckpointError, ConfigError, DataError
from fcco_lightning.models.batch import TARGET, Batch, Columns
from fcco_lightning.numerics import all_finite, look
from fcco_lightning.objectives.measurable import Measurable, Rows
from fcco_lightning.state.checkpoint_files import in_words
from fcco_lightning.state.checkpoint_schema import EngineState, require
from fcco_lightning.state.divided import parts_of

_Found = tuple[Tensor | None, Rows | None]  # g_0, and the rows


class Engine:
    """Carries out an algorithm on a stream of batches.

    With P processes each one is given its part of a batch, and the result is that of one process with the whole batch:
    every process measures the inner functions on the outputs of all (:func:`unite`), so rows and estimates are the same
    everywhere, and the gradients add up.

    An iteration measures a batch, which reads the rows, estimates F with new rows, descends (a backward pass) and
    commits: until then no row and no weight has changed, and :meth:`commit` looks at everything at once, so that a bad
    batch changes nothing.

    Args:
        network: called as ``network(batch["x"])``, or with the whole batch if it is a
            :class:`~fcco_lightning.models.BatchNetwork`.
        problem: the terms, as the algorithm posed them.
        algorithm: whose iterations these are.
        backend: how to differentiate and step; a bare loop by default.
        micro_batch: largest number of samples of a part that pass through the network at once, so that batches of any
            size fit into memory (see :func:`~fcco_lightning.engine.micro_batches.recomputed`); None for all.
        compiled: whether steps are compiled by torch.compile, see :class:`~fcco_lightning.engine.compiling.Compiled`.

    Attributes:
        optimizer: the user's, while a batch is trained on.
        network_alone: whether all that is trained is the network's.
        stop_asked: whether this process was asked to stop.
        stop_agreed: whether any was; all processes know it in the same step.
        last_batch: whether the epoch ends with the batch.
        has_schedule: whether the learning rate has one.
        answer: to what was asked in the last :meth:`commit`.
        averages: means of the estimates since :meth:`average_estimates`; None if nobody asked.
        given: the batch that is being trained on, of this process, until the commit.
        seen: the same, evaluated.
        arrivals: compares the first batches with what was declared of them.

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
    averages: Averages | None
    given: Batch
    seen: Evaluated | None
    _proposals: list[Proposal]
    _counted: list[tuple[RowWeights, Tensor | None, Tensor]]
    _looked_at: list[Tensor]
    _gradients: list[Tensor]

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
        if problem.row_parameters is not None:
            problem.row_parameters.with_previous = algorithm.needs_previous
        self.functions = InnerFunctions(network, problem.objective, problem.constraints, micro_batch)
        self.backend = backend or Backend(self.processes)
        self.has_schedule = self.last_batch = self.stop_asked = self.stop_agreed = self.answer = False
        self.compiled = Compiled(self) if compiled else None
        self.arrivals = Arrivals(problem)
        self.checked = False  # whether the parts have looked at a batch
        self.onlookers: list[Callable[[Engine, Evaluated], None]] = []  # who look at it beside them
        self._estimates, self.averages = Estimates(None), None
        self._new_estimates: Estimates | None = None  # of a step that has not been committed
        self.network_alone = self._only_network()
        self.discard()
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

        Returns: estimates of the parts of F by name, at the weights and parameters from before the update.

        Raises:
            NonFiniteError, DataError, StateIndexError: before any row or weight has changed.
        """
        if not self.params:
            raise ConfigError("nothing is trained: all parameters are frozen. Unfreeze some layers of the network.")
        self.optimizer, self.last_batch = optimizer, last_batch
        for p in self.params:
            p.grad = None  # before the forwards: their activations then have that memory
        for multipliers in self.problem.multipliers_of_terms:
            multipliers.follow(optimizer)
        with self.processes.guard():
            columns = self.received(batch)
        self.arrivals.look(columns)
        objective = vars(self.problem.objective)  # torch looks through all of a module's members to set one
        objective["most"] = self.problem.most
        try:
            self.algorithm.iteration(self, columns)
        except (IndexError, RuntimeError) as error:  # the latter from compiled code
            name_index(self)  # raises, if it is that of a row
            if not all(p.requires_grad for p in self.params):
                raise ConfigError(
                    "parameters were frozen since Engine.follow_parameters: call it after such a change. Under a "
                    "Trainer freeze layers at the start of an epoch, as a callback of BaseFinetuning does."
                ) from error
            raise
        finally:
            objective["most"] = ()
            self.discard()
        self.arrivals.learn(self._estimates, last_batch=last_batch)
        return self._estimates

    def average_estimates(self) -> None:
        """Begin to take means of the estimates over the batches from now on."""
        self.averages = Averages(self.problem.direct_weight if self.problem.may_lack_direct else None)

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
        network, some = self.functions.network, self.params[0]
        parts = {TARGET: batch} if is_ready(batch, network, some) else received(batch, network, some.device)
        first = next(iter(parts.values()))
        if "index" not in first and self.problem.needs_index:
            raise DataError(
                f"a batch has no column `index`, by which single samples find their rows; it has {sorted(first)}. Wrap "
                "the data set: DataLoader(IndexedDataset(dataset), ...)."
            )
        index = first.get("index")
        if isinstance(index, Tensor) and (index.is_floating_point() or (len(index) == 0 and self.processes.size == 1)):
            raise DataError(
                f"the column `index` of a batch has shape {tuple(index.shape)} and type {index.dtype}: it must be the "
                "whole numbers of one sample or more. Wrap the data set (IndexedDataset), or drop empty batches."
            )
        return parts

    def follow_parameters(self) -> bool:
        """Take up a change of what is trained (layers frozen or unfrozen): memories of the old set start afresh.

        Returns: whether a parameter is trained that was not before.
        """
        params = list(self.functions.trainable().values())
        if len(params) == len(self.params) and all(a is b for a, b in zip(params, self.params, strict=True)):
            return False
        known, trained = {id(p) for p in self.params}, {id(p) for p in params}
        for p in self.params:
            if id(p) not in trained:
                p.grad = None  # the user's optimizer would go on with the last one
        self.functions.params, self.network_alone = params, self._only_network()
        self.algorithm.start(self)
        return any(id(p) not in known for p in params)

    def state_dict(self) -> dict[str, Any]:
        """What is remembered of earlier weights and batches; tensors and primitives only.  The problem has the rows."""
        samples = self.problem.row_parameters
        before = {} if samples is None else {name: column.clone() for name, column in samples.before.items()}
        estimates = {name: value.cpu() for name, value in self._estimates.items()}  # of batches that make none
        state = {
            "algorithm": self.algorithm.state_dict(),
            "samples_before": before,
            "estimates": estimates,
            "data": self.problem.data,
        }
        return state if self.averages is None else {**state, "averages": self.averages.state_dict()}

    def load_state_dict(self, state: dict[str, Any], *, allow_changed: bool = False) -> None:
        """Continue exactly where :meth:`state_dict` was taken.

        Args:
            state: what it gave.
            allow_changed: whether the training split may be another one, with a warning: of another number of samples,
                or with other labels, as far as ``sampling`` tells.

        Raises:
            CheckpointError: naming the entry, if the state is incomplete or of another algorithm; nothing changes then.
            DataError: if the training split is another one.
        """
        require(state, EngineState, "the engine's state")
        self.problem.require_same_data(state.get("data"), allow_changed=allow_changed)
        device, before = self.params[0].device, copy.deepcopy(self.algorithm.state_dict())
        with in_words("the engine's estimates"):
            estimates = [(name, value.to(device).reshape(())) for name, value in state.get("estimates", {}).items()]
        try:
            with in_words("the state of the algorithm"):
                self.algorithm.load_state_dict(state["algorithm"])
            if self.averages is not None:
                with in_words("the means of the epoch"):
                    self.averages.load_state_dict(state.get("averages", {}), device)
        except CheckpointError:
            self.algorithm.load_state_dict(before)
            raise
        self._estimates = Estimates(None, estimates)
        if self.problem.row_parameters is not None:
            columns = state.get("samples_before", {})
            self.problem.row_parameters.before = {name: column.to(device) for name, column in columns.items()}

    # ------------------------------------------------------------------------------------------------- for iterations

    def run(
        self, step: Callable[[Measured], Estimate], batch: Batch, before: Sequence[Tensor] | None = None
    ) -> Estimate:
        """What follows from a batch by a step of an algorithm: a function of tensors, compiled if the user asked.

        Args:
            step: what an algorithm makes of a measured batch.
            batch: of this process.
            before: see :meth:`evaluate`.
        """
        if self.compiled is not None and self.compiled.applies():
            return self.compiled(step, batch, before)
        return step(self.measure(self.evaluate(batch, before)))

    def evaluate(self, batch: Batch, before: Sequence[Tensor] | None = None) -> Evaluated:
        """The network's outputs at the present weights and, without graph, at the weights ``before``.

        Both passes draw the same dropout masks and find the same buffers, which move once.

        Args:
            batch: of this process.
            before: in the order of ``params``; None for no second pass.

        Raises:
            NonFiniteError, DataError, PeerError: on all processes, where one of them fails.
        """
        with self.processes.guard():
            earlier = []
            if before is not None:
                with torch.no_grad(), self.functions.elsewhere(before):
                    earlier.append(self.functions.outputs(batch))
            torch.clear_autocast_cache()  # of weights that have moved since
            own = self.functions.outputs(batch)
        # behind it all processes compute the same, so they fail together
        united, columns, self.stop_agreed = unite(
            [own, *earlier], batch, self.functions.network, self.processes, stop=self.stop_asked, last=self.last_batch
        )
        seen = Evaluated(united[0], columns, united[1] if len(united) > 1 else None, before, own)
        self.given, self.seen = batch, seen  # for messages, if an index is none of a sample
        self.seen = seen = seen._replace(batch=self.problem.attach(columns))
        if not self.checked:
            check(self.problem, self.algorithm, seen)
            self.arrivals.compare()
            for look_at in self.onlookers:
                look_at(self, seen)
            self.checked = True
        return seen

    def measure(self, seen: Evaluated, terms: Sequence[Term] | None = None, *, direct: bool = True) -> Measured:
        """Inner functions, with the rows that are remembered of them, and g_0.

        Args:
            seen: see :meth:`evaluate`; all of its samples are used.
            terms: which terms are measured; None for all.
            direct: whether g_0 is measured.
        """
        objective, g0 = self.problem.objective, None
        readings: list[Reading] = []
        with in_full(self.params[0].device.type):
            if direct and not self.problem.compositional:
                g0 = objective.measure(*read(seen.outputs, seen.batch, objective))[0]
            for term in self.problem.all_terms:
                own, wanted = direct and term.part is objective, terms is None or term in terms
                if not own and not wanted:
                    continue
                (found, rows), (_, earlier), columns = self._measured(seen if wanted else seen.at_present(), term.part)
                g0 = found if own else g0
                if wanted and rows is not None:
                    reading = term.reading(rows, earlier, columns)
                    readings.append(self._with_decisions(reading, seen))
        weight = self.problem.direct_weight
        return Measured(g0 if g0 is None or weight == 1 else weight * g0, readings)

    def descend(self, estimate: Estimate) -> None:
        """Leave the gradient of an estimate of F in ``.grad`` of the parameters, averaged over the processes, unscaled.

        Its rows are written by :meth:`commit`.
        """
        self._new_estimates = estimate.parts
        value, by_rows, of_samples = estimate.value, estimate.by_rows, self.problem.row_parameters
        self._looked_at.append(value.detach())
        self._proposals += estimate.proposals
        self._counted += estimate.counted
        if estimate.gradients is not None:
            self.backend.put(value, self.params, estimate.gradients)
        elif value.requires_grad:
            by_rows = self.backend.backward(value, None if of_samples is None else of_samples.leaf)
            if self.processes.size > 1:
                self.backend.synchronise(self.params)
        if of_samples is not None:
            self._proposals += of_samples.step(by_rows)

    def gradients(
        self, value: Tensor, *, own: bool = False, graph: bool = False, of_samples: bool = False
    ) -> list[Tensor]:
        """Gradients of a scalar with respect to the parameters, at which :meth:`commit` is going to look, too.

        Args:
            value: with graph.
            own: whether they are those of this process alone, the graph of the value being kept; otherwise they are
                averaged over the processes, without graph.
            graph: whether they have a graph of their own, so that they can be differentiated once more.
            of_samples: whether the parameters of single samples, if there are any, move by the value.
        """
        self._looked_at.append(value.detach())
        rows = self.problem.row_parameters if of_samples else None
        leaves = [] if rows is None or rows.leaf is None else [rows.leaf]
        found: Sequence[Tensor | None] = [None] * (len(self.params) + len(leaves))
        if value.requires_grad:
            found = self.backend.gradients(value, [*self.params, *leaves], keep=own, graph=graph)
        of_weights = [torch.zeros_like(w) if g is None else g for w, g in zip(self.params, found, strict=False)]
        if rows is not None and leaves:
            self._proposals += rows.step(found[-1])
        if own:
            return of_weights
        of_weights = [g.detach().clone() for g in of_weights]
        self.processes.average_(of_weights)
        self._gradients += of_weights
        return of_weights

    def commit(self, mover: Optimizer | None = None, asked: Tensor | None = None) -> bool:
        """Write what was proposed, if everything of this iteration is finite: values, rows and gradients.

        It is the one look at numbers that a step takes.

        Args:
            mover: the optimizer that steps next, if it is not the user's.
            asked: a truth value that is wanted as :attr:`answer`, a scalar.

        Returns: False if gradients overflowed in half precision and the step is going to be dropped for that.

        Raises:
            NonFiniteError: if something is NaN or infinite; nothing has changed then.
        """
        self.backend.prepare(mover or self.optimizer)
        values, known = self._looked_at, None if self.problem.units_known else self.problem.have_units()
        for proposal in self._proposals:
            values.append(proposal.rows if proposal.finite is None else proposal.finite)
        gradients, questions = self._gradients, [question for question in (asked, known) if question is not None]
        for p in self.params:
            if p.grad is not None:
                gradients.append(p.grad)
        usable, answers = look([*values, *parts_of(gradients)], questions)
        usable = self.backend.everywhere(usable)
        self.answer = asked is not None and answers[0]
        if not usable and not (self.backend.drops_overflows and all_finite(values)):
            refuse(self, values)
        self._write()
        if self._new_estimates is not None:
            self._estimates = self._new_estimates
            if self.averages is not None:
                batch = self.given if self.seen is None else self.seen.batch  # of all processes
                self.averages.add(self._estimates, len(next(iter(next(iter(batch.values())).values()))))
        if known is not None:
            self.problem.take_units(self._estimates, known=answers[-1])
        self.discard()
        return usable

    def discard(self) -> None:
        """Forget the batch, and what was proposed and has not been committed."""
        self._proposals, self._counted, self._looked_at, self._gradients = [], [], [], []
        self._new_estimates = None
        self.given, self.seen = {}, None

    def update(
        self, gradient: Sequence[Tensor] | None = None, *, by: Optimizer | None = None, clip: bool = True
    ) -> None:
        """Let the user's optimizer step: an update of w; or another one, an inner iteration, which is none.

        Args:
            gradient: in the order of ``params``, set by hand; None for what :meth:`descend` left.
            by: an optimizer for an inner iteration; None for the user's.
            clip: whether gradients are clipped, if the user asked for that.
        """
        for p, g in zip(self.params, gradient or (), strict=gradient is not None):
            p.grad = g
        if by is not None:
            self.backend.inner_step(by, clip=clip)
        else:
            self.backend.update(self.optimizer, from_backward=gradient is None, clip=clip)

    # ------------------------------------------------------------------------------------------------------- details

    @property
    def params(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return self.functions.params

    @property
    def alone(self) -> bool:
        """Whether this process has all samples of a batch, and evaluates the network on all of them at once."""
        return self.processes.size == 1 and self.functions.micro_batch is None

    def _write(self) -> None:
        """Write what was proposed."""
        for state, index, rows, decay, _ in self._proposals:
            if decay != 1:
                state.scale_(decay)
            state.scatter_(index, rows)
        for weights, index, each in self._counted:
            weights.count(index, each)
        for multipliers in self.problem.multipliers_of_terms:
            multipliers.note_rate()
        if self.problem.row_parameters is not None:
            self.problem.row_parameters.committed()

    def _measured(self, seen: Evaluated, part: Measurable) -> tuple[_Found, _Found, Columns]:
        """A part at the present weights and, without graph, at the other ones, if there are any; its columns."""
        outputs, columns = read(seen.outputs, seen.batch, part)
        if seen.earlier is None or seen.before is None:
            return part.measure(outputs, columns), (None, None), columns
        samples = self.problem.row_parameters
        batch_before = seen.batch if samples is None else samples.at_previous(seen.batch)
        before, columns_before = read(seen.earlier, batch_before, part)
        if self.network_alone and samples is None:  # the part is the same there, and outputs there have no graph
            now, there = part.measure_at([outputs, before], columns)
            return now, there, columns
        with torch.no_grad(), nullcontext() if self.network_alone else self.functions.at(seen.before):
            there = part.measure(before, columns_before)
        return part.measure(outputs, columns), there, columns

    def _with_decisions(self, reading: Reading, seen: Evaluated) -> Reading:
        """The reading with a constraint's values on decisions, where its multipliers follow them."""
        multipliers = reading.term.multipliers
        if multipliers is None or multipliers.decisions is None:
            return reading
        constraint = multipliers.constraint
        with torch.no_grad():
            decided = constraint.decided(*read(seen.outputs, seen.batch, constraint))
        return reading._replace(decided=decided, gap=multipliers.decisions.gather(None))

    def _only_network(self) -> bool:
        """Whether all that is trained is the network's, so that the other parts are the same at other weights."""
        return all(name.startswith("network.") for name in self.functions.trainable())

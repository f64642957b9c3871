"""The engine, which takes a batch from the loader's columns to the optimizer step, and the interface of algorithms."""

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from fcco_lightning.constraints import Constraint
from fcco_lightning.constraints.multipliers import Enforcement
from fcco_lightning.data.batches import Drawn
from fcco_lightning.engine.arrivals import Arrivals
from fcco_lightning.engine.backend import Backend, require_own
from fcco_lightning.engine.batches import part_name, received
from fcco_lightning.engine.compiling import Compiled
from fcco_lightning.engine.diagnosis import check, check_columns, reason
from fcco_lightning.engine.estimates import Averages, Estimate, Estimates, NewRows, Outputs, Summand
from fcco_lightning.engine.functions import (
    InnerFunctions,
    have_been_drawn,
    in_full,
    random_numbers_kept,
    random_state,
    read,
    unite,
)
from fcco_lightning.engine.problem import Problem
from fcco_lightning.engine.stored import remembers, require_same_problem, require_whole, what_is_solved
from fcco_lightning.engine.terms import Seen, Term
from fcco_lightning.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from fcco_lightning.models.batch import Batch
from fcco_lightning.numerics import all_finite, look
from fcco_lightning.objectives import Measurable, Objective
from fcco_lightning.objectives.measurable import Rows
from fcco_lightning.outer import slopes
from fcco_lightning.state import Layout
from fcco_lightning.state.checkpoint_files import in_words
from fcco_lightning.state.checkpoint_schema import ENGINE, require
from fcco_lightning.state.processes import Processes
from fcco_lightning.state.sharded import is_gathered, parts_of

_FULL = (torch.float32, torch.float64)
_Measured = tuple[Tensor | None, Rows | None]  # g_0, and the inner functions


class Algorithm(ABC):
    r"""How a stream of batches becomes updates of the weights.

    A named algorithm is a subclass whose :meth:`iteration` can be compared line by line with the paper.  Most combine
    an estimator (the running averages of the inner functions) and a smoothing (of the outer functions) under
    :class:`~fcco_lightning.algorithms.SingleLoop` or :class:`~fcco_lightning.algorithms.DoubleLoop`.  The gradient
    estimate is always ``G = mean over sampled i of Jac g_i(w)^T y_i``; an algorithm only decides the y_i and the step.
    """

    objective_share: float = 1.0
    """Fraction of every batch on which the objective's gradient is computed."""
    constraint_share: float = 1.0
    """Fraction of every batch on which the constraints' gradient is computed."""

    needs_previous: bool = False
    """Whether every batch is also evaluated at the previous weights."""

    penalises: bool = True
    """Whether constraints enter the minimised function, through multipliers or a penalty."""

    @property
    def name(self) -> str:
        """The name that checkpoints and reports show."""
        return type(self).__name__

    # ------------------------------------------------------------------------------------------------------ the problem

    def posed(self, objective: Objective, constraints: Sequence[Constraint]) -> tuple[Objective, Sequence[Constraint]]:
        """The objective and constraints that the algorithm works on; by default, those given."""
        return objective, constraints

    def pose(
        self,
        objective: Objective,
        constraints: Sequence[Constraint] = (),
        penalty: Enforcement | None = None,
        *,
        num_samples: int,
        sampling: Mapping[str, Drawn] | None = None,
        dtype: torch.dtype = torch.float32,
        processes: Processes | None = None,
        layout: Layout = "auto",
    ) -> Problem:
        """The :class:`Problem`, with the same arguments, and the rows that this algorithm keeps.

        Raises:
            ConfigError: if the algorithm does not apply to the problem, naming the reason.
        """
        objective, constraints = self.posed(objective, constraints)
        problem = Problem(
            objective,
            constraints,
            penalty,
            num_samples,
            sampling=sampling,
            objective_share=self.objective_share,
            constraint_share=self.constraint_share,
            dtype=dtype,
            processes=processes,
            layout=layout,
        )
        self.prepare(problem)
        return problem

    def prepare(self, problem: Problem) -> None:  # noqa: B027 - SGD keeps nothing
        """Allocate the rows that are kept, and raise for a problem that the algorithm cannot solve."""

    # ------------------------------------------------------------------------------------------------------ training

    def start(self, engine: "Engine") -> None:  # noqa: B027 - most hooks are for a few algorithms
        """Read the trainable parameters, in their final place and dtype, and drop copies of earlier weights."""

    def updates_in(self, batches: int) -> int | None:
        """The number of updates of w in ``batches`` batches; None where it is not known beforehand.

        A double loop that restarts in every epoch returns ``batches``: the Trainer counts its updates itself.
        """
        return batches

    def require_stored_activations(self, engine: "Engine") -> None:
        """Refuse networks that recompute activations: this algorithm differentiates at other weights, too.

        Raises:
            ConfigError: if gradient checkpointing is on.
        """
        network = engine.functions.network
        if getattr(network, "recomputes", False):
            raise ConfigError(
                f"grad_checkpointing=True of {type(network).__name__} cannot be combined with {self.name}, which "
                "needs gradients at other weights; checkpointing would recompute the activations at the present "
                "ones. Set grad_checkpointing to false, or use an algorithm without such gradients, such as SONEX."
            )

    @abstractmethod
    def iteration(self, engine: "Engine", batch: Batch) -> None:
        """Process one batch: measure it, compute rows and gradient, commit the rows, update the weights."""

    def check(self, outputs: Outputs) -> None:  # noqa: B027
        """Check the form of the first batch, and of a batch that gave values that are not finite.

        Raises:
            ConfigError: if the algorithm cannot use such a batch, naming what it needs.
        """

    def close(self, engine: "Engine") -> None:  # noqa: B027
        """Finish an inner loop that is still open where an epoch ends without a usable batch."""

    def finish(self, engine: "Engine", batches: Iterator[Batch]) -> bool:  # noqa: ARG002
        """Carry out what follows training, such as averaging; return whether the weights were changed."""
        return False

    # --------------------------------------------------------------------------------------------------------- reports

    def duals(self, term: Term, rows: Tensor) -> Tensor:
        """The dual values y_i that belong to rows (b, k) of a term, shape (b, k)."""
        return slopes(term.present_outer, rows)

    def settings(self) -> dict[str, str]:
        """The hyperparameters by name, by which processes are compared."""
        return {name: repr(v) for name, v in vars(self).items() if not name.startswith("_") and _is_plain(v)}

    def state_dict(self) -> dict[str, Any]:
        """The algorithm's state besides the rows; tensors and primitives only."""
        return {"name": self.name}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Restore the state; called after :meth:`start`."""


def _is_plain(value: object) -> bool:
    return isinstance(value, int | float | str | bool | None) or hasattr(value, "__dataclass_fields__")


class Engine:
    """Runs an algorithm on a stream of batches.

    With P processes each one gets its part of a batch, and the result equals that of one process with the whole batch:
    every process measures the inner functions on the outputs of all processes (:func:`unite`), so rows and estimates
    agree everywhere, and the gradients are averaged.

    The methods stand in the order in which a batch passes through them.  It is received; an iteration of the algorithm
    evaluates the network on it, measures the inner functions and reads their rows, estimates F and the new rows, runs
    the backward pass (:meth:`descend`), commits the rows and updates the weights.  Before the commit no row and no
    weight changes, and :meth:`commit` checks all values at once, so that a bad batch changes nothing.

    Args:
        network: called as ``network(batch["x"])``, or with the whole batch if it is a
            :class:`~fcco_lightning.models.BatchNetwork`.
        problem: the problem, as made by :meth:`Algorithm.pose`.
        algorithm: the algorithm to run.
        backend: how gradients are computed and optimizers stepped; a bare PyTorch loop by default.
        micro_batch: largest number of samples of a part that pass through the network at once, so that batches of any
            size fit into memory (see :func:`~fcco_lightning.engine.micro_batches.recomputed`); None for no limit.
        compiled: whether steps are compiled by torch.compile, see :class:`~fcco_lightning.engine.compiling.Compiled`.

    Attributes:
        optimizer: the user's optimizer, while a batch is trained on.
        network_alone: whether all trained parameters belong to the network.
        stop_asked: whether this process was asked to stop.
        stop_agreed: whether any process was; all processes know it in the same step.
        last_batch: whether the epoch ends with the current batch.
        has_schedule: whether the learning rate follows a schedule.
        answer: the value of ``question`` in the last :meth:`commit`.
        averages: means of the estimates since :meth:`average_estimates`; None before it is called.
        params: the parameters that are trained.
        sharded: whether the weights are sharded over the processes (FSDP2).
        batch: this process's part of the current batch, until the commit.
        outputs: the network's outputs for the current batch, of all processes; None until it is evaluated.
        arrivals: compares the first batches with the declared sampling.

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
    params: list[nn.Parameter]
    averages: Averages | None
    batch: Batch
    outputs: Outputs | None
    _estimated: Estimate | None  # of this iteration
    _new: list[NewRows]
    _looked_at: list[Tensor]
    _gradients: list[Tensor]
    _stored: Mapping[str, Any] | None = None  # a state that was loaded, until a batch is trained on
    _in_training: bool = False  # whether the network was in training mode for the last batch

    def __init__(
        self,
        network: nn.Module,
        problem: Problem,
        algorithm: Algorithm,
        backend: Backend | None = None,
        micro_batch: int | None = None,
        *,
        compiled: bool = False,
    ) -> None:
        self.processes, self.problem, self.algorithm = problem.processes, problem, algorithm
        if problem.row_parameters is not None:
            problem.row_parameters.with_previous = algorithm.needs_previous
        self.functions = InnerFunctions(network, problem.objective, problem.constraints, micro_batch)
        self.backend = backend or Backend()
        self.has_schedule = self.last_batch = self.stop_asked = self.stop_agreed = self.answer = False
        self.compiled = Compiled(self.functions, problem, self.measure) if compiled else None
        self.arrivals = Arrivals(problem)
        self.checked = False  # whether the first batch has been checked
        self._unchecked = 0 if problem.declared else problem.num_samples  # samples whose columns nobody has declared
        self.onlookers: list[Callable[[Engine, Outputs], None]] = []  # called with the first batch
        self._estimates, self.averages = Estimates(), None
        self.train(self.functions.params)
        self.discard()
        algorithm.start(self)

    # ---------------------------------------------------------------------------------------------- the way of a batch

    def train_batch(
        self, batch: Mapping[str, Any], optimizer: Optimizer, *, last_batch: bool = False
    ) -> Mapping[str, Tensor]:
        """Run one iteration of the algorithm.

        Args:
            batch: columns by name, with the samples' ``index``; or one such mapping for each of several loaders, the
                objective's first.
            optimizer: an optimizer of the trainable parameters.
            last_batch: whether the epoch ends with this batch, so that a double loop closes.

        Returns: estimates of the summands of F by name, at the weights and parameters from before the update.

        Raises:
            NonFiniteError, DataError, StateIndexError: before any row or weight has changed.
            ConfigError: if no weight could change: all are frozen, the optimizer has none of them, or gradients are
                disabled; or if the optimizer holds weights that are not trained here, or lacks parameters of the
                objective.
        """
        if not any(p.requires_grad for p in self.params):
            raise ConfigError("nothing can be trained: all parameters are frozen. Unfreeze some layers of the network.")
        if not torch.is_grad_enabled():
            raise ConfigError(
                "train_batch was called within torch.no_grad() or torch.inference_mode(), where no gradients are "
                "computed. Call it outside of them."
            )
        self._admit(optimizer)
        self.optimizer, self.last_batch = optimizer, last_batch
        for p in self.params:
            p.grad = None  # before the forward pass, which can then use that memory
        with self.processes.guard():
            columns = self.received(batch)
        if self.arrivals.left:
            self.arrivals.look(columns)
        if self.problem.multipliers_of_terms:
            self.problem.follow(optimizer)
        objective = vars(self.problem.objective)  # torch looks through all of a module's members to set one
        objective["most"] = self.problem.most
        try:
            self.algorithm.iteration(self, columns)
        except (IndexError, RuntimeError) as error:  # the latter from compiled code
            self.explain(error)
            raise
        finally:
            objective["most"] = ()  # other batches may exceed it
            self.discard()
        if self._unchecked > 0:
            self._unchecked -= self.processes.size * len(next(iter(next(iter(columns.values())).values())))
        if self.problem.settles:
            self.problem.settle()
        if self.arrivals.batches:
            self.arrivals.note(self._estimates, last_batch=last_batch)
        return self._estimates

    def _admit(self, optimizer: Optimizer) -> None:
        """Check a new optimizer, and a state that was loaded since the last batch.

        Raises:
            ConfigError: if the optimizer lacks parameters of the objective, or holds weights that are not trained here,
                whose gradients would not be reset.
            CheckpointError: if the state was loaded without the rows.
        """
        if optimizer is not vars(self).get("optimizer"):
            require_own(optimizer, self.params, self.problem.objective)
        trained = {id(p) for p in self.params}
        others = [p for g in optimizer.param_groups for p in g["params"] if id(p) not in trained and p.requires_grad]
        names = {id(p): name for name, p in self.functions.trainable().items()} if others else {}
        if own := [names[id(p)] for p in others if id(p) in names]:
            raise ConfigError(
                "parameters were unfrozen or added after the last call of Engine.follow_parameters, for example "
                f"{own[0]}. Call it after such a change. Under a Trainer, unfreeze layers at the start of an epoch, "
                "as a BaseFinetuning callback does."
            )
        network, before = self.functions.network, self._in_training
        self._in_training = network.training
        if before and not network.training and any(isinstance(m, (_BatchNorm, _DropoutNd)) for m in network.modules()):
            warnings.warn(
                "the network has been switched to evaluation mode since the last batch: its dropout is off and its "
                "BatchNorm statistics are no longer updated. Call network.train() after an evaluation.",
                stacklevel=3,
            )
        if self._stored is not None or self.problem.loaded:
            memories = self.algorithm.state_dict().keys() - {"name"}
            memories -= set() if self.algorithm.needs_previous else {"previous"}
            require_whole(self._stored, self.problem, memories, optimizer)
            self._stored, self.problem.loaded = None, False

    def received(self, batch: Mapping[str, Any]) -> Batch:
        """Convert a loader's batch to parts by name, on the device of the weights.

        Raises:
            DataError: naming the column that is missing or cannot be read.
        """
        parts = received(batch, self.functions.network, self.params[0])
        first = next(iter(parts.values()))
        if "index" not in first and self.problem.needs_index:
            raise DataError(
                "a batch has no column `index`, which this problem needs to find the rows of single samples; its "
                f"columns are {sorted(first)}. Wrap the data set: DataLoader(IndexedDataset(dataset), ...)."
            )
        index = first.get("index")
        if isinstance(index, Tensor) and (index.is_floating_point() or (len(index) == 0 and self.processes.size == 1)):
            raise DataError(
                f"the column `index` of a batch has shape {tuple(index.shape)} and type {index.dtype}; it must "
                "contain an integer for each of one or more samples. Wrap the data set (IndexedDataset), or drop "
                "empty batches."
            )
        return parts

    def run(
        self,
        step: Callable[[Tensor | None, Sequence[Seen]], Estimate],
        batch: Batch,
        previous: Sequence[Tensor] | None = None,
    ) -> Estimate:
        """Evaluate and measure a batch and apply ``step`` to the result, as compiled code if the user asked for it.

        Args:
            step: computes the algorithm's estimate of F from g_0 and from what the batch contains of every term.
            batch: this process's part.
            previous: see :meth:`evaluate`.
        """
        if self.compiled is None or not self.compiles:
            return step(*self.measure(self.evaluate(batch, previous)))
        if not self.checked:  # compiled code can neither check values nor create lazily initialised state
            with self.functions.elsewhere([p.data for p in self.params]):
                before = random_state(self.params[0].device)
                step(*self.measure(self.evaluate(batch, previous)))
                self.compiled.draws = have_been_drawn(before, self.params[0].device)
        if not self.alone:
            return self.compiled(step, self.evaluate(batch, previous), with_network=False, gradients=False)
        self.batch, self.stop_agreed = batch, self.stop_asked
        columns, gradients = self.problem.attach(batch), self.backend.plain and not _hooked(self.params)
        return self.compiled(step, Outputs({}, columns, None, previous, {}), with_network=True, gradients=gradients)

    def evaluate(self, batch: Batch, previous: Sequence[Tensor] | None = None) -> Outputs:
        """The network's outputs at the present weights and, without graph, at the previous weights.

        Both passes use the same dropout masks and the same buffers (BatchNorm statistics), which are updated once.

        Args:
            batch: this process's part.
            previous: the previous weights in the order of ``params``; None for no second pass.

        Raises:
            NonFiniteError, DataError, PeerError: on all processes, where one of them fails.
        """
        with self.processes.guard():
            earlier = []
            if previous is not None:
                with torch.no_grad(), self.functions.elsewhere(previous):
                    earlier.append(self.functions.outputs(batch))
            torch.clear_autocast_cache()  # of weights that have moved since
            local = self.functions.outputs(batch)
        # from here on all processes compute the same, so they fail together
        (now, *before), columns, self.stop_agreed = unite(
            [local, *earlier], batch, self.functions.network, self.processes, stop=self.stop_asked, last=self.last_batch
        )
        outputs = Outputs(now, columns, before[0] if before else None, previous, local)
        self.batch, self.outputs = batch, outputs  # for the message, if an index is not that of a sample
        self.outputs = outputs = outputs._replace(columns=self.problem.attach(columns))
        if not self.checked:
            self._look_at_first(outputs)
        elif self._unchecked > 0:  # in the first epoch; later epochs bring the same samples again
            check_columns(self.problem, outputs)
        return outputs

    def measure(
        self, outputs: Outputs, terms: Sequence[Term] | None = None, *, direct: bool = True
    ) -> tuple[Tensor | None, list[Seen]]:
        """The estimate of g_0 with graph, a scalar or None, and what the batch contains of every term.

        Args:
            outputs: as returned by :meth:`evaluate`.
            terms: the terms to measure; None for all.
            direct: whether to measure g_0.
        """
        objective, g0 = self.problem.objective, None
        seen: list[Seen] = []
        with in_full(self.params[0].device.type):
            if direct and not self.problem.compositional:
                g0 = objective.measure(*read(outputs.now, outputs.columns, objective))[0]
            for term in self.problem.all_terms:
                with_g0, with_rows = direct and term.measurable is objective, terms is None or term in terms
                if not with_g0 and not with_rows:
                    continue
                inputs, before = read(outputs.now, outputs.columns, term.measurable), None
                if with_rows and term.corrected and outputs.before is not None:
                    (direct_value, now), before = self._now_and_before(term.measurable, inputs, outputs)
                else:
                    direct_value, now = term.measurable.measure(*inputs)
                g0 = direct_value if with_g0 else g0
                if with_rows and now is not None:
                    seen.append(term.seen(now, before, *inputs))
        weight = self.problem.direct_weight
        return g0 if g0 is None or weight == 1 else weight * g0, seen

    def _now_and_before(
        self, measurable: Measurable, inputs: tuple[Any, Any], outputs: Outputs
    ) -> tuple[_Measured, Rows | None]:
        """The measurements of an objective or constraint at the present and, without graph, at the previous weights."""
        assert outputs.before is not None and outputs.previous is not None  # noqa: S101, PT018 - the caller has seen
        samples = self.problem.row_parameters
        columns = outputs.columns if samples is None else samples.at_previous(outputs.columns)
        before = read(outputs.before, columns, measurable)
        if self.network_alone and samples is None:  # same parameters at both points, and outputs there have no graph
            now, there = measurable.measure_at([inputs[0], before[0]], inputs[1])
            return now, there[1]
        with torch.no_grad(), nullcontext() if self.network_alone else self.functions.at(outputs.previous):
            there = measurable.measure(*before)
        return measurable.measure(*inputs), there[1]

    def descend(self, estimate: Estimate) -> None:
        """Compute the gradient of an estimate of F into ``.grad`` of the parameters, averaged over the processes.

        The estimate's new rows are written later, by :meth:`commit`.
        """
        self._estimated = estimate
        value, samples = estimate.value, self.problem.row_parameters
        leaves = [] if samples is None or samples.leaf is None else [samples.leaf]
        self._looked_at.append(value.detach())
        self._new += estimate.new
        if value.requires_grad or estimate.gradients is not None:
            self.backend.backward(value, [*self.params, *leaves], estimate.gradients)
        if self.processes.size > 1 and estimate.gradients is None and not self.backend.averages:
            self.processes.average_([p.grad for p in self.params if p.grad is not None])
        if samples is not None and leaves:
            scaler, gradient = self.backend.scaler, leaves[0].grad
            if scaler is not None and gradient is not None:
                gradient = gradient / scaler.scale(gradient.new_ones(()))  # without waiting for the scale
            self._new += samples.step(gradient)

    def gradients(
        self, value: Tensor, *, local: bool = False, graph: bool = False, of_samples: bool = False
    ) -> list[Tensor]:
        """Gradients of a scalar with respect to the parameters; :meth:`commit` checks them, too.

        Args:
            value: a scalar with graph.
            local: whether to return this process's own gradients and keep the graph of the value; otherwise they are
                averaged over the processes, without graph.
            graph: whether the gradients have a graph of their own, so that they can be differentiated again.
            of_samples: whether the parameters of single samples, if there are any, also take a step on the value.
        """
        self._looked_at.append(value.detach())
        samples = self.problem.row_parameters if of_samples else None
        leaves = [] if samples is None or samples.leaf is None else [samples.leaf]
        gradients = self._differentiated(value, [*self.params, *leaves], keep=local, graph=graph)
        if samples is not None and leaves:
            self._new += samples.step(gradients[-1])
        weight_gradients = [
            torch.zeros_like(w) if g is None else g for w, g in zip(self.params, gradients, strict=False)
        ]
        if local:
            return weight_gradients
        weight_gradients = [g.detach().clone() for g in weight_gradients]
        self.processes.average_(weight_gradients)
        self._gradients += weight_gradients
        return weight_gradients

    def _differentiated(
        self, value: Tensor, leaves: Sequence[Tensor], *, keep: bool, graph: bool
    ) -> Sequence[Tensor | None]:
        """This process's unscaled gradients with respect to leaves; a loss scaler acts on the backward pass only."""
        if not value.requires_grad:
            return [None] * len(leaves)
        if self.sharded:  # FSDP2 computes and averages gradients in a backward pass only
            self.backend.backward(value, leaves)
            gradients_left = [leaf.grad for leaf in leaves]
            for leaf in leaves:
                leaf.grad = None
            return gradients_left
        scaler = self.backend.scaler
        scaled = value if scaler is None else scaler.scale(value)
        gradients = torch.autograd.grad(
            scaled, leaves, retain_graph=keep or graph, create_graph=graph, allow_unused=True
        )
        return gradients if scaler is None else [None if g is None else g / scaler.get_scale() for g in gradients]

    def commit(self, mover: Optimizer | None = None, question: Tensor | None = None) -> bool:
        """Write the new rows, if all values, rows and gradients of this iteration are finite.

        This is the only place of a step that reads numbers back from the device.

        Args:
            mover: the optimizer that steps next; None for the user's.
            question: a scalar truth value to be read back as :attr:`answer`; None for none.

        Returns: False if gradients overflowed in half precision, so that the step is going to be skipped.

        Raises:
            NonFiniteError: if something is NaN or infinite; nothing has changed then.
        """
        scaler = self.backend.scaler
        if scaler is not None:
            scaler.unscale_(mover or self.optimizer)
        known = None if self.problem.units_known else self.problem.have_units()
        values, gradients = self._looked_at, self._gradients
        for new in self._new:
            values.append(new.values if new.finite is None else new.finite)
        for p in self.params:
            if p.grad is not None:
                gradients.append(p.grad)
        questions = [] if question is None else [question]
        questions += [] if known is None else [known]
        if self.sharded:  # each process sees its part of the gradient
            gradients = parts_of(gradients)
        usable, answers = look([*values, *gradients], questions)
        if self.sharded:
            usable = not self.processes.largest(not usable)
        self.answer = question is not None and answers[0]
        if not usable and (scaler is None or not all_finite(values)):
            if scaler is not None:
                scaler.update()  # or it would regard the next gradients as unscaled already
            self._refuse(values)
        self._write()
        if known is not None:
            self.problem.take_units(self._estimates, known=answers[-1])
        self.discard()
        return usable

    def _write(self) -> None:
        """Write the new rows, store the estimate of F, and count the rows that the batch contains."""
        for new in self._new:
            if new.decay != 1:
                new.state.scale_(new.decay)
            new.state.scatter_(new.rows, new.values)
        if self.problem.multipliers_of_terms or self.problem.row_parameters is not None:
            self.problem.committed()
        if self._estimated is None:
            return
        self._estimates = Estimates(self._estimated.summands)
        for term, rows, share in self._estimated.counted:
            term.count(rows, share)
        if self.averages is not None:
            columns = self.batch if self.outputs is None else self.outputs.columns  # of all processes
            self.averages.add(self._estimates, len(next(iter(next(iter(columns.values())).values()))))

    def update(
        self, gradient: Sequence[Tensor] | None = None, *, by: Optimizer | None = None, clip: bool = True
    ) -> None:
        """Let an optimizer step: the user's, which updates w, or the optimizer of an inner iteration.

        Args:
            gradient: the gradient to use, in the order of ``params``; None for the one that :meth:`descend` computed.
            by: the optimizer of an inner iteration; None for the user's.
            clip: whether gradients are clipped, if the user asked for that.
        """
        for p, g in zip(self.params, gradient or (), strict=gradient is not None):
            p.grad = g
        inner = by is not None
        self.backend.step(by or self.optimizer, inner=inner, from_backward=gradient is None, clip=clip)

    def discard(self) -> None:
        """Drop the batch and all results of it that have not been committed."""
        self._estimated, self._new, self._looked_at, self._gradients = None, [], [], []
        self.batch, self.outputs = {}, None

    # ---------------------------------------------------------------------------------------------- beside the batches

    def average_estimates(self) -> None:
        """Begin to average the estimates over the batches that follow."""
        lacks = self.problem.may_lack_direct and not self.problem.objective.always_measured
        self.averages = Averages(self.problem.direct_weight if lacks else None)

    def close_inner_loop(self, optimizer: Optimizer) -> None:
        """Let a double loop that has begun update w, where the epoch ends without a usable batch."""
        self.optimizer, self.last_batch = optimizer, True
        self.algorithm.close(self)

    def finish(self, batches: Iterator[Mapping[str, Any]], optimizer: Optimizer) -> bool:
        """Carry out what the algorithm does after training; return whether the weights were changed.

        Args:
            batches: an endless stream of training batches.
            optimizer: the user's optimizer.
        """
        self.optimizer, self.last_batch = optimizer, False
        return self.algorithm.finish(self, (self.received(batch) for batch in batches))

    def follow_parameters(self) -> bool:
        """Take note of layers that were frozen or unfrozen; the algorithm's copies of earlier weights are dropped.

        Returns: whether a parameter is trained that was not trained before.
        """
        params = list(self.functions.trainable().values())
        if len(params) == len(self.params) and all(a is b for a, b in zip(params, self.params, strict=True)):
            return False
        known, trained = {id(p) for p in self.params}, {id(p) for p in params}
        for p in self.params:
            if id(p) not in trained:
                p.grad = None  # or the user's optimizer would apply the last gradient again
        self.train(params)
        self.algorithm.start(self)
        return any(id(p) not in known for p in params)

    def train(self, params: Sequence[nn.Parameter]) -> None:
        """Set the parameters that are trained."""
        self.params = self.functions.params = list(params)
        self.network_alone = all(name.startswith("network.") for name in self.functions.trainable())
        self.sharded = is_gathered(self.functions.network)

    @property
    def alone(self) -> bool:
        """Whether this process evaluates the network on all samples of a batch at once."""
        return self.processes.size == 1 and self.functions.micro_batch is None

    def state_dict(self) -> dict[str, Any]:
        """The state besides the rows, with the parameters of the objective; tensors and primitives only.

        The rows are in the problem's state, and the optimizer has its own state.
        """
        samples = self.problem.row_parameters
        before = {} if samples is None else {name: column.clone() for name, column in samples.before.items()}
        estimates = {name: value.cpu() for name, value in self._estimates.items()}  # for batches without an estimate
        optimizer = vars(self).get("optimizer") if self._stored is None else None
        mover = type(optimizer).__name__ if optimizer is not None and optimizer.state else None
        state = {
            "algorithm": self.algorithm.state_dict(),
            "samples_before": before,
            "estimates": estimates,
            "data": self.problem.data,
            "problem": what_is_solved(self.problem),
            "parameters": {name: p.detach().cpu().clone() for name, p in self.problem.objective.named_parameters()},
            "remembers": remembers(self.problem),
            "optimizer": mover if self._stored is None else self._stored.get("optimizer"),
        }
        return state if self.averages is None else {**state, "averages": self.averages.state_dict()}

    def load_state_dict(self, state: dict[str, Any], *, allow_changed: bool = False) -> None:
        """Continue exactly where :meth:`state_dict` was taken.

        Args:
            state: the dictionary returned by it.
            allow_changed: whether another training split (another number of samples, or other labels, as far as
                ``sampling`` holds them) only causes a warning.

        Raises:
            CheckpointError: if the state is incomplete or of another algorithm, naming the entry; nothing changes then.
            DataError: if the training split is another one.
        """
        require(state, ENGINE, "the engine's state")
        if (name := state["algorithm"]["name"]) != self.algorithm.name:
            raise CheckpointError(
                f"the engine's state was written by the algorithm {name}, this engine runs {self.algorithm.name}, "
                f"whose state has another meaning. Use {name}, or start without the state."
            )
        self.problem.require_same_data(state.get("data"), allow_changed=allow_changed)
        solved = what_is_solved(self.problem)
        require_same_problem(state.get("problem", solved), solved)
        device, before = self.params[0].device, copy.deepcopy(self.algorithm.state_dict())
        with in_words("the engine's estimates"):
            estimates = [
                Summand(name, value.to(device).reshape(())) for name, value in state.get("estimates", {}).items()
            ]
        own, parameters = dict(self.problem.objective.named_parameters()), state.get("parameters")
        if parameters is not None and _shapes(parameters) != _shapes(own):
            raise CheckpointError(
                f"the engine's state contains parameters of the objective with shapes {_shapes(parameters)}, but "
                f"the parameters of this {type(self.problem.objective).__name__} have shapes {_shapes(own)}. Give "
                "the objective the same arguments, or start without the state."
            )
        try:
            with in_words("the state of the algorithm"):
                self.algorithm.load_state_dict(state["algorithm"])
            if self.averages is not None:
                with in_words("the means of the epoch"):
                    self.averages.load_state_dict(state.get("averages", {}), device)
        except CheckpointError:
            self.algorithm.load_state_dict(before)
            raise
        self._estimates = Estimates(estimates)
        with torch.no_grad():
            for name, value in (parameters or {}).items():
                own[name].copy_(value)
        if self.problem.row_parameters is not None:
            columns = state.get("samples_before", {})
            self.problem.row_parameters.before = {name: column.to(device) for name, column in columns.items()}
        self._stored = state

    # ------------------------------------------------------------------------------------------ first batches, failures

    @property
    def compiles(self) -> bool:
        """Whether steps can be compiled, if the user asks for it.

        They cannot where objectives or constraints with trained parameters are measured at the previous weights, or
        where the default dtype is half precision.
        """
        elsewhere = self.algorithm.needs_previous and not self.network_alone
        return not elsewhere and torch.get_default_dtype() in _FULL

    def _look_at_first(self, outputs: Outputs) -> None:
        """Run all checks of the first batch."""
        self._check(outputs)
        self.arrivals.compare()
        for look_at in self.onlookers:
            look_at(self, outputs)
        self.checked = True

    def _check(self, outputs: Outputs) -> None:
        """Let the objective, the constraints and the algorithm check a batch for data that they would misread."""
        with random_numbers_kept(self.params[0].device):
            check(self.problem, outputs)
        self.algorithm.check(outputs)

    def explain(self, error: Exception) -> None:
        """Raise an error that names the cause, if a step failed for a wrong index, group or class, or a frozen layer.

        Raises:
            StateIndexError, DataError: naming the wrong index or number.
            ConfigError: if a parameter is frozen that the engine trains.
        """
        if self.batch:
            self.problem.check_index(self.batch)
        if self.outputs is not None:
            self._check(self.outputs)
        for term in self.problem.all_terms if self.batch and self.outputs is None else ():
            part = term.measurable.part
            term.check_index(self.batch if isinstance(part, tuple) else self.batch[part_name(self.batch, part)])
        if not all(p.requires_grad for p in self.params):
            raise ConfigError(
                "parameters were frozen after the last call of Engine.follow_parameters. Call it after such a "
                "change. Under a Trainer, freeze layers at the start of an epoch, as a BaseFinetuning callback "
                "does."
            ) from error

    def _refuse(self, values: Sequence[Tensor]) -> NoReturn:
        """Raise an error that says which values are not finite, and the likely cause.

        Args:
            values: the tensors, besides gradients, that must be finite.

        Raises:
            NonFiniteError: always, unless the check of an objective or constraint raises a more specific error first.
        """
        with torch.no_grad(), self.functions.elsewhere([p.data for p in self.params]):  # so that no buffer moves
            outputs = self.outputs or self.evaluate(self.batch)
            self._check(outputs)
            raise NonFiniteError(reason(self.problem, self.functions, self.measure, self.batch, outputs, values))


def _shapes(parameters: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in parameters.items()}


def _hooked(params: Sequence[Tensor]) -> bool:
    """Whether one of the parameters has a hook on its gradient."""
    return any(p._backward_hooks or p._post_accumulate_grad_hooks for p in params)

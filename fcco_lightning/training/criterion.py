"""An objective as the loss function of the user's own training loop, with automatic optimization."""

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from fcco_lightning.algorithms import Algorithm, SingleLoop
from fcco_lightning.checks import at_least
from fcco_lightning.constraints import Constraint
from fcco_lightning.constraints.multipliers import Enforcement
from fcco_lightning.data.batches import Drawn
from fcco_lightning.engine import Backend, Engine, Estimates, Problem
from fcco_lightning.engine.backend import require_own
from fcco_lightning.errors import CheckpointError, ConfigError, DataError
from fcco_lightning.models import BatchNetwork
from fcco_lightning.numerics import all_finite
from fcco_lightning.objectives import Objective
from fcco_lightning.state.checkpoint_files import whole_or_not
from fcco_lightning.state.checkpoint_schema import CRITERION, require
from fcco_lightning.state.processes import Processes

_NOT_FOLLOWED = 20  # batches without a step before a warning; a loss scaler drops fewer steps in a row


class Criterion(nn.Module):
    r"""A scalar whose value is an estimate of F and whose gradient is the algorithm's estimate G of grad F.

    ``F(w) = g_0(w) + (1/n) sum_i f_i(g_i(w))``, plus the terms of the constraints.  ``criterion(outputs, batch)``,
    called in training, computes g_i(w; batch) and returns the estimate of F at the running estimates u_i (the rows),
    with the gradient ``G = mean_i [Jac g_i(w; batch)]^T grad f_i(u_i)``.  Backward pass, clipping, mixed precision,
    accumulation and schedules remain the user's.  The rows are updated when the optimizer steps, after the
    backward pass, and only if every value and gradient is finite.  With several processes the batch is that of all of
    them together, as for :class:`~fcco_lightning.Engine`, and the gradients must be averaged, as
    DistributedDataParallel does.  Rows are part of ``state_dict()``, replicated on every process.  Checkpoints of
    Lightning's ``EMAWeightAveraging`` or ``StochasticWeightAveraging`` contain them for a run with that callback.

    If gradients are accumulated over several batches, each batch compares its own samples only and updates its rows;
    call backward for one batch before the criterion is called for the next.  A step that a loss scaler drops leaves the
    rows unchanged.

    The algorithm must need only one forward pass and the user's optimizer: SOX, SOAP, BSGD, SGD, MOAP, SCENT,
    SONX and SONEX with ``gamma_prime=0``, and ALEXR with ``theta=0``.  All others need an
    :class:`~fcco_lightning.Engine`, or an :class:`~fcco_lightning.FCCOModule`.

    Args:
        objective: the objective.
        algorithm: the algorithm, which determines the running estimates and G.
        num_samples: n, size of the training split, whose samples the column ``index`` numbers from 0.
        constraints: constraints ``h_j(w) <= 0``.
        penalty: how they are enforced; an :class:`~fcco_lightning.AdaptivePenalty` by default.
        sampling: how the batches are drawn, see :class:`~fcco_lightning.engine.Problem`; for shuffled batches it is
            given by ``drawn`` of :class:`~fcco_lightning.IndexedDataset`.  It is required for objectives in which only
            some samples have rows.
        dtype: data type of the rows.
        allow_changed: whether the state of a criterion for another training split is accepted, with a warning.

    Attributes:
        objective: the objective in the form that the algorithm optimizes; its parameters (such as a CVaR threshold)
            belong to the optimizer, too.
        estimates: the estimates of the summands of F on the last batch, by name.

    Raises:
        ConfigError: if the algorithm needs more than one forward pass, or a step of its own.

    Example:
        >>> from torch.utils.data import TensorDataset, default_collate
        >>> from fcco_lightning import SOX, AveragePrecision, IndexedDataset
        >>> data = IndexedDataset(TensorDataset(torch.eye(3)[[0, 1, 2, 0]], torch.tensor([1, 0, 0, 1])))
        >>> criterion = Criterion(AveragePrecision(), SOX(), num_samples=len(data), sampling=data.drawn(batch_size=4))
        >>> network = nn.Linear(3, 1)
        >>> optimizer = criterion.follow(torch.optim.SGD(network.parameters(), lr=0.1))
        >>> batch = default_collate([data[i] for i in range(4)])
        >>> criterion(network(batch["x"]), batch).backward()
        >>> optimizer.step()
    """

    def __init__(
        self,
        objective: Objective,
        algorithm: Algorithm,
        *,
        num_samples: int,
        constraints: Sequence[Constraint] = (),
        penalty: Enforcement | None = None,
        sampling: Mapping[str, Drawn] | None = None,
        dtype: torch.dtype = torch.float32,
        allow_changed: bool = False,
    ) -> None:
        super().__init__()
        self.algorithm = _with_one_forward(algorithm)
        self.objective = algorithm.posed(objective, constraints)[0]
        self.constraints, self.penalty = list(constraints), penalty
        self.num_samples = at_least("num_samples", num_samples, 1)
        self.sampling = sampling
        self.dtype = dtype
        self.allow_changed = allow_changed
        self.estimates = Estimates()
        self._outputs, self._backend = _Outputs(), _Deferred()
        self._engine: Engine | None = None
        self._stored: dict[str, Any] = {}
        self._differentiated, self._waits, self._without_step = False, False, 0
        self._hook: RemovableHandle | None = None

    def follow(self, optimizer: Optimizer) -> Optimizer:
        """Update the rows whenever this optimizer steps.

        Call it in ``configure_optimizers``: the processes must be connected and the parameters on their device.

        Args:
            optimizer: an optimizer of the network's parameters, and of the objective's if it has any.

        Returns: the same optimizer.

        Raises:
            ConfigError: if the optimizer leaves out parameters of the objective or evaluates a batch several times, as
                LBFGS does, or if the algorithm does not apply to the problem.
        """
        params = [p for group in optimizer.param_groups for p in group["params"]]
        require_own(optimizer, params, self.objective)
        self._stored = self.get_extra_state()  # the rows of an earlier fit
        self._engine = Engine(self._outputs, self._pose().to(params[0].device), self.algorithm, self._backend)
        self._engine.train(params)
        self._engine.optimizer = optimizer
        if self._stored:
            self.set_extra_state(self._stored)
        if self._hook is not None:
            self._hook.remove()
        self._hook = optimizer.register_step_pre_hook(self._around_step)
        return optimizer

    def forward(self, outputs: Any, batch: Mapping[str, Any]) -> Tensor:
        """The loss of a batch: a scalar with value F and gradient G.

        Args:
            outputs: outputs of the network for the batch, shape (B, ...), with their graph; a mapping from part to
                outputs if the batch has several parts.
            batch: the columns of the batch, ``index`` (B,) among them.

        Raises:
            ConfigError: outside training, or before :meth:`follow` was called with an optimizer.
            DataError: if outputs and batch are of different sizes.
            NonFiniteError: later, when the optimizer steps, if a value or gradient is NaN or infinite; no row changes.
        """
        engine = self.engine
        if self._around_step not in engine.optimizer._optimizer_step_pre_hooks.values():  # deepcopy drops the hook
            self._hook = engine.optimizer.register_step_pre_hook(self._around_step)
        if not (self.training and torch.is_grad_enabled()):
            raise ConfigError(
                "the criterion was called outside training, where `index` does not number training samples. Call it in "
                "training_step only, and look at figures of whole splits in validation "
                "(fcco_lightning.evaluation.metrics)."
            )
        if self._waits and not self._differentiated:
            warnings.warn(
                "the criterion was called again before backward was called for the previous batch, whose rows are "
                "therefore not updated. Call backward for every value separately, not for a sum of them.",
                stacklevel=3,
            )
        self._end(write=self._accumulates())
        columns = engine.received(batch)
        engine.arrivals.look(columns)
        size = len(next(iter(next(iter(columns.values())).values())))
        if isinstance(outputs, Tensor) and (outputs.dim() == 0 or len(outputs) != size):
            raise DataError(
                f"the criterion was given outputs of shape {tuple(outputs.shape)} and a batch of {size} samples. Give "
                "the outputs of the network for this very batch, a row for every sample."
            )
        self._outputs.given = outputs if len(columns) > 1 else dict.fromkeys(columns, outputs)
        engine.problem.follow(engine.optimizer)
        try:
            estimate = self.algorithm.estimate(engine, columns)
        except IndexError as error:
            engine.explain(error)
            raise
        self._backend.value = estimate.value
        self.estimates = Estimates(estimate.summands)
        engine.arrivals.note(self.estimates, last_batch=False)
        engine.descend(estimate)
        value = self._backend.value
        del self._backend.value  # so that nothing keeps the graph alive
        if value.requires_grad:
            value.register_hook(self._note_backward)  # type: ignore[no-untyped-call]
            self._waits = True
        estimates = (torch.nan_to_num(estimate) for estimate in self.estimates.values())  # NaN: no value in this batch
        total = sum((estimate.to(value.dtype) for estimate in estimates), torch.zeros_like(value))
        return value + (total - value).detach()

    def get_extra_state(self) -> dict[str, Any]:
        """The rows and other state of the algorithm, as tensors and primitive values only."""
        if self._engine is None:
            return self._stored
        return {"problem": self._engine.problem.state_dict(), "engine": self._engine.state_dict()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore a state returned by :meth:`get_extra_state`.

        Raises:
            CheckpointError: if the rows belong to another problem or algorithm, or the state is incomplete; the present
                rows are kept.
            DataError: if they belong to another training split, as far as ``num_samples`` and ``sampling`` show.
        """
        if state:
            require(state, CRITERION, "the criterion's state")
        self._stored = state
        if self._engine is None:
            return
        if not state:  # the state of a criterion without an optimizer yet: start without rows
            optimizer, self._engine = self._engine.optimizer, None
            self.follow(optimizer)
            return
        before = copy.deepcopy(self.get_extra_state())
        try:
            self._continue(self._engine, state)
        except CheckpointError:
            self._continue(self._engine, before)
            raise

    def _continue(self, engine: Engine, state: dict[str, Any]) -> None:
        engine.load_state_dict(state["engine"], allow_changed=self.allow_changed)
        with whole_or_not(engine.problem, state["problem"], "the criterion's state"):
            engine.problem.load_state_dict(state["problem"])

    def _pose(self) -> Problem:
        processes = Processes()
        return self.algorithm.pose(
            self.objective,
            self.constraints,
            self.penalty,
            num_samples=self.num_samples,
            sampling=self.sampling,
            dtype=self.dtype,
            processes=processes if processes.size == 1 else Processes.apart(),
            layout="replicated",
        )

    @property
    def engine(self) -> Engine:
        """The engine that holds the rows; it exists after :meth:`follow`.

        Raises:
            ConfigError: before.
        """
        if self._engine is None:
            raise ConfigError(
                "the criterion has no optimizer, whose steps update its rows. Return self.criterion.follow(optimizer) "
                "from configure_optimizers."
            )
        return self._engine

    def _note_backward(self, gradient: Tensor) -> None:  # noqa: ARG002 - as a hook is called
        self._differentiated = True

    def _end(self, *, write: bool) -> None:
        """Commit or discard the new rows of the last batch."""
        self._without_step = 0 if write else self._without_step + self._differentiated
        if self._without_step == _NOT_FOLLOWED:
            warnings.warn(
                f"backward was called for {_NOT_FOLLOWED} batches in a row without a step of the optimizer that the "
                "criterion follows, so that no rows were updated. If another optimizer is used now, call "
                "criterion.follow(optimizer).",
                stacklevel=3,
            )
        try:
            if write and self._differentiated:
                self.engine.commit()
        finally:
            self.engine.discard()
            self._outputs.given, self._differentiated, self._waits = {}, False, False

    def _accumulates(self) -> bool:
        """Whether finite gradients of the last batch are still there, to be accumulated.

        A loss scaler drops the step if gradients are not finite.
        """
        gradients = [p.grad for p in self.engine.params if p.grad is not None]
        return bool(gradients) and all_finite(gradients)

    def _around_step(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Commit the rows after the backward pass, which may be part of the closure, and before the step."""
        positional = [a for a in args if a is not optimizer]
        closure: Callable[[], Any] | None = positional[0] if positional else kwargs.get("closure")
        if closure is None:
            overflow = getattr(optimizer, "found_inf", None)  # a fused optimizer drops the step by itself
            self._end(write=overflow is None or not bool(overflow))
            return None

        def differentiate() -> Any:
            loss = closure()
            self._end(write=True)
            return loss

        return args[: len(args) - len(positional)], {**kwargs, "closure": differentiate}


class _Outputs(BatchNetwork):
    """Stands for the network in the engine and returns the outputs that the user has passed, by part."""

    def __init__(self) -> None:
        super().__init__()
        self.given: Mapping[str, Any] = {}

    def forward(self, batch: Any) -> Any:  # noqa: ARG002
        return self.given


class _Deferred(Backend):
    """Keeps the estimate, and leaves its backward pass and the averaging over processes to the user's loop."""

    averages = True
    value: Tensor

    def backward(
        self,
        value: Tensor,
        leaves: Sequence[Tensor],
        gradients: Sequence[Tensor | None] | None = None,  # noqa: ARG002
    ) -> None:
        """Keep the value for the user's backward pass, which may scale it; update parameters of samples at once."""
        self.value = value
        sample_leaves = [leaf for leaf in leaves if not isinstance(leaf, nn.Parameter)]
        if sample_leaves:
            value.backward(inputs=sample_leaves, retain_graph=True)  # type: ignore[no-untyped-call]


def _with_one_forward(algorithm: Algorithm) -> SingleLoop:
    """Return the algorithm if an iteration is one forward pass, one backward pass and the user's step.

    Raises:
        ConfigError: if an iteration needs more.
    """
    instead = "Use an Engine or FCCOModule, or one of SOX, SOAP, BSGD, SGD, MOAP and SCENT."
    if not isinstance(algorithm, SingleLoop) or type(algorithm).iteration is not SingleLoop.iteration:
        raise ConfigError(f"algorithm={algorithm.name} has iterations or a step of its own. {instead}")
    if algorithm.needs_previous:
        raise ConfigError(
            f"algorithm={algorithm.name} measures every batch at the previous weights, too, and a criterion is given "
            f"outputs at the present ones only. Set gamma_prime=0 or theta=0 if it has that argument. {instead}"
        )
    return algorithm

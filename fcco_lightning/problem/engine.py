"""One training step of any algorithm, independent of who runs the loop."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from fcco_lightning.distributed import Processes
from fcco_lightning.errors import NonFiniteError
from fcco_lightning.numerics import all_finite
from fcco_lightning.problem.forward import Elsewhere, InnerFunctions, Measured, RandomState
from fcco_lightning.problem.problem import Problem
from fcco_lightning.problem.union import unite
from fcco_lightning.records import Batch
from fcco_lightning.steps import PreviousWeights


class Backend(Protocol):
    """How gradients are computed and optimizers stepped; Lightning's precision and counters come in here."""

    @property
    def drops_overflows(self) -> bool:
        """Whether :meth:`step` itself drops steps with gradients that are not finite (a loss scaler does)."""

    def backward(self, surrogate: Tensor) -> None:
        """Leave the gradient of ``surrogate`` in ``.grad``."""

    def synchronise(self, params: Sequence[Tensor]) -> None:
        """Average ``.grad`` over the processes, where :meth:`backward` has not."""

    def gradients(self, surrogate: Tensor, weights: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """This process's gradients with respect to other tensors, in the unit of ``.grad`` when :meth:`step` runs."""

    def prepare(self, optimizer: Optimizer) -> None:
        """Bring ``.grad`` into its true unit (undo loss scaling)."""

    def inner_step(self, optimizer: Optimizer) -> None:
        """Step that does not count as an update of w."""

    def update(self, optimizer: Optimizer, *, from_backward: bool) -> None:
        """Step that counts; ``from_backward`` is False where ``.grad`` was set by hand."""


class PlainBackend:
    """A bare PyTorch loop.

    Args:
        processes: of the job; this one alone by default.
    """

    drops_overflows = False

    def __init__(self, processes: Processes | None = None) -> None:
        self.processes = processes or Processes()

    def backward(self, surrogate: Tensor) -> None:
        """``surrogate.backward()``."""
        surrogate.backward()  # type: ignore[no-untyped-call]

    def synchronise(self, params: Sequence[Tensor]) -> None:
        """One collective."""
        self.processes.average_([p.grad for p in params if p.grad is not None])

    def gradients(self, surrogate: Tensor, weights: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """``torch.autograd.grad``."""
        return torch.autograd.grad(surrogate, list(weights), allow_unused=True)

    def prepare(self, optimizer: Optimizer) -> None:
        """Nothing to undo."""

    def inner_step(self, optimizer: Optimizer) -> None:
        """``optimizer.step()``."""
        optimizer.step()

    def update(self, optimizer: Optimizer, *, from_backward: bool) -> None:  # noqa: ARG002
        """``optimizer.step()``."""
        optimizer.step()


class Engine:
    """Carries out a problem's algorithm on a stream of batches.

    With P processes each one is given its part of a batch, and the result is that of one process with the whole batch:
    every process measures the inner functions on the outputs of all (:func:`unite`), so rows and surrogate are the same
    everywhere, and the gradients add up.

    Args:
        functions: network, objective and constraints.
        problem: terms and algorithm, for the same objective and constraints.
        backend: how to differentiate and step; a bare loop by default.

    Example:
        >>> import torch
        >>> from fcco_lightning import SOX, AUC, Engine, InnerFunctions, Problem
        >>> network, objective, algorithm = torch.nn.Linear(3, 1), AUC(), SOX()
        >>> engine = Engine(InnerFunctions(network, objective, []), Problem(objective, [], None, algorithm, 8))
        >>> optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        >>> batch = {"x": torch.eye(3)[[0, 1, 2, 0]], "y": torch.tensor([1, 0, 0, 1]), "index": torch.arange(4)}
        >>> engine.train_batch(batch, optimizer)["objective"] > 0
        tensor(True)
    """

    def __init__(self, functions: InnerFunctions, problem: Problem, backend: Backend | None = None) -> None:
        self.processes = problem.processes
        self.functions, self.problem = functions, problem
        self.backend = backend or PlainBackend(self.processes)
        self.algorithm = problem.algorithm
        self.params = list(functions.trainable().values())
        self.algorithm.step.bind(self.params)
        self.previous = PreviousWeights()
        self.stop_asked = False  # of this process
        self.stop_agreed = False  # of any, told to all in the same step

    def train_batch(self, batch: Batch, optimizer: Optimizer, *, last_batch: bool = False) -> Mapping[str, Tensor]:
        """One batch: forward(s), rows, backward, and whatever step the algorithm makes of it.

        Args:
            batch: columns with the samples' ``index``; or parts of several loaders, the objective's first.
            optimizer: the user's, over the trainable parameters.
            last_batch: the epoch ends with this batch, so a double loop closes.

        Returns: estimates of the parts of F by name, computed when looked at.

        Raises:
            NonFiniteError: before any row or weight has changed.
        """
        step = self.algorithm.step
        estimates = self.inner_iteration(batch, optimizer)
        if step.inner_optimizer is None:
            self._updated(optimizer)
        else:
            self._close(optimizer, last_batch=last_batch)
        return estimates

    def _close(self, optimizer: Optimizer, *, last_batch: bool) -> None:
        if self.algorithm.step.inner_done(last_batch=last_batch):
            self.previous.forget()
            self.backend.update(optimizer, from_backward=False)
            self._updated(optimizer)

    def inner_iteration(self, batch: Batch, optimizer: Optimizer) -> Mapping[str, Tensor]:
        """The part of :meth:`train_batch` that happens at the iterate (z of a double loop, w otherwise)."""
        step, backend = self.algorithm.step, self.backend
        mover = step.inner_optimizer or optimizer
        with step.at_iterate():
            optimizer.zero_grad(set_to_none=True)  # before the forwards: their activations then have that memory
            now, before, weights = self._measure(batch)
            surrogate = self.problem.surrogate(now, before)
            if surrogate.value.requires_grad:
                backend.backward(surrogate.value)
                backend.synchronise(self.params)
            backend.prepare(mover)
            if not backend.drops_overflows:
                self._check_gradients()
            self.problem.commit(surrogate)
            if step.needs_previous_gradient:
                step.correct(self._previous_gradients(surrogate.previous, weights))
            if self.algorithm.needs_previous:
                self.previous.remember(self.params)
            if step.inner_optimizer is None:
                backend.update(optimizer, from_backward=True)
            else:
                backend.inner_step(step.inner_optimizer)
        return surrogate.estimates

    def close_inner_loop(self, optimizer: Optimizer) -> None:
        """Update w from a double loop that has begun, where the epoch ends without a usable batch."""
        if self.algorithm.step.inner_count:
            self._close(optimizer, last_batch=True)

    def recover(self, batches: Iterator[Batch], optimizer: Optimizer) -> None:
        """The recovery step (004 Cor. 4.11): one more inner loop around w, whose z becomes the weights."""
        step = self.algorithm.step
        self.previous.forget()
        for _ in range(step.recovery_steps):
            self.inner_iteration(next(batches), optimizer)
            step.inner_count += 1
        step.take_iterate()

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
        self.algorithm.step.bind(params)
        self.previous = PreviousWeights()
        return any(id(p) not in known for p in params)

    def _check_gradients(self) -> None:
        gradients = [p.grad for p in self.params if p.grad is not None]
        if gradients and not all_finite(gradients):
            raise NonFiniteError(
                "the gradient is not finite although the loss is; no row and no weight was changed. Look for a "
                "function without derivative at a value that occurs, such as sqrt or norm at 0."
            )

    def _previous_gradients(
        self, surrogate: Tensor | None, weights: Sequence[Tensor] | None
    ) -> Sequence[Tensor | None] | None:
        if surrogate is None or weights is None:
            return None
        if not surrogate.requires_grad:  # the batch said nothing
            return [None] * len(weights)
        gradients = self.backend.gradients(surrogate, weights)
        self.processes.average_([g for g in gradients if g is not None])
        return gradients

    def _measure(self, batch: Batch) -> tuple[Measured, Measured | None, list[Tensor] | None]:
        """Inner functions now and, where the algorithm needs it, at the previous weights."""
        weights = self.previous.tensors if self.algorithm.needs_previous else None
        with_graph = self.algorithm.step.needs_previous_gradient
        if weights is not None and with_graph:
            weights = [w.detach().requires_grad_() for w in weights]
        with self.processes.guard():
            outputs, elsewhere = self._outputs(batch, weights)
        # behind it all processes compute the same, so they fail together
        network, states = self.functions.network, self.problem.sample_states
        union = unite(outputs, batch, network, states, self.processes, stop=self.stop_asked)
        self.stop_agreed = union.stop
        together = self.problem.lend(union.batch)
        now = self.functions(union.outputs[0], together)
        if elsewhere is None:
            return now, None, None
        with torch.set_grad_enabled(with_graph):
            before = elsewhere.measure(union.outputs[1], together, direct=with_graph)
        return now, before, weights

    def _outputs(self, batch: Batch, weights: list[Tensor] | None) -> tuple[list[Any], Elsewhere | None]:
        """The network's outputs for this process's samples: now, and at the previous ``weights`` if there are any."""
        if weights is None:
            return [self.functions.outputs(batch)], None
        random = RandomState(self.params[0].device)
        now = self.functions.outputs(batch)
        elsewhere = Elsewhere(self.functions, weights, random)
        with torch.set_grad_enabled(self.algorithm.step.needs_previous_gradient):
            return [now, elsewhere.outputs(batch)], elsewhere

    def _updated(self, optimizer: Optimizer) -> None:
        self.algorithm.after_update(optimizer, self.problem.states)

    def state_dict(self) -> dict[str, Any]:
        """Algorithm and previous weights; tensors and primitives only.  Rows are in the problem's state_dict."""
        return {"algorithm": self.algorithm.state_dict(), "previous": self.previous.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where :meth:`state_dict` was taken."""
        self.algorithm.load_state_dict(state["algorithm"])
        self.previous.load_state_dict(state["previous"], self.params)

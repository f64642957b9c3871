"""The network, the objective and the constraints, evaluated at the present or at other weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from fcco_lightning.checks import at_least
from fcco_lightning.constraints import Constraint
from fcco_lightning.engine.batches import as_batch, described, other_columns, part_name, type_of_weights, usable
from fcco_lightning.engine.micro_batches import recomputed
from fcco_lightning.errors import DataError
from fcco_lightning.models import BatchNetwork
from fcco_lightning.models.batch import HERE, Batch, Columns
from fcco_lightning.objectives import Measurable, Objective
from fcco_lightning.state.processes import Processes
from fcco_lightning.state.sharded import exchange

_OF_SHAPES = ("shape", "size", "channels", "dimension")  # words in torch's errors about shapes
_HALF = (torch.bfloat16, torch.float16)
_AS_IT_IS: AbstractContextManager[None] = nullcontext()
# marks: a process was asked to stop; a batch is the last one of an epoch
STOP, LAST = 1, 2


class InnerFunctions(nn.Module):
    """The network, the objective and the constraints in one module.

    Args:
        network: called as ``network(batch["x"])``, or with the whole batch if it is a
            :class:`~fcco_lightning.models.BatchNetwork`.
        objective: the objective.
        constraints: the constraints to measure; empty where the algorithm does not use them.
        micro_batch: largest number of samples that pass through the network at once; None for all.

    Attributes:
        params: the trained parameters; the engine renews them where layers are frozen or unfrozen.
        by_all: maps this process's number of passes to the largest of all processes, if all must make as many; or None.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        constraints: Sequence[Constraint],
        micro_batch: int | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.objective = objective
        self.constraints = list(constraints)
        self.micro_batch = None if micro_batch is None else at_least("micro_batch", micro_batch, 1)
        self.by_all: Callable[[int], int] | None = None
        self.params = list(self.trainable().values())

    def outputs(self, batch: Batch) -> dict[str, Any]:
        """The network's outputs by part of the batch."""
        if self.micro_batch is None:
            return outputs_of(self.network, batch)
        return recomputed(partial(outputs_of, self.network), batch, self.micro_batch, self.network, self.by_all)

    def forward(self, batch: Batch) -> dict[str, Any]:
        """Same as :meth:`outputs`."""
        return self.outputs(batch)

    def places(self) -> dict[str, str]:
        """A map from ``path.name`` of every parameter and buffer in a module to the tensor's unique name.

        A tensor that several modules share has several entries with the same name.
        """
        names = {id(tensor): name for name, tensor in (*self.named_parameters(), *self.named_buffers())}
        return {
            f"{path}.{name}" if path else name: names[id(tensor)]
            for path, module in self.named_modules()
            for name, tensor in (*module._parameters.items(), *module._buffers.items())
            if tensor is not None
        }

    def outputs_at(self, weights: Mapping[str, Tensor], places: Mapping[str, str], batch: Batch) -> dict[str, Any]:
        """As :meth:`outputs` inside :meth:`at`, but without graph and compilable.

        Args:
            weights: the weights by the names of :meth:`trainable`.
            places: the result of :meth:`places`, which lets torch restore tensors that have two names.
            batch: this process's part of the batch.
        """
        inside = {name: buffer.clone() for name, buffer in self.named_buffers()} | dict(weights)
        held = {place: inside[name] for place, name in places.items() if name in inside}
        with torch.no_grad():
            outputs: dict[str, Any] = functional_call(self, held, (batch,), tie_weights=False)
        return outputs

    def trainable(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    @contextmanager
    def at(self, weights: Sequence[Tensor]) -> Iterator[None]:
        """A context in which the trained parameters hold other weights; a backward pass must be made inside it, too.

        Buffers are copied inside it, so that BatchNorm's running statistics are updated once per step.

        Args:
            weights: the weights in the order of :attr:`params`.
        """
        kept: list[tuple[dict[str, Tensor | None], str, Tensor]] = []
        held = [*self.params]
        inside = [*weights]
        known = set[int]()
        for module in self.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    kept.append((module._buffers, name, buffer))
                if buffer is not None and id(buffer) not in known:
                    known.add(id(buffer))
                    held.append(buffer)  # type: ignore[arg-type]
                    inside.append(buffer.clone())
        torch.clear_autocast_cache()  # its key is the parameter object, whose values change
        outside = exchange(held, inside)
        try:
            yield
        finally:
            for members, name, buffer in kept:
                members[name] = buffer  # a forward pass may have assigned another tensor
            exchange(held, outside)
            torch.clear_autocast_cache()

    @contextmanager
    def elsewhere(self, weights: Sequence[Tensor]) -> Iterator[None]:
        """As :meth:`at`, and the next pass afterwards draws the same dropout masks again."""
        with random_numbers_kept(weights[0].device), self.at(weights):
            yield


def outputs_of(network: nn.Module, batch: Batch) -> dict[str, Any]:
    """The network's outputs by part of the batch; all parts pass through it together.

    Args:
        network: a :class:`BatchNetwork` gets the whole batch, any other module the concatenated columns ``x`` of all
            parts.
        batch: parts by name, see :func:`usable`.
    """
    if isinstance(network, BatchNetwork):
        outputs = network(batch)
        if not isinstance(outputs, Mapping):
            raise DataError(
                f"{type(network).__name__} must return a mapping from the parts of a batch, {sorted(batch)}, to "
                f"outputs, and returned {described(outputs)}. Return {{name: outputs of that part}}."
            )
        return dict(outputs)
    x = torch.cat([c["x"] for c in batch.values()]) if len(batch) > 1 else next(iter(batch.values()))["x"]
    try:
        outputs = network(x)
    except (TypeError, RuntimeError) as error:
        _refuse_input(network, x, error)
        raise
    if len(batch) == 1:
        return dict.fromkeys(batch, outputs)
    sizes = [len(columns["x"]) for columns in batch.values()]
    leaves, structure = pytree.tree_flatten(outputs)
    if any(not isinstance(leaf, Tensor) or leaf.shape[:1] != (sum(sizes),) for leaf in leaves):
        raise DataError(
            f"the network returned {described(outputs)} for {sum(sizes)} samples of the parts {sorted(batch)}. "
            "Return tensors whose first dimension is the number of samples."
        )
    pieces = zip(*(torch.split(leaf, sizes) for leaf in leaves), strict=True)
    return {name: pytree.tree_unflatten(list(one), structure) for name, one in zip(batch, pieces, strict=True)}


def _refuse_input(network: nn.Module, x: Any, error: Exception) -> None:
    """Raise an error that says what is wrong with the input, if the network failed for its type or shape.

    Raises:
        DataError: if the network does not take an input of this type or shape.
    """
    dtype = x.dtype if isinstance(x, Tensor) else None
    weights, text = type_of_weights(network), str(error)
    misshapen = isinstance(error, RuntimeError) and any(word in text for word in _OF_SHAPES)
    mistyped = isinstance(error, TypeError | NotImplementedError) or "type" in text
    if not misshapen and (not mistyped or (dtype is not None and dtype == weights)):
        return
    if dtype is not None and dtype.is_floating_point and not misshapen and weights is not None:
        raise DataError(
            f"the weights of the network have type {weights} and the column `x` of a batch {dtype}: {error}. "
            f"Convert the input, x.to({weights}), or keep the weights in float32 and train under torch.autocast."
        ) from error
    raise DataError(
        f"the network cannot process the column `x` of a batch, {described(x)}: {error}. Give one tensor of real "
        "numbers, with a row for each sample and as many columns as the network has inputs (torch.stack, .float())."
    ) from error


def outputs_of_columns(network: nn.Module, columns: Columns) -> Any:
    """The network's outputs for the columns of one loader, as used in evaluation."""
    return next(iter(outputs_of(network, usable(as_batch(columns), network)).values()))


def in_full(device: str) -> AbstractContextManager[None]:
    """A context without autocast, in which new tensors are at least float32.

    Only the network uses reduced precision: rows and outer functions would magnify rounding errors.
    """
    narrow = torch.get_default_dtype() in _HALF or torch.is_autocast_enabled(device)
    return _in_full(device) if narrow else _AS_IT_IS


@contextmanager
def _in_full(device: str) -> Iterator[None]:
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32 if default in _HALF else default)
    try:
        with torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_default_dtype(default)


def read(outputs: Mapping[str, Any], batch: Batch, measured: Measurable) -> tuple[Any, Any]:
    """The outputs, at least in float32, and the columns of the part that is measured; mappings of several parts.

    Raises:
        DataError: if there are no outputs for the part, or they are a tensor that is not floating-point or does not
            have one row per sample.
    """
    part = measured.part
    if isinstance(part, tuple):
        names = [part_name(batch, name) for name in part]
        return {n: wide(_of_part(outputs, n)) for n in names}, {n: batch[n] for n in names}
    name = next(iter(batch)) if part is None else part_name(batch, part)
    output, columns = outputs[name] if name in outputs else _of_part(outputs, name), batch[name]
    if not isinstance(output, Tensor):
        return wide(output), columns
    if not output.is_floating_point() or not output.ndim or len(output) != len(next(iter(columns.values()))):
        raise DataError(
            f"the network returned {described(output)} for {len(next(iter(columns.values())))} samples; it must "
            "return floating-point numbers, with one row for each sample. Do not average, round or threshold "
            "inside the network."
        )
    return output.float() if output.dtype in _HALF else output, columns


def _of_part(outputs: Mapping[str, Any], name: str) -> Any:
    if name not in outputs:
        raise DataError(
            f"the network returned outputs for the parts {sorted(outputs)} of a batch only, and not for {name!r}. "
            "Return {name: outputs of that part} for every part."
        )
    return outputs[name]


def wide(outputs: Any) -> Any:
    """The outputs at least in float32."""
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.float() if leaf.dtype in _HALF else leaf, outputs)


def random_numbers_kept(device: torch.device) -> AbstractContextManager[None]:
    """A context that restores the random states of the CPU and of a device on exit."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


def random_state(device: torch.device) -> list[Tensor]:
    """The states of the random generators of the CPU and of a device."""
    on_device = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_device]


def have_been_drawn(since: Sequence[Tensor], device: torch.device) -> bool:
    """Whether random numbers have been drawn since :func:`random_state` returned ``since``."""
    return not all(map(torch.equal, since, random_state(device)))


def unite(
    outputs: Sequence[dict[str, Any]],
    batch: Batch,
    network: nn.Module,
    processes: Processes,
    *,
    stop: bool = False,
    last: bool = False,
) -> tuple[list[dict[str, Any]], Batch, bool]:
    """Gather the outputs and columns of all processes; the graph is that of this process's outputs.

    There is one collective for every part of the batch.

    Args:
        outputs: the network's outputs by part, for every point of evaluation: tensors, or nested tuples, lists and
            dicts of tensors, with first dimension b.
        batch: this process's columns by part, the objective's first.
        network: the network, whose input columns are left out.
        processes: the processes of the job.
        stop: whether this process was asked to stop.
        last: whether this process's epoch ends with the batch.

    Returns: the outputs at every point and the columns, for the samples of all processes, and whether any process was
    asked to stop.

    Raises:
        DataError: on all processes, if the epoch ends with this batch on some of them only.
        PeerError: if another process has failed.
    """
    if processes.size == 1:
        return list(outputs), batch, stop
    united: list[dict[str, Any]] = [{} for _ in outputs]
    together: dict[str, dict[str, Tensor]] = {}
    for name, part in batch.items():
        columns = other_columns(network, part)
        leaves, structure = pytree.tree_flatten([point_outputs[name] for point_outputs in outputs])
        union = processes.gather([*leaves, *columns.values()], STOP * stop | LAST * last)
        _require_same_end([bool(mark & LAST) for mark in union.marks])
        for point, gathered in zip(united, pytree.tree_unflatten(union.tensors[: len(leaves)], structure), strict=True):
            point[name] = gathered
        together[name] = dict(zip(columns, union.tensors[len(leaves) :], strict=True))
        owner = torch.arange(len(union.sizes)).repeat_interleave(torch.tensor(union.sizes))
        together[name][HERE] = owner == processes.rank
        stop = union.any_mark(STOP)
    return united, together, stop


def _require_same_end(last: Sequence[bool]) -> None:
    """Refuse epochs that end on some processes only: the others would wait for them for ever."""
    if any(last) and not all(last):
        ends, goes_on = last.index(True), last.index(False)
        raise DataError(
            f"the epoch ends with this batch on process {ends}, but not on process {goes_on}. Give every process "
            "the same number of batches, with a datamodule of this package or --trainer.limit_train_batches."
        )

"""The network, the objective and the constraints: what is evaluated on a batch, at the present and at other weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fcco_lightning.checks import at_least
from fcco_lightning.constraints import Constraint
from fcco_lightning.engine.batches import outputs_of, part_name
from fcco_lightning.engine.micro_batches import recomputed
from fcco_lightning.models.batch import Batch
from fcco_lightning.objectives import Measurable, Objective
from fcco_lightning.state.divided import hold

_HALF = (torch.bfloat16, torch.float16)
_AS_IT_IS: AbstractContextManager[None] = nullcontext()


class InnerFunctions(nn.Module):
    """Network, objective and constraints.

    Args:
        network: called as ``network(batch["x"])``, or with the whole batch if it is a
            :class:`~fcco_lightning.models.BatchNetwork`.
        objective: the objective.
        constraints: the constraints to measure; empty where the algorithm does not use them.
        micro_batch: largest number of samples that pass through the network at once; None for all.

    Attributes:
        params: the parameters that are trained; an engine renews them where layers are frozen or unfrozen.
        by_all: the largest number of passes that a process needs, of each one's, where all must take as many; or None.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        constraints: Sequence[Constraint],
        micro_batch: int | None = None,
    ) -> None:
        super().__init__()
        self.network, self.objective, self.constraints = network, objective, list(constraints)
        self.micro_batch = None if micro_batch is None else at_least("micro_batch", micro_batch, 1)
        self.by_all: Callable[[int], int] | None = None
        self.params = list(self.trainable().values())

    def outputs(self, batch: Batch) -> dict[str, Any]:
        """The network's outputs by part of the batch."""
        if self.micro_batch is None:
            return outputs_of(self.network, batch)
        return recomputed(partial(outputs_of, self.network), batch, self.micro_batch, self.network, self.by_all)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Parameters that are trained, by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    @contextmanager
    def at(self, weights: Sequence[Tensor]) -> Iterator[None]:
        """Inside, the trained parameters hold other weights; a backward pass from there has to be taken inside, too.

        Buffers are copies inside, so that BatchNorm's running statistics move once per step.

        Args:
            weights: in the order of :attr:`params`.
        """
        buffers = list(self.buffers())
        held, inside = [*self.params, *buffers], [*weights, *(buffer.clone() for buffer in buffers)]
        outside = [hold(tensor, value) for tensor, value in zip(held, inside, strict=True)]
        try:
            yield
        finally:
            for tensor, value in zip(held, outside, strict=True):
                hold(tensor, value)

    @contextmanager
    def elsewhere(self, weights: Sequence[Tensor]) -> Iterator[None]:
        """As :meth:`at`, with the dropout masks that the next pass is going to draw again."""
        with RandomState(weights[0].device).again(), self.at(weights):
            yield


def in_full(device: str) -> AbstractContextManager[None]:
    """Without autocast, and with no narrower type than float32 for new tensors.

    Reduced precision ends with the network: rows and outer functions would magnify whatever is rounded away behind it.
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
    """Outputs, at least in float32, and columns of the part on which something is measured; by name of several."""
    part = measured.part
    if isinstance(part, tuple):
        names = [part_name(batch, name) for name in part]
        return {n: wide(outputs[n]) for n in names}, {n: batch[n] for n in names}
    name = next(iter(batch)) if part is None else part_name(batch, part)
    found = outputs[name]
    narrow = not isinstance(found, Tensor) or found.dtype in _HALF
    return wide(found) if narrow else found, batch[name]


def wide(outputs: Any) -> Any:
    """The outputs at least in float32."""
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.float() if leaf.dtype in _HALF else leaf, outputs)


class RandomState:
    """The random state of the CPU and of a device, as it is when this object is made.

    Args:
        device: of the parameters.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @contextmanager
    def again(self) -> Iterator[None]:
        """Inside, the random state goes on from there; afterwards it is what it was before."""
        left = RandomState(self._device)
        self._restore()
        try:
            yield
        finally:
            left._restore()

    def _restore(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)

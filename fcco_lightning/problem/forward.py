"""Evaluating all inner functions at the current and at the previous weights, over the batches of all processes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fcco_lightning.constraints import Constraint
from fcco_lightning.objectives import Objective
from fcco_lightning.problem.parts import outputs_of, part
from fcco_lightning.records import Batch, Inner


class Measured(NamedTuple):
    """What a batch says at one point.

    Attributes:
        direct: estimate of g_0, a scalar, or None.
        inner: per term (the objective first if it has inner functions, then the constraints), or None for a term that
            the batch says nothing about.
    """

    direct: Tensor | None
    inner: list[Inner | None]


class InnerFunctions(nn.Module):
    """Network, objective and constraints: what is measured, in two halves.

    The network's outputs are of this process's samples (:meth:`outputs`); the inner functions are of those of all
    processes together (:meth:`forward`).

    Args:
        network: called as ``network(batch["x"])``, or with the whole batch if it is a
            :class:`~fcco_lightning.models.BatchNetwork`.
        objective: the objective.
        constraints: the constraints to measure; empty where the algorithm does not use them.
    """

    def __init__(self, network: nn.Module, objective: Objective, constraints: Sequence[Constraint]) -> None:
        super().__init__()
        self.network, self.objective, self.constraints = network, objective, list(constraints)
        self._names: tuple[list[str], list[str]] | None = None

    def outputs(self, batch: Batch, call: Callable[..., Any] | None = None) -> Any:
        """The network's outputs; ``call`` takes the place of the network."""
        return outputs_of(self.network, batch, call)

    def forward(self, outputs: Any, batch: Batch, *, direct: bool = True) -> Measured:
        """All estimates from the network's outputs; ``direct=False`` leaves out the objective's direct part.

        Where a batch has parts, the objective is measured on the first and every constraint on its own.
        """
        own = part(outputs, batch, None)
        inner: list[Inner | None] = []
        if self.objective.outer is not None:
            inner.append(self.objective.inner(*own))
        inner += [c.inner(*part(outputs, batch, c.part)) for c in self.constraints]
        return Measured(self.objective.direct(*own) if direct else None, inner)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Parameters that are trained, by name."""
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def names(self) -> tuple[list[str], list[str]]:
        """Names of the trained parameters and of the buffers, looked up once: walking the modules costs a step dear."""
        if self._names is None:
            self._names = list(self.trainable()), [name for name, _ in self.named_buffers()]
        return self._names

    def forget_names(self) -> None:
        """What is trained has changed."""
        self._names = None


class RandomState:
    """The random state of the CPU and of the parameters' device, so that both forwards draw the same dropout masks."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        """Set the random state back to when this object was made."""
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self._device)


class Elsewhere:
    """The inner functions at other weights than the module's own, without touching the module.

    The same dropout masks (``random`` is from before the first forward), the same autocast mode, and cloned buffers, so
    that BatchNorm's running statistics move once per step.

    Args:
        functions: the module.
        weights: values for its trainable parameters, in their order.
        random: random state from before the first forward.
    """

    def __init__(self, functions: InnerFunctions, weights: Sequence[Tensor], random: RandomState) -> None:
        self.functions, self.random = functions, random
        trained, buffers = functions.names()
        self.values: dict[str, Tensor] = dict(zip(trained, weights, strict=True))
        self.values.update({name: functions.get_buffer(name).clone() for name in buffers})

    def outputs(self, batch: Batch) -> Any:
        """The network's outputs."""
        after = RandomState(self.random._device)
        self.random.restore()
        values = self._below("network.")
        outputs = self.functions.outputs(batch, lambda *a: functional_call(self.functions.network, values, a))
        after.restore()
        return outputs

    def measure(self, outputs: Tensor, batch: Batch, *, direct: bool) -> Measured:
        """All estimates from the network's outputs."""
        if not self._below("objective."):  # nothing to replace: calling the module directly is faster
            return self.functions(outputs, batch, direct=direct)  # type: ignore[no-any-return]
        measured: Measured = functional_call(self.functions, self.values, (outputs, batch), {"direct": direct})
        return measured

    def _below(self, prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): v for name, v in self.values.items() if name.startswith(prefix)}

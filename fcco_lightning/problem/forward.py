"""Evaluating all inner functions at the current and at the previous weights."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fcco_lightning.constraints import Constraint
from fcco_lightning.objectives import Objective
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
    """Network, objective and constraints as one function of (parameters, batch).

    Args:
        network: called as ``network(batch["x"])``.
        objective: the objective.
        constraints: the constraints to measure; empty where the algorithm does not use them.
    """

    def __init__(self, network: nn.Module, objective: Objective, constraints: Sequence[Constraint]) -> None:
        super().__init__()
        self.network, self.objective, self.constraints = network, objective, list(constraints)
        self._names: tuple[list[str], list[str]] | None = None

    def forward(self, batch: Batch, *, direct: bool = True) -> Measured:
        """All estimates from one forward pass; ``direct=False`` leaves out the objective's direct part."""
        outputs = self.network(batch["x"])
        inner: list[Inner | None] = []
        if self.objective.outer is not None:
            inner.append(self.objective.inner(outputs, batch))
        inner += [c.inner(outputs, batch) for c in self.constraints]
        return Measured(self.objective.direct(outputs, batch) if direct else None, inner)

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


def evaluate_at(
    functions: InnerFunctions, weights: Sequence[Tensor], batch: Batch, random: RandomState, *, direct: bool
) -> Measured:
    """Inner functions at other ``weights``, without touching the module.

    The same dropout masks (``random`` is from before the first forward), the same autocast mode, and cloned buffers, so
    that BatchNorm's running statistics move once per step.

    Args:
        functions: the module.
        weights: values for its trainable parameters, in their order.
        batch: the batch of the first forward.
        random: random state from before the first forward.
        direct: also measure the objective's direct part.
    """
    after = RandomState(weights[0].device)
    random.restore()
    trained, buffers = functions.names()
    swapped: dict[str, Tensor] = dict(zip(trained, weights, strict=True))
    swapped.update({name: functions.get_buffer(name).clone() for name in buffers})
    measured: Measured = functional_call(functions, swapped, (batch,), {"direct": direct})
    after.restore()
    return measured

"""Base class of networks whose input is a whole batch, and groups of parameters."""

import copy
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, TypeVar

from torch import nn


class ParameterGroup(NamedTuple):
    """Parameters with the same learning rate and weight decay.

    Attributes:
        params: trained parameters.
        lr_scale: factor on the optimizer's learning rate.
        decay: whether weight decay applies.
    """

    params: list[nn.Parameter]
    lr_scale: float = 1.0
    decay: bool = True


N = TypeVar("N", bound=nn.Module)


def copy_of(network: N) -> N:
    """A copy with weights of its own, whose hooks are shared with the original, not copied.

    Hooks may belong to other objects, such as a profiler, a callback that records activations, or
    ``torch.nn.utils.prune``.
    """
    names = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    hooks = [hook for part in network.modules() for name in names for hook in getattr(part, name).values()]
    return copy.deepcopy(network, {id(hook): hook for hook in hooks})


class BatchNetwork(nn.Module, ABC):
    """A network whose input is a batch of several columns or parts (such as those for CLIP's two towers).

    A batch is a mapping from part to a mapping from column to tensor; a single loader gives one part.

    Attributes:
        inputs: columns that are inputs of the network only and are hidden from objectives, constraints and metrics.
        recomputes: whether the backward pass computes parts of the network again (gradient checkpointing), with the
            weights at that time.
    """

    inputs: ClassVar[tuple[str, ...]] = ("x",)
    recomputes: bool = False

    @abstractmethod
    def forward(self, batch: Any) -> Any:
        """Return the outputs by part for a batch by part."""

    def adapt(self, datamodule: Any) -> None:
        """Take over or check properties of the datamodule (or None) before the first batch."""

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return groups of all trained parameters, each in one group."""
        return [ParameterGroup([p for p in self.parameters() if p.requires_grad])]

"""What a network may offer beyond being called with ``batch["x"]``."""

import copy
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, TypeVar

from torch import nn


class ParameterGroup(NamedTuple):
    """Parameters that are stepped alike.

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
    """A copy with weights of its own; hooks are called as they are, since what they belong to is no part of a network.

    Such are those of a profiler, of a callback that records activations, or of ``torch.nn.utils.prune``.
    """
    names = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    hooks = [hook for part in network.modules() for name in names for hook in getattr(part, name).values()]
    return copy.deepcopy(network, {id(hook): hook for hook in hooks})


class BatchNetwork(nn.Module, ABC):
    """A network that reads several columns of a batch, or several parts of it at once (CLIP's two towers).

    A batch is always a mapping of parts by name, each of them a mapping of columns; a single loader gives one part.

    Attributes:
        inputs: columns that only the network reads: objectives, constraints and metrics do not see them.
        recomputes: whether the backward pass runs parts of the network again (gradient checkpointing), with the weights
            that it has then.
    """

    inputs: ClassVar[tuple[str, ...]] = ("x",)
    recomputes: bool = False

    @abstractmethod
    def forward(self, batch: Any) -> Any:
        """Outputs by part, for a batch of parts."""

    def adapt(self, datamodule: Any) -> None:
        """Take from the datamodule (or None) what must be known of the data before the first batch."""

    def parameter_groups(self) -> list[ParameterGroup]:
        """All trained parameters, each in one group."""
        return [ParameterGroup([p for p in self.parameters() if p.requires_grad])]

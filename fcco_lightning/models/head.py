"""The last layer of a network, which starts afresh when the network is given another task."""

from typing import Protocol, runtime_checkable

import torch
from torch import nn

from fcco_lightning.errors import ConfigError


@runtime_checkable
class HasHead(Protocol):
    """A network that knows its last layer."""

    def head(self) -> nn.Module:
        """The layer (or layers) that makes scores of features."""


def head_of(network: nn.Module, name: str | None = None) -> nn.Module:
    """The head of a network.

    Args:
        network: the network.
        name: of the head among the network's submodules, such as "fc" or "layers.4"; None for what the network itself
            says is its head.

    Raises:
        ConfigError: if there is no such submodule, if the network does not know its head, or if a part of the head has
            parameters but no ``reset_parameters``.
    """
    if name is not None:
        try:
            head = network.get_submodule(name)
        except AttributeError as error:
            resettable = [n for n, module in network.named_modules() if n and hasattr(module, "reset_parameters")]
            raise ConfigError(
                f"head={name!r} is no part of {type(network).__name__}. Its last layers are "
                f"{', '.join(resettable[-8:]) or 'none'}."
            ) from error
    elif isinstance(network, HasHead):
        head = network.head()
    else:
        raise ConfigError(
            f"{type(network).__name__} does not say which of its layers is the head. Name it (head: fc), or keep the "
            "old one (new_head: false)."
        )
    for part in head.modules():
        if any(True for _ in part.parameters(recurse=False)) and not hasattr(part, "reset_parameters"):
            raise ConfigError(
                f"the head holds a {type(part).__name__}, which has no reset_parameters() to start afresh with. Name "
                "another head, or keep the old one (new_head: false)."
            )
    return head


def renew(head: nn.Module, seed: int) -> None:
    """Give all layers of a head the values that new ones have, in place; the global random streams stay as they are.

    Args:
        head: as :func:`head_of` returns it.
        seed: of the random numbers, the same on all processes.
    """
    devices = sorted({p.device.index for p in head.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices), torch.no_grad():
        torch.manual_seed(seed)
        for part in head.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()

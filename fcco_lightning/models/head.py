"""The head (last layer) of a network, and its new initialisation for another task."""

from typing import Protocol, runtime_checkable

import torch
from torch import nn

from fcco_lightning.errors import ConfigError


@runtime_checkable
class HasHead(Protocol):
    """A network that declares its head."""

    def head(self) -> nn.Module:
        """The layer (or layers) from features to scores."""


def head_of(network: nn.Module, name: str | None = None) -> nn.Module:
    """The head of a network.

    Args:
        network: the network.
        name: name of the head among the network's submodules, such as "fc" or "layers.4"; None for the head that the
            network declares.

    Raises:
        ConfigError: if there is no such submodule, if the network declares no head, or if a layer of the head has
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
            f"{type(network).__name__} does not name its last layer (the head). Name it (head: fc), or keep the old "
            "one (new_head: false)."
        )
    for part in head.modules():
        if any(True for _ in part.parameters(recurse=False)) and not hasattr(part, "reset_parameters"):
            raise ConfigError(
                f"the head contains a {type(part).__name__}, which has no reset_parameters() to initialise it anew. "
                "Name another head, or keep the old one (new_head: false)."
            )
    return head


def renew(head: nn.Module, seed: int) -> None:
    """Initialise all layers of a head anew, in place, without a change of the global random streams.

    Args:
        head: the result of :func:`head_of`.
        seed: seed of the random numbers, the same on all processes.
    """
    devices = sorted({p.device.index for p in head.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices), torch.no_grad():
        torch.manual_seed(seed)
        for part in head.modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()

"""Checks for weights that are not finite: training ends, and no checkpoint stores them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fcco_lightning.engine import narrow_weights
from fcco_lightning.errors import NonFiniteError
from fcco_lightning.numerics import all_finite
from fcco_lightning.state.sharded import part_of, parts_of


def require_finite_weights(module: nn.Module, network: nn.Module) -> None:
    """Refuse parameters of the module that are NaN or infinite, and buffers of the network that are NaN.

    With a learning rate that is far too large a step can overflow although every gradient is finite.  Buffers may be
    infinite on purpose, for example attention masks.

    Raises:
        NonFiniteError: naming the tensor.
    """
    weights = [p for p in module.parameters() if not is_lazy(p)]
    if not weights or all_finite(parts_of(weights)):
        nonfinite = [name for name, b in network.named_buffers() if bool(torch.isnan(b).any())]
    else:
        nonfinite = [name for name, p in module.named_parameters() if not bool(torch.isfinite(part_of(p)).all())]
    if nonfinite:
        raise NonFiniteError(
            f"`{nonfinite[0]}` holds NaN or infinity: the weights have diverged in a step whose gradient was finite. "
            "They are not saved; earlier checkpoints are unchanged. Lower the learning rate, or clip gradients with "
            f"--model.clipping.value, and resume from an earlier checkpoint.{narrow_weights(network)}"
        )


@contextmanager
def statistics_kept(network: nn.Module, *, enabled: bool) -> Iterator[None]:
    """If the body raises NonFiniteError, restore the network's buffers (statistics of BatchNorm), which have seen NaN.

    This costs a copy of the buffers; nothing is done unless ``enabled``.
    """
    copies = [buffer.clone() for buffer in network.buffers()] if enabled else []
    try:
        yield
    except NonFiniteError:
        for buffer, before in zip(network.buffers() if enabled else (), copies, strict=True):
            buffer.copy_(before)
        raise

"""BatchNorm with the statistics of all processes, on CPUs and GPUs."""

from functools import partial
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import LayerSync
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.state.processes import Processes


class CommonStatistics(LayerSync):
    """Makes BatchNorm layers, in training, normalise by mean and variance over the batches of all processes.

    The batches may differ in size, and the gradient passes through the statistics: P processes with batch B equal one
    process with batch P·B.  A layer costs two exchanges of a few numbers per channel in the forward pass, and two in
    the backward pass.  Unlike torch's SyncBatchNorm it runs on CPUs, too, and processes notice if another one fails.
    """

    def __init__(self, processes: Processes) -> None:
        self.processes = processes

    def apply(self, model: nn.Module) -> nn.Module:
        """Change the BatchNorm layers of a model in place; their parameters and running statistics are kept."""
        for layer in _layers(model):
            layer.forward = partial(normalised, layer, self.processes)  # type: ignore[method-assign]
        return model

    def revert(self, model: nn.Module) -> nn.Module:
        """Undo :meth:`apply`."""
        for layer in _layers(model):
            vars(layer).pop("forward", None)
        return model


def share_statistics(trainer: Trainer, processes: Processes, micro_batch: int | None) -> None:
    """Make a Trainer with ``sync_batchnorm=True`` use :class:`CommonStatistics`.

    Raises:
        ConfigError: if batches pass through the network in micro-batches.
    """
    if getattr(trainer.strategy, "_layer_sync", None) is None:
        return
    if micro_batch is not None:
        raise ConfigError(
            f"sync_batchnorm=True and micro_batch={micro_batch} exclude each other: BatchNorm would see a part of the "
            "batch at a time, and processes may have different numbers of parts. Leave one of them out, or use "
            "GroupNorm or LayerNorm."
        )
    trainer.strategy._layer_sync = CommonStatistics(processes)  # type: ignore[attr-defined]  # replaces torch's


@torch.compiler.disable  # type: ignore[untyped-decorator]  # contains communication
def normalised(layer: _BatchNorm, processes: Processes, x: Tensor) -> Tensor:
    r"""``(x - mean) / sqrt(var + eps) * weight + bias``, in training by mean and variance over all processes.

    The layer's parameters are used, and its running statistics updated, as torch does; x holds the values of this
    process, and x and the result have shape (B, C, ...).

    Raises:
        DataError: in training, if all processes together have one value per channel.
    """
    if not layer.training or processes.size == 1:
        return type(layer).forward(layer, x)
    layer._check_input_dim(x)  # type: ignore[no-untyped-call]
    channels, others = (1, -1, *[1] * (x.dim() - 2)), [d for d in range(x.dim()) if d != 1]
    with torch.autocast(x.device.type, enabled=False):
        wide = x if x.dtype == torch.float64 else x.float()
        num_values = wide.new_tensor([x.numel() // layer.num_features])
        sums = _total(torch.cat([wide.sum(others), num_values]), processes)
        count = sums[-1].detach()
        if count < 2:
            raise DataError(
                "BatchNorm in training needs 2 values a channel, all processes together have 1. Use larger batches."
            )
        mean = sums[:-1] / count
        centred = wide - mean.view(channels)
        variance = _total(centred.square().sum(others), processes) / count
        y = centred * (variance + layer.eps).rsqrt().view(channels)
        if layer.affine:
            y = y * layer.weight.to(y.dtype).view(channels) + layer.bias.to(y.dtype).view(channels)
    _follow(layer, mean, variance * (count / (count - 1)))
    return y.to(x.dtype)


@torch.no_grad()
def _follow(layer: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Update the running statistics."""
    if layer.running_mean is None or layer.running_var is None or layer.num_batches_tracked is None:
        return
    layer.num_batches_tracked.add_(1)
    share = 1 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), share)
    layer.running_var.lerp_(variance.to(layer.running_var.dtype), share)


def _layers(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def _total(part: Tensor, processes: Processes) -> Tensor:
    total: Tensor = _Total.apply(part, processes)
    return total


class _Total(torch.autograd.Function):
    """The sum of a vector over all processes; its gradient is the sum of the gradients of all processes."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, processes: Processes) -> Tensor:
        ctx.processes = processes
        return processes.gather([part.unsqueeze(0)]).tensors[0].sum(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _total(gradients[0], ctx.processes), None  # differentiable again, as PDSCA needs

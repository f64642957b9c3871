"""Weights of 16 bits: settings that they do not allow, and columns that must not be rounded with them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn  # type: ignore[attr-defined]
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.optim import Optimizer

from fcco_lightning.engine.batches import as_columns, fields_of
from fcco_lightning.errors import ConfigError
from fcco_lightning.models import BatchNetwork
from fcco_lightning.training.trainers import Temporary

_NARROW = ("bf16-true", "16-true")


def require_wide(precision: str) -> None:
    """Refuse weights of 16 bits if weights are averaged, since small steps of the average are rounded to 0.

    Raises:
        ConfigError: naming the precision.
    """
    if precision in _NARROW:
        raise ConfigError(
            f"precision={precision!r} cannot hold an average of weights: its small steps are rounded away. Use "
            f"--trainer.precision {precision.replace('true', 'mixed')}, or leave out --model.average."
        )


def require_room(optimizer: Optimizer) -> None:
    """Refuse an ``eps`` that is 0 in float16: where the square of a gradient is 0, too, a step is then 0 / 0.

    Raises:
        ConfigError: naming the precision.
    """
    for group in optimizer.param_groups:
        eps = group.get("eps")
        half = any(p.dtype == torch.float16 for p in group["params"])
        if half and isinstance(eps, float) and eps > 0 and float(torch.tensor(eps, dtype=torch.float16)) == 0:
            raise ConfigError(
                f"precision='16-true' holds weights in float16, in which eps={eps:g} of {type(optimizer).__name__} is "
                "0: a gradient of 0 would make a weight NaN. Use --trainer.precision bf16-mixed or 32-true, or "
                "eps=1e-4."
            )


class WholeColumns(Temporary):
    """With weights of 16 bits, rounds only the network's input to 16 bits, and warns at the start of a fit.

    Lightning rounds every column of a batch, which would create ties of event times and change sample weights.
    """

    def __init__(self) -> None:
        self._plugin: Any = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make the Trainer convert the network's input only."""
        if trainer.precision not in _NARROW:
            return
        self._plugin = trainer.precision_plugin
        self._plugin.convert_input = _inputs_only(self._plugin.convert_input, getattr(pl_module, "network", pl_module))
        if stage == "fit":
            digits, share = ("two", "0.4%") if trainer.precision == "bf16-true" else ("three", "0.05%")
            rank_zero_warn(
                f"precision={trainer.precision!r} keeps the weights themselves to {digits} digits: a step of less than "
                f"{share} of a weight is rounded away. Use --trainer.precision bf16-mixed unless the memory forbids it."
            )

    def undo(self, trainer: Trainer) -> None:  # noqa: ARG002
        if self._plugin is not None:
            vars(self._plugin).pop("convert_input", None)


def _inputs_only(convert: Callable[[Any], Any], network: nn.Module) -> Callable[[Any], Any]:
    """``convert`` restricted to the network's inputs in a batch; other columns are not converted."""
    inputs = network.inputs if isinstance(network, BatchNetwork) else ("x",)

    def converted(raw: Any) -> Any:
        batch = fields_of(raw)
        if not isinstance(batch, Mapping):
            return batch
        if batch and all(isinstance(part, Mapping) for part in batch.values()):
            return {name: converted(part) for name, part in batch.items()}
        return {name: convert(column) if name in inputs else column for name, column in as_columns(batch).items()}

    return converted

"""Settings and callbacks of a Trainer that the module handles itself, or refuses with advice what to use instead."""

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    SpikeDetection,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher

from fcco_lightning.checks import positive
from fcco_lightning.data.datamodules.base import SplitDataModule
from fcco_lightning.errors import CheckpointError, ConfigError
from fcco_lightning.training.backend import Clipping

_AVERAGE = (
    "Use --model.average.decay 0.999 for an exponential moving average of the weights, or --model.average.decay null "
    "for their mean; it is validated, reported and part of every checkpoint."
)
REFUSED: dict[type[Callback], str] = {
    WeightAveraging: "it averages the rows of the dual state as if they were weights, and its checkpoints lack them. "
    + _AVERAGE,
    StochasticWeightAveraging: "its pass for the statistics of BatchNorm would go on training. " + _AVERAGE,
    GradientAccumulationScheduler: "the gradient of several small batches is not that of a large one. Set the batch "
    "size of the data, and --model.execution.micro_batch to what passes through the network at once.",
    BatchSizeFinder: "the batch size is part of the method here, not of the memory. Choose it with the data, and set "
    "--model.execution.micro_batch to what fits into the memory.",
    LearningRateFinder: "it follows the loss of training_step, which returns none. Compare the "
    "logged train_objective of short runs with several --model.optimizer.init_args.lr.",
    SpikeDetection: "it follows the loss of training_step, which returns none. Use "
    "--model.execution.skip_nonfinite true and --model.clipping.value.",
    ModelPruning: "it replaces the weights by others under new names, which the algorithm's memory of them and every "
    "checkpoint contradict. Prune the trained network with torch.nn.utils.prune, and remove its masks before a fit.",
}
"""Why a callback, or one derived of it, is refused, and the way out."""
_NO_BACKBONE = (
    "the module has no part of that name. Derive a callback of BaseFinetuning, whose freeze_before_training freezes "
    "layers of module.network, or give a subclass of FCCOModule an attribute `backbone`."
)
_NO_INTERVAL = (
    "with train_time_interval it would save nothing, since Lightning leaves the interval out where a module optimizes "
    "by itself. Use fcco_lightning.training.Checkpoints, which takes the same arguments, or every_n_train_steps."
)


def require_usable(callbacks: Sequence[Callback], module: LightningModule) -> None:
    """Refuse callbacks that would fail in the middle of training, or silently have another effect.

    Raises:
        ConfigError: naming the callback, the reason and what to use instead.
    """
    for callback in callbacks:
        reason = _objection(callback, module)
        if reason is not None:
            raise ConfigError(f"the callback {type(callback).__name__} is refused: {reason}")


def _objection(callback: Callback, module: LightningModule) -> str | None:
    if isinstance(callback, BackboneFinetuning) and not hasattr(module, "backbone"):
        return _NO_BACKBONE
    if (
        isinstance(callback, ModelCheckpoint)
        and callback._train_time_interval is not None
        and type(callback).on_train_batch_end is ModelCheckpoint.on_train_batch_end
    ):
        return _NO_INTERVAL
    return next((reason for kind, reason in REFUSED.items() if isinstance(callback, kind)), None)


def require_batches(trainer: Trainer) -> None:
    """Refuse settings with which a fit would silently train nothing, use other batches, or divide by 0.

    Raises:
        ConfigError: naming the setting.
    """
    if share := trainer.overfit_batches:  # type: ignore[attr-defined]
        raise ConfigError(
            f"overfit_batches={share} is refused: it would replace the batches' own way of drawing samples. Train on a "
            "small table, or shorten epochs with --trainer.limit_train_batches."
        )
    if trainer.limit_train_batches == 0:
        raise ConfigError(
            f"limit_train_batches={trainer.limit_train_batches} is refused: it would train nothing, and report the "
            "weights of the start. Give a number of batches >= 1 or a share of an epoch; to evaluate weights, use "
            "`fcco validate`, or Trainer.validate."
        )
    if trainer.check_val_every_n_epoch is not None and trainer.check_val_every_n_epoch < 1:
        raise ConfigError(
            f"check_val_every_n_epoch={trainer.check_val_every_n_epoch} must be a number of epochs >= 1. To leave "
            "validation out, set --trainer.limit_val_batches 0."
        )


def in_parts(trainer: Trainer, micro_batch: int | None) -> int | None:
    """Replace accumulation over K batches by one batch of K micro-batches, whose gradient is another one.

    K is the Trainer's ``accumulate_grad_batches``.  The datamodule is made to draw batches of K times as many samples,
    which pass through the network in micro-batches.

    Returns: the new ``micro_batch``: at most the original batch size; the given one (None for whole batches) if K = 1.

    Raises:
        ConfigError: if the batches are not those of a datamodule of this package, or have no fixed number of samples.
    """
    parts, datamodule = trainer.accumulate_grad_batches, getattr(trainer, "datamodule", None)
    if parts == 1:
        if isinstance(datamodule, SplitDataModule):
            datamodule.as_asked_for()
        return micro_batch
    if not isinstance(datamodule, SplitDataModule):
        raise ConfigError(
            f"accumulate_grad_batches={parts} is not defined for compositional objectives with loaders of your own: "
            "the gradient of several small batches is not that of a large one. Let them give batches "
            f"{parts} times as large, and set --model.execution.micro_batch to what their size is now: the same "
            "memory, and the large batch's gradient. (ALEXR2's inner loop is --model.algorithm.K.)"
        )
    size = datamodule.accumulate(parts)
    return size if micro_batch is None else min(size, micro_batch)


class Temporary(Callback, ABC):
    """A callback that undoes its changes when the Trainer's work ends, with or without an error.

    The same Trainer can then be used for another module.
    """

    @abstractmethod
    def undo(self, trainer: Trainer) -> None:
        """Restore the original state; may be called several times."""

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """Undo the changes after normal work."""
        self.undo(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        """Undo the changes after a failure or interrupt."""
        self.undo(trainer)


class OwnSettings(Temporary):
    """Moves the Trainer's settings of clipping and accumulation to the module, and restores them after the fit.

    Lightning refuses these settings under manual optimization.  Accumulation becomes a smaller ``micro_batch``, see
    :func:`in_parts`.  Lightning's warning that checkpoints under manual optimization hold the weights after the step is
    suppressed: this is intended, since the rows are those after the step, too.

    Raises:
        ConfigError: if a setting is refused; nothing is changed then.
    """

    def __init__(self, trainer: Trainer, module: Any) -> None:
        require_usable(trainer.callbacks, module)  # type: ignore[attr-defined]
        require_batches(trainer)
        clipping = module.clipping
        if trainer.gradient_clip_val:
            value = positive("gradient_clip_val", float(trainer.gradient_clip_val))
            by_value = trainer.gradient_clip_algorithm == "value"
            clipping = Clipping(value, "value" if by_value else "norm")
        execution = replace(module.execution, micro_batch=in_parts(trainer, module.execution.micro_batch))
        changed = ((trainer, "accumulate_grad_batches"), (trainer, "gradient_clip_val"), (module, "execution"))
        self._settings = [(owner, name, getattr(owner, name)) for owner, name in changed]
        module.backend.clipping, module.execution = clipping, execution
        trainer.accumulate_grad_batches, trainer.gradient_clip_val = 1, None
        warnings.filterwarnings("ignore", "Using ModelCheckpoint with manual optimization and every_n_train_steps")
        self._filter: Any = warnings.filters[0]

    def undo(self, trainer: Trainer) -> None:  # noqa: ARG002
        for owner, name, value in self._settings:
            setattr(owner, name, value)
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]
        self._filter = None


class NothingBeforeTraining(Temporary):
    """Prevents callbacks from saving a checkpoint after an exception before training has begun.

    ``OnExceptionCheckpoint`` would write a file that cannot be resumed, although Lightning tries to by itself, or would
    hide the exception by its own if the data are not set up yet.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._begun, self._callbacks = False, trainer.checkpoint_callbacks
        for callback in self._callbacks:
            callback.on_exception = partial(self._unless_early, callback)  # type: ignore[method-assign]

    def undo(self, trainer: Trainer) -> None:  # noqa: ARG002
        for callback in self._callbacks:
            vars(callback).pop("on_exception", None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Do not undo yet: callbacks that save are called later, and each restores its own method then."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Allow checkpoints from now on."""
        self._begun = True

    def _unless_early(self, callback: Callback, *args: Any) -> None:
        del callback.on_exception
        if self._begun:
            callback.on_exception(*args)


def require_rows(trainer: Trainer | None) -> None:
    """Refuse to save in a process that has launched the training processes, which have ended with the rows.

    After such a fit the module may have no trainer.

    Raises:
        CheckpointError: with advice.
    """
    if trainer is None or isinstance(trainer.strategy.launcher, _MultiProcessingLauncher):
        raise CheckpointError(
            "the dual state was in the processes that Trainer.fit started, which have ended: a checkpoint of this "
            "process would lack it. Save during the fit, with fcco_lightning.training.Checkpoints, or start the "
            "processes with --trainer.strategy ddp or torchrun."
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Within this context Lightning's messages and warnings are not shown."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

"""Backends that carry out an engine's steps through a Trainer, including clipping and schedules, or through Fabric."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fcco_lightning.checks import one_of, positive
from fcco_lightning.engine.backend import Backend
from fcco_lightning.engine.estimates import Averages
from fcco_lightning.errors import ConfigError
from fcco_lightning.state.checkpoint_files import in_words
from fcco_lightning.training.evaluating import EvaluatingModule
from fcco_lightning.training.schedules import Schedule
from fcco_lightning.training.sharding import ShardedWeights, clip


@dataclass(frozen=True)
class Clipping:
    """Clipping of gradients; ``--trainer.gradient_clip_val`` and ``gradient_clip_algorithm`` override it.

    Args:
        value: largest norm of the gradient, or largest absolute value in it, > 0; None for no clipping.
        algorithm: "norm" or "value".

    Raises:
        ConfigError: if ``value`` is not positive, or ``algorithm`` is another word.
    """

    value: float | None = None
    algorithm: Literal["norm", "value"] = "norm"

    def __post_init__(self) -> None:
        one_of("clipping.algorithm", self.algorithm, ("norm", "value"))
        if self.value is not None:
            positive("clipping.value", self.value)


class LightningBackend(Backend):
    """Carries out the engine's steps through a Trainer.

    One ``global_step`` per update of w: inner iterations are not counted, so ``max_steps``, ``every_n_train_steps`` and
    the loggers' x-axis mean updates.

    Args:
        module: the module whose trainer and processes are used.
        clipping: clipping of gradients.
        schedule: schedule of the learning rate.

    Attributes:
        clipping: the clipping of the present fit.
        around_step: a function from the optimizer to the context manager around an update of w.
        of_steps: names of all logged figures of training steps, which have a value in every epoch.
        validated_in: the epoch in which validation ran last; -1 before.
        idle: parameters whose gradients DistributedDataParallel waits for although the present phase does not use them.
    """

    def __init__(self, module: EvaluatingModule, clipping: Clipping, schedule: Schedule) -> None:
        self.module, self.clipping, self.schedule = module, clipping, schedule
        self.around_step: Callable[[Optimizer], AbstractContextManager[Any]] = nullcontext
        self.of_steps: set[str] = set()
        self.validated_in = -1
        self.idle: list[Tensor] = []
        self.continued = False

    @property
    def scaler(self) -> torch.amp.GradScaler | None:  # type: ignore[override]
        """The Trainer's loss scaler, which exists with the precision 16-mixed."""
        return getattr(self.module.trainer.precision_plugin, "scaler", None)

    @property
    def averages(self) -> bool:  # type: ignore[override]
        """Whether the strategy averages all gradients, as DistributedDataParallel does; FSDP2 averages only some."""
        return not self.sharded

    @property
    def plain(self) -> bool:
        """Whether training runs on one device without loss scaling."""
        strategy, precision = self.module.trainer.strategy, self.module.trainer.precision_plugin
        single_device = isinstance(strategy, SingleDeviceStrategy) and type(strategy).backward is Strategy.backward
        return single_device and type(precision).backward is Precision.backward and self.scaler is None

    @property
    def sharded(self) -> bool:
        """Whether each process holds only a part of the weights."""
        return isinstance(self.module.trainer.strategy, ShardedWeights)

    def backward(
        self, value: Tensor, leaves: Sequence[Tensor], gradients: Sequence[Tensor | None] | None = None
    ) -> None:
        """Backward pass through the strategy and the callbacks' hooks, with Lightning's loss scaling."""
        if gradients is None:
            for parameter in self.idle:
                value = value + 0.0 * parameter.sum()
            self.module.manual_backward(value)
            return
        strategy, precision = self.module.trainer.strategy, self.module.trainer.precision_plugin
        strategy.pre_backward(value)
        precision.pre_backward(value, self.module)
        super().backward(value, leaves, gradients)
        precision.post_backward(value, self.module)
        strategy.post_backward(value)

    def step(self, optimizer: Optimizer, *, inner: bool, from_backward: bool, clip: bool) -> None:
        """Update w: call hooks, clip, step the optimizer, and count the update for ``global_step`` and schedules.

        An inner iteration only unscales, clips and steps.  A gradient that did not come from a backward pass
        (``from_backward=False``) was never scaled and must not be unscaled.
        """
        if inner:
            if clip:
                self.clip_gradients(optimizer)
            self._step(optimizer, from_backward=from_backward)
            return
        trainer, module = self.module.trainer, self.module
        counter = module.optimizers()
        if isinstance(counter, list):
            raise ConfigError("configure_optimizers returned several optimizers; one is needed over all parameters.")
        counter._on_before_step()
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            callback.on_before_optimizer_step(trainer, module, optimizer)
        module.on_before_optimizer_step(optimizer)
        if clip:
            self.clip_gradients(optimizer)
        with self.around_step(optimizer):
            self._step(optimizer, from_backward=from_backward)
        counter._on_after_step()
        self.step_schedulers("step")

    def clip_gradients(self, optimizer: Optimizer) -> None:
        """Clip the gradients of an optimizer's parameters, if the present fit clips."""
        if self.clipping.value and self.sharded:
            params = (p for group in optimizer.param_groups for p in group["params"])
            clip(params, self.clipping.value, self.module.processes, by_value=self.clipping.algorithm == "value")
        elif self.clipping.value:
            self.module.clip_gradients(optimizer, self.clipping.value, self.clipping.algorithm)

    def step_schedulers(self, interval: str, *, plateau: bool = False) -> None:
        """Step the learning-rate schedule if it counts in ``interval`` ("step" or "epoch").

        Raises:
            ConfigError: if a plateau schedule names a metric that was not logged.
        """
        if interval != self.schedule.interval:
            return
        for scheduler in (config.scheduler for config in self.module.trainer.lr_scheduler_configs):
            if isinstance(scheduler, ReduceLROnPlateau):
                if plateau and self._is_new():
                    scheduler.step(self._monitored())
            elif not plateau:
                scheduler.step()

    def count_updates(self) -> None:
        """Make the x-axis of Lightning's loggers count updates of w instead of batches."""
        loop = self.module.trainer.fit_loop.epoch_loop
        loop._batches_that_stepped = max(0, self.module.global_step - (not loop._should_accumulate()))

    def is_logged(self, *, last: bool, updated: bool) -> bool:
        """Whether figures of this training step are logged; an epoch's last batch always is, for callbacks."""
        interval = self.module.trainer.log_every_n_steps  # type: ignore[attr-defined]  # 0 means never
        return bool(interval) and (last or (updated and self.module.global_step % interval == 0))

    def log(
        self,
        prefix: str,
        estimates: Mapping[str, Tensor],
        others: Mapping[str, float],
        epoch_figures: Mapping[str, Tensor],
        *,
        updated: bool,
    ) -> None:
        """Log figures of a training step for callbacks and the progress bar, and after an update of w to the loggers.

        Figures that an epoch's last batch lacks are logged as means over the epoch (``epoch_figures``): if several
        hooks log one name, Lightning keeps that of the hook which began last to log it, and this must be
        ``on_train_batch_end`` with the means.  Loggers are called directly, since Lightning's own counter counts
        batches.  An estimate without a value in this batch is NaN and left out; ``others`` are for the loggers only.
        """
        logged = {f"{prefix}_{name}": value.item() for name, value in estimates.items()}
        values = {name: value for name, value in logged.items() if not math.isnan(value)}
        self.of_steps |= values.keys() | epoch_figures.keys()
        self.module.log_dict({**epoch_figures, **values}, prog_bar=True, logger=False, batch_size=1)
        for logger in self.module.trainer.loggers if updated else ():
            logger.log_metrics({**values, **others}, step=self.module.global_step - 1)

    def figures_of_epoch(self, prefix: str, averages: Averages | None) -> dict[str, Tensor]:
        """Means of the estimates over the epoch by their logged names, without estimates that had no value."""
        means = {} if averages is None else averages.values()
        return {f"{prefix}_{name}": value for name, value in means.items() if not bool(value.isnan())}

    def batches(self) -> Iterator[dict[str, Any]]:
        """Training batches on their device, without end: those of epochs after the present one."""
        trainer = self.module.trainer
        for epoch in itertools.count(trainer.fit_loop.epoch_progress.current.ready):
            loaders = trainer.fit_loop._combined_loader
            assert loaders is not None  # noqa: S101 - the fit has set them up
            for loader in loaders.flattened:
                _set_sampler_epoch(loader, epoch)
            for batch, *_ in loaders:
                yield trainer.strategy.batch_to_device(batch)

    def _is_new(self) -> bool:
        """Whether the monitored metric has a value of this epoch; a validation metric needs a validation in it."""
        trainer = self.module.trainer
        num_epochs = trainer.check_val_every_n_epoch
        if self.schedule.monitor in self.of_steps:
            return True
        interval = trainer.val_check_batch
        if interval is None:  # validation by time
            return self.validated_in == trainer.current_epoch
        if num_epochs is not None:
            return (trainer.current_epoch + 1) % num_epochs == 0
        batches = trainer.fit_loop.epoch_loop.batch_progress
        before = batches.total.ready - batches.current.ready
        return batches.total.ready // interval > before // interval

    def _monitored(self) -> Tensor:
        logged = self.module.trainer.callback_metrics
        if self.schedule.monitor not in logged:
            raise ConfigError(
                f"schedule.monitor is {self.schedule.monitor!r}, which was not logged; there are {sorted(logged)}."
            )
        return logged[self.schedule.monitor]

    def _step(self, optimizer: Optimizer, *, from_backward: bool) -> None:
        scaler = self.scaler
        with in_words("the optimizer's state in the checkpoint") if self.continued else nullcontext():
            if scaler is None or not from_backward:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        self.continued = False


class FabricBackend(Backend):
    """Backend of an :class:`~fcco_lightning.Engine` in a loop with Fabric: mixed precision, and processes by DDP.

    Make it after ``fabric.launch()`` and ``fabric.setup``.

    Args:
        fabric: the Fabric whose ``backward`` is called.

    Raises:
        ConfigError: if the precision scales losses, since the engine needs gradients without a scale.
    """

    averages = True

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        if getattr(fabric.strategy.precision, "scaler", None) is not None:
            raise ConfigError(
                "Fabric(precision='16-mixed') scales losses, and the engine looks at gradients. Use 'bf16-mixed' or "
                "'32-true', or an FCCOModule, which undoes the scaling."
            )

    def backward(
        self,
        value: Tensor,
        leaves: Sequence[Tensor],  # noqa: ARG002
        gradients: Sequence[Tensor | None] | None = None,  # noqa: ARG002
    ) -> None:
        """Call ``fabric.backward``, in which DistributedDataParallel averages the gradients."""
        self.fabric.backward(value)

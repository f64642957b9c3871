"""What Lightning's manual optimization takes away, given back: clipping, loss scaling, step counts, schedules."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fcco_lightning.engine.backend import Backend, hooked
from fcco_lightning.errors import ConfigError

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule


class LightningBackend(Backend):
    """Carries out the engine's steps through a Trainer.

    One ``global_step`` per update of w: inner iterations are not counted, so ``max_steps``, ``every_n_train_steps`` and
    the loggers' x-axis mean updates.

    Args:
        module: the LightningModule whose trainer is used.
        clip_val: largest gradient norm (or value), None for no clipping.
        clip_algorithm: ``norm`` or ``value``.
        scheduler_interval: ``epoch`` or ``step``: what the learning-rate schedule counts.
        scheduler_monitor: logged metric that a ReduceLROnPlateau watches.
    """

    def __init__(
        self,
        module: "LightningModule",
        clip_val: float | None = None,
        clip_algorithm: str = "norm",
        scheduler_interval: str = "epoch",
        scheduler_monitor: str | None = None,
    ) -> None:
        self.module, self.clip_val, self.clip_algorithm = module, clip_val, clip_algorithm
        self.scheduler_interval, self.scheduler_monitor = scheduler_interval, scheduler_monitor
        self.of_steps: set[str] = set()  # metrics of training steps, which every epoch has
        self.idle: list[Tensor] = []  # parameters that DistributedDataParallel waits for and the present phase has not

    @property
    def drops_overflows(self) -> bool:  # type: ignore[override]
        """With 16-bit loss scaling an overflow is expected, and the scaler drops the step."""
        return self._scaler is not None

    def backward(self, surrogate: Tensor, leaf: Tensor | None = None) -> Tensor | None:
        """Through the strategy, so that gradients are scaled and averaged as Lightning does."""
        for parameter in self.idle:
            surrogate = surrogate + 0.0 * parameter.sum()
        self.module.manual_backward(surrogate)
        scaler, gradient = self._scaler, None if leaf is None else leaf.grad
        if scaler is None or gradient is None:
            return gradient
        return gradient / scaler.scale(gradient.new_ones(()))  # without waiting for the scale

    def takes_gradients(self, params: Sequence[Tensor]) -> bool:
        """On one device without loss scaling."""
        strategy, precision = self.module.trainer.strategy, self.module.trainer.precision_plugin
        alone = isinstance(strategy, SingleDeviceStrategy) and type(strategy).backward is Strategy.backward
        return alone and type(precision).backward is Precision.backward and not self._scaler and not hooked(params)

    def put(self, value: Tensor, params: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """With the hooks of a backward pass."""
        strategy, precision = self.module.trainer.strategy, self.module.trainer.precision_plugin
        strategy.pre_backward(value)
        precision.pre_backward(value, self.module)
        for p, g in zip(params, gradients, strict=True):
            p.grad = g
        precision.post_backward(value, self.module)
        strategy.post_backward(value)

    def synchronise(self, params: Sequence[Tensor]) -> None:
        """Nothing: DistributedDataParallel averages during backward."""

    def gradients(
        self, surrogate: Tensor, weights: Sequence[Tensor], *, keep: bool = False, graph: bool = False
    ) -> Sequence[Tensor | None]:
        """Gradients beside the backward pass, in true units (the loss is scaled against underflow, then unscaled)."""
        scaler = self._scaler
        value = surrogate if scaler is None else scaler.scale(surrogate)
        scaled = torch.autograd.grad(
            value, list(weights), retain_graph=keep or graph, create_graph=graph, allow_unused=True
        )
        if scaler is None:
            return scaled
        return [None if g is None else g / scaler.get_scale() for g in scaled]

    def prepare(self, optimizer: Optimizer) -> None:
        """Undo the loss scaling, so that whatever follows sees true gradients."""
        if self._scaler is not None:
            self._scaler.unscale_(optimizer)

    def inner_step(self, optimizer: Optimizer, *, clip: bool) -> None:
        """An inner iteration: clipped, scaled, not counted."""
        if clip:
            self._clip(optimizer)
        self._step(optimizer, from_backward=True)

    def update(self, optimizer: Optimizer, *, from_backward: bool, clip: bool) -> None:
        """An update of w: hooks, clipping, the optimizer, the counter, schedules per step.

        A gradient set by hand (``from_backward=False``) was never scaled, so the scaler must not touch it.
        """
        trainer, module = self.module.trainer, self.module
        counter = module.optimizers()
        if isinstance(counter, list):
            raise ConfigError("configure_optimizers returned several optimizers; one is needed over all parameters.")
        counter._on_before_step()
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            callback.on_before_optimizer_step(trainer, module, optimizer)
        module.on_before_optimizer_step(optimizer)
        if clip:
            self._clip(optimizer)
        self._step(optimizer, from_backward=from_backward)
        counter._on_after_step()
        self.step_schedulers("step")

    def step_schedulers(self, interval: str, *, plateau: bool = False) -> None:
        """Step the learning-rate schedule if it counts in ``interval`` ("step" or "epoch").

        Raises:
            ConfigError: if a plateau schedule names a metric that was not logged.
        """
        if interval != self.scheduler_interval:
            return
        for scheduler in (config.scheduler for config in self.module.trainer.lr_scheduler_configs):
            if isinstance(scheduler, ReduceLROnPlateau):
                if plateau and self._is_new():
                    scheduler.step(self._monitored())
            elif not plateau:
                scheduler.step()

    def _is_new(self) -> bool:
        """Whether this epoch has a value of the monitored metric: one of validation comes with a validation only."""
        trainer = self.module.trainer
        every = trainer.check_val_every_n_epoch
        if self.scheduler_monitor in self.of_steps:
            return True
        if every is not None:
            return (trainer.current_epoch + 1) % every == 0
        batches, interval = trainer.fit_loop.epoch_loop.batch_progress, trainer.val_check_batch
        if not isinstance(interval, int):  # by time
            return True
        before = batches.total.ready - batches.current.ready
        return batches.total.ready // interval > before // interval

    def _monitored(self) -> Tensor:
        logged = self.module.trainer.callback_metrics
        if self.scheduler_monitor not in logged:
            raise ConfigError(
                f"scheduler_monitor is {self.scheduler_monitor!r}, which was not logged; there are {sorted(logged)}."
            )
        return logged[self.scheduler_monitor]

    def _clip(self, optimizer: Optimizer) -> None:
        if self.clip_val:
            self.module.clip_gradients(optimizer, self.clip_val, self.clip_algorithm)

    def _step(self, optimizer: Optimizer, *, from_backward: bool) -> None:
        scaler = self._scaler
        if scaler is None or not from_backward:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()

    @property
    def _scaler(self) -> torch.amp.GradScaler | None:
        return getattr(self.module.trainer.precision_plugin, "scaler", None)

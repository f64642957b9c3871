"""Weight decay in proportion to the spread of the scores, so that it cannot shrink them to a constant."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from fcco_lightning.errors import ConfigError
from fcco_lightning.state.processes import Processes
from fcco_lightning.training.resuming.progress import epoch_is_whole

_DECAY = "weight_decay"  # key of torch's optimizers


class EasedDecay(Callback):
    r"""Reduces weight decay if the scores s of an epoch have a small spread: ``decay * min(1, std(s) / spread)``.

    Decay shrinks every layer, and the scores are about their product.  If features are weakly related to the label,
    gradients are small and noisy, and full decay shrinks all scores to one number: nearly all samples then have the
    same decision, and constraints hold trivially.  The reduced decay vanishes before that.  If features are
    informative, the standard deviation exceeds ``spread``, and the decay is that given to the optimizer.

    The spread of one epoch sets the decay of the next, so that no step waits for it; the first epoch has no decay.  The
    optimizer has the reduced decay during a step only, so that its state keeps the given one.  Forward passes without
    gradient, such as those at previous weights, and scores that are not finite are ignored.

    Args:
        spread: standard deviation of the scores from which on the decay is full, > 0.  If a sample has several scores,
            it is the root of the mean of their variances over the samples of all processes.

    Raises:
        ConfigError: in the first step, if the network's output is not one tensor of scores, or the optimizer has no
            decay.
    """

    def __init__(self, spread: float) -> None:
        self.spread = spread
        self.share = 0.0  # factor on the decay in the present epoch
        self._sums: Tensor | None = None  # sums of 1, s and s^2 over this process's samples in the epoch, shape (3, C)
        self._before: Tensor | None = None  # the same over all processes, from before a resume within the epoch
        self._outputs: list[Any] = []  # outputs for the present batch
        self._processes = Processes(alone=True)
        self._hook: RemovableHandle | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Register the hook that records the network's outputs."""
        network, processes = pl_module.network, pl_module.processes
        assert isinstance(network, nn.Module)  # noqa: S101 - the module is an FCCOModule
        assert isinstance(processes, Processes)  # noqa: S101
        self._hook, self._processes = network.register_forward_hook(self._note), processes

    @contextmanager
    def eased(self, optimizer: Optimizer) -> Iterator[None]:
        """Within this context the optimizer has the reduced weight decay; a step is made in it."""
        groups = optimizer.param_groups
        if not all(_DECAY in group for group in groups):
            raise ConfigError(
                f"schedule.decay_spread={self.spread:g} reduces the weight_decay of an optimizer, but "
                f"{type(optimizer).__name__} has none. Take one that has, such as AdamW, or leave it out."
            )
        full = [group[_DECAY] for group in groups]
        for group in groups:
            group[_DECAY] = self.share * group[_DECAY]
        try:
            yield
        finally:
            for group, decay in zip(groups, full, strict=True):
                group[_DECAY] = decay

    @torch.no_grad()
    def take(self) -> None:
        """Add the scores of the batch to the sums, after its step: a batch whose step fails is repeated on resuming.

        Raises:
            ConfigError: if the network's output is not a tensor of scores.
        """
        for outputs in self._outputs:
            if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
                raise ConfigError(
                    f"schedule.decay_spread={self.spread:g} is for networks that give scores, one tensor of floating "
                    f"numbers, and this one gave {type(outputs).__name__}. Leave it out."
                )
            scores = outputs.reshape(len(outputs), -1).double()
            sums = torch.stack([torch.ones_like(scores), scores, scores * scores]).sum(1)
            sums = torch.where(sums.isfinite().all(), sums, 0.0)  # not finite in a skipped batch
            self._sums = sums if self._sums is None else self._sums + sums
        self._outputs.clear()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Compute the spread of the epoch, unless the epoch is incomplete and will be resumed."""
        if not epoch_is_whole(trainer):
            return
        total = self._total()
        if total is not None:
            count, first, second = total
            spread = math.sqrt(float((second / count - (first / count) ** 2).clamp(min=0).mean()))
            self.share = min(1.0, spread / self.spread) if math.isfinite(spread) else self.share
        self._sums = self._before = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Remove the hook."""
        self._leave()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        """Remove the hook."""
        self._leave()

    def state(self) -> dict[str, Any]:
        """The factor on the decay and the sums of an incomplete epoch; a collective call of all processes."""
        return {"share": self.share, "sums": self._total()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` has returned."""
        self.share, self._before = float(state["share"]), state["sums"]

    def _note(self, network: nn.Module, _: Any, outputs: Any) -> None:
        """Record the network's outputs, by a hook that works in compiled code, too."""
        if network.training and torch.is_grad_enabled():
            self._outputs.append(outputs.detach() if isinstance(outputs, Tensor) else outputs)

    def _total(self) -> Tensor | None:
        """The sums over all processes, shape (3, C)."""
        if self._sums is None:
            return self._before
        total = self._processes.sum_(self._sums.clone()).cpu()
        return total if self._before is None else total + self._before.cpu()

    def _leave(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = None
        self._outputs.clear()

"""Weight decay that ends where scores would end."""

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

_DECAY = "weight_decay"  # of torch's optimizers


class EasedDecay(Callback):
    r"""Weights decay in proportion to how far the scores of an epoch spread: ``decay * min(1, std(s) / spread)``.

    Decay takes a share of every layer, and a score is their product.  Where features say little of the label, gradients
    are small and uncertain, and full decay shrinks all scores to one number: nearly all samples are then decided alike,
    and constraints hold for nothing.  In proportion to the spread the decay ends before.  Where features say much the
    scores spread further than ``spread``, and the decay is what the optimizer was given.

    The spread of an epoch decides on the next one, so that no step waits for it; the first epoch is without decay.  The
    optimizer has the eased decay during a step only, so that its state holds what it was given.  Passes without
    gradient, as at previous weights, and scores that are not finite do not count.

    Args:
        spread: standard deviation of the scores from which on weights decay in full, > 0; of several scores of a sample
            it is the root of the mean of their variances, over the samples of all processes.

    Raises:
        ConfigError: in the first step, if the network's output is not one tensor of scores, or the optimizer has no
            decay.
    """

    def __init__(self, spread: float) -> None:
        self.spread = spread
        self.share = 0.0  # of the decay, in the present epoch
        self._sums: Tensor | None = None  # of 1, s and s^2 over this process's samples of the epoch, shape (3, C)
        self._before: Tensor | None = None  # the same of all processes, from before a resume within the epoch
        self._outputs: list[Any] = []  # of the present batch
        self._processes = Processes(alone=True)
        self._hook: RemovableHandle | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Look at what the network gives from now on."""
        network, processes = pl_module.network, pl_module.processes
        assert isinstance(network, nn.Module)  # noqa: S101 - of an FCCOModule
        assert isinstance(processes, Processes)  # noqa: S101
        self._hook, self._processes = network.register_forward_hook(self._note), processes

    @contextmanager
    def eased(self, optimizer: Optimizer) -> Iterator[None]:
        """Inside, where a step is made, the optimizer has the share of its weight decay."""
        groups = optimizer.param_groups
        if not all(_DECAY in group for group in groups):
            raise ConfigError(
                f"schedule.decay_spread={self.spread:g} eases the weight_decay of an optimizer, and "
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
        """Take in the scores of the batch, once its step is done: one that fails is trained again by whoever resumes.

        Raises:
            ConfigError: if the network does not give scores.
        """
        for outputs in self._outputs:
            if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
                raise ConfigError(
                    f"schedule.decay_spread={self.spread:g} is for networks that give scores, one tensor of floating "
                    f"numbers, and this one gave {type(outputs).__name__}. Leave it out."
                )
            scores = outputs.reshape(len(outputs), -1).double()
            sums = torch.stack([torch.ones_like(scores), scores, scores * scores]).sum(1)
            sums = torch.where(sums.isfinite().all(), sums, 0.0)  # of a batch that was skipped
            self._sums = sums if self._sums is None else self._sums + sums
        self._outputs.clear()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Measure the spread of the epoch, unless it is to be continued."""
        if not epoch_is_whole(trainer):
            return
        total = self._total()
        if total is not None:
            count, first, second = total
            spread = math.sqrt(float((second / count - (first / count) ** 2).clamp(min=0).mean()))
            self.share = min(1.0, spread / self.spread) if math.isfinite(spread) else self.share
        self._sums = self._before = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Look no further."""
        self._leave()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        """Look no further."""
        self._leave()

    def state(self) -> dict[str, Any]:
        """The share of the decay, and the sums of an epoch that is not over; asked of all processes together."""
        return {"share": self.share, "sums": self._total()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.share, self._before = float(state["share"]), state["sums"]

    def _note(self, network: nn.Module, _: Any, outputs: Any) -> None:
        """Keep what the network gives, which compiled code can do, too."""
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

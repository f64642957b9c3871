"""The callback that saves checkpoints of a run."""

import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint


class Checkpoints(ModelCheckpoint):
    """Lightning's ``ModelCheckpoint``, corrected for a module with manual optimization.

    ``last.ckpt`` holds the last update whatever the interval of saving is, ``train_time_interval`` is obeyed, and a
    run that is resumed in another folder still knows its best checkpoint.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, including the best score, which Lightning drops if the run's folder is another one.

        Files in another folder are never removed.
        """
        super().load_state_dict({**state_dict, "dirpath": self.dirpath})

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Save if ``every_n_train_steps`` updates or ``train_time_interval``, on the first process, have passed."""
        super().on_train_batch_end(trainer, pl_module, *args)
        if self._train_time_interval is None or self._should_skip_saving_checkpoint(trainer):
            return
        elapsed = time.monotonic() - (self._last_time_checked or 0.0)
        if trainer.strategy.broadcast(elapsed >= self._train_time_interval.total_seconds()):
            self._last_time_checked = time.monotonic()
            candidates = self._monitor_candidates(trainer)
            if self.monitor is not None and self.monitor not in candidates:
                self._defer_save_until_validation = True
                return
            self._save_topk_checkpoint(trainer, candidates)
            self._save_last_checkpoint(trainer, candidates)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the last update, if it is not saved yet."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # a run without a folder
            return
        super().on_train_end(trainer, pl_module)
        if self.save_last and not self._should_skip_saving_checkpoint(trainer):
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))

"""Checkpoints of a run."""

import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint


class Checkpoints(ModelCheckpoint):
    """Lightning's ``ModelCheckpoint``, made whole for a module that optimizes by itself.

    Its ``last.ckpt`` holds the last update whatever the interval of saving is, ``train_time_interval`` is kept, and a
    run that is continued in another folder knows what was best before.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Lightning's, which would forget the best so far where the folder is another one: every run has its own.

        Files of another folder are never removed.
        """
        super().load_state_dict({**state_dict, "dirpath": self.dirpath})

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        """Save after so many updates, or so much time by the clock of the first process."""
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
        """Save the last update, if it was not."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # a run without a folder
            return
        super().on_train_end(trainer, pl_module)
        if self.save_last and not self._should_skip_saving_checkpoint(trainer):
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))

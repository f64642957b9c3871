"""Checkpoints of a run."""

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint


class Checkpoints(ModelCheckpoint):
    """Lightning's ``ModelCheckpoint``, whose ``last.ckpt`` holds the last update whatever the interval of saving is."""

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the last update, if it was not."""
        if trainer.fast_dev_run:  # type: ignore[attr-defined]  # a run without a folder
            return
        super().on_train_end(trainer, pl_module)
        if self.save_last and not self._should_skip_saving_checkpoint(trainer):
            self._save_last_checkpoint(trainer, self._monitor_candidates(trainer))

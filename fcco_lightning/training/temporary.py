"""Callbacks that change a Trainer for as long as they are needed."""

from abc import ABC, abstractmethod

from lightning.pytorch import Callback, LightningModule, Trainer


class Temporary(Callback, ABC):
    """Undoes what it has changed when the Trainer's work is over, however it ends.

    The same Trainer can then be used for another module.
    """

    @abstractmethod
    def undo(self, trainer: Trainer) -> None:
        """Leave everything as it was; called once or several times."""

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        """After work that was done."""
        self.undo(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:  # noqa: ARG002
        """After work that failed or was interrupted."""
        self.undo(trainer)

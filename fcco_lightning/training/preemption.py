"""Being told to end, or interrupted: save at the next step, on all processes, and stop."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn  # type: ignore[attr-defined]
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fcco_lightning.checks import list_of
from fcco_lightning.errors import ConfigError
from fcco_lightning.training.module import FCCOModule
from fcco_lightning.training.resuming.finding import INTERRUPTED
from fcco_lightning.training.trainers import Temporary

SAVED = "saved"
"""What an exception carries that ends a run which was saved."""
_ENDS_AT_ONCE = ("SIGKILL", "SIGSTOP")
Handler = Callable[[int, FrameType | None], Any] | int | None


class Preemption(Temporary):
    """Saves ``interrupted.ckpt`` and stops after the step in which the job is told to end.

    A signal only sets a flag.  It travels with the step's own exchange, so all processes save in the same step
    whichever of them got it, and none waits for another in the middle of a step.  One that comes too late for the last
    step, or while the weights of the end are validated, stops the run before what ends it: a recovery step, the report.
    Continuing does only that.  Under SLURM
    (``#SBATCH --signal=USR1@120``) the job is put back into the queue; elsewhere whoever starts it again uses
    ``--ckpt_path auto``.

    An interrupt (Ctrl-C, or the button of a notebook) is such a signal, too: ``trainer.fit(..., ckpt_path=...)`` with
    the file that is named goes on bit for bit, which half a step would not.  A second interrupt ends at once.

    Args:
        enabled: whether to do so.
        signals: names of the signals.
        requeue: whether to ask SLURM to queue the job again.
        folder: of the checkpoint; None for that of the other checkpoints.

    Raises:
        ConfigError: if a name is not that of a signal, or of one that no program can handle.
    """

    def __init__(
        self,
        enabled: bool = True,
        signals: tuple[str, ...] = ("SIGTERM", "SIGUSR1", "SIGINT"),
        requeue: bool = True,
        folder: str | None = None,
    ) -> None:
        refused = [
            name
            for name in list_of("signals", signals)
            if name not in signal.Signals.__members__ or name in _ENDS_AT_ONCE
        ]
        if refused:
            raise ConfigError(
                f"signals names {refused}, which this system does not know, or lets no program handle. Use e.g. "
                "SIGTERM, SIGUSR1."
            )
        self.enabled, self.requeue, self.folder = enabled, requeue, folder
        self.signals = [signal.Signals[name] for name in signals]
        self._before: dict[signal.Signals, Handler] = {}
        self._interrupted = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen, in place of Lightning's handlers, which communicate or save within the handler."""
        if not self.enabled or not isinstance(pl_module, FCCOModule):
            return

        engine = pl_module.engine
        engine.stop_asked = engine.stop_agreed = self._interrupted = False  # an earlier fit may have been told to end

        def listen(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
            if self._interrupted and number == signal.SIGINT:
                raise KeyboardInterrupt
            self._interrupted = number == signal.SIGINT
            pl_module.engine.stop_asked = True

        # a handler that was set from outside Python, for example by R, could not be restored
        numbers = [number for number in self.signals if signal.getsignal(number) is not None]
        try:
            self._before = {number: signal.signal(number, listen) for number in numbers}
        except ValueError:  # not the main thread, which alone may listen
            rank_zero_warn("training runs outside the main thread: a signal to end it will not save a checkpoint.")
        if signal.SIGTERM in self._before:
            # before every batch Lightning broadcasts whether its own handler, replaced here, has heard of SIGTERM: a
            # collective and, on a GPU, a stall in every step for what the batches' exchange says anyway
            trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Save and stop, if any process was asked to."""
        if self._before and isinstance(pl_module, FCCOModule) and pl_module.engine.stop_agreed:
            self._end(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop listening; save and stop, if any process was asked to after the exchange of the last step."""
        listening = bool(self._before)
        self.undo(trainer)
        if listening and isinstance(pl_module, FCCOModule):
            requests = pl_module.processes.everyone((pl_module.engine.stop_asked, self._interrupted))
            self._interrupted = any(interrupted for _, interrupted in requests)
            if any(stop for stop, _ in requests):
                self._end(trainer)

    def _end(self, trainer: Trainer) -> None:
        saver = trainer.checkpoint_callback
        usual = saver.dirpath if isinstance(saver, ModelCheckpoint) else None
        path = Path(self.folder or usual or trainer.default_root_dir) / INTERRUPTED
        trainer.save_checkpoint(path)
        event = "Interrupted" if self._interrupted else "Told to end"
        rank_zero_info(
            f"{event}: saved {path}. Continue with --ckpt_path auto, or in Python with trainer.fit(..., ckpt_path=...)."
        )
        if self._interrupted:
            raise KeyboardInterrupt(SAVED)
        if trainer.is_global_zero:
            self._put_back()
        raise SIGTERMException(SAVED)

    def _put_back(self) -> None:
        job = os.environ.get("SLURM_ARRAY_JOB_ID", os.environ.get("SLURM_JOB_ID"))
        if job is None or not self.requeue:
            return
        task = os.environ.get("SLURM_ARRAY_TASK_ID")
        try:
            subprocess.run(["scontrol", "requeue", f"{job}_{task}" if task else job], check=True)  # noqa: S603, S607
        except (OSError, subprocess.CalledProcessError) as error:
            rank_zero_warn(f"SLURM could not be asked to queue the job again: {error}. Submit it by hand.")

    def undo(self, trainer: Trainer) -> None:
        """Stop listening."""
        trainer.fit_loop.epoch_loop.__dict__.pop("_broadcast_sigterm_tensor", None)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

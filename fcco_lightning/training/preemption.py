"""Signals and interrupts: all processes save a checkpoint after the same step, and stop."""

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
    """Saves ``interrupted.ckpt`` and stops after the step during which a signal arrives.

    A signal only sets a flag, which is sent with the exchange that every step makes anyway, so that all processes save
    after the same step, whichever received it.  A signal after the exchange of the last step, or during the final
    validation, stops the run before a recovery step and the report; resuming does only these.  Under SLURM
    (``#SBATCH --signal=USR1@120``) the job is put back into the queue; elsewhere restart it with ``--ckpt_path auto``.

    An interrupt (Ctrl-C, or the stop button of a notebook) is handled in the same way:
    ``trainer.fit(..., ckpt_path=...)`` with the file that is printed resumes bit for bit, which is not possible from
    the middle of a step.  A second interrupt ends at once.

    Args:
        enabled: whether signals are handled in this way.
        signals: names of the signals.
        requeue: whether to ask SLURM to queue the job again.
        folder: folder of the checkpoint; None for the folder of the other checkpoints.

    Raises:
        ConfigError: if a name is not that of a signal, or the signal cannot be handled by programs.
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
        """Install handlers in place of Lightning's, which communicate or save within the handler."""
        if not self.enabled or not isinstance(pl_module, FCCOModule):
            return

        engine = pl_module.engine
        engine.stop_asked = engine.stop_agreed = self._interrupted = False  # may be set by an earlier fit

        def listen(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
            if self._interrupted and number == signal.SIGINT:
                raise KeyboardInterrupt
            self._interrupted = number == signal.SIGINT
            pl_module.engine.stop_asked = True

        # a handler that was installed outside Python, for example by R, could not be restored
        numbers = [number for number in self.signals if signal.getsignal(number) is not None]
        try:
            self._before = {number: signal.signal(number, listen) for number in numbers}
        except ValueError:  # only the main thread may install handlers
            rank_zero_warn("training runs outside the main thread: a signal to end it will not save a checkpoint.")
        if signal.SIGTERM in self._before:
            # Before every batch Lightning broadcasts whether its own handler, replaced here, has received SIGTERM: a
            # collective and, on a GPU, a synchronisation per step, which our own exchange makes unnecessary.
            trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Save and stop, if any process has received a signal."""
        if self._before and isinstance(pl_module, FCCOModule) and pl_module.engine.stop_agreed:
            self._end(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the handlers; save and stop, if a signal arrived after the exchange of the last step."""
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
        """Restore the handlers that were there before."""
        trainer.fit_loop.epoch_loop.__dict__.pop("_broadcast_sigterm_tensor", None)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

"""Checkpoints with files of every process beside them, which all processes write and read together."""

import glob
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.rank_zero import rank_zero_warn  # type: ignore[attr-defined]
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.io import CheckpointIO
from torch import Tensor

from fcco_lightning.errors import CheckpointError
from fcco_lightning.state import DualState
from fcco_lightning.state.archives import opened
from fcco_lightning.state.checkpoint_files import in_words, require_sound
from fcco_lightning.state.new_file import new_file
from fcco_lightning.state.parts import FOLDER, change, mapped, put_back, read_parts, rows_folder, take_out, write_part
from fcco_lightning.state.processes import Processes
from fcco_lightning.state.sharded import is_sharded
from fcco_lightning.training.sharding import ShardedWeights

_ABANDONED = 3600.0  # seconds since its last write after which a temporary file belongs to a killed process
_RESTORED = {  # methods of Lightning -> the state that they restore
    "restore_model": "its weights and rows",
    "restore_datamodule": "the state of its datamodule",
    "restore_callbacks": "the state of its callbacks",
    "restore_training_state": "the state of its loops, optimizers and schedules",
}


class RowsCheckpointIO(CheckpointIO):
    """A ``CheckpointIO`` that writes files completely or not at all, and removes a checkpoint with the files beside it.

    ``inner`` does everything else, and all writes except those to plain local files.
    """

    def __init__(self, inner: CheckpointIO, trainer: Trainer) -> None:
        self.inner, self.trainer = inner, trainer
        self._paths: set[str] = set()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write the file completely or not at all.

        Raises:
            CheckpointError: if the file cannot be written; an earlier file of the same name is kept.
        """
        self._paths.add(str(path))
        if type(self.inner) is not TorchCheckpointIO or "://" in str(path):
            self.inner.save_checkpoint(checkpoint, path, storage_options)
            return
        with new_file(Path(path)) as file:
            torch.save(checkpoint, file)
        _remove_abandoned(Path(path))

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read the file, and add the folder beside it to the content.

        Raises:
            CheckpointError: if the file is damaged, or not a checkpoint.
        """
        if "://" not in str(path):
            opened(Path(path))
        if "weights_only" in kwargs and kwargs["weights_only"] is None:
            kwargs["weights_only"] = True  # by default Lightning runs code in files from URLs
        checkpoint = self.inner.load_checkpoint(path, *args, **kwargs)
        if "fcco" in checkpoint:
            require_sound(checkpoint, path, to_continue=self.trainer.state.fn == "fit")
            checkpoint["fcco"][FOLDER] = str(rows_folder(path))
            self._fill(checkpoint)
        return checkpoint

    def _fill(self, checkpoint: dict[str, Any]) -> None:
        """Read sharded tensors: whole, or this process's part of them if the strategy shards weights."""
        strategy, module = self.trainer.strategy, self.trainer.lightning_module
        mesh = strategy.device_mesh["data_parallel"] if isinstance(strategy, ShardedWeights) else None
        processes = getattr(module, "processes", None) or Processes(alone=True)
        with processes.together():
            put_back(checkpoint, mesh)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove the file, and those beside it, if this run wrote it: an untrusted checkpoint may give the path."""
        if not self._is_own(Path(path)):
            rank_zero_warn(f"{path} is not removed: no callback of this run has written it.")
            return
        linked = Path(path).is_symlink()
        folder = rows_folder(path)
        self.inner.remove_checkpoint(path)
        if not linked:
            shutil.rmtree(folder, ignore_errors=True)

    def _is_own(self, path: Path) -> bool:
        """Whether this trainer has written the file, or a checkpoint callback's folder contains it."""
        callbacks: list[Any] = self.trainer.checkpoint_callbacks
        folders = {Path(callback.dirpath).resolve() for callback in callbacks if getattr(callback, "dirpath", None)}
        return str(path) in self._paths or bool(folders & {path.parent.resolve(), *path.parent.resolve().parents})

    def teardown(self) -> None:
        self.inner.teardown()


def install(trainer: Trainer) -> None:
    """Make all processes of ``trainer`` take part in saving, and improve the errors raised when states do not fit.

    Lightning's strategies call the ``CheckpointIO`` in the first process only; therefore the strategy's method, which
    all processes call, is wrapped.  The methods that restore states are wrapped for their errors.
    """
    strategy = trainer.strategy
    if isinstance(strategy.checkpoint_io, RowsCheckpointIO):
        return
    strategy.checkpoint_io = RowsCheckpointIO(strategy.checkpoint_io, trainer)
    write = strategy.save_checkpoint

    def save_checkpoint(checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        module: Any = trainer.lightning_module
        write_checkpoint = partial(write, checkpoint, filepath, storage_options=storage_options)
        if hasattr(module, "dual_states"):
            save(module.dual_states(), checkpoint, filepath, write_checkpoint, module.processes)
        else:  # not an FCCOModule: the same Trainer may fit another module later
            write_checkpoint()

    strategy.save_checkpoint = save_checkpoint  # type: ignore[method-assign]
    connector = trainer._checkpoint_connector
    for name, state in _RESTORED.items():
        setattr(connector, name, _naming_state(getattr(connector, name), trainer, state))


def _naming_state(restore: Callable[..., None], trainer: Trainer, state: str) -> Callable[..., None]:
    def restore_in_words(*args: Any, **kwargs: Any) -> None:
        with in_words(f"checkpoint {trainer.ckpt_path}: {state}"):
            try:
                restore(*args, **kwargs)
            except ValueError:  # raised by torch if parameter groups have other sizes
                module: Any = trainer.lightning_module
                if hasattr(module, "require_trained_as_then"):
                    module.require_trained_as_then()
                raise

    return restore_in_words


def save(
    states: Mapping[str, DualState],
    checkpoint: dict[str, Any],
    path: str | Path,
    write: Callable[[], None],
    processes: Processes,
) -> None:
    """Write the parts of sharded tensors, then the checkpoint that refers to them; all processes must call it.

    If saving is interrupted, the earlier checkpoint of that name and its parts are intact.

    Args:
        states: dual states by name; their rows are in the ``state_dict`` of the checkpoint.
        checkpoint: content of the checkpoint, from which the values of sharded tensors are removed.
        path: file of the checkpoint.
        write: writes the rest of the content (on the first process).
        processes: the processes of the job.

    Raises:
        CheckpointError: if a file cannot be written; on all processes.
        PeerError: on the other processes.
    """
    # NumPy scalars, such as a learning rate from np.geomspace, are pickled as code, which loading refuses
    checkpoint.update(mapped(checkpoint, np.generic, lambda _, number: number.item()))
    parts: dict[str, Tensor] = {}
    if "fcco" in checkpoint:
        checkpoint["fcco"]["states"] = [*states]
        parts = take_out(checkpoint, states)
    else:  # a checkpoint of weights only, before the first fit
        change(checkpoint, lambda _, tensor: tensor.full_tensor() if is_sharded(tensor) else tensor)  # type: ignore[attr-defined]
        for name in (name for name, state in states.items() if state.sharded):
            checkpoint["state_dict"].pop(f"{name}.rows", None)
    if not parts:
        with processes.together():
            write()
        return
    with _exclusive(rows_folder(path), processes):
        folder = rows_folder(path) / processes.everyone(secrets.token_hex(8))[0]
        checkpoint["fcco"]["save_id"], saved = folder.name, False
        try:
            with processes.together():
                write_part(folder, processes.rank, parts)
            with processes.together():
                write()
                saved = True
        finally:
            if processes.rank == 0 and not saved:
                shutil.rmtree(folder, ignore_errors=True)
            elif processes.rank == 0:  # the checkpoint is complete and needs its parts, even if another process failed
                _remove_others(folder)


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary files for ``path`` that killed processes left, which have not been written to for long."""
    for other in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError):
            if time.time() - other.stat().st_mtime > _ABANDONED:
                other.unlink()


@contextmanager
def _exclusive(folder: Path, processes: Processes) -> Iterator[None]:
    """Lock ``folder`` while parts are saved in it; otherwise two jobs of one name would remove each other's parts.

    On a file system without locks this has no effect.
    """
    with ExitStack() as stack:
        if processes.rank == 0:  # the other processes wait for it in their first collective call
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context((folder / ".lock").open("w"))
                with suppress(ImportError):  # on systems without fcntl, jobs must not share a name
                    import fcntl  # noqa: PLC0415

                    fcntl.flock(file, fcntl.LOCK_EX)  # released when the file is closed or the process is killed
        yield


def _remove_others(folder: Path) -> None:
    """Remove the parts of earlier and of interrupted saves of the same checkpoint."""
    for other in folder.parent.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)


def load(states: Mapping[str, DualState], checkpoint: dict[str, Any], processes: Processes) -> None:
    """Load ``states`` from a checkpoint written by any number of processes, and add them to its ``state_dict``.

    Raises:
        CheckpointError: if rows are missing, damaged, of another save, or of another problem; on all processes.
        PeerError: on the other processes.
    """
    names, weights = checkpoint["fcco"]["states"], checkpoint["state_dict"]
    file = checkpoint["fcco"][FOLDER].removesuffix(".rows")
    with processes.together():
        for name, state in states.items():
            if name not in names:
                raise CheckpointError(
                    f"the checkpoint `{file}` has no dual state `{name}`, only {sorted(names)}. It was trained with "
                    "another objective or set of constraints: use the same ones, or start without --ckpt_path."
                )
            _require_same_shape(file, name, state, weights[f"{name}.rows"])
        ranges = {f"state_dict.{name}.rows": (state.first, len(state.rows)) for name, state in states.items()}
        found = read_parts(checkpoint, ranges)
        for name, state in states.items():
            state.rows.copy_(found[f"state_dict.{name}.rows"])
            weights[f"{name}.rows"], weights[f"{name}._extra_state"] = state.rows, state.get_extra_state()


def _require_same_shape(file: str, name: str, state: DualState, stored: Tensor) -> None:
    kinds = ((state.num_rows, state.width, state.rows.dtype), (*stored.shape, stored.dtype))
    present, saved = (f"{rows} x {width} {str(dtype).removeprefix('torch.')}" for rows, width, dtype in kinds)
    if present != saved:
        raise CheckpointError(
            f"the checkpoint `{file}`: its dual state `{name}` has (rows x width) {saved}, this problem needs "
            f"{present}. It was trained on another data set, split or set of constraints: use the same ones, or start "
            "without --ckpt_path."
        )

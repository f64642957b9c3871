"""The state that a fit takes over from a checkpoint, in which settings that the user has changed take precedence."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined]
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning, EarlyStopping
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fcco_lightning.data.columns import listed_in_order
from fcco_lightning.engine import Engine
from fcco_lightning.errors import CheckpointError
from fcco_lightning.state.checkpoint_files import in_words
from fcco_lightning.training.optimizers import Hyperparameters, Stepping
from fcco_lightning.training.resuming.random_streams import (
    loader_streams,
    random_streams,
    set_loader_streams,
    set_random_streams,
)
from fcco_lightning.training.schedules import catch_up, require_same_kind


class Continuation(Callback):
    """Holds the state of a checkpoint until training resumes; a checkpoint that is saved earlier contains it, too.

    The module chooses its final weights in training hooks, which Lightning does not call if a resumed fit has nothing
    left to train; this callback then calls them.  It must be the first callback, since others report on these weights.

    Attributes:
        stored: header of the checkpoint with its ``lr_schedulers``; None if no checkpoint is resumed.
    """

    def __init__(self) -> None:
        self.stored: dict[str, Any] | None = None
        self._schedule: dict[str, Any] | None = None  # state of a schedule whose arguments have changed

    def take(self, checkpoint: Mapping[str, Any]) -> None:
        """Keep the state of a checkpoint."""
        self.stored = {**checkpoint["fcco"], "lr_schedulers": checkpoint["lr_schedulers"]}
        self._schedule = None

    def get(self, name: str) -> Any:
        """An entry of the header; None if it is missing or no checkpoint is resumed."""
        return None if self.stored is None else self.stored.get(name)

    def freeze_as_then(self, trainer: Trainer, network: nn.Module) -> None:
        """Unfreeze the parameters that were trained, which a finetuning callback has frozen again."""
        finetuned = any(isinstance(callback, BaseFinetuning) for callback in trainer.callbacks)  # type: ignore[attr-defined]
        trained: Any = self.get("trained") if finetuned else None
        for name, parameter in () if trained is None else network.named_parameters():
            parameter.requires_grad_(name in trained)

    def require_trained_as_then(self, network: nn.Module) -> None:
        """Require the frozen parameters to be those of the checkpoint, whose optimizer has state for the others only.

        Raises:
            CheckpointError: if they differ, naming the parameters.
        """
        stored = set(self.get("trained") or ())
        present = {name for name, p in network.named_parameters() if p.requires_grad}
        changed = {
            "were trained when it was written": stored - present,
            "were frozen when it was written": present - stored,
        }
        changes = [f"{listed_in_order(sorted(names))} {state}" for state, names in changed.items() if names]
        if stored and changes:
            raise CheckpointError(
                f"the checkpoint's optimizer holds other parameters than this one: {' and '.join(changes)}. Freeze the "
                "same layers as then, or begin another run with its weights by the callback WarmStart."
            )

    def stop_as_then(self, trainer: Trainer) -> None:
        """Do not train if EarlyStopping has ended the run of the checkpoint, which Lightning does not remember."""
        for callback in trainer.callbacks if self.stored is not None else ():  # type: ignore[attr-defined]
            if isinstance(callback, EarlyStopping) and (
                callback.stopped_epoch > 0 or callback.wait_count >= max(1, callback.patience)
            ):
                trainer.should_stop = True
                rank_zero_info(
                    f"{type(callback).__name__} stopped this run in epoch {callback.stopped_epoch}: there is nothing "
                    "left to train. Remove the callback to continue training."
                )

    def restore(self, engine: Engine, stepping: Stepping) -> None:
        """Load the engine's state, and withhold the state of a schedule whose arguments have changed from Lightning.

        Raises:
            CheckpointError: if the checkpoint was written with another optimizer, or another kind of schedule.
        """
        if self.stored is None:
            return
        stored, present = self.stored["optimizer"]["class"], type(stepping.optimizer).__name__
        if stored != present:
            raise CheckpointError(
                f"the checkpoint holds the state of {stored}, this run uses {present}. Use --model.optimizer {stored}, "
                "or start without --ckpt_path."
            )
        engine.load_state_dict(self.stored["engine"] | {"data": None})  # compared when the checkpoint was loaded
        stored_kind, states = self.stored.get("schedule", stepping.kind), self.stored["lr_schedulers"]
        require_same_kind(stepping.kind, stored_kind)
        if stepping.kind != stored_kind and states:  # Lightning would restore the old arguments, too
            self._schedule = states.pop()

    def go_on(self, trainer: Trainer, stepping: Stepping, rebuild: Callable[[], Stepping]) -> None:
        """Resume hyperparameters, schedule and random streams, after Lightning has restored the optimizer.

        Args:
            trainer: the trainer of the resumed fit.
            stepping: the restored optimizer and its schedule.
            rebuild: makes another :class:`Stepping` with the same arguments.

        Raises:
            CheckpointError: see :func:`apply_changes`; also if a schedule or a random stream cannot be restored.
        """
        if self.stored is None:
            return
        with in_words(f"checkpoint {trainer.ckpt_path}: its schedule"):
            apply_changes(stepping.optimizer, stepping.typed, self.stored["optimizer"]["typed"])
            if self._schedule is not None:
                _continue_schedule(
                    trainer.lr_scheduler_configs[0].scheduler, self._schedule, stepping.optimizer, rebuild
                )
        _place_loaders(trainer)
        with in_words(f"checkpoint {trainer.ckpt_path}: its random streams"):
            set_random_streams(self.stored["random"])
            set_loader_streams(_loaders(trainer), self.stored["random"].get("loaders", ()))
        _draw_the_epoch_again(trainer)
        self.stored = None

    def save(self, checkpoint: dict[str, Any], trainer: Trainer, stepping: Stepping) -> dict[str, Any]:
        """The entries of a checkpoint's header that :meth:`restore` and :meth:`go_on` need."""
        typed, schedule = stepping.typed, stepping.kind
        streams = random_streams() | {"loaders": loader_streams(_loaders(trainer))}
        if self.stored is not None:  # nothing was trained since it was loaded
            typed, streams = self.stored["optimizer"]["typed"], self.stored["random"]
            schedule = self.stored.get("schedule", schedule)
            if self._schedule is not None and "lr_schedulers" in checkpoint:
                checkpoint["lr_schedulers"] = [self._schedule]
        kind = type(trainer.optimizers[0]).__name__
        return {"optimizer": {"class": kind, "typed": typed}, "schedule": schedule, "random": streams}

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Call the module's hooks of the start and the end of training, if nothing was trained."""
        if self.stored is not None and not trainer.interrupted:
            pl_module.on_train_start()
            pl_module.on_train_end()


def apply_changes(optimizer: Optimizer, present: Hyperparameters, stored: Hyperparameters) -> None:
    """Set the hyperparameters of a restored optimizer whose arguments have changed since the checkpoint.

    If ``lr`` has changed, the restored learning rate, which a schedule may have moved, is multiplied by new/old.

    Args:
        optimizer: the restored optimizer.
        present: arguments of this run, for every parameter group.
        stored: arguments of the run that wrote the checkpoint, likewise.

    Raises:
        CheckpointError: if the checkpoint's optimizer lacks one of the hyperparameters.
    """
    for group, new, old in zip(optimizer.param_groups, present, stored, strict=False):
        if missing := sorted(new.keys() - group.keys()):
            raise CheckpointError(f"the checkpoint's optimizer has no {missing[0]!r}. Use a complete checkpoint.")
        changed = {k: v for k, v in new.items() if k in old and old[k] != v}
        if "lr" in changed:
            group["lr"] = group["lr"] * (changed["lr"] / old["lr"]) if old["lr"] else changed["lr"]
        group.update({k: v for k, v in changed.items() if k != "lr"})


def _continue_schedule(
    scheduler: Any, state: Mapping[str, Any], optimizer: Optimizer, rebuild: Callable[[], Stepping]
) -> None:
    """Set a schedule whose arguments have changed to the number of steps of the checkpoint's schedule."""
    if isinstance(scheduler, ReduceLROnPlateau):
        catch_up(scheduler, state)
        return
    other = rebuild()
    catch_up(other.scheduler, state)  # type: ignore[arg-type]  # there is one of the same kind
    scheduler.load_state_dict(other.scheduler.state_dict())  # type: ignore[union-attr]
    for group, values in zip(optimizer.param_groups, other.optimizer.param_groups, strict=False):
        group.update({name: value for name, value in values.items() if name != "params"})


def _place_loaders(trainer: Trainer) -> None:
    """Set loaders to their position in the checkpoint, if Lightning has not done so.

    Lightning does not if the loaders were made before the positions were loaded.  This happens for schedules that read
    the number of steps, since ``Trainer.estimated_stepping_batches`` makes the loaders.
    """
    fit_loop = trainer.fit_loop
    if fit_loop._combined_loader_states_to_load and fit_loop._data_fetcher is not None:
        fit_loop._load_combined_loader_states()
        iter(fit_loop._data_fetcher)


def _draw_the_epoch_again(trainer: Trainer) -> None:
    """Restart the iterators of loaders without a state, so that their epoch begins with the restored random streams.

    Lightning has made their iterators earlier, with random numbers from other streams.
    """
    fit_loop = trainer.fit_loop
    mid_epoch = fit_loop.restarted_mid_epoch or fit_loop.epoch_loop.restarting
    stateful = any(hasattr(loader, "load_state_dict") for loader in _loaders(trainer))
    if not (mid_epoch or stateful) and fit_loop._data_fetcher is not None:
        iter(fit_loop._data_fetcher)


def _loaders(trainer: Trainer) -> Sequence[Any]:
    combined = trainer.fit_loop._combined_loader
    return () if combined is None else combined.flattened

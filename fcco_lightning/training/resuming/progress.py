"""The position of training, read from Lightning's counters and written so that a resume starts after the last batch.

Lightning counts every epoch, batch and validation four times: when it is ready, started, processed and completed.  A
checkpoint holds the counters at the hook that saves it.  The same position of training therefore looks different in
different hooks, and Lightning corrects only some of the differences when it loads them: epochs are counted twice,
batches trained twice, validations left out.  Therefore the counters are reduced to a :class:`Position`, and written
again in the one form from which Lightning resumes correctly.

An example: epochs 0, 1, 2, ... of 10 batches, each followed by a validation, and a checkpoint of epoch 2.

====================================  =================  ================================  ============================
saved                                 epochs processed,  batches of the epoch ready,       :class:`Position`
                                      completed          processed, completed              (epoch, batches)
====================================  =================  ================================  ============================
in the hook after the fourth batch    2, 2               4, 4, 3                           (2, 4, validate)
before the fifth, which is fetched    2, 2               5, 4, 4                           (2, 4)
after the tenth, before validation    2, 2               10, 10, 9                         (2, 10, last, validate)
after validation                      2, 2               10, 10, 10                        (2, 10, last)
at the epoch's end, which has run     3, 2               10, 10, 10                        (3, 0)
at ``max_steps``, after the fourth    3, 3               4, 4, 4                           (2, 4)
====================================  =================  ================================  ============================

In the first row the fourth batch was trained although it is not completed, in the second the fifth was not although it
is ready: the counter "processed" is decisive.  In the last row Lightning has closed an epoch with six batches left.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_warn  # type: ignore[attr-defined]
from lightning.pytorch import LightningModule, Trainer

from fcco_lightning.errors import CheckpointError
from fcco_lightning.training.resuming.random_streams import generators_of
from fcco_lightning.training.trainers import Temporary

Counters = dict[str, Any]

RESULTS = "logged_results"  # key of a checkpoint


@dataclass(frozen=True)
class Position:
    """The position of training between two batches.

    Attributes:
        epoch: number of finished epochs, which is also the number of the present one.
        batches: number of batches of the present epoch that were trained; 0 if it has not begun.
        last: whether these are all of its batches, so that only validation and the end of the epoch are left.
        validate: whether no validation has run since the last batch; it runs on loading if the trainer's settings ask
            for one after that batch.
    """

    epoch: int
    batches: int = 0
    last: bool = False
    validate: bool = False


def read_position(counters: Counters, *, validated: bool | None = None, closed: bool = True) -> Position:
    """The position by the counters of a fit loop, whatever hook they are from; the module has examples.

    Args:
        counters: ``checkpoint["loops"]["fit_loop"]``.
        validated: whether validation has run since the last batch; None to derive it from the counters.
        closed: whether the module's ``on_train_epoch_end`` has run, for counters from hooks of that name.

    Returns: the position after the last trained batch; a batch that was only begun is not counted.
    """
    epochs, batches = counters["epoch_progress"]["current"], counters["epoch_loop.batch_progress"]
    present, num_processed = batches["current"], epochs["processed"]
    trained = present["processed"]
    if trained == 0 or epochs["ready"] > epochs["started"]:
        return Position(num_processed)
    if validated is None:
        evaluated = counters["epoch_loop.val_loop.batch_progress"]["total"]
        validated = present["completed"] == trained and evaluated["ready"] == evaluated["completed"]
    last = batches["is_last_batch"] and present["ready"] == trained
    if epochs["started"] > num_processed:
        return Position(num_processed, trained, last, not validated)
    if not last:  # cut short by max_steps or max_time, yet counted as an epoch
        return Position(num_processed - 1, trained, False, not validated)
    if epochs["completed"] < num_processed and not closed:
        return Position(num_processed - 1, trained, True, not validated)
    return Position(num_processed)


def write_position(counters: Counters, position: Position) -> None:
    """Change the counters of a fit loop, and the positions of its loaders, to those that continue at ``position``.

    An epoch that has begun is left open with all its batches completed.  A validation that is still to run is entered
    as one of which the first batch was begun: the one form in which Lightning runs it, from its first batch on.
    """
    begun = position.batches > 0
    batches = counters["epoch_loop.batch_progress"]
    untrained = batches["current"]["ready"] - batches["current"]["processed"]
    _set(counters["epoch_progress"]["total"], position.epoch, begun)
    _set(counters["epoch_progress"]["current"], position.epoch, begun)
    _set(batches["total"], batches["total"]["processed"])
    _set(batches["current"], position.batches)
    batches["is_last_batch"] = position.last
    evaluated = counters["epoch_loop.val_loop.batch_progress"]
    _set(evaluated["total"], 0, begun and position.validate)
    _set(evaluated["current"], 0)
    evaluated["is_last_batch"] = False
    updates = counters["epoch_loop.manual_optimization.optim_step_progress"]
    for count in (updates["total"], updates["current"]):
        count["ready"] = count["completed"]
    for loader in counters["state_dict"].get("combined_loader", ()):
        if loader.keys() >= {"epoch", "given"}:  # a ResumableLoader
            begun_at = {"given": max(0, loader["given"] - untrained)}
            loader.update(begun_at if begun else {"epoch": position.epoch, "given": 0})


def _set(count: dict[str, int], finished: int, one_begun: bool = False) -> None:
    """Make all of a counter's numbers ``finished``, and begin one more."""
    count.update(processed=finished, completed=finished, ready=finished + one_begun, started=finished + one_begun)


def epoch_is_whole(trainer: Trainer) -> bool:
    """Whether all batches of the present epoch were trained, so that it is not cut short if it ends now."""
    return trainer.fit_loop.epoch_loop._num_ready_batches_reached()


class LoopProgress(Temporary):
    """Makes every checkpoint of a run resume it exactly, after any number of interruptions at any position.

    Counters are corrected on saving and on loading.  Logged metrics are part of the checkpoint, since the
    end of an epoch may need them (``ReduceLROnPlateau``, early stopping).  An interruption within an epoch causes no
    validation: the epoch's validation runs once, at its end.
    """

    def __init__(self) -> None:
        self._validated_at = self._closed_at = -1  # batches trained, when validation ran or an epoch was closed
        self._position = Position(0)
        self._results: dict[str, Any] = {}
        self._steps = 0
        self._warned = False
        self._max_steps: int | None = None  # while it is set to another number

    # ------------------------------------------------------------------------------------------------- checkpoints

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Correct the counters, and add the logged metrics."""
        counters, trained = checkpoint["loops"]["fit_loop"], _trained(trainer)
        position = read_position(counters, validated=self._validated_at == trained, closed=self._closed_at == trained)
        write_position(counters, position)
        self._warn_of_loaders(trainer, position)
        logged = self._results | trainer.callback_metrics
        checkpoint[RESULTS] = {name: value.detach().cpu() for name, value in logged.items()}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:  # noqa: ARG002
        """Correct the counters, if that was not done on saving."""
        if trainer.state.fn != "fit" or "loops" not in checkpoint:
            return
        counters = checkpoint["loops"]["fit_loop"]
        self._position, self._steps = read_position(counters), checkpoint["global_step"]
        limit = -1 if trainer.max_epochs is None else trainer.max_epochs
        if 0 <= limit < self._position.epoch:
            raise CheckpointError(
                f"trainer.max_epochs={limit} is less than the {self._position.epoch:,} epochs that the "
                "checkpoint was trained for. Raise it to continue, or begin another run with its weights by the "
                "callback WarmStart."
            )
        write_position(counters, self._position)
        self._results = checkpoint.get(RESULTS, {})
        trained = counters["epoch_loop.batch_progress"]["total"]["processed"]
        self._validated_at = -1 if self._position.validate else trained

    # ---------------------------------------------------------------------------------------------------- training

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """If the last update was made but its epoch is still open, let Lightning enter its loop to close it."""
        loop = trainer.fit_loop.epoch_loop
        if self._position.last and 0 <= loop.max_steps <= self._steps:
            self._max_steps, loop.max_steps = loop.max_steps, self._steps + 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Continue behind the last batch: with its validation, the end of its epoch, or the next batch."""
        loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
        if "_should_check_val_fx" not in vars(loop):
            loop._should_check_val_fx = _ignoring_should_stop(trainer, loop._should_check_val_fx)  # type: ignore[assignment, method-assign]
        trainer.callback_metrics.update(self._results)
        without_batch = loop.restarting and loop._should_check_val_fx(fetcher)  # type: ignore[arg-type]
        if loop.restarting and self._position.last and not (without_batch and self._position.validate):
            loop.val_loop._has_run, without_batch = True, False  # the epoch ends at once
        # an iteration of the loop without a batch counts as one for the x-axis of the loggers
        loop._batches_that_stepped = trainer.global_step - (without_batch and not loop._should_accumulate())
        self._warn_of_loaders(trainer, self._position)
        self._position, self._results = Position(0), {}

    def _warn_of_loaders(self, trainer: Trainer, position: Position) -> None:
        """Say once that a loader cannot continue an epoch whose first batches were trained."""
        loaders = trainer.fit_loop._combined_loader
        forgetful = [] if loaders is None else [name for name in map(_forgetful, loaders.flattened) if name]
        if forgetful and position.batches > 0 and not position.last and not self._warned:
            self._warned = True
            rank_zero_warn(
                f"the training loader {forgetful[0]} does not know its place in an epoch: a run that is "
                "continued from a checkpoint in the middle of one, like the present one, sees other samples than "
                "without the stop. Use fcco_lightning.ResumableLoader with a plan, such as UniformBatches, "
                "or torchdata's StatefulDataLoader, or save at the ends of epochs only."
            )

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Note that the weights of this batch were validated."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._validated_at = _trained(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        """Note that the epoch is closed, and that nothing is resumed any more, also if no batch was left of it."""
        loop = trainer.fit_loop.epoch_loop
        self._closed_at, loop.restarting = _trained(trainer), False
        loop.on_iteration_done()
        self._restore_limit(trainer)

    def undo(self, trainer: Trainer) -> None:
        self._restore_limit(trainer)
        trainer.fit_loop.epoch_loop.__dict__.pop("_should_check_val_fx", None)

    def _restore_limit(self, trainer: Trainer) -> None:
        if self._max_steps is not None:
            trainer.fit_loop.epoch_loop.max_steps, self._max_steps = self._max_steps, None


def _trained(trainer: Trainer) -> int:
    """Number of batches trained, over all epochs."""
    return trainer.fit_loop.epoch_loop.batch_progress.total.processed  # type: ignore[attr-defined, no-any-return]


def _ignoring_should_stop(trainer: Trainer, is_due: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether to validate, ignoring ``should_stop``; by time as soon as the clock of one process says so."""

    def decide(fetcher: Any) -> bool:
        should_stop, trainer.should_stop = trainer.should_stop, False
        try:
            decision = is_due(fetcher)
        finally:
            trainer.should_stop = should_stop
        by_time = trainer._val_check_time_interval is not None  # type: ignore[attr-defined]
        return trainer.strategy.reduce_boolean_decision(decision, all=False) if by_time else decision

    return decide


def _forgetful(loader: Any) -> str | None:
    """The name of a loader that cannot continue an epoch, or not draw the rest of it; None if it can."""
    name = type(loader).__name__
    if not hasattr(loader, "load_state_dict"):
        return name
    for part in ("batch_sampler", "sampler"):
        sampler = getattr(loader, part, None)
        exact = hasattr(sampler, "load_state_dict") or type(sampler).__module__.startswith(("torch.", "torchdata."))
        if not exact and generators_of([sampler]):
            return f"{name}, whose {part} {type(sampler).__name__} has no load_state_dict,"
    return None

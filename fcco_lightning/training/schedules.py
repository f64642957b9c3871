"""Learning-rate schedules of the papers, and resuming any schedule of torch with possibly changed arguments."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightning.pytorch.cli import LRSchedulerCallable
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fcco_lightning.checks import below_one, list_of, one_of, positive
from fcco_lightning.errors import CheckpointError, ConfigError


class OfWholeRun(LRScheduler, ABC):
    """A schedule whose length comes from the Trainer, so that it follows ``--trainer.max_epochs``, on a resume too.

    Attributes:
        total: number of all epochs (or of updates, if it steps with them); None until the Trainer sets it.
    """

    total: int | None

    @abstractmethod
    def share(self, elapsed: int, total: int) -> float:
        """Factor on the learning rate when ``elapsed`` of ``total`` epochs (or updates) have passed."""

    def set_total(self, total: int) -> None:
        """Set the total number of steps of this schedule, >= 1, unless it was given at construction."""
        if self.total is None:
            self.total = total
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):  # also for the first step
            group["lr"] = rate

    def get_lr(self) -> list[float | Tensor]:
        """Learning rate per parameter group after ``last_epoch`` epochs or updates."""
        share = 1.0 if self.total is None else self.share(self.last_epoch, self.total)
        return [base * share for base in self.base_lrs]


class StepAtFractions(OfWholeRun):
    r"""Multiply the learning rate by ``factor`` at each of the given fractions of the training.

    The papers divide it by 10 at 50% and 75% (SOX paper, section 5; SONEX paper, F.2).

    Args:
        optimizer: the optimizer whose learning rate is changed.
        fractions: increasing, in (0, 1).
        factor: > 0.
        total: number of all epochs (or of updates, if it steps with them); None until the Trainer sets it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        fractions: Sequence[float] = (0.5, 0.75),
        factor: float = 0.1,
        total: int | None = None,
    ) -> None:
        if any(not 0 < f < 1 for f in list_of("fractions", fractions)):
            raise ConfigError(f"fractions must lie in (0, 1), got {list(fractions)!r}.")
        self.fractions = sorted(fractions)
        self.factor = positive("factor", factor)
        self.total = total
        super().__init__(optimizer)

    def share(self, elapsed: int, total: int) -> float:
        """``factor`` to the power of the number of fractions that have passed."""
        # in floating point .7 * 10 may be slightly more than 7
        return self.factor ** sum(elapsed >= f * total * (1 - 1e-12) for f in self.fractions)


class LinearWarmUp(OfWholeRun):
    r"""Raise the learning rate linearly from 0 to its value, then lower it linearly to 0 at the end of training.

    This is usual for transformers (the SONEX paper, F.1, warms up for the first of four epochs: ``warm_up`` .25 with
    ``interval`` "step").  The factor in step t of T is ``t / (warm_up T)`` while that is below 1, then
    ``(T - t) / (T - warm_up T)``.

    Args:
        optimizer: the optimizer whose learning rate is changed.
        warm_up: share of the training in which the rate rises, in [0, 1).
        total: number of all updates (or of epochs, if it steps with them); None until the Trainer sets it.
    """

    def __init__(self, optimizer: Optimizer, warm_up: float = 0.1, total: int | None = None) -> None:
        below_one("warm_up", warm_up)
        self.warm_up, self.total = warm_up, total
        super().__init__(optimizer)

    def share(self, elapsed: int, total: int) -> float:
        """The completed share of the warm-up, then the remaining share of the decay."""
        rising = round(self.warm_up * total)
        return elapsed / rising if elapsed < rising else max(0.0, (total - elapsed) / max(1, total - rising))


@dataclass(frozen=True)
class Schedule:
    """Learning rates and weight decay over a run.

    Args:
        scheduler: makes the learning-rate schedule of an optimizer; None for a constant rate.
        interval: unit of its steps, "epoch" or "step" (one step is one update of w).
        monitor: logged metric that a ``ReduceLROnPlateau`` watches, e.g. train_auc.
        objective_lr: step size of the objective's own parameters (a trained threshold), > 0; None for the network's.
            They never have weight decay.
        decay_spread: standard deviation of the scores from which on the optimizer's weight decay is full, > 0; below
            it the decay is reduced in proportion, see :class:`~fcco_lightning.training.eased_decay.EasedDecay`.  None
            for always full decay.

    Raises:
        ConfigError: if ``interval`` is another word, or ``objective_lr`` or ``decay_spread`` is not positive.
    """

    scheduler: LRSchedulerCallable | None = None
    interval: Literal["epoch", "step"] = "epoch"
    monitor: str | None = None
    objective_lr: float | None = None
    decay_spread: float | None = None

    def __post_init__(self) -> None:
        one_of("schedule.interval", self.interval, ("epoch", "step"))
        for name in ("objective_lr", "decay_spread"):
            if getattr(self, name) is not None:
                positive(f"schedule.{name}", getattr(self, name))

    def attached(
        self, make: Callable[[Optimizer], Any] | None, optimizer: Optimizer, length: Callable[[], int]
    ) -> LRScheduler | None:
        """Make the schedule of an optimizer; None for a constant rate.

        Args:
            make: ``scheduler``, or that of another phase of the run.
            optimizer: the optimizer whose learning rates it changes.
            length: returns the length of the phase in the unit of ``interval``.

        Raises:
            ConfigError: if a ``ReduceLROnPlateau`` has nothing to watch.
        """
        schedule: LRScheduler | None = None if make is None else make(optimizer)
        if isinstance(schedule, ReduceLROnPlateau) and (self.interval == "step" or self.monitor is None):
            raise ConfigError(
                "ReduceLROnPlateau needs schedule.interval='epoch' and schedule.monitor=a logged metric, e.g. "
                "train_auc."
            )
        if isinstance(schedule, OfWholeRun):
            schedule.set_total(length())
        return schedule


_SEEN = ("num_bad_epochs", "cooldown_counter", "last_epoch")  # state of ReduceLROnPlateau besides the best value


def described(schedule: LRScheduler, interval: str) -> dict[str, Any]:
    """Class and arguments of a schedule, and its ``interval``, as plain values that can be compared between runs.

    Arguments that are functions are left out: they are always those of the present run.
    """
    return {
        "class": type(schedule).__name__,
        "interval": interval,
        "arguments": str(_comparable(schedule.state_dict())),
    }


def _comparable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted((str(k), _comparable(v)) for k, v in value.items())
    if isinstance(value, list | tuple):
        return [_comparable(v) for v in value]
    return value if isinstance(value, int | float | str | None) else type(value).__name__


def require_same_kind(present: Mapping[str, Any] | None, stored: Mapping[str, Any] | None) -> None:
    """Refuse to resume with a schedule of another class or interval, whose position would not be defined.

    Both arguments are results of :func:`described`, of this run and of the checkpoint's; None for a constant rate.

    Raises:
        CheckpointError: naming both.
    """

    def name(schedule: Mapping[str, Any] | None) -> str:
        return "none" if schedule is None else f"{schedule['class']} by {schedule['interval']}"

    if name(present) != name(stored):
        raise CheckpointError(
            f"the checkpoint's learning rate has the schedule {name(stored)}, this run's has {name(present)}. Use the "
            "same --model.schedule.scheduler and --model.schedule.interval (their arguments may change), or start "
            "without --ckpt_path."
        )


def catch_up(schedule: LRScheduler, state: Mapping[str, Any]) -> None:
    """Advance a schedule with changed arguments to the position of one of the same class with the given ``state_dict``.

    Its learning rate is then that of a run with the new arguments from the start.  ``ReduceLROnPlateau`` depends on
    past metrics: it keeps its state (but not the best value if ``mode`` has changed), and its learning rate.

    Raises:
        ConfigError: if a schedule with the new arguments ends before this position.
    """
    if isinstance(schedule, ReduceLROnPlateau):
        names = (*_SEEN, "best") if state["mode"] == schedule.mode else _SEEN
        vars(schedule).update({name: state[name] for name in names})
        return
    steps = _steps(state)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of steps without an update
            for _ in range(steps):
                schedule.step()
    except ValueError as error:
        raise ConfigError(
            f"the schedule {type(schedule).__name__} is at step {steps} in the checkpoint, too far for its "
            f"arguments of this run: {error} Give it more steps."
        ) from error


def _steps(state: Mapping[str, Any]) -> int:
    while "last_epoch" not in state:  # schedules in a chain
        state = state["_schedulers"][0]
    return int(state["last_epoch"])

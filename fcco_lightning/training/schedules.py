"""Learning-rate schedules in the papers' terms, and any schedule of torch across a resume: what is typed holds."""

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
        total: epochs (or updates, if it steps with them) in all; None until the Trainer tells.
    """

    total: int | None

    @abstractmethod
    def share(self, elapsed: int, total: int) -> float:
        """What the learning rate is multiplied by when ``elapsed`` of ``total`` epochs (or updates) have passed."""

    def set_total(self, total: int) -> None:
        """Number of steps of this schedule in all, >= 1; keeps a number given at construction."""
        if self.total is None:
            self.total = total
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):  # of the first step, too
            group["lr"] = rate

    def get_lr(self) -> list[float | Tensor]:
        """Learning rate per parameter group after ``last_epoch`` epochs or updates."""
        share = 1.0 if self.total is None else self.share(self.last_epoch, self.total)
        return [base * share for base in self.base_lrs]


class StepAtFractions(OfWholeRun):
    r"""Multiply the learning rate by ``factor`` when a fraction of the training has passed.

    The papers decay by 10 at 50% and 75% (SOX paper, section 5; SONEX paper, F.2).  The length comes from the Trainer,
    so it follows ``--trainer.max_epochs``, on a resume too.

    Args:
        optimizer: whose learning rate it is.
        fractions: increasing, in (0, 1).
        factor: > 0.
        total: epochs (or updates, if it steps with them) in all; None until the Trainer tells (:meth:`set_total`).
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
        """``factor`` for every fraction that has passed."""
        # .7 * 10 is a little more than 7
        return self.factor ** sum(elapsed >= f * total * (1 - 1e-12) for f in self.fractions)


class LinearWarmUp(OfWholeRun):
    r"""Raise the learning rate in a line from 0 to its value, then lower it in a line to 0 at the end of training.

    As transformers are trained (the SONEX paper, F.1, warms up for the first of four epochs: ``warm_up`` .25 with
    ``interval`` "step").  Step t of T has the share ``t / (warm_up T)`` of the rate while that is below 1, then
    ``(T - t) / (T - warm_up T)``.

    Args:
        optimizer: whose learning rate it is.
        warm_up: share of the training in which it rises, in [0, 1).
        total: updates (or epochs, if it steps with them) in all; None until the Trainer tells (:meth:`set_total`).
    """

    def __init__(self, optimizer: Optimizer, warm_up: float = 0.1, total: int | None = None) -> None:
        below_one("warm_up", warm_up)
        self.warm_up, self.total = warm_up, total
        super().__init__(optimizer)

    def share(self, elapsed: int, total: int) -> float:
        """What has been done of the rise, then what is left of the fall."""
        rising = round(self.warm_up * total)
        return elapsed / rising if elapsed < rising else max(0.0, (total - elapsed) / max(1, total - rising))


@dataclass(frozen=True)
class Schedule:
    """Learning rates and weight decay over a run.

    Args:
        scheduler: makes the learning-rate schedule of an optimizer; None for a constant rate.
        interval: "epoch" or "step", what it counts (one step is one update of w).
        monitor: logged metric that a ``ReduceLROnPlateau`` watches, e.g. train_auc.
        objective_lr: step size of the objective's own parameters (a trained threshold), > 0; None for the network's.
            They have no weight decay either way.
        decay_spread: standard deviation of the scores from which on weights decay as the optimizer is set, > 0; of
            scores that spread less they decay in proportion, see
            :class:`~fcco_lightning.training.eased_decay.EasedDecay`.  None for the full decay always.

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
        """The schedule of an optimizer; None for a constant rate.

        Args:
            make: ``scheduler``, or that of another phase of the run.
            optimizer: whose learning rates it changes.
            length: gives the length of the phase in what the schedule counts.

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


_SEEN = ("num_bad_epochs", "cooldown_counter", "last_epoch")  # what ReduceLROnPlateau remembers, beside the best value


def described(schedule: LRScheduler, interval: str) -> dict[str, Any]:
    """What a schedule is, and with which arguments it was made, as plain values to compare with those of another run.

    ``interval`` is what it counts, "step" or "epoch".  Functions are left out: a schedule follows those of its own run.
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
    """Refuse to continue one schedule with another, which would not know its place.

    Both are :func:`described`: this run's, and that of the run that wrote the checkpoint; None is a constant rate.

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
    """Bring a schedule with new arguments to where another one of its class was, whose ``state_dict`` is given.

    Its learning rate is then what it would be, had these arguments been given from the start.  ``ReduceLROnPlateau``
    depends on what it has seen: it keeps that (but not the best value under another ``mode``), and its learning rate.

    Raises:
        ConfigError: if the new arguments do not reach so far.
    """
    if isinstance(schedule, ReduceLROnPlateau):
        names = (*_SEEN, "best") if state["mode"] == schedule.mode else _SEEN
        vars(schedule).update({name: state[name] for name in names})
        return
    steps = _steps(state)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that no update comes between the steps
            for _ in range(steps):
                schedule.step()
    except ValueError as error:
        raise ConfigError(
            f"the schedule {type(schedule).__name__} is at step {steps} in the checkpoint, too far for its "
            f"arguments of this run: {error} Give it more steps."
        ) from error


def _steps(state: Mapping[str, Any]) -> int:
    while "last_epoch" not in state:  # a chain of schedules
        state = state["_schedulers"][0]
    return int(state["last_epoch"])

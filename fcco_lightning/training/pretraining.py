"""The phases of a run: optional pretraining on another, simpler objective, and the main phase."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from lightning.fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn  # type: ignore[attr-defined]
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn

from fcco_lightning.algorithms import SGD, Algorithm, DoubleLoop
from fcco_lightning.constraints import Constraint
from fcco_lightning.errors import CheckpointError, ConfigError
from fcco_lightning.models import head_of
from fcco_lightning.objectives import BinaryObjective, CrossEntropy, Objective
from fcco_lightning.training.optimizers import Stepping, build_optimizer, typed_hyperparameters
from fcco_lightning.training.posing import plain_values
from fcco_lightning.training.schedules import Schedule, described


class Phase(NamedTuple):
    """Objective, constraints, algorithm, optimizer and schedule of one phase of a run.

    The objective has the form that the algorithm optimizes, and the constraints are those that are enforced in this
    phase.  Estimates are logged as ``<prefix>_<name>``.
    """

    objective: Objective
    constraints: Sequence[Constraint]
    algorithm: Algorithm
    optimizer: OptimizerCallable
    scheduler: Callable[..., Any] | None
    prefix: str = "train"


@dataclass(frozen=True)
class Pretraining:
    """Trains the network on another objective for some epochs, before the main objective in the same run.

    A ranking objective such as average precision learns features slowly from random weights; its papers start from a
    network that was trained on cross-entropy, with a new last layer.  Here both phases are one run: one configuration,
    one series of checkpoints (both phases can be resumed bit for bit), the same batches.  When the second phase begins,
    the optimizer, its schedule, the penalty's schedule and the rows are reset; random streams, BatchNorm's
    statistics, and the numbers of epochs and updates continue.

    A ``seamless`` pretraining changes nothing but the objective.  The last layer, the optimizer with its moments, the
    schedule of the learning rate and the constraints with their rows and multipliers continue through both phases, and
    the constraints are enforced from the first update.  Only the objective's own rows begin with the second phase.
    ``Pretraining(*objective.recommended_start, seamless=True)`` is the default of
    :class:`~fcco_lightning.FCCOModule` for objectives that recommend it.

    During the first phase the estimates of its objective are logged as ``pretrain_objective`` instead of
    ``train_objective``.  If the pretraining is seamless they are logged as ``train_objective``, so that callbacks find
    it in every epoch.  (Early stopping by it may then end the run before the second phase; monitor a validation figure,
    whose meaning does not change.)

    Args:
        epochs: length of the first phase, a whole number >= 1, or a share in (0, 1) of all epochs, rounded down; the
            trainer's ``max_epochs`` or ``max_steps`` count both phases.
        objective: objective of the first phase, on the outputs of the same network; None for :class:`CrossEntropy`.
        algorithm: algorithm of the first phase.  None for :class:`SGD`, which is plain training; or, if the pretraining
            is seamless, for that of the second phase if there are constraints or ``objective`` has inner functions.
        optimizer: optimizer of the first phase; None for that of the second.
        scheduler: schedule of the first phase's learning rate; None for a constant rate.
        constraints: whether the constraints are enforced in the first phase, too; the algorithm must support them.
        new_head: whether the network's last layer is initialised anew for the second phase; the default is yes, unless
            the pretraining is seamless.
        head: name of that layer among the network's submodules (for example "fc"); None for the layer that the network
            declares as its head, as TabularMLP and TimmModel do.
        seamless: whether only the objective changes with the second phase.

    Raises:
        ConfigError: if ``epochs`` is neither a whole number >= 1 nor a share in (0, 1), if ``constraints`` is set and
            the algorithm ignores constraints, or if ``seamless`` is combined with a setting that it excludes.
    """

    epochs: int | float
    objective: Objective | None = None
    algorithm: Algorithm | None = None
    optimizer: OptimizerCallable | None = None
    scheduler: LRSchedulerCallable | None = None
    constraints: bool = False
    new_head: bool | None = None
    head: str | None = None
    seamless: bool = False

    def __post_init__(self) -> None:
        is_number = isinstance(self.epochs, int | float) and not isinstance(self.epochs, bool)
        if not is_number or not (0 < self.epochs < 1 or (self.epochs >= 1 and self.epochs % 1 == 0)):
            raise ConfigError(
                f"pretrain.epochs must be a whole number >= 1, or a share of all epochs in (0, 1), got {self.epochs!r}."
            )
        parts = {name: getattr(self, name) for name in ("algorithm", "optimizer", "scheduler", "new_head", "head")}
        given_parts = [name for name, value in parts.items() if value]
        if self.seamless and given_parts:
            raise ConfigError(
                f"pretrain.seamless uses the same parts in both phases, but pretrain.{given_parts[0]} is set for the "
                "first phase. Leave one of them out."
            )

    @property
    def renews_head(self) -> bool:
        """Whether the network's last layer is initialised anew for the second phase."""
        return not self.seamless if self.new_head is None else self.new_head

    def before(self, main: Phase, network: nn.Module) -> Phase:
        """The phase that comes before ``main``.

        Raises:
            ConfigError: if the algorithm would ignore the constraints, the network's head is not known, or a seamless
                pretraining has an objective with parameters, which the optimizer of the second phase lacks.
        """
        if self.seamless:
            return self._alike(main)
        if self.renews_head:
            head_of(network, self.head)
        algorithm = self.algorithm or SGD()
        inherited = main.constraints if self.constraints else ()
        objective, constraints = algorithm.posed(self.objective or CrossEntropy(), inherited)
        if inherited and not constraints:
            raise ConfigError(
                f"pretrain.constraints=True, but {algorithm.name} ignores constraints. Choose another "
                "pretrain.algorithm (SONEX, for example), or leave the constraints to the second phase."
            )
        optimizer = self.optimizer or main.optimizer
        return Phase(objective, constraints, algorithm, optimizer, self.scheduler, "pretrain")

    def _alike(self, main: Phase) -> Phase:
        constrained = main.algorithm.posed(main.objective, main.constraints)[1]
        first = self.objective or CrossEntropy()
        algorithm = main.algorithm if constrained or first.outer is not None else SGD()
        objective, constraints = algorithm.posed(first, main.constraints)
        if any(parameter.requires_grad for parameter in objective.parameters()):
            raise ConfigError(
                f"pretrain.objective={type(objective).__name__} has parameters of its own, which the optimizer of a "
                "seamless pretraining does not train. Set pretrain.seamless to false."
            )
        return main._replace(objective=objective, constraints=constraints, algorithm=algorithm)


def recommended_by(objective: Objective, constraints: Sequence[Constraint] = ()) -> Pretraining | None:
    """The pretraining that an objective recommends for itself; None if there is none.

    With constraints, an objective with inner functions is not used for pretraining: multipliers scale with the
    objective that is minimised first, and ListNet, for instance, is several times as large as NDCG.
    """
    start = objective.recommended_start
    if start is None:
        return None
    share, first = start
    if constraints and first is not None and first.outer is not None:
        return None
    return Pretraining(share, first, seamless=True)


class Phases:
    """The phases of a run, of which ``main`` returns the main one, and which of them is the present one.

    Attributes:
        pretrain: the user's settings of pretraining; None for none.
        first: the pretraining phase; None for none.
        pretraining: whether pretraining is the present phase.
        start: number of the epoch in which the present phase began.
    """

    def __init__(self, pretrain: Pretraining | None, main: Callable[[], Phase], network: nn.Module) -> None:
        self.pretrain, self._main = pretrain, main
        self.first = None if pretrain is None else pretrain.before(main(), network)
        self.pretraining, self.start = pretrain is not None, 0

    @property
    def all(self) -> list[Phase]:
        """The phases in their order."""
        return [self._main()] if self.first is None else [self.first, self._main()]

    @property
    def present(self) -> Phase:
        """The phase that is trained now."""
        return self.all[0] if self.pretraining else self.all[-1]

    @contextmanager
    def named_in_refusals(self) -> Iterator[None]:
        """Within this context an error about pretraining's objective names it and says how to leave pretraining out."""
        try:
            yield
        except ConfigError as error:
            if not self.pretraining or self.first is None or self.first.objective.outer is None:
                raise
            first, second = (type(phase).__name__ for phase in (self.first.objective, self._main().objective))
            raise ConfigError(
                f"{error} (That is of {first}, with which {second} begins: --model.pretrain null, pretrain=None, "
                "leaves it out.)"
            ) from error

    @property
    def idle(self) -> list[Tensor]:
        """Parameters of the other phases' objectives, whose gradients DistributedDataParallel waits for."""
        others = self.all[1:] if self.pretraining else self.all[:-1]
        return [p for phase in others for p in phase.objective.parameters() if p.requires_grad]

    @property
    def seamless(self) -> bool:
        """Whether only the objective changes from phase to phase."""
        return self.pretrain is not None and self.pretrain.seamless

    def require_time_for_all(self, max_epochs: int | None) -> None:
        """Warn if the run ends before the main phase begins."""
        if self.pretraining and self.pretrain is not None and 0 <= (max_epochs or -1) <= self.pretrain.epochs:
            rank_zero_warn(
                f"pretrain.epochs={self.pretrain.epochs} covers all of max_epochs={max_epochs}: the run ends before "
                "the objective and the constraints are trained. Increase --trainer.max_epochs."
            )

    def announce(self, trainer: Trainer) -> None:
        """Print which phase comes first, or which term is added to the objective, and how to leave it out."""
        objective = self._main().objective
        proper, name = objective.in_words, type(objective).__name__
        if self.first is None and isinstance(objective, BinaryObjective) and proper != name:
            rank_zero_info(f"The loss of {proper} is minimised ({name} alone: --model.objective.cross_entropy 0).")
        if self.first is None:
            return
        first = self.first.objective.in_words
        length = self.first_epochs(trainer)
        if not self.pretraining:
            if length != self.start:  # resumed from a checkpoint of a run of another length
                rank_zero_info(
                    f"Pretraining is over: the checkpoint was pretrained for {self.start} epochs on {first}, and "
                    f"training continues with {proper}. A new run of this length would have {length} such epochs."
                )
        elif length == 0:
            rank_zero_info(
                f"Pretraining on {first} is skipped: its share of the epochs rounds to 0, so {proper} is trained from "
                "the first update on. Increase --trainer.max_epochs to pretrain."
            )
        else:
            rank_zero_info(
                f"Pretraining: {first} is minimised until epoch {length} begins, then {proper} (without: "
                "--model.pretrain null, pretrain=None)."
            )

    def first_epochs(self, trainer: Trainer) -> int:
        """Number of epochs of pretraining; 0 if it is a share of a run without a known end."""
        if self.pretrain is None or self.first is None:
            return 0
        if self.pretrain.epochs >= 1:
            return int(self.pretrain.epochs)
        share, ends = self.pretrain.epochs, []
        if trainer.max_epochs is not None and trainer.max_epochs >= 0:
            ends.append(float(trainer.max_epochs))
        if trainer.max_steps >= 0:
            per_batch = share / batches_per_update(self.first.algorithm)
            per_batch += (1 - share) / batches_per_update(self._main().algorithm)
            ends.append(trainer.max_steps / (per_batch * trainer.num_training_batches))
        return int(share * min(ends, default=0.0) * (1 + 1e-12))  # .7 * 10 may be a little less than 7

    def is_over(self, epoch: int, trainer: Trainer) -> bool:
        """Whether pretraining ends before this epoch."""
        return self.pretraining and epoch >= self.first_epochs(trainer)

    def stepping(self, network: nn.Module, schedule: Schedule, trainer: Trainer | None) -> Stepping:
        """Optimizer and learning-rate schedule of the present phase, whose length the trainer determines.

        Raises:
            ConfigError: if the optimizer or the schedule cannot be used.
        """
        phase = self._main() if self.seamless else self.present
        optimizer = build_optimizer(phase.optimizer, network, phase.objective, schedule.objective_lr)
        typed = typed_hyperparameters(optimizer)
        length = partial(self._length, trainer, by_step=schedule.interval == "step")
        scheduler = schedule.attached(phase.scheduler, optimizer, length)
        kind = None if scheduler is None else described(scheduler, schedule.interval)
        return Stepping(optimizer, typed, scheduler, kind)

    def _length(self, trainer: Trainer | None, *, by_step: bool) -> int:
        """Length of the schedule in steps or epochs: that of the present phase, or of the run where it is seamless."""
        if trainer is None:
            raise ConfigError("the schedule needs to know the end of training: pass the module to Trainer.fit.")
        total: float | None = trainer.estimated_stepping_batches if by_step else trainer.max_epochs
        one_phase = not self.seamless and (self.pretraining or self.start > 0)  # is what the schedule covers
        if one_phase and self.pretraining:
            total = self.first_epochs(trainer)
        elif total is not None and one_phase:
            total = -1 if trainer.max_epochs is None else trainer.max_epochs - self.start
        if total is None or not 0 <= total < float("inf"):
            raise ConfigError("the schedule needs to know the end of training: set --trainer.max_epochs.")
        if not by_step:
            return int(total)
        if one_phase:
            total *= math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        elif self.first is not None and self.seamless and trainer.max_epochs is not None and trainer.max_epochs >= 0:
            first = self.first_epochs(trainer) if self.pretraining else self.start
            lengths = [(self.first.algorithm, first), (self._main().algorithm, trainer.max_epochs - first)]
            length = sum(
                _updates(algorithm, epochs * math.ceil(trainer.num_training_batches / batches_per_update(algorithm)))
                for algorithm, epochs in lengths
            )
            return length if trainer.max_steps < 0 else min(length, trainer.max_steps)
        return _updates(self.present.algorithm, int(total))

    def description(self) -> dict[str, str]:
        """Properties that must agree on all processes, by name."""
        algorithms = [f"{phase.algorithm.name} {phase.algorithm.settings()}" for phase in self.all]
        pretrain = "none" if self.pretrain is None else str(plain_values(self.pretrain))
        return {"algorithm": "; ".join(algorithms), "pretrain": pretrain}

    def header(self) -> dict[str, Any]:
        """The entry of a checkpoint: the present phase and its start."""
        return {"name": "pretraining" if self.pretraining else "main", "epoch": self.start}

    def continues(self, stored: Mapping[str, Any]) -> bool:
        """Switch to the phase in which a checkpoint with this header was written; return whether the phase changed.

        Raises:
            CheckpointError: if this run has no such phase.
        """
        phase = stored.get("phase", {"name": "main", "epoch": 0})
        pretraining, before = str(phase["name"]) == "pretraining", self.pretraining
        if pretraining and self.first is None:
            raise CheckpointError(
                "the checkpoint was written while pretraining, and this run does not pretrain. Give it the same "
                "--model.pretrain, or start without --ckpt_path."
            )
        self.pretraining, self.start = pretraining, phase["epoch"]
        return pretraining != before

    def require_same_algorithm(self, stored: Mapping[str, Any]) -> None:
        """Refuse the stored state of an engine with the rows of another algorithm.

        Raises:
            CheckpointError: naming both.
        """
        name, written = self.present.algorithm.name, stored["algorithm"]["name"]
        if written != name:
            raise CheckpointError(
                f"the checkpoint was written by {written}, this run uses {name}: their states mean different things. "
                f"Use --model.algorithm {written}, or start without --ckpt_path."
            )


def batches_per_update(algorithm: Algorithm) -> int:
    """Number of batches per update of w, which Lightning is told as ``accumulate_grad_batches``."""
    return algorithm.K if isinstance(algorithm, DoubleLoop) else 1


def _updates(algorithm: Algorithm, steps: int) -> int:
    """Number of updates of w in a number of steps as the Trainer counts them.

    Raises:
        ConfigError: if the algorithm does not define it.
    """
    updates = algorithm.updates_in(steps)
    if updates is None:
        raise ConfigError(
            f"how many updates of w {algorithm.name} makes is not known beforehand, so a schedule of the whole run "
            "cannot follow them. Set --model.schedule.interval epoch."
        )
    return updates

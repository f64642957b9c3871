"""The phases of a run: perhaps a first one on another, simpler objective, and the one proper."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from lightning.fabric.utilities.rank_zero import rank_zero_warn  # type: ignore[attr-defined]
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn

from fcco_lightning.algorithms import SGD, Algorithm
from fcco_lightning.checks import at_least
from fcco_lightning.constraints import Constraint
from fcco_lightning.errors import CheckpointError, ConfigError
from fcco_lightning.models import head_of
from fcco_lightning.objectives import CrossEntropy, Objective
from fcco_lightning.training.optimizers import Stepping, build_optimizer, typed_hyperparameters
from fcco_lightning.training.posing import plain_values
from fcco_lightning.training.schedules import Schedule, described


class Phase(NamedTuple):
    """What is trained on, and how, from one epoch on.

    The objective is as the algorithm poses it, the constraints are those that are penalised; estimates of the objective
    are logged under names with the prefix.
    """

    objective: Objective
    constraints: Sequence[Constraint]
    algorithm: Algorithm
    optimizer: OptimizerCallable
    scheduler: Callable[..., Any] | None
    prefix: str = "train"


@dataclass(frozen=True)
class Pretraining:
    """Trains the network on another objective for some epochs, before the objective proper takes over in the same run.

    A ranking objective such as average precision learns features slowly from random weights; its papers start from a
    network that was trained on cross-entropy, with a new last layer.  Here both phases are one run: one configuration,
    one series of checkpoints (either phase continues bit for bit), the same batches.  With the second phase the
    optimizer, its schedule, the penalty's schedule and the rows of the dual state start afresh; random streams,
    batch statistics, the number of the epoch and the number of updates go on.

    During the first phase the estimates of its objective are logged as ``pretrain_objective``, in place of
    ``train_objective``; validation reports what it always reports.

    Args:
        epochs: length of the first phase, >= 1; the trainer's ``max_epochs`` counts both phases.
        objective: of the first phase, on the outputs of the same network; None for :class:`CrossEntropy`.
        algorithm: of the first phase; None for :class:`SGD`, which is plain training.
        optimizer: of the first phase; None for the one of the second.
        scheduler: of the first phase's learning rate; None for a constant one.
        constraints: whether the constraints are penalised in the first phase, too; it needs an algorithm that does so.
        new_head: whether the network's last layer starts afresh with the second phase.
        head: name of that layer among the network's submodules (for example "fc"); None for the one that the network
            says is its head, as TabularMLP and TimmModel do.

    Raises:
        ConfigError: if ``epochs`` is not a whole number >= 1, or ``constraints`` asks for what the algorithm ignores.
    """

    epochs: int
    objective: Objective | None = None
    algorithm: Algorithm | None = None
    optimizer: OptimizerCallable | None = None
    scheduler: LRSchedulerCallable | None = None
    constraints: bool = False
    new_head: bool = True
    head: str | None = None

    def __post_init__(self) -> None:
        at_least("epochs", self.epochs, 1)

    def before(self, main: Phase, network: nn.Module) -> Phase:
        """The phase that comes before ``main``.

        Raises:
            ConfigError: if the constraints are asked for and ignored, or the network's head is not known.
        """
        if self.new_head:
            head_of(network, self.head)
        algorithm = self.algorithm or SGD()
        asked = main.constraints if self.constraints else ()
        objective, constraints = algorithm.posed(self.objective or CrossEntropy(), asked)
        if asked and not constraints:
            raise ConfigError(
                f"pretrain.constraints=True, but {algorithm.name} ignores constraints. Choose another "
                "pretrain.algorithm (SONEX, for example), or leave the constraints to the second phase."
            )
        optimizer = self.optimizer or main.optimizer
        return Phase(objective, constraints, algorithm, optimizer, self.scheduler, "pretrain")


class Phases:
    """The phases of a run, the one proper as ``main`` gives it, and the present one.

    Attributes:
        pretrain: what the user said of the first; None for none.
        first: the phase of pretraining; None for none.
        pretraining: whether that is the present one.
        start: number of the epoch in which the present one began.
    """

    def __init__(self, pretrain: Pretraining | None, main: Callable[[], Phase], network: nn.Module) -> None:
        self.pretrain, self._main = pretrain, main
        self.first = None if pretrain is None else pretrain.before(main(), network)
        self.pretraining, self.start = pretrain is not None, 0

    @property
    def all(self) -> list[Phase]:
        """In their order."""
        return [self._main()] if self.first is None else [self.first, self._main()]

    @property
    def present(self) -> Phase:
        """The one that is trained now."""
        return self.all[0] if self.pretraining else self.all[-1]

    @property
    def idle(self) -> list[Tensor]:
        """Parameters of the objectives of other phases, for which DistributedDataParallel waits."""
        others = self.all[1:] if self.pretraining else self.all[:-1]
        return [p for phase in others for p in phase.objective.parameters() if p.requires_grad]

    def require_time_for_all(self, max_epochs: int | None) -> None:
        """Warn of a run that ends before the phase proper begins."""
        if self.pretraining and self.pretrain is not None and 0 <= (max_epochs or -1) <= self.pretrain.epochs:
            rank_zero_warn(
                f"pretrain.epochs={self.pretrain.epochs} leaves none of max_epochs={max_epochs} to the objective and "
                "the constraints: the run ends with pretraining. Raise --trainer.max_epochs."
            )

    def is_over(self, epoch: int) -> bool:
        """Whether pretraining ends before this epoch."""
        return self.pretraining and self.pretrain is not None and epoch >= self.pretrain.epochs

    def stepping(self, network: nn.Module, schedule: Schedule, trainer: Trainer | None) -> Stepping:
        """Optimizer and learning-rate schedule of the present phase; the trainer knows how long that is.

        Raises:
            ConfigError: if the optimizer or the schedule cannot be used.
        """
        phase = self.present
        optimizer = build_optimizer(phase.optimizer, network, phase.objective, schedule.objective_lr)
        typed = typed_hyperparameters(optimizer)
        length = partial(self._length, trainer, by_step=schedule.interval == "step")
        scheduler = schedule.attached(phase.scheduler, optimizer, length)
        kind = None if scheduler is None else described(scheduler, schedule.interval)
        return Stepping(optimizer, typed, scheduler, kind)

    def _length(self, trainer: Trainer | None, *, by_step: bool) -> int:
        """Length of the present phase, in steps or epochs."""
        if trainer is None:
            raise ConfigError("the schedule needs to know the end of training: pass the module to Trainer.fit.")
        total: float | None = trainer.estimated_stepping_batches if by_step else trainer.max_epochs
        part = self.pretraining or self.start > 0  # of the run, in epochs
        if self.pretraining and self.pretrain is not None:
            total = self.pretrain.epochs
        elif total is not None and part:
            total = -1 if trainer.max_epochs is None else trainer.max_epochs - self.start
        if total is None or not 0 <= total < float("inf"):
            raise ConfigError("the schedule needs to know the end of training: set --trainer.max_epochs.")
        if by_step and part:
            total *= math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        if not by_step:
            return int(total)
        algorithm = self.present.algorithm
        updates = algorithm.updates_in(int(total))
        if updates is None:
            raise ConfigError(
                f"how many updates of w {algorithm.name} makes is not known beforehand, so a schedule of the whole run "
                "cannot follow them. Set --model.schedule.interval epoch."
            )
        return updates

    def description(self) -> dict[str, str]:
        """What must be the same on all processes, by name."""
        algorithms = [f"{phase.algorithm.name} {phase.algorithm.settings()}" for phase in self.all]
        pretrain = "none" if self.pretrain is None else str(plain_values(self.pretrain))
        return {"algorithm": "; ".join(algorithms), "pretrain": pretrain}

    def header(self) -> dict[str, Any]:
        """What a checkpoint holds of the present phase."""
        return {"name": "pretraining" if self.pretraining else "main", "epoch": self.start}

    def continues(self, stored: Mapping[str, Any]) -> bool:
        """Go to the phase in which a checkpoint with this header was written; returns whether it is another one.

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
        """Refuse a checkpoint with the rows of another algorithm.

        Raises:
            CheckpointError: naming both.
        """
        own = self.present.algorithm.name
        if stored["algorithm"] != own:
            raise CheckpointError(
                f"the checkpoint was written by {stored['algorithm']}, this run uses {own}: their states mean "
                f"different things. Use --model.algorithm {stored['algorithm']}, or start without --ckpt_path."
            )

"""A first phase of training on another, simpler objective."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from torch import nn

from fcco_lightning.algorithms import SGD, Algorithm
from fcco_lightning.checks import at_least
from fcco_lightning.constraints import Constraint
from fcco_lightning.errors import ConfigError
from fcco_lightning.models import head_of
from fcco_lightning.objectives import CrossEntropy, Objective

PRETRAINING, MAIN = "pretraining", "main"


class Phase(NamedTuple):
    """What is trained on, and how, from one epoch on.

    Attributes:
        name: "pretraining" or "main".
        objective: as the algorithm poses it.
        constraints: that are penalised.
        algorithm: of the updates.
        optimizer: makes the optimizer.
        scheduler: makes its schedule, or None.
        prefix: of the names under which estimates of the objective are logged.
    """

    name: str
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
        return Phase(PRETRAINING, objective, constraints, algorithm, optimizer, self.scheduler, "pretrain")

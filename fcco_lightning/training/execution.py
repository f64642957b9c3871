"""Settings of how a run is executed, and type checks of the arguments of the module."""

from collections.abc import Sequence
from dataclasses import dataclass

from fcco_lightning.algorithms import Algorithm
from fcco_lightning.checks import at_least
from fcco_lightning.constraints import Constraint, Penalty
from fcco_lightning.constraints.multipliers import Multipliers
from fcco_lightning.errors import ConfigError
from fcco_lightning.objectives import Objective
from fcco_lightning.state import Layout


@dataclass(frozen=True)
class Execution:
    """How a run is executed: micro-batches, compilation, storage of the rows, and batches that are not finite.

    These settings change neither the problem nor the job that ``--ckpt_path auto`` looks for.

    Args:
        micro_batch: largest number of samples that pass through the network at once; None for whole batches.  A batch
            of any size then needs the memory of a micro-batch and one more forward pass, and has the same
            gradient: the rows, pairs and constraints are those of the whole batch.
        compiled: whether torch.compile compiles the network and, for most algorithms, also the computations on its
            outputs (inner functions, estimators, outer functions; on a CPU mostly the gradient, too)
            as one graph.  Compilation takes seconds or minutes.  Dropout masks are the same as without it.  CPUs
            need a C++ compiler, GPUs Triton.
        state_layout: "replicated", "sharded" or "auto" (sharded from 1,000,000 values on): how the rows of the
            dual state are stored if several processes train, see :class:`DualState`.
        skip_nonfinite: whether a batch with a NaN or infinite value is dropped and counted, instead of an error.
        num_samples: size of the training split; None takes it from the datamodule, or the training loader's data set.
        allow_changed: whether a checkpoint is resumed, with a warning, although the user's own loader gives other
            samples: another number of samples, other labels, or other contents of the 16 samples that are compared.
            (A datamodule of this package has an argument of the same name.)

    Raises:
        ConfigError: if ``micro_batch`` or ``num_samples`` is no whole number >= 1.
    """

    micro_batch: int | None = None
    compiled: bool = False
    state_layout: Layout = "auto"
    skip_nonfinite: bool = False
    num_samples: int | None = None
    allow_changed: bool = False

    def __post_init__(self) -> None:
        for name in ("micro_batch", "num_samples"):
            value = getattr(self, name)
            if value is not None:
                at_least(f"execution.{name}", value, 1)


def require_settings(**settings: object) -> None:
    """Require that every argument is an object of the class with its name, such as ``schedule`` of :class:`Schedule`.

    Raises:
        ConfigError: naming the argument.
    """
    for name, value in settings.items():
        if type(value).__name__ != name.capitalize():
            raise ConfigError(f"{name} must be {name.capitalize()}(...), got {value!r}. Give it as its argument.")


def require_parts(
    objective: object, constraints: object, penalty: object, algorithm: object, optimizer: object
) -> None:
    """Check the types of the parts of a module, with messages for common mistakes.

    Raises:
        ConfigError: naming the argument.
    """
    if isinstance(constraints, Constraint):
        raise ConfigError(f"constraints must be a list, got one {type(constraints).__name__}: put it in brackets.")
    listed = constraints if isinstance(constraints, Sequence) else [constraints]
    others = [c for c in listed if not isinstance(c, Constraint)]
    if others:
        raise ConfigError(
            f"constraints must be a list of constraints such as [DemographicParity()], got {others[0]!r} for one."
        )
    _require_object("objective", objective, Objective, "AUC()")
    _require_object("penalty", penalty, (Penalty, Multipliers), "AdaptivePenalty()")
    _require_object("algorithm", algorithm, Algorithm, "SONEX()")
    if not callable(optimizer):
        raise ConfigError(
            f"optimizer must be a class or function that is given the parameters, got {type(optimizer).__name__}: for "
            "example optimizer=lambda params: torch.optim.Adam(params, lr=1e-3)."
        )


def _require_object(name: str, value: object, kind: type | tuple[type, ...], example: str) -> None:
    if isinstance(value, type):
        raise ConfigError(f"{name} must be an object, got the class: make one, {value.__name__}().")
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{name} must be an object such as {example}, got {value!r}.")

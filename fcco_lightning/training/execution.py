"""How a run is carried out on its machine, and what is refused where a part is easily given in another form."""

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
    """How a run is carried out: in which parts, where its rows lie, what becomes of batches that cannot be used.

    What is optimised is the same whatever is chosen here, and so is the job that ``--ckpt_path auto`` looks for.

    Args:
        micro_batch: largest number of samples that pass through the network at once; None for whole batches.  With it a
            batch of any size takes the memory of a micro-batch, costs one more forward pass, and has the same
            gradient: the rows, pairs and constraints are those of the whole batch.
        compiled: whether the network is compiled by torch.compile, and with it, for most algorithms, what
            follows from its outputs (inner functions, estimators, outer functions; on a CPU mostly the gradient, too)
            as one graph.  That takes some seconds or minutes at first.  Dropout draws the same masks as without.  CPUs
            need a C++ compiler for it, GPUs Triton.
        state_layout: "replicated", "sharded" or "auto" (sharded from 1,000,000 values on): where the rows of the
            dual state lie when several processes train, see :class:`DualState`.
        skip_nonfinite: drop a batch with a NaN or infinite value, and count it, instead of stopping.
        num_samples: size of the training split; None takes it from the datamodule, or the training loader's data set.
        allow_changed: whether a checkpoint is continued although a loader of one's own gives other samples, with a
            warning: another number of them, other labels, or other contents of 16 samples that are looked at.  (A
            datamodule of this package has an argument of that name.)

    Raises:
        ConfigError: if a number is no whole number >= 1.
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
    """Refuse a value of another type where a record of settings is needed; the argument is named like the class.

    Raises:
        ConfigError: naming the argument.
    """
    for name, value in settings.items():
        if type(value).__name__ != name.capitalize():
            raise ConfigError(f"{name} must be {name.capitalize()}(...), got {value!r}. Give it as its argument.")


def require_parts(
    objective: object, constraints: object, penalty: object, algorithm: object, optimizer: object
) -> None:
    """Refuse what is easily given in another form than is asked for.

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

"""The user's optimizer over all parameters that a module trains."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fcco_lightning.engine.backend import require_one_evaluation
from fcco_lightning.models import BatchNetwork, ParameterGroup
from fcco_lightning.objectives import Objective
from fcco_lightning.training.precisions import require_room

Hyperparameters = list[dict[str, Any]]


class Stepping(NamedTuple):
    """What steps w.

    Attributes:
        optimizer: over all parameters that are trained.
        typed: what the user gave to it, per parameter group; primitives only.
        scheduler: of its learning rate; None for a constant one.
        kind: what the schedule is, see :func:`~fcco_lightning.training.schedules.described`.
    """

    optimizer: Optimizer
    typed: Hyperparameters
    scheduler: LRScheduler | None
    kind: dict[str, Any] | None


_DECAYS = ("weight_decay", "mu")  # what optimizers call it: torch's, and ProximalSGD


def build_optimizer(
    make: Callable[[Iterable[Any]], Optimizer], network: nn.Module, objective: Objective, objective_lr: float | None
) -> Optimizer:
    """One group for each of the network's :class:`ParameterGroup`, and one, without decay, for the objective's own.

    Args:
        make: the user's choice; what it sets holds for all groups, but for factors on the step size and no decay.
        network: whose parameters are trained.
        objective: whose parameters (a threshold, a temperature) are trained along.
        objective_lr: their step size; None for the network's.

    Raises:
        ConfigError: if it is an optimizer that evaluates a batch several times, or whose ``eps`` weights of type
            float16 do not hold.
    """
    if isinstance(network, BatchNetwork):
        groups = network.parameter_groups()
    else:
        groups = [ParameterGroup([p for p in network.parameters() if p.requires_grad])]
    objective_parameters = [p for p in objective.parameters() if p.requires_grad]
    if objective_parameters:
        groups = [*groups, ParameterGroup(objective_parameters, decay=False)]
    optimizer = make([{"params": g.params} for g in groups])
    require_one_evaluation(optimizer)
    for group, settings in zip(optimizer.param_groups, groups, strict=True):
        group["lr"] = group["lr"] * settings.lr_scale  # a tensor would be one for all groups, and the user's own
        group.update({name: 0.0 for name in _DECAYS if name in group and not settings.decay})
    if objective_parameters and objective_lr is not None:
        optimizer.param_groups[-1]["lr"] = objective_lr
    require_room(optimizer)
    return optimizer


def typed_hyperparameters(optimizer: Optimizer) -> Hyperparameters:
    """What the user gave, per parameter group; primitives only.  To be taken before any schedule is made."""
    primitives = (int, float, bool, str, tuple, type(None))
    groups = [
        {k: v.item() if isinstance(v, Tensor) else v for k, v in group.items() if k != "params"}
        for group in optimizer.param_groups
    ]
    return [{k: v for k, v in group.items() if isinstance(v, primitives)} for group in groups]

"""Construction of the user's optimizer with its parameter groups."""

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
    """The optimizer of w and its schedule.

    Attributes:
        optimizer: optimizer of all trained parameters.
        typed: the hyperparameters that the user has given, per parameter group; primitive values only.
        scheduler: schedule of its learning rate; None for a constant one.
        kind: description of the schedule, see :func:`~fcco_lightning.training.schedules.described`.
    """

    optimizer: Optimizer
    typed: Hyperparameters
    scheduler: LRScheduler | None
    kind: dict[str, Any] | None


_DECAYS = ("weight_decay", "mu")  # names of the decay in torch's optimizers and in ProximalSGD


def build_optimizer(
    make: Callable[[Iterable[Any]], Optimizer], network: nn.Module, objective: Objective, objective_lr: float | None
) -> Optimizer:
    """An optimizer with a group for every :class:`ParameterGroup` of the network and one for the objective.

    Args:
        make: the user's factory; its settings hold for all groups, except that a group of the network may scale the
            step size or have no decay, and the objective's group has no decay.
        network: the network that is trained.
        objective: the objective, whose parameters (a threshold, a temperature) are trained, too.
        objective_lr: their step size; None for that of the network.

    Raises:
        ConfigError: if the optimizer evaluates a batch several times, or its ``eps`` becomes 0 in float16 weights.
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
        group["lr"] = group["lr"] * settings.lr_scale  # a new value: groups may share a tensor of the user
        group.update({name: 0.0 for name in _DECAYS if name in group and not settings.decay})
    if objective_parameters and objective_lr is not None:
        optimizer.param_groups[-1]["lr"] = objective_lr
    require_room(optimizer)
    return optimizer


def typed_hyperparameters(optimizer: Optimizer) -> Hyperparameters:
    """The user's hyperparameters per parameter group, primitive values only; to be called before a schedule is made."""
    primitives = (int, float, bool, str, tuple, type(None))
    groups = [
        {k: v.item() if isinstance(v, Tensor) else v for k, v in group.items() if k != "params"}
        for group in optimizer.param_groups
    ]
    return [{k: v for k, v in group.items() if isinstance(v, primitives)} for group in groups]

"""An optimizer's hyperparameters across a resume: what the user changed wins, what a schedule has done stays."""

from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

Hyperparameters = list[dict[str, Any]]


def typed_hyperparameters(optimizer: Optimizer) -> Hyperparameters:
    """What the user gave, per parameter group; primitives only.  To be taken before any schedule is made."""
    kept = (int, float, bool, str, tuple, type(None))
    return [
        {k: v for k, v in group.items() if k != "params" and isinstance(v, kept)} for group in optimizer.param_groups
    ]


def apply_changes(
    optimizer: Optimizer, schedulers: Sequence[LRScheduler], now: Hyperparameters, then: Hyperparameters
) -> None:
    """Give a restored optimizer the values that differ between this run's arguments and the checkpoint's.

    A changed learning rate replaces the base rate; what schedules have made of the old one is kept in proportion.

    Args:
        optimizer: restored from the checkpoint.
        schedulers: its schedules, restored too.
        now: what the user gave this time.
        then: what the user gave to the run that wrote the checkpoint.
    """
    for i, (group, new, old) in enumerate(zip(optimizer.param_groups, now, then, strict=False)):
        changed = {k: v for k, v in new.items() if k in old and old[k] != v}
        if "lr" in changed:
            group["lr"] *= changed["lr"] / old["lr"]
            if "initial_lr" in group:
                group["initial_lr"] = changed["lr"]
            for scheduler in schedulers:
                scheduler.base_lrs[i] = changed["lr"]
        group.update({k: v for k, v in changed.items() if k != "lr"})

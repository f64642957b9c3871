"""An optimizer's hyperparameters across a resume: what the user changed wins, what a schedule has done stays."""

from typing import Any

from torch.optim import Optimizer

Hyperparameters = list[dict[str, Any]]


def typed_hyperparameters(optimizer: Optimizer) -> Hyperparameters:
    """What the user gave, per parameter group; primitives only.  To be taken before any schedule is made."""
    kept = (int, float, bool, str, tuple, type(None))
    return [
        {k: v for k, v in group.items() if k != "params" and isinstance(v, kept)} for group in optimizer.param_groups
    ]


def apply_changes(optimizer: Optimizer, now: Hyperparameters, then: Hyperparameters) -> None:
    """Give a restored optimizer the values that differ between this run's arguments and the checkpoint's.

    Of a changed learning rate what was made of the old one is kept in proportion.

    Args:
        optimizer: restored from the checkpoint.
        now: what the user gave this time.
        then: what the user gave to the run that wrote the checkpoint.
    """
    for group, new, old in zip(optimizer.param_groups, now, then, strict=False):
        changed = {k: v for k, v in new.items() if k in old and old[k] != v}
        if "lr" in changed:
            group["lr"] *= changed["lr"] / old["lr"]
        group.update({k: v for k, v in changed.items() if k != "lr"})

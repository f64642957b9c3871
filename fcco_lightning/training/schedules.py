"""Learning-rate schedules in the papers' terms."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fcco_lightning.checks import positive
from fcco_lightning.errors import ConfigError


class StepAtFractions(LRScheduler):
    r"""Multiply the learning rate by ``factor`` when a fraction of the training has passed.

    The papers decay by 10 at 50% and 75% (SOX paper, section 5; SONEX paper, F.2).  The length comes from the Trainer,
    so it follows ``--trainer.max_epochs``, on a resume too: none of the arguments is kept in checkpoints.

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
        if any(not 0 < f < 1 for f in fractions):
            raise ConfigError(f"fractions must lie in (0, 1), got {list(fractions)!r}.")
        self.fractions, self.factor, self.total = sorted(fractions), positive("factor", factor), total
        super().__init__(optimizer)

    def set_total(self, total: int) -> None:
        """Number of steps of this schedule in all, >= 1; keeps a number given at construction."""
        if self.total is None:
            self.total = total

    def state_dict(self) -> dict[str, Any]:
        """Position and base rates; the arguments are the running program's."""
        constants = ("fractions", "factor", "total")
        return {k: v for k, v in super().state_dict().items() if k not in constants}

    def refresh(self) -> None:
        """Set the learning rates to what position and arguments say."""
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = lr

    def get_lr(self) -> list[float | Tensor]:
        """Learning rate per parameter group after ``last_epoch`` epochs."""
        passed = 0 if self.total is None else sum(self.last_epoch >= f * self.total for f in self.fractions)
        return [base * self.factor**passed for base in self.base_lrs]

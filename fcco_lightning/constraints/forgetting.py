"""Constraints of continual learning: what the old model could do, the new one still does."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.checks import finite
from fcco_lightning.constraints.base import Constraint
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.hosted import on_host
from fcco_lightning.numerics import send
from fcco_lightning.objectives import CrossEntropyLoss, Quantity
from fcco_lightning.outer import OuterFunction
from fcco_lightning.records import Columns, Inner


class NonForgetting(Constraint):
    r"""``h_k(w) = L_k(w; D_k) - L_k(w_old; D_k) <= 0`` for every protected task k (SONEX paper, F.3).

    L_k is the mean of a loss over the samples of task k, w_old the weights from which training starts.  The old model's
    loss of every sample is measured once, before the first step, and kept with the checkpoint; a batch estimates h_k by
    the mean of ``loss(w) - loss(w_old)`` over its samples of task k, which is 0 at w = w_old whatever the batch (for
    networks that treat a sample in training as in evaluation: no dropout, no batch statistics).  Where samples are not
    drawn uniformly the mean is weighted by the column ``weight``.

    Samples come from the part "protected" of a batch, with the columns ``task`` (k >= 0; other samples count nowhere)
    and ``protected_loss``, the old model's.  A task that a batch lacks leaves its row untouched.

    Args:
        loss: of a sample; cross-entropy over the classes by default (SONEX paper, F.3: the logistic loss).
        kappa: how much worse than the old model a task may become, in units of the loss; 0 for not at all, < 0 for a
            margin.
        names: of the tasks; None takes them from the datamodule.
    """

    width = 1
    part = "protected"

    def __init__(self, loss: Quantity | None = None, kappa: float = 0.0, names: Sequence[str] | None = None) -> None:
        self.loss, self.kappa = loss or CrossEntropyLoss(), finite("kappa", kappa)
        self.names = list(names or ())

    def adapt(self, datamodule: Any) -> None:
        known = list(getattr(datamodule, "task_names", None) or ())
        if self.names and known and self.names != known:
            raise ConfigError(f"names={self.names} of NonForgetting, but the data protects {known}. Leave names out.")
        self.names = self.names or known
        if not self.names:
            raise ConfigError(
                "NonForgetting has no task to protect: name them in the data (classes.protected), or leave the "
                "constraint out."
            )

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]] | None:
        """A batch speaks of a task if it holds a sample of it whose old loss is known."""
        if "task" not in columns:
            return None
        task, old = columns["task"], columns.get("protected_loss")
        known = torch.ones_like(task, dtype=torch.bool) if old is None else old.isfinite()
        return [[(task == k) & known] for k in range(len(self.names))]

    def reference(self, outputs: Any, batch: Columns) -> dict[str, Tensor]:
        """``protected_loss``, shape (n,), float64."""
        return {"protected_loss": self.loss(outputs.double(), batch).detach()}

    def inner(self, outputs: Any, batch: Columns) -> Inner:
        columns, batch = batch, on_host(batch)
        for name in ("task", "protected_loss"):
            if name not in batch:
                raise DataError(
                    f"NonForgetting needs the column {name!r}, the batch has {sorted(batch)}. Use a datamodule of "
                    "protected tasks, such as ContinualCLIPDataModule; to evaluate, a checkpoint of a fit with "
                    "NonForgetting, which remembers the old model."
                )
        task = batch["task"]
        change = self.loss(outputs, columns)
        size = len(self.names)
        if bool((task >= size).any()):
            raise DataError(f"task must be < {size} ({self.names}), got {int(task.max())}. Number the tasks from 0.")
        kept = (task >= 0) & batch["protected_loss"].isfinite()  # an image may have been unreadable back then
        before, task = batch["protected_loss"][kept].to(change.dtype), task[kept]
        change = change.index_select(0, send(kept.nonzero().squeeze(1), change)) - send(before, change)
        weight = batch["weight"][kept].to(change.dtype) if "weight" in batch else torch.ones_like(before)
        totals = weight.new_zeros(size).index_add(0, task, weight)
        sums = change.new_zeros(size).index_add(0, send(task, change), send(weight, change) * change)
        present = totals.nonzero().squeeze(1)
        means = sums.index_select(0, send(present, sums)) / send(totals[present], sums)
        return Inner(present, means.unsqueeze(1))

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return phi

    def violation(self, values: Tensor) -> Tensor:
        return values[:, 0] - self.tolerance

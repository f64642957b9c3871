"""Constraints of continual learning: what the old model could do, the new one still does."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fcco_lightning.checks import finite
from fcco_lightning.constraints.base import Constraint
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.hosted import on_host
from fcco_lightning.numerics import send
from fcco_lightning.objectives import CrossEntropyLoss, Quantity
from fcco_lightning.outer import OuterFunction
from fcco_lightning.records import Arrangement, Columns


class ProtectedTasks(Constraint, ABC):
    r"""``h_k(w) <= 0`` for every protected task k, with ``h_k + kappa`` the mean over its samples of what has changed.

    What has changed is a number of each sample that compares the weights w with those from which training starts.  What
    the old model made of every sample is measured once, before the first step, and kept with the checkpoint.  A batch
    estimates a mean from its samples of task k; where samples are not drawn uniformly the mean is weighted by the
    column ``weight``.

    Samples come from the part "protected" of a batch, with the column ``task`` (k >= 0; other samples count nowhere)
    and the column ``remembered`` of the old model.  A task that a batch lacks leaves its row untouched.

    Args:
        kappa: what the mean may be, in its units.
        names: of the tasks; None takes them from the datamodule.

    Attributes:
        remembered: name of the column with what the old model made of a sample, (B,) or (B, C); NaN where that is not
            known, as of an image that could not be read: such samples count nowhere.
    """

    width = 1
    part = "protected"
    remembered: ClassVar[str]

    def __init__(self, kappa: float, names: Sequence[str] | None) -> None:
        self.kappa, self.names = kappa, list(names or ())

    @abstractmethod
    def change(self, outputs: Any, batch: Columns, old: Tensor) -> Tensor:
        """What has changed of every sample, shape (B,), with graph.

        Args:
            outputs: of the network for the samples.
            batch: their columns.
            old: the column ``remembered``, 0 in the place of NaN.
        """

    def adapt(self, datamodule: Any) -> None:
        known, own = list(getattr(datamodule, "task_names", None) or ()), type(self).__name__
        if self.names and known and self.names != known:
            raise ConfigError(f"names={self.names} of {own}, but the data protects {known}. Leave names out.")
        self.names = self.names or known
        if not self.names:
            raise ConfigError(
                f"{own} has no task to protect: name them in the data (classes.protected), or leave the constraint out."
            )

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]] | None:
        """A batch speaks of a task if it holds a sample of it of which the old model's part is known."""
        if "task" not in columns:
            return None
        task, old = columns["task"], columns.get(self.remembered)
        known = task >= 0 if old is None else _known(old)
        return [[(task == k) & known] for k in range(len(self.names))]

    def arrange(self, batch: Columns, like: Tensor) -> Arrangement:
        columns, batch = batch, on_host(batch)
        for name in ("task", self.remembered):
            if name not in batch:
                own = type(self).__name__
                raise DataError(
                    f"{own} needs the column {name!r}, the batch has {sorted(batch)}. Use a datamodule of protected "
                    f"tasks, such as ContinualCLIPDataModule; to evaluate, a checkpoint of a fit with {own}, which "
                    "remembers the old model."
                )
        task, old, size = batch["task"], batch[self.remembered], len(self.names)
        if bool((task >= size).any()):
            raise DataError(f"task must be < {size} ({self.names}), got {int(task.max())}. Number the tasks from 0.")
        kept = ((task >= 0) & _known(old)).nonzero().squeeze(1)
        task = task[kept]
        weight = batch["weight"][kept].to(like.dtype) if "weight" in batch else torch.ones(len(task), dtype=like.dtype)
        totals = weight.new_zeros(size).index_add(0, task, weight)
        present = totals.nonzero().squeeze(1)
        places = (kept, task, weight / totals[task], present)
        return Arrangement(present, (columns, send(old.nan_to_num(), like), *(send(place, like) for place in places)))

    def values(self, outputs: Any, given: Any) -> Tensor:
        """The means of the tasks in the batch, shape (b, 1)."""
        columns, old, kept, task, shares, present = given
        change = self.change(outputs, columns, old).index_select(0, kept)
        means = change.new_zeros(len(self.names)).index_add(0, task, shares.to(change.dtype) * change)
        return means.index_select(0, present).unsqueeze(1)

    def outer(self, phi: OuterFunction) -> OuterFunction:
        return phi

    def violation(self, values: Tensor) -> Tensor:
        return values[:, 0] - self.tolerance


class NonForgetting(ProtectedTasks):
    r"""``h_k(w) = L_k(w; D_k) - L_k(w_old; D_k) - kappa <= 0`` for every protected task k (SONEX paper, F.3).

    L_k is the mean of a loss over the samples of task k, w_old the weights from which training starts.  The mean over a
    batch of ``loss(w) - loss(w_old)`` is 0 at w = w_old whatever the batch (for networks that treat a sample in
    training as in evaluation: no dropout, no batch statistics).  The old model's loss is the column ``protected_loss``.

    Args:
        loss: of a sample; cross-entropy over the classes by default (SONEX paper, F.3: the logistic loss).
        kappa: how much worse than the old model a task may become, in units of the loss; 0 for not at all, < 0 for a
            margin.
        names: of the tasks; None takes them from the datamodule.
    """

    remembered = "protected_loss"

    def __init__(self, loss: Quantity | None = None, kappa: float = 0.0, names: Sequence[str] | None = None) -> None:
        super().__init__(finite("kappa", kappa), names)
        self.loss = loss or CrossEntropyLoss()

    def reference(self, outputs: Any, batch: Columns) -> dict[str, Tensor]:
        """``protected_loss``, shape (n,), float64."""
        return {self.remembered: self.loss(outputs.double(), batch).detach()}

    def change(self, outputs: Any, batch: Columns, old: Tensor) -> Tensor:
        """``loss(w) - loss(w_old)``."""
        loss = self.loss(outputs, batch)
        return loss - old.to(loss.dtype)


def _known(old: Tensor) -> Tensor:
    """Of which samples the old model's part is known, shape (n,), bool."""
    return old.isfinite().unsqueeze(1).flatten(1).all(1)

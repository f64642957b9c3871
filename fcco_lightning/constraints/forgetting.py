"""Constraints of continual learning: what the old model could do, the new one still does."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fcco_lightning.checks import finite
from fcco_lightning.constraints.base import ValueAtMost
from fcco_lightning.constraints.memberships import means_over, only_of
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives import CrossEntropyLoss, Quantity
from fcco_lightning.objectives.measurable import Rows, nan_where


class ProtectedTasks(ValueAtMost, ABC):
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
        known = None if self.remembered not in columns else _known(columns[self.remembered])
        return [[of_task if known is None else of_task & known] for of_task in self._of_tasks(columns["task"])]

    def check(self, outputs: Any, batch: Columns) -> None:  # noqa: ARG002
        task, size = self._columns(batch)[0], len(self.names)
        if bool((task >= size).any()):
            raise DataError(f"task must be < {size} ({self.names}), got {int(task.max())}. Number the tasks from 0.")

    def measure(self, outputs: Any, batch: Columns) -> tuple[None, Rows]:
        """The means of the tasks, shape (m, 1); NaN if a task has no name."""
        task, old = self._columns(batch)
        member = self._of_tasks(task) & _known(old)
        if isinstance(outputs, Tensor):
            outputs = only_of(member, outputs)
        means, known = means_over(member, self.change(outputs, batch, old.nan_to_num()), batch)
        return None, Rows(nan_where((task >= len(self.names)).any(), means.unsqueeze(1)), known)

    def _of_tasks(self, task: Tensor) -> Tensor:
        """The samples of every task, shape (m, B), bool."""
        return task == torch.arange(len(self.names), device=task.device).unsqueeze(1)

    def _columns(self, batch: Columns) -> tuple[Tensor, Tensor]:
        """The task, and what the old model made of a sample.

        Raises:
            DataError: if the batch lacks one of them.
        """
        for name in ("task", self.remembered):
            if name not in batch:
                own = type(self).__name__
                raise DataError(
                    f"{own} needs the column {name!r}, the batch has {sorted(batch)}. Use a datamodule of protected "
                    f"tasks, such as ContinualCLIPDataModule; to evaluate, a checkpoint of a fit with {own}, which "
                    "remembers the old model."
                )
        return batch["task"], batch[self.remembered]


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

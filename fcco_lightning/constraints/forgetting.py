"""Constraints of continual learning: what the old model could do the new one still does, or answers as it did."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import kl_div, log_softmax

from fcco_lightning.checks import finite, list_of, non_negative, positive
from fcco_lightning.constraints.base import Constraint
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives import CrossEntropyLoss, Quantity, required_column
from fcco_lightning.objectives.base import one_label_each, one_tensor
from fcco_lightning.objectives.measurable import Rows, nan_where
from fcco_lightning.objectives.ratios import only_of, shares_of
from fcco_lightning.outer import Range


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

    part = "protected"
    remembered: ClassVar[str]

    def __init__(self, kappa: float, names: Sequence[str] | None) -> None:
        self.kappa, self.names = kappa, list_of("names", names or ())

    @abstractmethod
    def change(self, outputs: Any, batch: Columns, old: Tensor) -> Tensor:
        """What has changed of every sample, shape (B,), with graph.

        Args:
            outputs: of the network for the samples.
            batch: their columns.
            old: the column ``remembered``, 0 in the place of NaN.
        """

    def adapt(self, datamodule: Any) -> None:
        data_names, constraint = list(getattr(datamodule, "task_names", None) or ()), type(self).__name__
        if self.names and data_names and self.names != data_names:
            raise ConfigError(
                f"names={self.names} of {constraint}, but the data protects {data_names}. Leave names out."
            )
        self.names = self.names or data_names
        if not self.names:
            raise ConfigError(
                f"{constraint} has no task to protect: name them in the data (classes.protected), or leave the "
                "constraint out."
            )

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]] | None:
        """A batch measures a task if it holds a sample of it of which the old model's part is known."""
        if "task" not in columns:
            return None
        known = None if self.remembered not in columns else _known(required_column(columns, self.remembered, self))
        tasks = self._of_tasks(one_label_each(columns, self, "task"))
        return [[members if known is None else members & known] for members in tasks]

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
        change = self.change(outputs, batch, old.nan_to_num())
        shares, totals = shares_of(member, batch, change.dtype)
        means = shares @ only_of(shares, change)
        return None, Rows(nan_where((task >= len(self.names)).any(), means.unsqueeze(1)), totals.squeeze(-1) > 0)

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
                constraint = type(self).__name__
                raise DataError(
                    f"{constraint} needs the column {name!r}, the batch has {sorted(batch)}. Use a datamodule of "
                    "protected tasks, such as ContinualCLIPDataModule; to evaluate, a checkpoint of a fit with "
                    f"{constraint}, which remembers the old model."
                )
        return one_label_each(batch, self, "task"), required_column(batch, self.remembered, self)


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
        return {self.remembered: self._losses(outputs.double(), batch).detach()}

    def check(self, outputs: Any, batch: Columns) -> None:
        super().check(outputs, batch)
        protected = one_label_each(batch, self, "task") >= 0
        self.loss.check(
            one_tensor(outputs)[protected],
            {name: column[protected.to(column.device)] for name, column in batch.items()},
        )

    def change(self, outputs: Any, batch: Columns, old: Tensor) -> Tensor:
        """``loss(w) - loss(w_old)``."""
        loss = self._losses(outputs, batch)
        return loss - one_label_each({self.remembered: old}, self, self.remembered).to(loss.dtype)

    def _losses(self, outputs: Any, batch: Columns) -> Tensor:
        """The loss of every sample, shape (B,); samples of no task, which count nowhere, may have any label."""
        y, protected = batch.get("y"), one_label_each(batch, self, "task") >= 0
        if y is not None:
            batch = {**batch, "y": y.where(protected.view(-1, *(1 for _ in y.shape[1:])), 0)}
        return self.loss(outputs, batch)


class Distillation(ProtectedTasks):
    r"""``h_k(w) = (1/|D_k|) sum_{i in D_k} KL(p_i(w_old) || p_i(w)) - kappa <= 0`` for every protected task k.

    ``p_i(w) = softmax(z_i(w) / T)`` are the class probabilities of sample i at temperature T, with logits z_i of shape
    (C,); w_old are the weights from which training starts.  The divergence, in nats, is 0 where the odds of the classes
    are those of the old model, right or wrong.  The old model's logits are the column ``old_logits``, shape (n, C).

    With ``kappa=0`` and ``HingePenalty(rho)`` it is learning without forgetting (LwF; Li and Hoiem, 2018), on whose
    distillation loss the hinge does nothing, as that is never negative: the problem becomes
    ``F(w) + (rho/m) sum_k KL_k(w)``.  There the old model is distilled on the new task's samples, as nothing else is
    kept; here on those of the protected tasks, which the other constraints are measured on, too.

    Args:
        temperature: T > 0; Li and Hoiem (2018) take 2.
        kappa: the divergence that a task may have, in nats, >= 0.  Multipliers need one > 0: at 0 nothing may change.
        names: of the tasks; None takes them from the datamodule.

    Raises:
        ConfigError: if an argument is out of range.
    """

    range = Range(least=0.0)
    remembered = "old_logits"

    def __init__(self, temperature: float = 2.0, kappa: float = 0.0, names: Sequence[str] | None = None) -> None:
        super().__init__(non_negative("kappa", kappa), names)
        self.temperature = positive("temperature", temperature)

    def reference(self, outputs: Any, batch: Columns) -> dict[str, Tensor]:  # noqa: ARG002
        """``old_logits``, shape (n, C), float32."""
        return {self.remembered: outputs.detach().float()}

    def change(self, outputs: Any, batch: Columns, old: Tensor) -> Tensor:  # noqa: ARG002
        """``KL(p(w_old) || p(w))``."""
        if not isinstance(outputs, Tensor) or outputs.dim() != 2:
            got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else f"a {type(outputs).__name__}"
            raise DataError(
                f"Distillation needs class logits, shape (B, C), got {got}. Use a network that returns them."
            )
        if old.shape != outputs.shape:
            raise DataError(
                f"Distillation compares logits of shape {tuple(outputs.shape)} with the column `{self.remembered}` of "
                f"shape {tuple(old.shape)}. They must have the same shape: remember the old model's again."
            )
        now, before = (log_softmax(z / self.temperature, 1) for z in (outputs, old.to(outputs.dtype)))
        return kl_div(now, before, reduction="none", log_target=True).sum(1)


def _known(old: Tensor) -> Tensor:
    """Of which samples the old model's part is known, shape (n,), bool."""
    return old.isfinite().unsqueeze(1).flatten(1).all(1)

"""Constraints of continual learning: the new model keeps the old model's losses, or its predictions."""

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
    r"""``h_k(w) <= 0`` for every protected task k, with ``h_k + kappa`` the mean change over its samples.

    The change is a number per sample that compares the weights w with the initial weights w_old.  The old model's
    outputs (or losses) are computed once, before the first step, and stored in checkpoints.  A batch estimates the mean
    from its samples of task k, weighted by the column ``weight`` if samples are not drawn uniformly.

    Samples come from the part "protected" of a batch, with the column ``task`` (k >= 0; other samples are ignored) and
    the column ``remembered`` of the old model.  The row of a task without samples in a batch stays unchanged.

    Args:
        kappa: largest allowed mean change, in its unit.
        names: names of the tasks; None takes them from the datamodule.

    Attributes:
        remembered: name of the column with the old model's result for a sample, (B,) or (B, C); NaN if it is not known,
            as for an unreadable image: such samples are ignored.
    """

    part = "protected"
    remembered: ClassVar[str]

    def __init__(self, kappa: float, names: Sequence[str] | None) -> None:
        self.kappa, self.names = kappa, list_of("names", names or ())

    @abstractmethod
    def change(self, outputs: Any, batch: Columns, old: Tensor) -> Tensor:
        """The change for every sample, shape (B,), with graph.

        Args:
            outputs: the network's outputs for the samples.
            batch: their columns.
            old: the column ``remembered``, with 0 in place of NaN.
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
        """A batch measures a task if it holds a sample of it with a known result of the old model."""
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
        """The columns of tasks and of the old model's results.

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

    L_k is the mean of a loss over the samples of task k, and w_old are the initial weights.  The mean over a batch of
    ``loss(w) - loss(w_old)`` is exactly 0 at w = w_old (for networks with the same outputs in training and evaluation:
    no dropout, no batch statistics).  The old model's loss is the column ``protected_loss``.

    Args:
        loss: loss of a sample; cross-entropy over the classes by default (SONEX paper, F.3: the logistic loss).
        kappa: allowed increase of a task's loss over the old model's, in units of the loss; < 0 for a margin.
        names: names of the tasks; None takes them from the datamodule.
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
        """The loss of every sample, shape (B,); samples of no task, which are ignored, may have any label."""
        y, protected = batch.get("y"), one_label_each(batch, self, "task") >= 0
        if y is not None:
            batch = {**batch, "y": y.where(protected.view(-1, *(1 for _ in y.shape[1:])), 0)}
        return self.loss(outputs, batch)


class Distillation(ProtectedTasks):
    r"""``h_k(w) = (1/|D_k|) sum_{i in D_k} KL(p_i(w_old) || p_i(w)) - kappa <= 0`` for every protected task k.

    ``p_i(w) = softmax(z_i(w) / T)`` are the class probabilities of sample i at temperature T, with logits z_i of shape
    (C,); w_old are the initial weights.  The divergence, in nats, is 0 if the predicted probabilities are those of the
    old model, right or wrong.  The old model's logits are the column ``old_logits``, shape (n, C).

    With ``kappa=0`` and ``HingePenalty(rho)`` it is the loss of learning without forgetting (LwF; Li and Hoiem, 2018):
    as the divergence is never negative, the problem becomes ``F(w) + (rho/m) sum_k KL_k(w)``.  LwF distils on samples
    of the new task; here the samples of the protected tasks are used, as for the other constraints.

    Args:
        temperature: T > 0; Li and Hoiem (2018) take 2.
        kappa: allowed divergence of a task, in nats, >= 0; with multipliers it must be > 0, as 0 allows no change at
            all.
        names: names of the tasks; None takes them from the datamodule.

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
                f"shape {tuple(old.shape)}. They must have the same shape: compute the old logits again."
            )
        now, before = (log_softmax(z / self.temperature, 1) for z in (outputs, old.to(outputs.dtype)))
        return kl_div(now, before, reduction="none", log_target=True).sum(1)


def _known(old: Tensor) -> Tensor:
    """The samples with a known result of the old model, a mask (n,), bool."""
    return old.isfinite().unsqueeze(1).flatten(1).all(1)

"""Outputs of the model from which training started, as columns of the data."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fcco_lightning.constraints import Constraint
from fcco_lightning.errors import CheckpointError
from fcco_lightning.evaluation import Evaluation
from fcco_lightning.training.evaluating import EvaluatingModule
from fcco_lightning.training.posing import datamodule_of, plain_values


class OldModel:
    """Adds to every split the reference columns of constraints and evaluation: figures of the initial (old) weights.

    They are computed once, before the first step, and stored in checkpoints, from which an evaluation takes them.

    Attributes:
        of: split -> identity of its samples and tasks by the datamodule's ``references()``; and "loss" -> the loss that
            was computed.
        columns: split -> name -> tensor (n, ...) in the order of the split; None before they are known.
    """

    def __init__(self, module: EvaluatingModule) -> None:
        self.module = module
        self.of: Mapping[str, str] = {}
        self.columns: Mapping[str, Mapping[str, Tensor]] | None = None

    def know(self) -> None:
        """Compute the columns if a fit begins, and add them to the data.

        Raises:
            CheckpointError: if they belong to other data or another loss.
        """
        datamodule = datamodule_of(self.module.trainer)
        if not hasattr(datamodule, "add_columns"):
            return
        if self.columns is None and self.module.trainer.state.fn == "fit":
            self.of, loaders = self._identity(datamodule), datamodule.evaluation_loaders()
            self.columns = {
                name: self._measured(loader, len(datamodule.tables[name])) for name, loader in loaders.items()
            }
        if self.columns is not None:
            require_same_reference(self.of, self._identity(datamodule))
            for split, measured in self.columns.items():
                datamodule.add_columns(split, measured)

    def _measured(self, loader: Any, size: int) -> dict[str, Tensor]:
        """The reference columns of constraints and evaluation for a split with ``size`` samples."""
        parts: list[Evaluation | Constraint] = [self.module.evaluation, *self.module.constraints]
        result = self.module.evaluate(loader)
        measured = {name: c for part in parts for name, c in part.reference(result.outputs, result.columns).items()}
        return {name: in_order(column, result.columns["index"], size) for name, column in measured.items()}

    def header(self) -> tuple[Any, Any] | None:
        """The entry of a checkpoint; None if there are no reference columns."""
        return None if self.columns is None else (self.of, self.columns)

    def restore(self, stored: Sequence[Any] | None) -> None:
        """Restore the entry of a checkpoint.

        Raises:
            CheckpointError: if it belongs to other data than those of the run.
        """
        identity, columns = ({}, None) if stored is None else stored
        datamodule = datamodule_of(self.module._trainer)
        if hasattr(datamodule, "references"):
            require_same_reference(identity, self._identity(datamodule))
        self.of, self.columns = identity, columns

    def _identity(self, datamodule: Any) -> dict[str, str]:
        """Identity of the present data, and the losses of the constraints."""
        losses = [(type(c.loss).__name__, plain_values(c.loss)) for c in self.module.constraints if hasattr(c, "loss")]
        scale = getattr(self.module.network, "class_temperature", None)
        return {**datamodule.references(), "loss": f"{losses}, class_temperature {scale}"}


def require_same_reference(stored: Mapping[str, str], present: Mapping[str, str]) -> None:
    """Require that stored reference columns would be computed from the same data and by the same loss now.

    Raises:
        CheckpointError: naming the split, or the loss, and both identities.
    """
    for name, identity in stored.items():
        if present.get(name) == identity:
            continue
        difference = "with another loss: it" if name == "loss" else f"on other tasks or data: its {name} split"
        raise CheckpointError(
            f"the old model's losses in the checkpoint (or the previous fit) were computed {difference} is {identity}, "
            f"in this run {present.get(name, 'absent')}. Use the same data, classes, protected tasks and loss, or "
            "start afresh from the checkpoint's weights (CLIPModel's `pretrained`) with a new FCCOModule."
        )


def in_order(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Scatter values (b, ...) of the samples ``index`` into a column (size, ...); missing samples get NaN or 0."""
    column = values.new_full((size, *values.shape[1:]), float("nan") if values.is_floating_point() else 0)
    column[index] = values
    return column

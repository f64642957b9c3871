"""What is remembered of the model from which training started."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fcco_lightning.constraints import Constraint
from fcco_lightning.errors import CheckpointError
from fcco_lightning.evaluation import Evaluation
from fcco_lightning.training.evaluating import EvaluatingModule
from fcco_lightning.training.posing import datamodule_of, plain_values


class OldModel:
    """Gives every split the columns that constraints and evaluation remember of the weights training started from.

    They are measured once, before the first step; a checkpoint holds them, and evaluating one finds them there.

    Attributes:
        of: split -> what identifies its samples and tasks, as the datamodule's ``references()`` says; and "loss": how
            they were measured.
        columns: split -> name -> tensor (n, ...) in the order of the split; None before they are known.
    """

    def __init__(self, module: EvaluatingModule) -> None:
        self.module = module
        self.of: Mapping[str, str] = {}
        self.columns: Mapping[str, Mapping[str, Tensor]] | None = None

    def know(self) -> None:
        """Measure the columns if a fit begins, and make them part of the data.

        Raises:
            CheckpointError: if they belong to other data, or were measured otherwise.
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
            require_same(self.of, self._identity(datamodule))
            for split, measured in self.columns.items():
                datamodule.add_columns(split, measured)

    def _measured(self, loader: Any, size: int) -> dict[str, Tensor]:
        """What constraints and evaluation want to remember of a split with ``size`` samples."""
        parts: list[Evaluation | Constraint] = [self.module.evaluation, *self.module.constraints]
        result = self.module.evaluate(loader)
        measured = {name: c for part in parts for name, c in part.reference(result.outputs, result.columns).items()}
        return {name: in_order(column, result.columns["index"], size) for name, column in measured.items()}

    def header(self) -> tuple[Any, Any] | None:
        """What a checkpoint holds of it; None if nothing is remembered."""
        return None if self.columns is None else (self.of, self.columns)

    def restore(self, stored: Sequence[Any] | None) -> None:
        """Go on with what a checkpoint holds.

        Raises:
            CheckpointError: if that belongs to other data than those of the run.
        """
        identity, columns = ({}, None) if stored is None else stored
        datamodule = datamodule_of(self.module._trainer)
        if hasattr(datamodule, "references"):
            require_same(identity, self._identity(datamodule))
        self.of, self.columns = identity, columns

    def _identity(self, datamodule: Any) -> dict[str, str]:
        """What the old model is measured on now, and how."""
        losses = [(type(c.loss).__name__, plain_values(c.loss)) for c in self.module.constraints if hasattr(c, "loss")]
        scale = getattr(self.module.network, "class_temperature", None)
        return {**datamodule.references(), "loss": f"{losses}, class_temperature {scale}"}


def require_same(stored: Mapping[str, str], present: Mapping[str, str]) -> None:
    """Raise unless what was measured then would be the same now.

    Raises:
        CheckpointError: naming the split, or the loss, and both identities.
    """
    for name, identity in stored.items():
        if present.get(name) == identity:
            continue
        difference = "with another loss: it" if name == "loss" else f"on other tasks or data: its {name} split"
        raise CheckpointError(
            f"the checkpoint (or the fit before) remembers the old model's losses {difference} is {identity}, this "
            f"run's {present.get(name, 'absent')}. Use the same data, classes, protected tasks and loss, or start "
            "afresh from the checkpoint's weights (CLIPModel's `pretrained`) with a new FCCOModule."
        )


def in_order(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Values (b, ...) of the samples ``index`` as a column (size, ...); skipped images get NaN or 0."""
    column = values.new_full((size, *values.shape[1:]), float("nan") if values.is_floating_point() else 0)
    column[index] = values
    return column

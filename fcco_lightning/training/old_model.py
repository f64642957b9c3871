"""What is remembered of the model from which training started."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fcco_lightning.errors import CheckpointError
from fcco_lightning.evaluation import Split
from fcco_lightning.models.batch import Columns
from fcco_lightning.training.evaluating import EvaluatingModule
from fcco_lightning.training.posing import datamodule_of, plain_values


class Remembers(Protocol):
    """Constraints and evaluations."""

    def reference(self, outputs: Any, batch: Columns, /) -> dict[str, Tensor]: ...


def in_order(values: Tensor, index: Tensor, size: int) -> Tensor:
    """Values (b, ...) of the samples ``index`` as a column (size, ...); skipped images get NaN or 0."""
    column = values.new_full((size, *values.shape[1:]), float("nan") if values.is_floating_point() else 0)
    column[index] = values
    return column


class References(NamedTuple):
    """Columns measured with the old model, and the data that they belong to.

    Attributes:
        of: split -> what identifies its samples and tasks, as the datamodule's ``references()`` says; and "loss": how
            they were measured.
        columns: split -> name -> tensor (n, ...) in the order of the split.
    """

    of: Mapping[str, str]
    columns: Mapping[str, Mapping[str, Tensor]]

    @classmethod
    def measured(
        cls,
        datamodule: Any,
        evaluate: Callable[[Any], Split],
        parts: Sequence[Remembers],
        of: Mapping[str, str],
    ) -> "References":
        """What ``parts`` want to remember of every split that ``datamodule`` evaluates.

        Args:
            datamodule: with ``evaluation_loaders()`` and ``tables``.
            evaluate: loader -> outputs and columns of its whole split.
            parts: constraints and the evaluation.
            of: what is measured, and how.
        """
        columns: dict[str, dict[str, Tensor]] = {}
        for split, loader in datamodule.evaluation_loaders().items():
            whole, size = evaluate(loader), len(datamodule.tables[split])
            measured = {n: c for part in parts for n, c in part.reference(whole.outputs, whole.columns).items()}
            columns[split] = {name: in_order(c, whole.columns["index"], size) for name, c in measured.items()}
        return cls(of, columns)

    def tell(self, datamodule: Any, of: Mapping[str, str]) -> None:
        """Make the columns part of the data.

        Raises:
            CheckpointError: if they belong to other data, or were measured otherwise than ``of`` says.
        """
        self.check(of)
        for split, measured in self.columns.items():
            datamodule.add_columns(split, measured)

    def check(self, of: Mapping[str, str]) -> None:
        """Raise unless the columns are of these data, measured this way.

        Raises:
            CheckpointError: naming the split, or the loss, and both identities.
        """
        for name, identity in self.of.items():
            if of.get(name) == identity:
                continue
            what = "with another loss: it" if name == "loss" else f"on other tasks or data: its {name} split"
            raise CheckpointError(
                f"the checkpoint (or the fit before) remembers the old model's losses {what} is {identity}, this run's "
                f"{of.get(name, 'absent')}. Use the same data, classes, protected tasks and loss, or start afresh from "
                "the checkpoint's weights (CLIPModel's `pretrained`) with a new FCCOModule."
            )


class OldModel:
    """Gives every split the columns that constraints and evaluation remember of the weights training started from.

    They are measured once, before the first step; a checkpoint holds them, and evaluating one finds them there.

    Args:
        module: that is trained.
    """

    def __init__(self, module: EvaluatingModule) -> None:
        self.module = module
        self._references: References | None = None

    def know(self) -> None:
        """Measure the columns if a fit begins, and make them part of the data.

        Raises:
            CheckpointError: if they belong to other data, or were measured otherwise.
        """
        module, datamodule = self.module, datamodule_of(self.module.trainer)
        if not hasattr(datamodule, "add_columns"):
            return
        if self._references is None and module.trainer.state.fn == "fit":
            parts: list[Remembers] = [module.evaluation, *module.constraints]
            evaluate = partial(module.split_of, whole=True)
            self._references = References.measured(datamodule, evaluate, parts, self._of(datamodule))
        if self._references is not None:
            self._references.tell(datamodule, self._of(datamodule))

    def header(self) -> tuple[Any, ...] | None:
        """What a checkpoint holds of it; None if nothing is remembered."""
        return None if self._references is None else tuple(self._references)

    def restore(self, stored: Sequence[Any] | None) -> None:
        """Go on with what a checkpoint holds.

        Raises:
            CheckpointError: if that belongs to other data than those of the run.
        """
        references = None if stored is None else References(*stored)
        datamodule = datamodule_of(self.module._trainer)
        if references is not None and hasattr(datamodule, "references"):
            references.check(self._of(datamodule))
        self._references = references

    def _of(self, datamodule: Any) -> dict[str, str]:
        """What the old model is measured on, and how."""
        losses = [(type(c.loss).__name__, plain_values(c.loss)) for c in self.module.constraints if hasattr(c, "loss")]
        scale = getattr(self.module.network, "class_temperature", None)
        return {**datamodule.references(), "loss": f"{losses}, class_temperature {scale}"}

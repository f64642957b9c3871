"""The interface of all evaluations: from the outputs on a whole split to figures, tables and pictures."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.evaluation.pictures import History, plot_constraints
from fcco_lightning.models.batch import Columns
from fcco_lightning.objectives import binary_scores
from fcco_lightning.objectives.base import one_label_each, one_tensor, require

_SMALL_IS_GOOD = {"loss", "error", "gap", "rmse", "mae", "brier"}  # words in names of figures

Final: TypeAlias = Mapping[str, tuple[Tensor, Columns]]
"""The outputs and the columns of every split, by its name, as ``Split`` holds them."""
Pictures: TypeAlias = dict[str, Callable[[Path], Path | None]]
"""What draws the pictures of a run, by the names of their files."""


class Evaluation(ABC):
    """Computes what a run reports about the network's outputs on a split.  A new task defines a subclass.

    Attributes:
        bar: The figures that the progress bar shows.
        merit: The figure of merit, by which weights and settings are chosen unless the user names another one.
        separable: Whether the figures of a random part of the samples estimate those of all, so that importances may be
            measured on such a part.  They do not for figures of whole lists or of nearest neighbours.
        group_names: The names of the groups 0, 1, ..., set by :meth:`take_names`, like the following.
        label_names: The names of several labels of a sample.
        class_names: The names of the classes 0, 1, ...
        groups_by: Columns that define groups for constraints, with the names of the groups 0, 1, ... of each.
    """

    bar: tuple[str, ...] = ()
    merit: str = ""
    separable: bool = True
    group_names: Sequence[str] = ()
    label_names: Sequence[str] = ()
    class_names: Sequence[str] = ()
    groups_by: Mapping[str, Sequence[str]] | None = None
    _warned: bool = False

    def take_names(self, datamodule: Any) -> None:
        """Set the names of groups, labels and classes that a datamodule defines; None defines none."""
        for names in ("group_names", "label_names", "class_names", "groups_by"):
            setattr(self, names, getattr(datamodule, names, getattr(self, names)))

    @abstractmethod
    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        """Compute the figures of a split.

        A figure with a ``/`` in its name describes one part of the split (``group_accuracy/a``).  It is logged, but
        the printed table leaves it out.

        Args:
            outputs: The network's outputs on the whole split; the first dimension is the number n of samples.
            batch: The columns of the split, each with first dimension n.

        Returns:
            The figures by name.  A figure that is undefined on the split (because a class is absent) is NaN;
            :meth:`warn_of_undefined` warns once.

        Raises:
            DataError: if the outputs or the columns are not as the class describes: a column is missing, shapes
                do not fit, or a value is out of range.
        """

    def check(self, outputs: Any, batch: Columns) -> None:  # noqa: B027
        """Refuse outputs for which no figures could be computed after the epoch; by default, refuse none.

        Args:
            outputs: The network's outputs on the first training batch.
            batch: The columns of that batch.

        Raises:
            DataError: naming the shape, with advice.
        """

    def details(self, outputs: Tensor, batch: Columns) -> dict[str, Any]:  # noqa: ARG002
        """Compute further entries of ``report.json`` for a split, in plain numbers.

        A list of records becomes a table of its own.  Only its first rows are printed, so the most important ones
        should come first.

        Args:
            outputs: The network's outputs on the whole split.
            batch: The columns of the split.

        Returns:
            The entries of the report by name; none by default.
        """
        return {}

    def reference(self, outputs: Tensor, batch: Columns) -> dict[str, Tensor]:  # noqa: ARG002
        """Compute columns that describe the model from which training starts.

        They are stored once, and every later batch of the split contains them.

        Args:
            outputs: The outputs of that model on the whole split.
            batch: The columns of the split.

        Returns:
            Columns of shape (n,) by name; none by default.
        """
        return {}

    def pictures(self, history: History, final: Final) -> Pictures:  # noqa: ARG002
        """Return functions that draw the pictures of a finished run; they are called one by one, after this method.

        Args:
            history: The figures of every validation, see :mod:`fcco_lightning.evaluation.pictures`.
            final: The outputs and the columns of every split, computed with the final weights.

        Returns:
            For the name of every PNG file a function that draws it to the given path and returns that path, or None if
            there is nothing to show.  The default is a picture of the constraints.
        """
        return {"constraints.png": partial(plot_constraints, history)}

    def draw(self, history: History, final: Final, folder: Path) -> list[Path]:
        """Draw all :meth:`pictures` into a folder, and return the files that were written."""
        paths = [picture(folder / name) for name, picture in self.pictures(history, final).items()]
        return [path for path in paths if path is not None]

    def warn_of_undefined(self, figures: str, reason: str) -> None:
        """Warn, only once, that figures of a split are NaN.

        Args:
            figures: The names or the kind of the figures.
            reason: The reason and a remedy: a sentence or two without the last full stop.
        """
        if not self._warned:
            self._warned = True
            warnings.warn(f"{figures} are not defined (NaN){reason}.", stacklevel=4)

    def figure_of_merit(self, asked: str | None = None) -> str:
        """Return the figure by which weights and settings are chosen.

        Args:
            asked: The figure that the user has named; None for the evaluation's own.

        Raises:
            ConfigError: if none was named, and the evaluation has several figures but no figure of merit.
        """
        if figure := asked or self.merit or (self.bar[0] if len(self.bar) == 1 else ""):
            return figure
        raise ConfigError(
            f"{type(self).__name__} has no figure of merit (it shows {', '.join(self.bar) or 'no figure'}). Name the "
            "figure to compare by: --figure for fcco tune, --feasible.figure for the weights of a run."
        )

    def group_name(self, group: int) -> str:
        """Return the name of a group, or its number if it has no name."""
        return _name(self.group_names, group)

    def label_name(self, label: int) -> str:
        """Return the name of one of several labels, or its number if it has no name."""
        return _name(self.label_names, label)


def _name(names: Sequence[str], number: int) -> str:
    return str(names[number]) if number < len(names) else str(number)


def direction(figure: str) -> Literal["max", "min"]:
    """Return "min" if smaller values of a figure are better, as for losses, errors and gaps, else "max".

    Example:
        >>> [direction(name) for name in ("auc", "worst_group_accuracy", "cvar_loss", "roc_gap", "bellman_error")]
        ['max', 'max', 'min', 'min', 'min']
    """
    parts = set(figure.partition("/")[0].split("_"))  # after "/" comes the name of a group or label
    return "min" if _SMALL_IS_GOOD & parts and "satisfied" not in parts else "max"


def shown_split(names: Iterable[str]) -> str:
    """Return the split to show if only one is shown: "test", or else the last; empty if there is none."""
    splits = [*names]
    return "test" if "test" in splits else next(reversed(splits), "")


def require_columns(batch: Columns, *names: str, figures: str) -> None:
    """Raise :class:`DataError` if a split lacks one of the columns from which ``figures`` are computed."""
    for name in names:
        if name not in batch:
            raise DataError(
                f"{figures} need a column {name!r} with one value per sample, the split has {sorted(batch)}. "
                "Use another evaluation (--model.evaluation), or add the column to the data."
            )


def weight_of(batch: Columns, values: Tensor, needed_by: object) -> Tensor:
    """Return the weights of the samples, the column ``weight`` or 1: float64, on the device of ``values``, (n,)."""
    weight = one_label_each(batch, needed_by, "weight") if "weight" in batch else values.new_ones(len(values))
    return weight.to(values.device, torch.float64)


def whole_numbers(batch: Columns, needed_by: object, column: str) -> Tensor:
    """Return a column of whole numbers, shape (n,), or raise :class:`DataError`."""
    values = one_label_each(batch, needed_by, column)
    if values.is_floating_point():
        raise DataError(f"{column} must be whole numbers (int64), got {values.dtype}. Convert them with .long().")
    return values.long()  # torch compares unsigned numbers with -1 as 255


def mean_of(values: Tensor, weight: Tensor) -> float:
    """Return the mean of values, shape (n,), with the samples' weights, shape (n,)."""
    return float((values * weight.to(values)).sum() / weight.to(values).sum())


def correct_and_loss(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Determine whether each sample is classified correctly, and its loss.

    A single score predicts class 1 where it is > 0 and has the logistic loss.  Several scores predict the class of the
    largest one and have the softmax cross-entropy as their loss.

    Args:
        outputs: One score per sample, shape (n,) or (n, 1), for the classes 0 and 1, or C scores, shape (n, C).
        y: The classes, shape (n,) or (n, 1), whole numbers.

    Returns:
        ``(correct, loss)``, both of shape (n,): truth values, and losses in nats as float64.

    Raises:
        DataError: if the shapes do not fit, or a class is out of range.

    Example:
        >>> import torch
        >>> correct, loss = correct_and_loss(torch.tensor([0.0, 2.0]), torch.tensor([1, 1]))
        >>> correct.tolist(), [round(value, 3) for value in loss.tolist()]
        ([False, True], [0.693, 0.127])
    """
    several = one_tensor(outputs).dim() == 2 and outputs.shape[1] > 1
    scores = outputs.double() if several else binary_scores(outputs).double()
    y = y.squeeze(1) if y.dim() == 2 and y.shape[1] == 1 else y
    classes = scores.shape[1] if several else 2
    if y.shape != scores.shape[:1]:
        raise DataError(f"y must have one class per sample, shape {tuple(scores.shape[:1])}, got {tuple(y.shape)}.")
    rule = f"y must lie in 0..{classes - 1} for outputs of shape {tuple(outputs.shape)}"
    require((y >= 0) & (y < classes), y, rule, "Give the network one output per class.")
    if several:
        return scores.argmax(1) == y, cross_entropy(scores, y.long(), reduction="none")
    return (scores > 0) == (y == 1), binary_cross_entropy_with_logits(scores, y.double(), reduction="none")

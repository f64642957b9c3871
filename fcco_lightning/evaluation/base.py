"""The interface of all evaluations: from the outputs on a whole split to figures, tables and pictures."""

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from fcco_lightning.errors import ConfigError
from fcco_lightning.evaluation.pictures import plot_constraints
from fcco_lightning.evaluation.pictures.style import History
from fcco_lightning.evaluation.tally import Tally
from fcco_lightning.models.batch import Columns


class Evaluation(ABC):
    """What a run reports of the network's outputs on a split.  A new task defines a subclass.

    Attributes:
        bar: The figures that the progress bar shows.
        merit: The figure of merit, by which weights and settings are chosen unless the user names another one.
        separable: Whether the figures of a random part of the samples estimate those of all.  They do not where a
            figure is about whole lists, or about the nearest of all samples.
        group_names: The names of the groups 0, 1, ...; :class:`FCCOModule` takes them from the datamodule.
        label_names: The names of several labels of a sample, likewise.
    """

    bar: tuple[str, ...] = ()
    merit: str = ""
    separable: bool = True
    group_names: Sequence[str] = ()
    label_names: Sequence[str] = ()
    _warned: bool = False

    @abstractmethod
    def __call__(self, outputs: Tensor, batch: Columns) -> dict[str, float]:
        """Compute the figures of a split.

        A figure with a ``/`` in its name describes one part of the split (``group_accuracy/a``).  It is logged, but
        the printed table leaves it out.

        Args:
            outputs: The network's outputs on the whole split; the first dimension is the number n of samples.
            batch: The columns of the split, each with first dimension n.

        Returns:
            The figures by name.  A figure that the split leaves undefined (because a class is absent) is NaN, which
            :meth:`warn_of_undefined` says once.

        Raises:
            DataError: if the outputs or the columns are not those that the class describes: a column is missing, shapes
                do not fit, or a value is out of range.
        """

    def tally(self, outputs: Tensor) -> Tally | None:  # noqa: ARG002
        """Return what counts figures batch by batch, for splits of which not all outputs are kept.

        Args:
            outputs: The outputs on the first batch, whose shape says what there is to count.

        Returns:
            None by default: nothing is counted.
        """
        return None

    def details(self, outputs: Tensor, batch: Columns) -> dict[str, Any]:  # noqa: ARG002
        """Describe a split in ``report.json`` beyond its figures, in plain numbers.

        A list of records becomes a table of its own.  Only its first rows are printed, so the most important ones
        should stand first.

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

    def draw(self, history: History, final: Mapping[str, tuple[Tensor, Columns]], folder: Path) -> list[Path]:  # noqa: ARG002
        """Draw the pictures of a finished run.

        Args:
            history: The figures of every validation, see :mod:`fcco_lightning.evaluation.pictures.style`.
            final: The outputs and the columns of every split, computed with the final weights.
            folder: The folder in which the pictures are written.

        Returns:
            The files that were written.  By default that is a picture of the constraints, if there are any.
        """
        return written(plot_constraints(history, folder / "constraints.png"))

    def warn_of_undefined(self, figures: str, reason: str) -> None:
        """Warn, the first time, that figures of a split are NaN.

        Args:
            figures: Their names, or of what kind they are.
            reason: Why, and what to do about it: a sentence or two without the full stop.
        """
        if not self._warned:
            self._warned = True
            warnings.warn(f"{figures} are not defined (NaN){reason}.", stacklevel=4)

    def figure_of_merit(self, asked: str | None = None) -> str:
        """Return the figure by which weights and settings are chosen.

        Args:
            asked: The figure that the user has named; None for the evaluation's own.

        Raises:
            ConfigError: if none was named, and the evaluation shows several without saying which one counts.
        """
        if figure := asked or self.merit or (self.bar[0] if len(self.bar) == 1 else ""):
            return figure
        raise ConfigError(
            f"{type(self).__name__} does not say which of its figures ({', '.join(self.bar) or 'none is shown'}) "
            "counts. Name one: --figure for fcco tune, --feasible.figure for the weights of a run."
        )

    def group_name(self, group: int) -> str:
        """Return the name of a group, or its number where no name is known."""
        return _name(self.group_names, group)

    def label_name(self, label: int) -> str:
        """Return the name of one of several labels, or its number where no name is known."""
        return _name(self.label_names, label)


def _name(known: Sequence[str], number: int) -> str:
    return str(known[number]) if number < len(known) else str(number)


def direction(figure: str) -> Literal["max", "min"]:
    """Whether larger or smaller values of a figure are better: smaller of losses, errors and gaps.

    Example:
        >>> [direction(name) for name in ("auc", "worst_group_accuracy", "cvar_loss", "roc_gap", "bellman_error")]
        ['max', 'max', 'min', 'min', 'min']
    """
    return "min" if {"loss", "error", "gap"} & set(re.split(r"[_/]", figure)) else "max"


def written(*paths: Path | None) -> list[Path]:
    """Return the pictures that were drawn, leaving out those that had nothing to show (None)."""
    return [path for path in paths if path is not None]


def shown_split(names: Iterable[str]) -> str:
    """Return the split that stands for all where only one is shown: "test", or else the last; empty without any."""
    known = [*names]
    return "test" if "test" in known else next(reversed(known), "")

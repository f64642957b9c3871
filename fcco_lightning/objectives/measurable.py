"""The common interface of objectives and constraints: a method that measures a batch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.models.batch import Columns
from fcco_lightning.outer import OuterFunction


class Rows(NamedTuple):
    """The rows of one term in a batch, with shapes that depend on the size of the batch only.

    Attributes:
        values: g_i(w; batch), shape (r, k), with graph; arbitrary finite numbers where ``weight`` is 0.
        weight: weight of each row in the mean over all rows, without graph, shape (r,); 0 where the batch does not
            contain the row.  Of type bool if all rows have the same weight.
        outer: f for these rows, if its parameters differ between rows; None for the term's f.
        index: number of each row, shape (r,), int64.  None for the rows of the batch's samples, given by their column
            ``index``, if samples own the rows, and otherwise for all n rows in order.
    """

    values: Tensor
    weight: Tensor
    outer: OuterFunction | None = None
    index: Tensor | None = None  # type: ignore[assignment]  # the field hides tuple.index


class Measurable(ABC):
    r"""Measures inner functions ``g_i(w)``, and perhaps a direct part ``g_0(w)``, on a batch.

    :meth:`measure` is a function of tensors whose shapes depend on the size of the batch only; it never branches on a
    value.  So it runs unchanged on any device, inside torch.compile, at other weights, and on the batches of all
    processes together.  Rows that a batch does not measure get the weight 0 instead of being left out.

    Attributes:
        width: k, the number of inner values of a row.
        part: the part of a batch on which it is measured, if there are several loaders; None for the first part, which
            is the objective's.  With several names, ``outputs`` and ``batch`` are mappings from these names.
        weighs_samples: whether it supports samples with weights, column ``sample_weight``.
    """

    width: int = 1
    part: str | tuple[str, ...] | None = None
    weighs_samples: bool = True

    def adapt(self, datamodule: Any) -> None:  # noqa: B027 - most have nothing to take
        """Read from the datamodule (or None) what must be known about the data before the first batch."""

    def check(self, outputs: Any, batch: Any) -> None:  # noqa: B027 - some misread nothing
        """Refuse a batch with data that would be misread, such as labels -1 and 1.

        The engine calls it on the first batch (on all batches of the first epoch if no sampling declares the columns
        and steps are not compiled), and on a later batch with values that are not finite: :meth:`measure`, which does
        not branch on values, returns NaN for data that it would misread (:func:`nan_where`).

        Args:
            outputs: the network's outputs for the part of the batch, of all processes together.
            batch: its columns; with several parts, both are mappings from their names.

        Raises:
            DataError: naming the value and the remedy.
        """

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]] | None:  # noqa: ARG002
        """For every row of a group, task or constraint the subsets of samples of each of which a batch must hold one.

        The inclusion probabilities of the rows, and thus their weights, follow from them.

        Args:
            columns: the columns of the whole training split.

        Returns: for every row a list of masks (num_samples,), bool (a :class:`Partition` for many rows); None if they
        are not known.
        """
        return None

    @abstractmethod
    def measure(self, outputs: Any, batch: Any) -> tuple[Tensor | None, Rows | None]:
        """Mini-batch estimates of g_0(w), a scalar with graph or None, and of the inner functions, or None.

        Args:
            outputs: the network's outputs for the part of the batch.
            batch: its columns; with several parts, both are mappings from their names.

        Raises:
            DataError: if a column is missing, or a shape is wrong.
        """

    def measure_at(self, points: Sequence[Any], batch: Any) -> Sequence[tuple[Tensor | None, Rows | None]]:
        """The results of :meth:`measure` on the same samples at several weights; a subclass may share computations.

        Args:
            points: the network's outputs at each of the weights, as in :meth:`measure`.
            batch: the columns, as in :meth:`measure`.
        """
        return [self.measure(outputs, batch) for outputs in points]


def nan_where(wrong: Tensor, values: Tensor) -> Tensor:
    """``values``, with NaN where the data are wrong.

    The engine checks once per step that all values are finite, before anything is written, and calls
    :meth:`Measurable.check` for the cause if they are not.

    Args:
        wrong: a mask, bool, that broadcasts to ``values``.
        values: tensor of any shape.
    """
    return torch.where(wrong, torch.nan, values)

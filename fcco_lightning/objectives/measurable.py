"""What objectives and constraints share: one method that measures a batch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fcco_lightning.models.batch import Columns
from fcco_lightning.outer import OuterFunction


class Rows(NamedTuple):
    """What a batch contains of the rows of one term, in shapes that follow from the size of the batch alone.

    Attributes:
        values: g_i(w; batch), shape (r, k), with graph; any finite numbers where ``weight`` is 0.
        weight: what each row counts in the mean over all rows, without graph, shape (r,); 0 where the batch
            does not contain it.  Of type bool where all rows count alike.
        outer: f of these rows with its known parameters at their present values; None for the term's own.
        index: which row each of them is, shape (r,), int64; None where single samples own rows for those of the batch,
            by their column ``index``, and elsewhere for all n rows, in their order.
    """

    values: Tensor
    weight: Tensor
    outer: OuterFunction | None = None
    index: Tensor | None = None  # type: ignore[assignment]  # the field hides tuple.index


class Measurable(ABC):
    r"""Measures inner functions ``g_i(w)``, and perhaps a direct part ``g_0(w)``, on a batch.

    :meth:`measure` is a function of tensors in shapes that follow from the size of the batch alone: it never looks at
    a number.  So it runs unchanged on any device, inside torch.compile, at other weights, and on the batches of all
    processes together.  What a batch does not measure has the weight 0 in the place of being left out.

    Attributes:
        width: k, the number of inner values of a row.
        part: the part of a batch on which it is measured, where several loaders contribute; None for the first (for
            the objective's, if it is a constraint).  With several names, ``outputs`` and ``batch`` are mappings of
            these parts.
        weighs_samples: whether samples may have weights of their own, column ``sample_weight``.
    """

    width: int = 1
    part: str | tuple[str, ...] | None = None
    weighs_samples: bool = True

    def adapt(self, datamodule: Any) -> None:  # noqa: B027 - most have nothing to take
        """Take from the datamodule (or None) what must be known of the data before the first batch."""

    def check(self, outputs: Any, batch: Any) -> None:  # noqa: B027 - some misread nothing
        """Look at a batch and refuse data that would be misread, such as labels -1 and 1.

        The engine calls it on the first batch, and again where a later batch gave values that are not finite:
        :meth:`measure`, which looks at no number, makes what it would misread NaN (:func:`nan_where`).

        Args:
            outputs: of the network for the part of the batch, of all processes together.
            batch: its columns; with several parts, both are mappings of these.

        Raises:
            DataError: naming the value and the remedy.
        """

    def subsets(self, columns: Columns) -> Sequence[Sequence[Tensor]] | None:  # noqa: ARG002
        """For rows that are groups, tasks or constraints: of which samples a batch must hold one each to measure row i.

        From them follows how likely a batch is to measure a row, which the row's weight must make up for.

        Args:
            columns: of the whole training split.

        Returns: for every row a list of masks (num_samples,), bool (a :class:`Partition` where rows are many); None if
            that is not known.
        """
        return None

    @abstractmethod
    def measure(self, outputs: Any, batch: Any) -> tuple[Tensor | None, Rows | None]:
        """Mini-batch estimates of g_0(w), a scalar with graph or None, and of the inner functions, or None.

        Args:
            outputs: of the network for the part of the batch.
            batch: its columns; with several parts, both are mappings of these.

        Raises:
            DataError: if a column is missing, or a shape is wrong.
        """

    def measure_at(self, points: Sequence[Any], batch: Any) -> Sequence[tuple[Tensor | None, Rows | None]]:
        """The same samples at several weights, as :meth:`measure` one by one; a subclass may share what is common.

        Args:
            points: outputs of the network at each of the weights, as of :meth:`measure`.
            batch: columns, as of :meth:`measure`.
        """
        return [self.measure(outputs, batch) for outputs in points]


def nan_where(wrong: Tensor, values: Tensor) -> Tensor:
    """``values``, or NaN where something is wrong with the data.

    The engine looks once at every step whether all is finite, before anything is written, and asks
    :meth:`Measurable.check` for the cause if it is not.

    Args:
        wrong: bool, broadcast to ``values``.
        values: of any shape.
    """
    return torch.where(wrong, torch.nan, values)

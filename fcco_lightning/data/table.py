"""Tables of tensors from which a whole batch is gathered column by column."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from fcco_lightning.errors import DataError


class TensorTable(Dataset[dict[str, Tensor]]):
    """Columns of equal length, plus ``index``: the position 0..n-1 of every sample in this very table.

    Args:
        columns: name -> tensor, all with the same first dimension n >= 1, for example ``x`` (n, d) float32,
            ``y`` (n,) int64 and ``group`` (n,) int64.  Floating columns must be finite.
        size: number of rows n; None for that of the columns.
        inputs: a function that computes columns that are not in memory, such as ``x``, for a batch: rows (B,) int64
            -> name -> tensor with first dimension B.  None if all columns are in memory.

    Raises:
        DataError: if a column is no tensor, has no rows or another length than the others, holds NaN or infinity, or is
            called ``index``.

    Example:
        >>> table = TensorTable({"y": torch.tensor([1, 0, 1])})
        >>> table.__getitems__([2, 1])
        {'y': tensor([1, 0]), 'index': tensor([2, 1])}
    """

    def __init__(
        self,
        columns: Mapping[str, Tensor],
        *,
        size: int | None = None,
        inputs: Callable[[Tensor], Mapping[str, Tensor]] | None = None,
    ) -> None:
        for name, column in columns.items():
            _require_tensor(name, column)
        if columns or not size:
            size = _common_length(columns)
        for name, column in columns.items():
            require_finite(name, column)
        self.columns = {name: column.contiguous() for name, column in columns.items()}
        self.columns["index"] = torch.arange(size)
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.columns["index"])

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        """Return sample ``i``: every column without its first dimension."""
        return {name: column[0] for name, column in self.__getitems__([range(len(self))[i]]).items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Return the batch of the B rows ``indices``: every column with first dimension B.

        ``DataLoader`` calls this instead of B times ``__getitem__``; use it with :func:`collate`.
        """
        rows = torch.as_tensor(indices, dtype=torch.int64)
        made = {} if self.inputs is None else self.inputs(rows)
        return {**made, **{name: column.index_select(0, rows) for name, column in self.columns.items()}}


class LabelTable(Dataset[dict[str, Tensor]]):
    """A view of a table with several labels that has one row for every sample and label.

    Row r is a sample with one of its labels: ``task`` is the label's number, ``y`` its value, and ``index`` is r.  All
    other columns are those of the sample.

    Args:
        table: a table with a column ``y`` (n, T).
        missing: value of ``y`` for unknown labels, which have no row; None if all labels are known.

    Raises:
        DataError: if ``y`` is missing or not (n, T).

    Example:
        >>> table = LabelTable(TensorTable({"y": torch.tensor([[1, 0], [0, 1]])}))
        >>> table.__getitems__([3, 1])
        {'y': tensor([1, 0]), 'index': tensor([3, 1]), 'task': tensor([1, 1])}
    """

    def __init__(self, table: TensorTable, missing: float | None = None) -> None:
        y = table.columns.get("y")
        if y is None or y.dim() != 2:
            present = "no column y" if y is None else f"y of shape {tuple(y.shape)}"
            raise DataError(
                f"Batches of labels need y of shape (n, T), but the training table has {present}. Name several label "
                "columns (columns.label: [a, b, c])."
            )
        self.table = table
        labelled = torch.ones_like(y, dtype=torch.bool) if missing is None else y != missing
        self._sample, self._task = labelled.nonzero(as_tuple=True)

    def __len__(self) -> int:
        return len(self._task)

    @property
    def columns(self) -> dict[str, Tensor]:
        """All columns but the network's input, each with first dimension N."""
        labels = {"y": self.table.columns["y"][self._sample, self._task], "task": self._task}
        others = {n: c[self._sample] for n, c in self.table.columns.items() if n not in ("x", "y", "text", "index")}
        return {**others, **labels, "index": torch.arange(len(self))}

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        """Return row ``i``: every column without its first dimension."""
        return {name: column[0] for name, column in self.__getitems__([range(len(self))[i]]).items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Return the batch of the B rows ``indices``."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        batch, task = self.table.__getitems__(self._sample[rows].tolist()), self._task[rows]
        y = batch["y"].gather(1, task.unsqueeze(1)).squeeze(1)
        return {**batch, "y": y, "index": rows, "task": task}


def collate(batch: Any, columns: Mapping[str, Tensor] | None = None) -> Any:
    """Return a batch that is a mapping unchanged, and collate a list of samples as torch does.

    With ``columns`` of the table, each (n,), their entries for the batch are added.
    """
    data = batch if isinstance(batch, Mapping) else default_collate(batch)
    return {**data, **{name: column[data["index"]] for name, column in columns.items()}} if columns else data


def _require_tensor(name: str, column: Any) -> None:
    if not isinstance(column, Tensor):
        kind = f"{type(column).__name__} of {column.dtype}" if hasattr(column, "dtype") else type(column).__name__
        raise DataError(
            f"Column {name!r} must be a tensor, got {kind}. Numbers become one by torch.as_tensor; texts need numbers "
            "first, such as (labels == 'yes') for a label, or TabularDataModule, which takes tables with texts."
        )
    if column.requires_grad or column.layout != torch.strided:
        kind = f"of layout {column.layout}" if column.layout != torch.strided else "that requires a gradient"
        raise DataError(
            f"Column {name!r} must be a dense tensor without a graph, got one {kind}: columns are data. Pass "
            f"{'column.to_dense()' if column.layout != torch.strided else 'column.detach()'}."
        )


def _common_length(columns: Mapping[str, Tensor]) -> int:
    if not columns:
        raise DataError("columns must hold at least one column, got none.")
    if "index" in columns:
        raise DataError("columns must not hold 'index': TensorTable adds it itself (0..n-1). Rename that column.")
    lengths = {name: column.shape[0] if column.ndim else 0 for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise DataError(f"All columns must have the same number of rows, got {lengths}.")
    size = next(iter(lengths.values()))
    if size == 0:
        raise DataError(f"A table needs at least one row; the columns {sorted(columns)} have none.")
    return size


def require_finite(name: str, column: Tensor) -> None:
    """Raise :class:`DataError` with the number of rows if a float column ``name``, (n, ...), is not finite."""
    if not column.is_floating_point() or math.isfinite(column.sum()):
        return  # fast check: if the sum is finite, so are all entries
    nonfinite = ~torch.isfinite(column).reshape(len(column), -1).all(dim=1)
    if nonfinite.any():
        raise DataError(
            f"Column {name!r} must be finite, but {int(nonfinite.sum())} of {len(column)} rows hold NaN or infinity "
            f"(first: row {int(nonfinite.int().argmax())}). Remove or impute them before building the table."
        )

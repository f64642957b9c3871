"""Sides of a constraint that are subsets of the samples, described by conditions on columns."""

import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from fcco_lightning.constraints.sides import Sides
from fcco_lightning.data.conditions import Condition, Where, described, holds, values_of
from fcco_lightning.errors import ConfigError, DataError
from fcco_lightning.models.batch import Columns
from fcco_lightning.numerics import Known
from fcco_lightning.objectives.base import one_label_each


class Subset:
    """The samples whose columns meet conditions, such as ``{race: Black, age: "<25"}``.

    A condition is a value, a list of allowed values, or a text with comparisons ("<25", ">=18 and <65").  Numbers are
    compared with the columns of a batch.  The datamodule (:meth:`adapt`) translates names of values, and columns of the
    table that batches do not have.

    Args:
        where: column -> condition; all samples if empty.
        argument: name of the argument that gave the subset, for messages.

    Attributes:
        where: the conditions as given.
        conditions: the translated conditions, on columns that batches have.

    Raises:
        ConfigError: if a condition is neither a value nor a list of values.
    """

    def __init__(self, where: Mapping[str, Condition] | None, argument: str = "where") -> None:
        if where is not None and not isinstance(where, Mapping):
            raise ConfigError(
                f"`{argument}` must be a mapping of columns to values, such as {{'group': 1}}, got {where!r}."
            )
        self.where: Where = dict(where or {})
        self.argument, self.conditions = argument, self.where
        for column, condition in self.where.items():
            values_of(condition, column)

    def __str__(self) -> str:
        return described(self.where)

    def adapt(self, datamodule: Any) -> None:
        """Let the datamodule (or None) translate the conditions to columns and numbers of its batches.

        Raises:
            DataError: if a column or a value does not exist.
        """
        if hasattr(datamodule, "add_subset"):
            self.conditions = datamodule.add_subset(self.where)

    def check(self, columns: Columns, marked: Tensor | None = None) -> None:
        """Refuse labels other than classes 0, 1, ... if there is a condition on ``y``, and an empty subset of a split.

        Args:
            columns: columns of a batch or of a split.
            marked: a mask of the subset in a split, shape (n,); None for a batch.

        Raises:
            DataError: if the labels are not whole numbers >= 0, or no sample is marked.
        """
        if "y" in self.conditions and "y" in columns:
            y = columns["y"]
            wrong = y[(y < 0) | (y != y.round())] if y.is_floating_point() else y[y < 0]
            if wrong.numel():
                raise DataError(
                    f"{self.argument}={self.where!r} asks for a class, but the labels y contain {wrong[0].item():g}; "
                    "classes are numbered 0, 1, ... Recode the labels: (y + 1) // 2 for -1 and 1, (y > 0.5) for "
                    "probabilities."
                )
        if marked is not None and not bool(marked.any()):
            raise DataError(
                f"{self.argument}={self.where!r} holds for no sample of the split: {self._values(columns)}. "
                "Change the condition, or the split."
            )

    def _values(self, columns: Columns) -> str:
        """A phrase with the number of samples that meet each condition, and the values of the columns."""
        parts = []
        for (name, condition), written in zip(self.conditions.items(), self.where, strict=True):
            number = int(holds(columns[name], condition, name).sum())
            values = torch.unique(columns[name]).tolist()
            shown = (
                "" if written != name else f" (its values are {values[:12]}{' and more' if len(values) > 12 else ''})"
            )
            parts.append(f"{number} have {described({written: self.where[written]})}{shown}")
        return ", ".join(parts)


class SidesOfSubsets(Sides):
    """Subsets whose masks are computed together, column by column.

    Of m rows and k m subsets row i compares the subsets i k, ..., i k + k - 1.

    Args:
        subsets: the subsets.
        names: names of the m rows.
    """

    def __init__(self, subsets: Sequence[Subset], names: Sequence[str]) -> None:
        self.subsets, self.names = list(subsets), list(names)
        width = len(subsets) // len(names)
        self.rows = [range(i, i + width) for i in range(0, len(subsets), width)]
        self.everyone = [subset.where for subset in subsets] == [{}]
        self.adapt(None)

    def adapt(self, datamodule: Any) -> None:
        for subset in self.subsets:
            subset.adapt(datamodule)
        conditions = [subset.conditions for subset in self.subsets]
        names = dict.fromkeys(name for one in conditions for name in one)
        self._columns = [_ColumnConditions(name, [one.get(name) for one in conditions]) for name in names]

    def check(self, columns: Columns, needed_by: object, *, split: bool = False) -> None:
        masks = self.members(columns, needed_by)[0] if split else [None] * len(self.subsets)
        for subset, marked in zip(self.subsets, masks, strict=True):
            subset.check(columns, marked)

    def members(self, batch: Columns, needed_by: object) -> Tensor:
        if missing := [one.name for one in self._columns if one.name not in batch]:
            self._refuse(missing, batch)
        if not self._columns:
            column = next(iter(batch.values()))
            return torch.ones(1, len(self.subsets), len(column), dtype=torch.bool, device=column.device)
        masks = (one.holds(one_label_each(batch, needed_by, one.name)) for one in self._columns)
        return reduce(operator.and_, masks).unsqueeze(0)

    def _refuse(self, missing: Sequence[str], batch: Columns) -> None:
        """Name the columns that a batch lacks, and the first argument that needs one of them."""
        first = next(subset for subset in self.subsets if not subset.conditions.keys().isdisjoint(missing))
        raise DataError(
            f"`{first.argument}` needs the column(s) {[name for name in first.conditions if name in missing]}, the "
            f"batch has {sorted(batch)}. Use y (label, 0 or 1), group (1 for the favoured group) or another column of "
            "the data (of an IndexedDataset: one of its `columns`). In your own training loop, encode a text column as "
            "numbers, for example with pandas.factorize."
        )


class _ColumnConditions:
    """The conditions of several subsets on the same column; those that are numbers are compared at once.

    Args:
        name: name of the column.
        conditions: the condition of every subset; None for none.
    """

    def __init__(self, name: str, conditions: Sequence[Condition | None]) -> None:
        numbers = {i: float(c) for i, c in enumerate(conditions) if isinstance(c, bool | int | float)}
        table = [numbers.get(i, 0.0) for i in range(len(conditions))]
        self.name, self._numbers = name, Known(torch.tensor(table, dtype=torch.float64).unsqueeze(1))
        self._whole = all(number.is_integer() and abs(number) < 2**53 for number in table)
        self._others = {i: c for i, c in enumerate(conditions) if c is not None and i not in numbers}
        self._free = Known(torch.tensor([[c is None] for c in conditions])) if None in conditions else None

    def holds(self, column: Tensor) -> Tensor:
        """Which samples meet the condition of each subset, shape (m, B), bool."""
        whole = self._whole and not column.is_floating_point()
        dtype = torch.int64 if whole else torch.promote_types(column.dtype, torch.float32)
        table = column == self._numbers.like(column, dtype)
        if self._free is not None:
            table = table | self._free.like(column)
        if not self._others:
            return table
        rows = list(table)
        for row, condition in self._others.items():
            rows[row] = holds(column, condition, self.name)
        return torch.stack(rows)

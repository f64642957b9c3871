"""Groups of the rows of a table, defined by combinations of the values of some columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from fcco_lightning.checks import at_least, finite, list_of, one_of
from fcco_lightning.data.columns import is_number, listed, require_columns, require_filled, text_of, with_commas
from fcco_lightning.data.encoding import bin_names, bin_of
from fcco_lightning.errors import ConfigError, DataError

OTHER = "other"


@dataclass(frozen=True)
class GroupBy:
    """A column and a partition of its values; without further arguments every value is a part.

    Args:
        column: name of the column.
        bins: ascending edges that cut a numeric column: [30, 45] gives the parts "<=30", "(30,45]" and ">45".
        values: value -> name of its part.  Whole numbers are written "1", even if the cells are floats.
        other: part of the values that ``values`` does not mention; None refuses them.

    Raises:
        ConfigError: if ``bins`` and ``values`` are both given, ``bins`` is empty or not ascending, ``values`` is empty,
            or ``other`` is given without ``values``.

    Example:
        >>> frame = pd.DataFrame({"age": [30, 31, 60]})
        >>> GroupBy("age", bins=[30, 45]).read(frame, "the table").tolist()
        ['<=30', '(30,45]', '>45']
    """

    column: str
    bins: Sequence[float] | None = None
    values: Mapping[str, str] | None = None
    other: str | None = None

    def __post_init__(self) -> None:
        argument = f"groups.by of column {self.column!r}"
        if self.bins is not None:
            edges = [finite(f"an edge of bins ({argument})", edge) for edge in list_of(f"bins ({argument})", self.bins)]
            if not edges or edges != sorted(set(edges)):
                raise ConfigError(f"{argument}: bins must be ascending and not empty, got {edges}.")
            if self.values is not None:
                raise ConfigError(f"{argument}: bins cut numbers and values rename cells; give one of them, not both.")
        if self.values is not None and not self.values:
            raise ConfigError(
                f"{argument}: values must name at least one cell; leave it out to take every value as a part."
            )
        if self.other is not None and self.values is None:
            raise ConfigError(
                f"{argument}: other={self.other!r} is for cells that values does not mention; give values."
            )

    @classmethod
    def of(cls, rule: "str | Mapping[str, Any] | GroupBy") -> "GroupBy":
        """Return ``rule`` if it is a ``GroupBy``, else one made from a column's name or a mapping of arguments.

        Raises:
            ConfigError: if a mapping lacks ``column`` or has unknown keys, or ``rule`` is of another type.
        """
        if isinstance(rule, cls):
            return rule
        if isinstance(rule, str):
            return cls(rule)
        fields = {"column", "bins", "values", "other"}
        if not isinstance(rule, Mapping) or "column" not in rule or not rule.keys() <= fields:
            raise ConfigError(
                f"An entry of groups.by must be a column's name, a GroupBy, or a mapping with column and possibly "
                f"bins, values and other; got {rule!r}."
            )
        return cls(**rule)

    def read(self, frame: pd.DataFrame, where: str) -> pd.Series:
        """Return the part of every row of ``frame`` as text, shape (n,).

        Args:
            frame: n rows.
            where: name of the table in messages.

        Raises:
            DataError: if the column is absent or has missing cells, ``bins`` is given for anything but numbers, or a
                cell is not mentioned in ``values`` and ``other`` is None.
        """
        require_columns(frame, {"groups.by": [self.column]}, where)
        cells = frame[self.column]
        require_filled(cells, "groups.by", where)
        if self.bins is not None:
            if not is_number(cells.dtype):
                raise DataError(
                    f"groups.by={self.column!r} has bins={list(self.bins)}, which cut numbers, but the column is "
                    f"{cells.dtype} in {where}. Repair it, or use values instead of bins. "
                    f"{f'The column {remark}.' if (remark := with_commas(cells)) else ''}".rstrip()
                )
            names = np.array(bin_names(self.bins), dtype=object)
            return pd.Series(names[bin_of(cells.to_numpy(dtype=np.float64), self.bins)], index=cells.index)
        text = text_of(cells)
        return text if self.values is None else self._renamed(text, where)

    def place(self, part: str) -> int | str:
        """Return the sort key of a part: bins are sorted from low to high, other parts as texts."""
        return part if self.bins is None else bin_names(self.bins).index(part)

    def require_values(self, frame: pd.DataFrame, where: str) -> None:
        """Raise :class:`DataError` if no cell of ``frame`` has a value that ``values`` mentions: it may be misspelt."""
        values = set(text_of(frame[self.column]))
        absent = sorted(self._parts().keys() - values)
        if absent:
            raise DataError(
                f"values of groups.by={self.column!r} names {absent}, which do not occur in {where}; its values are "
                f"{listed(values)}. Correct the names, or leave them out."
            )

    def _parts(self) -> dict[str, str]:
        return {str(cell).strip(): part for cell, part in (self.values or {}).items()}

    def _renamed(self, text: pd.Series, where: str) -> pd.Series:
        parts = text.map(self._parts())
        unknown = parts.isna()
        if unknown.any() and self.other is None:
            raise DataError(
                f"values of groups.by={self.column!r} does not mention {listed(text[unknown].unique())}, found in "
                f"{unknown.sum()} rows of {where}. Add them, or set other to the part they belong to."
            )
        return parts.fillna(self.other) if self.other is not None else parts


@dataclass(frozen=True)
class Groups:
    """Which columns define the groups of a table, and how small groups are treated; applied by :class:`Grouping`.

    Args:
        by: the columns: names, :class:`GroupBy`, or mappings with its arguments.
        min_size: smallest number of rows of a group in the table that defines the groups.
        small: treatment of smaller groups: "drop" leaves their rows out, "error" refuses them, "merge" unites them in
            one group "other" of any size.
        as_features: whether the columns of ``by``, except the label, are also features.

    Raises:
        ConfigError: if ``by`` is empty, malformed or names a column twice, or another argument is out of range.
    """

    by: list[str | GroupBy]
    min_size: int = 1
    small: Literal["drop", "error", "merge"] = "drop"
    as_features: bool = True

    def __post_init__(self) -> None:
        columns = [part.column for part in self.parts]
        if not columns or len(set(columns)) < len(columns):
            raise ConfigError(f"groups.by must name at least one column, and none of them twice, got {columns}.")
        at_least("groups.min_size", self.min_size, 1)
        one_of("groups.small", self.small, ("drop", "error", "merge"))

    @property
    def parts(self) -> list[GroupBy]:
        """The columns with the partitions of their values."""
        return [GroupBy.of(rule) for rule in list_of("groups.by", self.by)]


class Grouping:
    """Groups of rows: the combinations of parts of several columns that occur at least ``min_size`` times.

    Groups are named "income=>50K, sex=Male", and numbered in the order of their parts, the last column fastest.

    Args:
        groups: the columns, and the treatment of small groups.

    Attributes:
        by: the columns with their parts.
        names: names of the G groups.
        unseen: names of the groups G, G + 1, ... that :meth:`number_unseen` found.
        left_out: name of a combination that was too small, or merged -> its number of rows in the fit.

    Example:
        >>> frame = pd.DataFrame({"sex": ["M", "F", "M"], "age": [20, 50, 60]})
        >>> grouping = Grouping(Groups(["sex", GroupBy("age", bins=[30])])).fit(frame)
        >>> grouping.names
        ['sex=F, age=>30', 'sex=M, age=<=30', 'sex=M, age=>30']
        >>> grouping.assign(pd.DataFrame({"sex": ["M", "F"], "age": [31, 20]}))
        tensor([ 2, -1])
    """

    def __init__(self, groups: Groups) -> None:
        self.min_size, self.small, self.by = groups.min_size, groups.small, groups.parts
        self.names: list[str] = []
        self.unseen: list[str] = []
        self.left_out: dict[str, int] = {}
        self._merged = False

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
        return [part.column for part in self.by]

    def fit(self, frame: pd.DataFrame, where: str = "the table") -> "Grouping":
        """Define the groups by ``frame``, which is called ``where`` in messages, and return self.

        Raises:
            DataError: if a column cannot be read (see :meth:`GroupBy.read`), a value to be renamed does not occur, a
                combination is too small and ``small`` is "error", or no group is left.
        """
        counts = self._counts(frame, where)
        for part in self.by:
            part.require_values(frame, where)
        enough = counts >= self.min_size
        self.left_out = {self._name(cell): int(count) for cell, count in counts[~enough].items()}
        self._refuse_small(counts, where)
        self.names = [self._name(cell) for cell in counts[enough].index]
        self._merged = bool(self.left_out) and self.small == "merge"
        if self._merged:
            self.names.append(OTHER)
        return self

    def know(self, names: Sequence[str]) -> None:
        """Set the names of groups that were defined by another table."""
        self.names, self._merged = [*names], self.small == "merge" and OTHER in names

    def number_unseen(self, frames: Mapping[str, pd.DataFrame]) -> None:
        """Number the combinations in these tables that the table of the fit lacks, from G on, sorted by name."""
        if self._merged:  # they belong to the group "other"
            return
        cells = pd.concat([self._cells(frame, where) for where, frame in frames.items()]).drop_duplicates()
        names = {self._name(cell) for cell in cells.itertuples(index=False, name=None)}
        self.unseen = sorted(names - {*self.names, *self.left_out})

    def assign(self, frame: pd.DataFrame, where: str = "the table") -> Tensor:
        """Return the group of every row, shape (n,), int64 in 0..G-1, or of ``unseen``; -1 for rows without a group.

        Raises:
            DataError: if it is not fitted, or a column cannot be read (see :meth:`GroupBy.read`).
        """
        if not self.names:
            raise DataError("Grouping is not fitted: call fit(frame) first.")
        codes, cells = pd.factorize(pd.MultiIndex.from_frame(self._cells(frame, where)))
        numbers = {name: number for number, name in enumerate([*self.names, *self.unseen])}
        none = len(self.names) - 1 if self._merged else -1
        group_numbers = [numbers.get(self._name(cell), none) for cell in cells]
        return torch.from_numpy(np.array(group_numbers, dtype=np.int64)[codes])

    def _refuse_small(self, counts: pd.Series, where: str) -> None:
        if self.left_out and self.small == "error":
            raise DataError(
                f"{len(self.left_out)} groups of {where} have fewer than min_size={self.min_size} rows: "
                f"{listed(f'{name}: {size}' for name, size in self.left_out.items())}. Lower min_size, take coarser "
                "parts in groups.by, or set small='drop' or small='merge'."
            )
        if len(self.left_out) == len(counts) and self.small == "drop":
            raise DataError(
                f"No group of {where} has min_size={self.min_size} rows; the largest has {counts.max()}. Lower "
                "min_size, or take coarser parts in groups.by."
            )

    def _cells(self, frame: pd.DataFrame, where: str) -> pd.DataFrame:
        return pd.DataFrame({part.column: part.read(frame, where) for part in self.by})

    def _counts(self, frame: pd.DataFrame, where: str) -> pd.Series:
        """Return how often every combination occurs, in the order of the parts."""
        places = {part.column: part.place for part in self.by}
        counts = self._cells(frame, where).value_counts()
        return counts.sort_index(key=lambda level: level.map(places[str(level.name)]))

    def _name(self, cell: Any) -> str:
        return ", ".join(f"{column}={part}" for column, part in zip(self.columns, cell, strict=True))
